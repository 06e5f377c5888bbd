#include "server/browser_guard.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

HttpRequest request(std::string method, HttpHeaders headers) {
  HttpRequest r;
  r.method = std::move(method);
  r.path = "/v1/completions";
  r.headers = std::move(headers);
  return r;
}

// The refusal's status, or 200; `sent` is the answer with the fields that were added.
int verdict(const BrowserGuard& guard, const HttpRequest& r, std::string* sent = nullptr) {
  Responder out({});
  Refusal refused = guard.check(r, out);
  out.send({});
  std::string scrap;
  out.take(sent ? *sent : scrap);
  return refused ? refused->status : 200;
}

TEST(BrowserGuard, Hosts) {
  BrowserGuard::Options beyond{"0.0.0.0", false, false, {"api.example.org"}, {}};
  BrowserGuard::Options keys{"0.0.0.0", false, true, {}, {}};
  BrowserGuard::Options named{"Box.example", true, false, {"Other.example", "third:81"}, {}};
  const BrowserGuard local, open(beyond), keyed(keys), known(named);
  struct {
    const char* host;
    int local, open, keyed, known;
  } rows[] = {
      {"localhost", 200, 200, 200, 200},
      {"LOCALHOST.:8080", 200, 200, 200, 200},
      {"127.0.0.1:8080", 200, 200, 200, 200},
      {"127.1.2.3", 200, 200, 200, 200},
      {"[::1]:8080", 200, 200, 200, 200},
      {"192.168.1.5:8080", 200, 200, 200, 200},  // cannot be rebound
      {"", 200, 200, 200, 200},                  // HTTP/1.0
      {"evil.example", 421, 421, 200, 421},
      {"evil.example:8080", 421, 421, 200, 421},
      {"localhost.evil.example", 421, 421, 200, 421},
      {"127.0.0.1.evil.example", 421, 421, 200, 421},
      {"evil.localhost.example", 421, 421, 200, 421},
      {"[::1", 200, 200, 200, 200},
      {"[evil.example]", 421, 421, 200, 421},
      {"127.0.0.1evil", 421, 421, 200, 421},
      {"gpu-box:8080", 421, 200, 200, 421},
      {"box.example", 421, 421, 200, 200},
      {"other.EXAMPLE:1", 421, 421, 200, 200},
      {"third:81", 421, 200, 200, 200},
      {"third:82", 421, 200, 200, 421},
      {"api.example.org", 421, 200, 200, 421},
  };
  for (const auto& row : rows) {
    HttpRequest r = request("GET", {{"host", row.host}});
    EXPECT_EQ(verdict(local, r), row.local) << row.host;
    EXPECT_EQ(verdict(open, r), row.open) << row.host;
    EXPECT_EQ(verdict(keyed, r), row.keyed) << row.host;
    EXPECT_EQ(verdict(known, r), row.known) << row.host;
  }
}

TEST(BrowserGuard, OriginsAndTypes) {
  BrowserGuard::Options some, all;
  some.cors = {"https://App.example", "null"};
  all.cors = {"*"};
  const BrowserGuard none, listed(some), any(all);
  const char* kJson = "application/json";
  struct {
    const char *method, *origin, *site, *type;
    int none, listed, any;
  } rows[] = {
      {"POST", "", "", "", 200, 200, 200},  // curl
      {"POST", "", "", kJson, 200, 200, 200},
      {"POST", "http://localhost:8080", "", kJson, 200, 200, 200},
      {"POST", "https://localhost:8080", "same-origin", kJson, 200, 200, 200},
      {"POST", "http://localhost:8080", "", "", 415, 415, 415},
      {"POST", "http://localhost:8081", "same-site", kJson, 403, 403, 200},
      {"POST", "http://localhost", "", kJson, 403, 403, 200},
      {"POST", "https://evil.example", "cross-site", kJson, 403, 403, 200},
      {"POST", "https://evil.example", "", "", 403, 403, 415},
      {"GET", "https://evil.example", "cross-site", "", 403, 403, 200},
      {"POST", "https://app.example", "cross-site", kJson, 403, 200, 200},
      {"POST", "https://app.example", "cross-site", "", 403, 415, 415},
      {"POST", "https://app.example.evil", "", kJson, 403, 403, 200},
      {"POST", "null", "cross-site", kJson, 403, 200, 200},
      {"GET", "null", "cross-site", "", 200, 200, 200},
      {"POST", "", "cross-site", "", 415, 415, 415},
      {"POST", "", "same-site", "", 415, 415, 415},
      {"POST", "", "none", "", 200, 200, 200},
      {"GET", "", "cross-site", "", 200, 200, 200},  // a link to the page
  };
  for (const auto& row : rows) {
    HttpRequest r = request(row.method, {{"host", "localhost:8080"}});
    if (*row.origin) r.headers.emplace_back("origin", row.origin);
    if (*row.site) r.headers.emplace_back("sec-fetch-site", row.site);
    if (*row.type) r.headers.emplace_back("content-type", row.type);
    std::string what = std::string(row.method) + ' ' + row.origin + ' ' + row.site + ' ' + row.type;
    EXPECT_EQ(verdict(none, r), row.none) << what;
    EXPECT_EQ(verdict(listed, r), row.listed) << what;
    EXPECT_EQ(verdict(any, r), row.any) << what;
  }
}

TEST(BrowserGuard, MessagesAreShortValidText) {
  for (const HttpHeaders& fields :
       {HttpHeaders{{"host", std::string(10'000, 'a') + ".example"}},
        HttpHeaders{{"host", "localhost"}, {"origin", std::string(10'000, '\xff')}}}) {
    Responder out({});
    Refusal refused = BrowserGuard().check(request("POST", fields), out);
    ASSERT_TRUE(refused);
    EXPECT_LT(refused->message.size(), 400u);
    EXPECT_EQ(refused->message.find('\xff'), std::string::npos);
  }
}

TEST(BrowserGuard, FieldsOfCors) {
  BrowserGuard::Options some, all;
  some.cors = {"https://app.example"};
  all.cors = {"*"};
  std::string sent;
  HttpRequest r = request("GET", {{"host", "localhost"}, {"origin", "https://app.example"}});
  verdict(BrowserGuard(some), r, &sent);
  EXPECT_NE(sent.find("Access-Control-Allow-Origin: https://app.example\r\n"), sent.npos);
  EXPECT_NE(sent.find("Vary: Origin\r\n"), sent.npos);
  EXPECT_NE(sent.find("Access-Control-Expose-Headers: x-request-id"), sent.npos);
  verdict(BrowserGuard(all), r, &sent);
  EXPECT_NE(sent.find("Access-Control-Allow-Origin: *\r\n"), sent.npos);
  verdict(BrowserGuard(), request("GET", {{"host", "localhost"}, {"origin", "null"}}), &sent);
  EXPECT_EQ(sent.find("Access-Control"), sent.npos);
}

TEST(BrowserGuard, FlagsAreChecked) {
  auto good = [](std::vector<std::string> hosts, std::vector<std::string> cors) {
    BrowserGuard::Options o;
    o.allowed_hosts = std::move(hosts);
    o.cors = std::move(cors);
    return bool(BrowserGuard::check(o));
  };
  EXPECT_TRUE(
      good({"a.example", "*", "b:80"}, {"https://a.example", "http://[::1]:3", "*", "null"}));
  for (const char* bad : {"", "http://a", "a b", "*.example", "a/"})
    EXPECT_FALSE(good({bad}, {})) << bad;
  for (const char* bad : {"", "a.example", "https://a.example/", "https://*.a", "://a", "https://"})
    EXPECT_FALSE(good({}, {bad})) << bad;
}

}  // namespace
}  // namespace sluice

#include "net/http_get.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>

#include "net/http.h"
#include "net/proxy.h"

namespace sluice {
namespace {

std::string shown(const Result<HttpTarget>& t) {
  if (!t) return "error";
  return (t->origin.tls ? "https " : "http ") + http_authority(t->origin) + " " + t->target;
}

TEST(HttpGet, Targets) {
  EXPECT_EQ(shown(parse_http_target("https://h/a/b?x=1&y=a%2Fb#part")), "https h /a/b?x=1&y=a%2Fb");
  EXPECT_EQ(shown(parse_http_target("http://h:81")), "http h:81 /");
  EXPECT_EQ(shown(parse_http_target("http://[::1]:81?x")), "http [::1]:81 /?x");
  for (const char* bad :
       {"", "h/a", "ftp://h/", "http://", "http://u@h/", "http://h/a b", "http://h/\r\nX: y"})
    EXPECT_EQ(shown(parse_http_target(bad)), "error") << bad;
}

TEST(HttpGet, Redirects) {
  HttpTarget from = parse_http_target("https://h/a?b").value();
  EXPECT_EQ(shown(redirected(from, "/c?d")), "https h /c?d");
  EXPECT_EQ(shown(redirected(from, "//other/c")), "https other /c");
  EXPECT_EQ(shown(redirected(from, "https://other:444/c")), "https other:444 /c");
  EXPECT_EQ(shown(redirected(from, "http://h/c")), "error");  // from https to http
  EXPECT_EQ(shown(redirected(from, "file:///etc/passwd")), "error");
}

TEST(HttpGet, PercentEncoding) {
  EXPECT_EQ(percent_encoded("a b/c?d#e%f\xc3\xa4-._~"), "a%20b/c%3Fd%23e%25f%C3%A4-._~");
}

// Variables of the environment while a test runs.
struct Environment {
  explicit Environment(std::initializer_list<std::pair<const char*, const char*>> set) {
    for (const char* name : {"http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY",
                             "no_proxy", "NO_PROXY"})
      change(name, nullptr);
    for (auto [name, value] : set) change(name, value);
  }
  ~Environment() {
    for (auto it = before.rbegin(); it != before.rend(); ++it)
      it->second ? setenv(it->first, it->second->c_str(), 1) : unsetenv(it->first);
  }
  void change(const char* name, const char* value) {
    const char* old = std::getenv(name);
    before.emplace_back(name, old ? std::optional<std::string>(old) : std::nullopt);
    value ? setenv(name, value, 1) : unsetenv(name);
  }
  std::vector<std::pair<const char*, std::optional<std::string>>> before;
};

// Answers by path: /loop redirects to itself, /away to the other, all else says who and what.
struct Peer {
  std::unique_ptr<HttpServer> server;
  std::string away;
  std::vector<HttpRequest> seen;

  Peer() {
    HttpServer::Options o;
    o.on_request = [this](HttpRequest r, std::shared_ptr<Responder> out) {
      HttpResponse answer{200, "text/plain", std::string(100'000, 'x'), {}};
      if (r.path == "/loop") answer = {302, "text/plain", "moved", {{"Location", "/loop"}}};
      if (r.path == "/away") answer = {302, "text/plain", "moved", {{"Location", away}}};
      seen.push_back(std::move(r));
      out->send(std::move(answer));
    };
    o.refuse = [](int status, std::string_view why) {
      return HttpResponse{status, "text/plain", std::string(why), {}};
    };
    server = HttpServer::start(o).value();
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(server->port()); }
};

TEST(HttpGet, FollowsAndKeepsSecrets) {
  Environment direct({});
  Peer other, first;
  first.away = other.url() + "/there?x=1";
  HttpGetter getter;
  HttpGetter::Request r;
  r.at = parse_http_target(first.url() + "/away").value();
  r.headers = {{"X-All", "yes"}};
  r.authorization = "Bearer secret";
  HttpReply reply = getter.get(r, size_t{1} << 20);
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body.size(), 100'000u);
  ASSERT_EQ(first.seen.size(), 1u);
  ASSERT_EQ(other.seen.size(), 1u);
  EXPECT_EQ(first.seen[0].header("authorization"), "Bearer secret");
  EXPECT_EQ(other.seen[0].header("authorization"), "");
  EXPECT_EQ(other.seen[0].header("x-all"), "yes");
  EXPECT_EQ(other.seen[0].query, "x=1");
}

TEST(HttpGet, EndsLoopsAndLongBodies) {
  Environment direct({});
  Peer peer;
  HttpGetter getter;
  HttpGetter::Request r;
  r.at = parse_http_target(peer.url() + "/loop").value();
  EXPECT_EQ(getter.get(r, 1000).detail, "more than 10 redirects");
  EXPECT_EQ(peer.seen.size(), 11u);
  r.at.target = "/";
  EXPECT_EQ(getter.get(r, 1000).detail, "the answer is too large");
  size_t got = 0;
  HttpGetter::Sink sink;
  sink.on_body = [&](std::string_view bytes) {
    got += bytes.size();
    return false;
  };
  EXPECT_EQ(getter.get(r, sink).failure, HttpFailure::cancelled);
  EXPECT_LT(got, 100'000u);
  EXPECT_EQ(getter.get(r, 1 << 20).status, 200);  // and goes on
}

std::string proxy_of(const char* url) {
  Result<std::optional<HttpProxy>> p = proxy_from_environment(parse_http_url(url).value());
  if (!p) return p.error().message;
  return *p ? http_authority((*p)->url) + " " + (*p)->authorization : "none";
}

TEST(Proxy, Variables) {
  {
    Environment none({});
    EXPECT_EQ(proxy_of("https://h"), "none");
  }
  Environment set({{"https_proxy", "http://user:p%40ss@proxy:3128"},
                   {"http_proxy", "plain:81"},
                   {"no_proxy", "localhost, .inner.example,10.0.0.1"}});
  EXPECT_EQ(proxy_of("https://h"), "proxy:3128 Basic dXNlcjpwQHNz");
  EXPECT_EQ(proxy_of("http://h"), "plain:81 ");
  EXPECT_EQ(proxy_of("https://localhost:1"), "none");
  EXPECT_EQ(proxy_of("https://a.inner.example"), "none");
  EXPECT_EQ(proxy_of("https://inner.example"), "none");
  EXPECT_EQ(proxy_of("https://notinner.example"), "proxy:3128 Basic dXNlcjpwQHNz");
  EXPECT_EQ(proxy_of("https://10.0.0.1"), "none");
  Environment bad({{"https_proxy", "socks5://u:secret@h:1"}});
  EXPECT_EQ(proxy_of("https://h").find("https_proxy is not"), 0u);
  EXPECT_EQ(proxy_of("https://h").find("secret"), std::string::npos);
}

}  // namespace
}  // namespace sluice

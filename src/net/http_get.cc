#include "net/http_get.h"

#include <algorithm>

#include "base/str.h"
#include "net/proxy.h"

namespace sluice {

namespace {

constexpr size_t kMaxUrl = 16 << 10;

std::string origin_name(const HttpUrl& u) {
  return (u.tls ? "https://" : "http://") + http_authority(u);
}

const std::string* find_header(const HttpHeaders& headers, std::string_view name) {
  for (const auto& [key, value] : headers)
    if (key == name) return &value;
  return nullptr;
}

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

HttpReply failed(HttpFailure failure, std::string detail) {
  HttpReply r;
  r.failure = failure;
  r.detail = std::move(detail);
  return r;
}

// Hands one answer on, or keeps quiet about a redirect.
struct Relay final : HttpListener {
  explicit Relay(const HttpGetter::Sink& to) : sink(to) {}
  const HttpGetter::Sink& sink;
  HttpReply reply;
  bool done = false, stop = false, redirect = false;

  void on_head(int status, const HttpHeaders& headers) override {
    reply.status = status;
    reply.headers = headers;
    redirect = is_redirect(status) && find_header(headers, "location");
    if (!redirect && sink.on_head && !sink.on_head(status, headers)) stop = true;
  }
  void on_body(std::string_view bytes) override {
    if (!redirect && !stop && sink.on_body && !sink.on_body(bytes)) stop = true;
  }
  void on_end(HttpFailure failure, const std::string& detail) override {
    reply.failure = stop ? HttpFailure::cancelled : failure;
    reply.detail = detail;
    done = true;
  }
};

}  // namespace

Result<HttpTarget> parse_http_target(std::string_view url) {
  if (url.size() > kMaxUrl) return Error{400, "an address of more than 16 KiB"};
  url = url.substr(0, url.find('#'));
  bool clean = std::all_of(url.begin(), url.end(), [](char c) { return c > 0x20 && c < 0x7f; });
  size_t host = url.find("://");
  if (!clean || host == std::string_view::npos)
    return Error{400, strf("%s is no address of HTTP", quote(url).c_str())};
  size_t path = std::min(url.find_first_of("/?", host + 3), url.size());
  Result<HttpUrl> origin = parse_http_url(url.substr(0, path));
  if (!origin) return origin.error();
  HttpTarget t{std::move(*origin), std::string(url.substr(path))};
  if (!t.target.starts_with('/')) t.target.insert(0, "/");
  return t;
}

Result<HttpTarget> redirected(const HttpTarget& from, std::string_view location) {
  std::string whole(location);
  if (location.starts_with("//")) {
    whole = (from.origin.tls ? "https:" : "http:") + whole;
  } else if (location.starts_with('/')) {
    whole = origin_name(from.origin) + whole;
  }
  Result<HttpTarget> to = parse_http_target(whole);
  if (!to) return Error{400, strf("redirected to %s, which is no address", quote(whole).c_str())};
  if (from.origin.tls && !to->origin.tls)
    return Error{400, strf("redirected from https to %s: refused", quote(whole).c_str())};
  return to;
}

std::string percent_encoded(std::string_view path) {
  std::string out;
  for (char c : path) {
    bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                 std::string_view("-._~/").find(c) != std::string_view::npos;
    if (plain) {
      out += c;
    } else {
      out += strf("%%%02X", static_cast<unsigned>(static_cast<unsigned char>(c)));
    }
  }
  return out;
}

Result<HttpClient*> HttpGetter::client_for(const HttpUrl& origin) {
  std::string name = origin_name(origin);
  if (auto it = clients_.find(name); it != clients_.end()) return it->second.get();
  Result<std::optional<HttpProxy>> proxy = proxy_from_environment(origin);
  if (!proxy) return proxy.error();
  HttpClient::Options o;
  o.url = origin;
  o.proxy = *proxy;
  o.max_connections = 1;
  o.connect = options_.connect;
  o.stall = options_.stall;
  o.request = std::chrono::hours(24 * 7);  // a large file on a slow line: only silence ends it
  Result<std::unique_ptr<HttpClient>> client = HttpClient::open(o);
  if (!client) return client.error();
  if (*proxy && !origin.tls) proxy_authorization_[name] = (*proxy)->authorization;
  return (clients_[name] = std::move(*client)).get();
}

HttpReply HttpGetter::get(const Request& request, const Sink& sink) {
  const std::string first = origin_name(request.at.origin);
  HttpTarget at = request.at;
  for (int hops = 0; hops <= options_.max_redirects; ++hops) {
    Result<HttpClient*> client = client_for(at.origin);
    if (!client) return failed(HttpFailure::connect, client.error().message);
    const std::string name = origin_name(at.origin);
    HttpHeaders headers = request.headers;
    if (!request.authorization.empty() && name == first)
      headers.emplace_back("Authorization", request.authorization);
    HttpUrl via = at.origin;
    if (auto it = proxy_authorization_.find(name); it != proxy_authorization_.end()) {
      via.path = name;  // a proxy is told the whole address
      if (!it->second.empty()) headers.emplace_back("Proxy-Authorization", it->second);
    }
    Relay relay(sink);
    (*client)->send(http_request_bytes(via, "GET", at.target, headers, ""), relay);
    (*client)->run_until([&] { return relay.done || relay.stop; });
    if (!relay.done) (*client)->cancel_all();
    if (relay.reply.failure != HttpFailure::none || !relay.redirect) return std::move(relay.reply);
    Result<HttpTarget> next = redirected(at, *find_header(relay.reply.headers, "location"));
    if (!next) return failed(HttpFailure::malformed, next.error().message);
    at = std::move(*next);
  }
  return failed(HttpFailure::malformed, strf("more than %d redirects", options_.max_redirects));
}

HttpReply HttpGetter::get(const Request& request, size_t max) {
  std::string body;
  bool over = false;
  Sink sink;
  sink.on_body = [&](std::string_view bytes) {
    over = body.size() + bytes.size() > max;
    if (!over) body += bytes;
    return !over;
  };
  HttpReply reply = get(request, sink);
  if (over) return failed(HttpFailure::malformed, "the answer is too large");
  reply.body = std::move(body);
  return reply;
}

}  // namespace sluice

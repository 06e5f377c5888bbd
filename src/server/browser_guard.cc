#include "server/browser_guard.h"

#include <arpa/inet.h>

#include <algorithm>

#include "base/str.h"

namespace sluice {

namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  return out;
}

// "[::1]:80" gives "::1", "Name.:80" gives "name".
std::string host_name(std::string_view host) {
  if (host.starts_with('[')) return lower(host.substr(1, host.find(']') - 1));
  std::string name = lower(host.substr(0, host.find(':')));
  if (name.ends_with('.')) name.pop_back();
  return name;
}

bool is_address(const std::string& host) {
  in6_addr scrap;
  return ::inet_pton(AF_INET, host.c_str(), &scrap) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &scrap) == 1;
}

bool contains(const std::vector<std::string>& list, std::string_view value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// scheme://host[:port]
bool is_origin(const std::string& text) {
  size_t scheme = text.find("://");
  if (scheme == std::string::npos || scheme == 0) return false;
  std::string_view rest = std::string_view(text).substr(scheme + 3);
  return !rest.empty() && rest.find_first_of("/?#@* \t,") == rest.npos;
}

bool reads_only(const std::string& method) {
  return method == "GET" || method == "HEAD" || method == "OPTIONS";
}

}  // namespace

BrowserGuard::BrowserGuard(Options options) : options_(std::move(options)) {
  options_.host = lower(options_.host);
  for (std::string& host : options_.allowed_hosts) host = lower(host);
  for (std::string& origin : options_.cors) origin = lower(origin);
}

Result<void> BrowserGuard::check(const Options& options) {
  for (const std::string& host : options.allowed_hosts) {
    if (host != "*" && (host.empty() || host.find_first_of("/@* \t,") != host.npos))
      return Error{400,
                   strf("--allowed-hosts %s: a host name or * is needed", quote(host).c_str())};
  }
  for (const std::string& origin : options.cors) {
    if (origin != "*" && origin != "null" && !is_origin(origin))
      return Error{400, strf("--cors %s: an origin such as https://example.org, or *, is needed",
                             quote(origin).c_str())};
  }
  return {};
}

// An address cannot be rebound, and a name without a dot is nobody's on the internet; the latter
// are how others name a server that listens to them.
bool BrowserGuard::knows_host(std::string_view host) const {
  if (options_.needs_key && options_.allowed_hosts.empty()) return true;
  const std::string name = host_name(host);
  if (name.empty() || name == "localhost" || name == options_.host || is_address(name)) return true;
  if (!options_.loopback && name.find('.') == name.npos) return true;
  return contains(options_.allowed_hosts, "*") || contains(options_.allowed_hosts, name) ||
         contains(options_.allowed_hosts, lower(host));
}

Refusal BrowserGuard::check(const HttpRequest& request, Responder& out) const {
  std::string_view host = request.header("host");
  if (!knows_host(host)) {
    return ApiError{421,
                    strf("this server does not answer for the host %s; if it should: serve "
                         "--allowed-hosts NAME",
                         quote(host_name(host)).c_str()),
                    "", "unknown_host"};
  }
  const std::string origin = lower(request.header("origin"));
  std::string_view site = request.header("sec-fetch-site");
  if (site == "same-origin" || site == "none") return {};  // only a browser can say so
  if (!origin.empty()) {
    const bool any = contains(options_.cors, "*");
    const bool own = origin == "http://" + lower(host) || origin == "https://" + lower(host);
    if (any || contains(options_.cors, origin)) {
      out.add_header("Access-Control-Allow-Origin",
                     any ? "*" : std::string(request.header("origin")));
      if (!any) out.add_header("Vary", "Origin");
      out.add_header("Access-Control-Expose-Headers",
                     "x-request-id, request-id, retry-after, retry-after-ms");
    } else if (!own &&
               !(origin == "null" && reads_only(request.method) && !is_preflight(request))) {
      // Plain reads of nameless origins pass: without the fields above no page sees the answer.
      return ApiError{403,
                      strf("pages of %s may not use this server; if they should: serve --cors "
                           "ORIGIN",
                           quote(origin).c_str()),
                      "", "foreign_origin"};
    }
  }
  // A form or a fetch without a type needs no preflight, and a page of others could send it.
  if ((!origin.empty() || !site.empty()) && !reads_only(request.method) &&
      request.header("content-type").empty())
    return ApiError{415, "a browser's request must say Content-Type: application/json", "", ""};
  return {};
}

bool BrowserGuard::is_preflight(const HttpRequest& request) {
  return request.method == "OPTIONS" && !request.header("origin").empty() &&
         !request.header("access-control-request-method").empty();
}

HttpResponse BrowserGuard::answer_preflight(const HttpRequest& request) {
  HttpResponse r;
  r.status = 204;
  r.content_type = "";
  r.headers = {
      {"Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS"},
      {"Access-Control-Allow-Headers",
       "authorization, content-type, x-request-id, last-event-id, x-api-key, anthropic-version, "
       "anthropic-beta, anthropic-dangerous-direct-browser-access"},
      {"Access-Control-Max-Age", "600"}};
  if (request.header("access-control-request-private-network") == "true")
    r.headers.emplace_back("Access-Control-Allow-Private-Network", "true");
  return r;
}

}  // namespace sluice

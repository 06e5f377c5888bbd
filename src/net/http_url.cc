#include "net/http_url.h"

#include <algorithm>
#include <charconv>

#include "base/str.h"

namespace sluice {

namespace {

Result<uint16_t> parse_port(std::string_view text) {
  unsigned port = 0;
  auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (ec != std::errc() || end != text.data() + text.size() || port == 0 || port > 65535)
    return Error{400, strf("%s is not a port", quote(text).c_str())};
  return static_cast<uint16_t>(port);
}

}  // namespace

Result<HttpUrl> parse_http_url(std::string_view text) {
  HttpUrl url;
  std::string shown = quote(text);
  url.tls = text.starts_with("https://");
  if (!url.tls && !text.starts_with("http://"))
    return Error{400, strf("%s: write http://HOST:PORT or https://HOST:PORT", shown.c_str())};
  text.remove_prefix(url.tls ? 8 : 7);
  if (url.tls) url.port = 443;
  size_t slash = text.find('/');
  std::string_view host = text.substr(0, slash);
  if (slash != std::string_view::npos) url.path = std::string(text.substr(slash));
  while (url.path.ends_with('/')) url.path.pop_back();
  std::string_view port;
  if (host.starts_with('[')) {
    size_t end = host.find(']');
    if (end == std::string_view::npos) return Error{400, strf("%s: no ]", shown.c_str())};
    url.host = std::string(host.substr(1, end - 1));
    port = host.substr(end + 1);
  } else {
    size_t colon = host.find(':');
    url.host = std::string(host.substr(0, colon));
    if (colon != std::string_view::npos) port = host.substr(colon);
  }
  bool clean = !url.host.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) > 0x20 && c != 0x7f && c != '?' && c != '#' && c != '@';
  });
  if (!clean) return Error{400, strf("%s: write http://HOST:PORT", shown.c_str())};
  if (!port.empty()) {
    Result<uint16_t> n = parse_port(port.substr(1));
    if (port[0] != ':' || !n) return Error{400, strf("%s: no port in it", shown.c_str())};
    url.port = *n;
  }
  return url;
}

std::string http_authority(const HttpUrl& url) {
  bool v6 = url.host.find(':') != std::string::npos;
  std::string out = v6 ? "[" + url.host + "]" : url.host;
  if (url.port != (url.tls ? 443 : 80)) out += ":" + std::to_string(url.port);
  return out;
}

std::string http_request_bytes(const HttpUrl& url,
                               std::string_view method,
                               std::string_view target,
                               const HttpHeaders& headers,
                               std::string_view body) {
  std::string out;
  out.reserve(body.size() + 256);
  out.append(method).append(" ").append(url.path).append(target).append(" HTTP/1.1\r\nHost: ");
  out.append(http_authority(url)).append("\r\n");
  for (const auto& [name, value] : headers)
    out.append(name).append(": ").append(value).append("\r\n");
  if (!body.empty() || method == "POST")
    out.append("Content-Length: ").append(std::to_string(body.size())).append("\r\n");
  out.append("\r\n").append(body);
  return out;
}

}  // namespace sluice

#include "net/proxy.h"

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/str.h"

namespace sluice {

namespace {

// The first of the names that is set, and not empty.
const char* variable(std::initializer_list<const char*> names, const char*& name) {
  for (const char* n : names) {
    name = n;
    if (const char* value = std::getenv(n); value && *value) return value;
  }
  return nullptr;
}

// no_proxy: names with commas between them, each with its subdomains; * is every host.
bool is_excepted(std::string_view host, std::string_view list) {
  while (!list.empty()) {
    size_t comma = std::min(list.find(','), list.size());
    std::string_view name = list.substr(0, comma);
    list.remove_prefix(std::min(comma + 1, list.size()));
    while (name.starts_with(' ')) name.remove_prefix(1);
    while (name.ends_with(' ')) name.remove_suffix(1);
    if (name == "*") return true;
    if (name.starts_with('.')) name.remove_prefix(1);
    if (name.empty() || !host.ends_with(name)) continue;
    if (host.size() == name.size() || host[host.size() - name.size() - 1] == '.') return true;
  }
  return false;
}

std::string base64(std::string_view text) {
  static const char* kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < text.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t j = 0; j < 3; ++j)
      bits = bits << 8 | (i + j < text.size() ? static_cast<unsigned char>(text[i + j]) : 0);
    for (size_t j = 0; j < 4; ++j)
      out += i + j <= text.size() ? kDigits[bits >> (18 - 6 * j) & 63] : '=';
  }
  return out;
}

std::string percent_decoded(std::string_view text) {
  auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 &&
        digit(text[i + 2]) >= 0) {
      out += static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

Result<std::optional<HttpProxy>> proxy_from_environment(const HttpUrl& url) {
  const char* name = nullptr;
  if (const char* except = variable({"no_proxy", "NO_PROXY"}, name))
    if (is_excepted(url.host, except)) return std::optional<HttpProxy>();
  // HTTP_PROXY in capitals is left out, as curl does: a CGI program gets it from a request.
  const char* value = url.tls
                          ? variable({"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"}, name)
                          : variable({"http_proxy", "all_proxy", "ALL_PROXY"}, name);
  if (!value) return std::optional<HttpProxy>();
  std::string text = value;
  if (text.find("://") == std::string::npos) text = "http://" + text;
  HttpProxy proxy;
  size_t begin = text.find("://") + 3, at = text.find('@', begin);
  if (at != std::string::npos) {
    proxy.authorization = "Basic " + base64(percent_decoded(text.substr(begin, at - begin)));
    text.erase(begin, at + 1 - begin);
  }
  Result<HttpUrl> parsed = parse_http_url(text);
  if (!parsed || parsed->tls)  // the value may hold a password, and is not shown
    return Error{400, strf("%s is not http://[USER:PASSWORD@]HOST:PORT, the only kind of proxy "
                           "that is supported",
                           name)};
  proxy.url = std::move(*parsed);
  return std::optional<HttpProxy>(std::move(proxy));
}

}  // namespace sluice

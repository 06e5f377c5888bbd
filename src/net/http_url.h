// Where a request goes, and its bytes on the wire. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "net/responder.h"

namespace sluice {

struct HttpUrl {
  std::string host;
  uint16_t port = 80;
  std::string path;  // without a slash at its end: "" for the root
  bool tls = false;
};
// http[s]://HOST[:PORT][/PATH]; an IPv6 address in brackets.
Result<HttpUrl> parse_http_url(std::string_view text);

// "host:port" as a Host header has it, without a scheme's usual port.
std::string http_authority(const HttpUrl& url);

// The bytes of a request, with Host and Content-Length.
std::string http_request_bytes(const HttpUrl& url,
                               std::string_view method,
                               std::string_view target,
                               const HttpHeaders& headers,
                               std::string_view body);

}  // namespace sluice

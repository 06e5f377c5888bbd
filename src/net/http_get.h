// GET with redirects: bodies are handed to a sink as they come, connections are kept per server,
// proxies come from the environment. Owned by one thread, which waits for each answer.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "net/http_client.h"

namespace sluice {

// A server and what to ask it for, "/path?query".
struct HttpTarget {
  HttpUrl origin;  // its path is empty
  std::string target;
};
// http[s]://HOST[:PORT][/PATH][?QUERY]; a fragment is dropped.
Result<HttpTarget> parse_http_target(std::string_view url);
// What a Location header of `from` means: an address of its own, or a path on the same server.
// https never leads to http.
Result<HttpTarget> redirected(const HttpTarget& from, std::string_view location);

// %XX for everything but letters, digits and "-._~/".
std::string percent_encoded(std::string_view path);

class HttpGetter {
 public:
  struct Options {
    std::chrono::milliseconds connect{15'000}, stall{30'000};
    int max_redirects = 10;
  };
  struct Request {
    HttpTarget at;
    HttpHeaders headers;
    std::string authorization;  // sent to the first server alone, never after a redirect elsewhere
  };
  // Of the answer that is not a redirect. False: that is enough, and the request ends as cancelled.
  struct Sink {
    std::function<bool(int status, const HttpHeaders& headers)> on_head;
    std::function<bool(std::string_view bytes)> on_body;
  };

  HttpGetter() : HttpGetter(Options()) {}
  explicit HttpGetter(const Options& options) : options_(options) {}

  // `body` of the reply stays empty.
  HttpReply get(const Request& request, const Sink& sink);
  // With the body, of at most `max` bytes: more is HttpFailure::malformed.
  HttpReply get(const Request& request, size_t max);

 private:
  Result<HttpClient*> client_for(const HttpUrl& origin);

  Options options_;
  std::map<std::string, std::unique_ptr<HttpClient>> clients_;  // by scheme and authority
  std::map<std::string, std::string> proxy_authorization_;      // of plain requests
};

}  // namespace sluice

// Keeps web pages of others from using a server that a browser on this machine can reach. A page
// whose name was rebound to our address is known by its Host, any other by its Origin. Constant
// once made: any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "net/http.h"
#include "server/openai.h"

namespace sluice {

class BrowserGuard {
 public:
  struct Options {
    std::string host = "127.0.0.1";          // listened on
    bool loopback = true;                    // only this machine reaches it
    bool needs_key = false;                  // a rebound page has none: any Host will do
    std::vector<std::string> allowed_hosts;  // names besides the usual; "*": any
    std::vector<std::string> cors;           // origins that may use the API; "*": any
  };
  BrowserGuard() = default;  // loopback, no key
  explicit BrowserGuard(Options options);
  // Are the flags' values hosts and origins?
  static Result<void> check(const Options& options);

  // Whether the request may go on. Adds to `out` the header fields of CORS that its answer needs.
  Refusal check(const HttpRequest& request, Responder& out) const;
  // A browser's question before a request; needs no key. Ask check() first.
  static bool is_preflight(const HttpRequest& request);
  static HttpResponse answer_preflight(const HttpRequest& request);

 private:
  bool knows_host(std::string_view host) const;

  Options options_;
};

}  // namespace sluice

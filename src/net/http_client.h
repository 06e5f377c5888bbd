// An HTTP/1.1 client for thousands of requests at once, to one server, over connections that are
// kept alive. Belongs to one thread: everything is called on it, the listeners too, from inside
// run_until() or fetch(); with a context of somebody else's, from inside that.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "net/http_url.h"
#include "net/tls.h"

namespace boost::asio {
class io_context;
}

namespace sluice {

// An HTTP proxy. TLS goes through a tunnel (CONNECT); plain requests need a target with scheme and
// host, and `authorization` among their headers.
struct HttpProxy {
  HttpUrl url;
  std::string authorization;  // of Proxy-Authorization; empty: none
};

enum class HttpFailure { none, connect, timeout, stalled, closed, broken, malformed, cancelled };
// "connect", "timeout", ...: closed is before the first byte of the response, broken after it.
const char* http_failure_name(HttpFailure failure);

// Told of one request's progress. Lives until on_end(), which comes exactly once and may send the
// next request.
class HttpListener {
 public:
  virtual ~HttpListener() = default;
  virtual void on_begin() {}  // it has a connection, or one is being made
  virtual void on_sent() {}   // the kernel has all of it
  virtual void on_head(int status, const HttpHeaders& headers) = 0;  // names in lower case
  virtual void on_body(std::string_view bytes) = 0;
  virtual void on_end(HttpFailure failure, const std::string& detail) = 0;
};

struct HttpReply {
  HttpFailure failure = HttpFailure::none;
  std::string detail;
  int status = 0;
  HttpHeaders headers;
  std::string body;
};

class HttpClient {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  struct Options {
    HttpUrl url;
    std::shared_ptr<TlsContext> tls;  // of https URLs; null: verified by the system's certificates
    std::optional<HttpProxy> proxy;
    // Who runs it; null: run_until() and fetch(). It outlives the client, and does not run any
    // more when the client ends.
    boost::asio::io_context* context = nullptr;
    size_t max_connections = 1024;
    std::chrono::milliseconds connect{5'000}, request{600'000}, stall{120'000};  // no byte for it
  };
  struct Stats {
    uint64_t connections = 0;  // made so far
    uint64_t stale = 0;        // kept alive, found closed when used: sent again on a new one
    size_t waiting = 0;        // requests without a connection, now
    size_t in_flight = 0;
  };

  // Finds the address. A server that does not answer yet is no error here.
  static Result<std::unique_ptr<HttpClient>> open(Options options);
  ~HttpClient();

  // `request` as made by http_request_bytes(). Waits for a connection when all are taken.
  void send(std::string request, HttpListener& listener);
  // Ends the listener's request, if it has one, with HttpFailure::cancelled: soon, never from
  // inside this call. The listener lives until then.
  void cancel(HttpListener& listener);
  // Reads no more of the answer after what was read already; resume() goes on. Time in which
  // nothing is read is no stall.
  void pause(HttpListener& listener);
  void resume(HttpListener& listener);
  // Calls `f` then, from inside run_until().
  void at(TimePoint time, std::function<void()> f);
  // Serves until `done()`, asked after every piece of work and at least every 20 ms.
  void run_until(const std::function<bool()>& done);
  // Ends all requests with HttpFailure::cancelled.
  void cancel_all();
  void set_max_connections(size_t max);
  // From now on another server of the same kind; its host is an address. Without requests in
  // flight.
  void move_to(const HttpUrl& url);
  // Sends and waits; other requests go on meanwhile. A longer answer is malformed.
  HttpReply fetch(std::string request, size_t max_body = SIZE_MAX);
  Stats stats() const;

  struct State;

 private:
  explicit HttpClient(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace sluice

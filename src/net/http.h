// An HTTP/1.1 server: requests in, whole or streamed responses out. Knows nothing of what is
// served. A few io threads, each with its own connections; a connection never changes threads, so
// what is called on its thread needs no lock against it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "net/responder.h"
#include "net/tls.h"

namespace boost::asio {
class io_context;
}

namespace sluice {

struct HttpRequest {
  std::string method, path, query;  // of the target, split at '?'; not decoded
  HttpHeaders headers;              // names in lower case
  std::string body;
  std::string peer;  // address without port
  // Empty where there is none; the first of several.
  std::string_view header(std::string_view lower_case_name) const;
};

// Bytes of a connection's next requests that are kept while one is answered.
inline constexpr size_t kPipelinedBytes = 64 << 10;

struct HttpLimits {
  size_t body_bytes = size_t{8} << 20;
  size_t header_bytes = size_t{16} << 10;
  size_t num_headers = 100;
  // Bytes of answers: waiting for one client's socket; for all clients'; in the kernel for one
  // client (which doubles it, for its own bookkeeping; 0 leaves it to the kernel).
  size_t stream_bytes = size_t{192} << 10, unread_bytes = size_t{64} << 20;
  size_t send_buffer = size_t{32} << 10;
  size_t read_rate = 1024;  // bytes per second that a client must take, once some wait for it
  std::chrono::milliseconds header{10'000}, body{30'000}, idle{60'000}, send{30'000};
  // In all; from one address; from one address of this machine. 0: no limit of its own.
  size_t connections = 16'384, connections_per_ip = 256, connections_from_loopback = 0;

  // The most that one connection holds of what its client sent.
  size_t most_request_bytes() const { return header_bytes + body_bytes + kPipelinedBytes; }
};

class HttpServer {
 public:
  // Called on the io thread of the connection. The responder may be kept and used from any thread.
  using OnRequest = std::function<void(HttpRequest, std::shared_ptr<Responder>)>;
  struct Options {
    std::string host = "127.0.0.1";
    uint16_t port = 0;  // 0: any free one
    size_t threads = 1;
    HttpLimits limits;
    std::shared_ptr<TlsContext> tls;  // null: plain HTTP
    OnRequest on_request;
    // The answer to what is not a request: status and reason in, response out. Any io thread.
    std::function<HttpResponse(int, std::string_view)> refuse;
  };
  struct Stats {
    size_t connections = 0, busy = 0;  // busy: with a request that is not fully answered
    size_t unread = 0;                 // bytes of answers that wait for clients to read
    // refused: over the limits, or no TLS where it is spoken. slow_readers: cut for too many unread
    // bytes or too low a rate.
    uint64_t accepted = 0, refused = 0, timed_out = 0, slow_readers = 0, requests = 0;
  };

  // Bound, listening and served by its threads when this returns. Error 500: the environment's (a
  // busy port, no descriptors, no threads).
  static Result<std::unique_ptr<HttpServer>> start(Options options);
  ~HttpServer();  // stop()

  uint16_t port() const;
  size_t num_threads() const;
  // What that io thread runs: for clients that are to share it (http_client.h).
  boost::asio::io_context& context(size_t thread);
  // Runs `f` on that io thread, soon. Dropped once stopped.
  void post(size_t thread, std::function<void()> f);
  Stats stats() const;
  // From now on a connection ends with its response, and one that waits for a request ends at once.
  void drain();
  // Ends all connections and joins the threads.
  void stop();

  struct State;

 private:
  explicit HttpServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Is this the name or address of an interface that only this machine reaches?
bool is_loopback(const std::string& host);

}  // namespace sluice

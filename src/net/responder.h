// One response on its way out. The producer's side may be called from any thread and never blocks:
// bytes are queued, framed, and taken by the connection's io thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  HttpHeaders headers;
};

class Responder {
 public:
  struct Options {
    size_t thread = 0;    // index of the io thread
    bool chunked = true;  // HTTP/1.1; else a stream ends with its connection
    bool keep_alive = true;
    bool head = false;  // no body, whatever is sent
    size_t max_pending = 256 << 10;
    std::function<void()> wake;  // there is something to take; from any thread
  };
  explicit Responder(Options options) : options_(std::move(options)) {}

  // The whole response. The first of send() and start() counts, the rest is ignored.
  void send(HttpResponse response);
  // A streamed one: head, then any number of write(), then finish(). With more than max_pending
  // bytes queued the reader is too slow: the connection is cut and on_closed is called.
  void start(HttpResponse head);
  void write(std::string_view bytes);
  void finish();
  // Calls `f` once if the client is gone before the response was complete; on the io thread, or at
  // once in the caller when that has happened already.
  void on_closed(std::function<void()> f);
  bool closed() const { return closed_.load(std::memory_order_relaxed); }
  // More than max_pending bytes were queued.
  bool too_slow() const { return too_slow_.load(std::memory_order_relaxed); }
  size_t thread() const { return options_.thread; }
  // Answers with "Connection: close", if the head is not out yet.
  void close_after();

  // The connection's side, io thread. take() swaps what is queued into `out` (cleared first).
  struct Progress {
    bool done = false;      // nothing comes after `out`
    bool too_slow = false;  // cut it
    bool keep_alive = false;
  };
  Progress take(std::string& out);
  // The client is gone, or all was sent (`complete`).
  void close(bool complete);

 private:
  void append_head(const HttpResponse& r, bool streamed);
  void wake_locked();

  Options options_;
  mutable std::mutex mutex_;
  std::string queued_;
  bool started_ = false, streaming_ = false, finished_ = false, woken_ = false;
  std::atomic<bool> closed_{false}, too_slow_{false};
  std::function<void()> on_closed_;
};

// "Not Found" for 404.
std::string_view http_reason(int status);

}  // namespace sluice

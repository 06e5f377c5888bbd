// One response on its way out. The producer's side may be called from any thread and never blocks:
// bytes are queued, framed, and taken by the connection's io thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "net/unread_bytes.h"

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
    bool head = false;                    // no body, whatever is sent
    size_t max_pending = 192 << 10;       // queued, or taken and not yet written
    std::shared_ptr<UnreadBytes> unread;  // of all connections; null: not counted
    std::function<void()> wake;           // there is something to take; from any thread
  };
  // Appends a piece of a body; false: that was the last. A piece should be some 10 KiB, and is
  // never empty unless it is the last.
  using Producer = std::function<bool(std::string& out)>;

  explicit Responder(Options options) : options_(std::move(options)) {}
  ~Responder() { close(true); }

  // The whole response. The first of send() and start() counts, the rest is ignored. These calls
  // throw std::bad_alloc without memory, and have then queued nothing.
  void send(HttpResponse response);
  // The whole response, its body made as the client reads it. The first 64 KiB are made here, which
  // is all of most answers; `next` is then called on the io thread, for a piece at a time.
  void send(HttpResponse head, Producer next);
  // A streamed one: head, then any number of write(), then finish(). With more than max_pending
  // bytes pending the reader is too slow: the connection is cut and on_closed is called. A single
  // write may be larger while nothing else is pending.
  void start(HttpResponse head);
  void write(std::string_view bytes);
  void finish();
  // Gives up: the connection is cut instead of sending anything more. For when there is no memory
  // for an answer.
  void abort() noexcept;
  // Calls `f` once if the client is gone before the response was complete; on the io thread, or at
  // once in the caller when that has happened already.
  void on_closed(std::function<void()> f);
  bool closed() const { return closed_.load(std::memory_order_relaxed); }
  // More was pending than max_pending, or than the share of all connections' limit.
  bool too_slow() const { return too_slow_.load(std::memory_order_relaxed); }
  // Queued, or taken and not yet written.
  size_t pending() const {
    std::lock_guard lock(mutex_);
    return pending_;
  }
  // Too slow, or given up: the connection is to be cut.
  bool broken() const { return too_slow() || aborted_.load(std::memory_order_relaxed); }
  size_t thread() const { return options_.thread; }
  // Calls `f` on the io thread whenever the socket has taken what was written.
  void on_taken(std::function<void()> f);
  // Answers with "Connection: close", if the head is not out yet.
  void close_after();
  // A header field of whatever is answered.
  void add_header(std::string name, std::string value);

  // The connection's side, io thread. take() swaps what is queued into `out` (cleared first), or
  // has the next piece made; wrote() says that the socket has it.
  struct Progress {
    bool done = false;      // nothing comes after `out`
    bool made = false;      // `out` is a producer's
    bool too_slow = false;  // cut it: broken()
    bool keep_alive = false;
  };
  Progress take(std::string& out);
  void wrote();
  // The client is gone, or all was sent (`complete`).
  void close(bool complete);

 private:
  void append_head(const HttpResponse& r, bool streamed);
  void append_body(std::string& out, std::string_view bytes) const;
  bool admit_locked(size_t bytes);
  void set_pending(size_t bytes);
  void wake_locked();
  struct Rollback;

  Options options_;
  mutable std::mutex mutex_;
  std::string queued_;
  Producer next_;
  HttpHeaders headers_;   // add_header()
  size_t in_flight_ = 0;  // taken and not yet written
  size_t pending_ = 0;    // queued_ and in_flight_, as counted in `unread`
  bool started_ = false, streaming_ = false, finished_ = false, woken_ = false;
  std::atomic<bool> closed_{false}, too_slow_{false}, aborted_{false};
  std::function<void()> on_closed_, on_taken_;
};

// "Not Found" for 404.
std::string_view http_reason(int status);

}  // namespace sluice

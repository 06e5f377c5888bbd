#include "net/responder.h"

#include <charconv>

namespace sluice {

std::string_view http_reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 421:
      return "Misdirected Request";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return status < 400 ? "OK" : "Error";
  }
}

namespace {

constexpr size_t kWholeBytes = 64 << 10;  // a produced body below this is sent with its length

// A header's value is ours or echoed: what could end the line is left out.
void append_value(std::string& out, std::string_view value) {
  for (char c : value) {
    if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) out += c;
  }
}

}  // namespace

void Responder::append_head(const HttpResponse& r, bool streamed) {
  std::string& o = queued_;
  o += "HTTP/1.1 ";
  o += std::to_string(r.status);
  o += ' ';
  o += http_reason(r.status);
  o += "\r\n";
  if (!r.content_type.empty()) {
    o += "Content-Type: ";
    o += r.content_type;
    o += "\r\n";
  }
  for (const HttpHeaders* list : {&r.headers, static_cast<const HttpHeaders*>(&headers_)}) {
    for (const auto& [name, value] : *list) {
      o += name;
      o += ": ";
      append_value(o, value);
      o += "\r\n";
    }
  }
  if (r.status == 204) {
    // No body, and no length of one.
  } else if (!streamed) {
    o += "Content-Length: ";
    o += std::to_string(r.body.size());
    o += "\r\n";
  } else if (options_.chunked) {
    o += "Transfer-Encoding: chunked\r\n";
  } else {
    options_.keep_alive = false;
  }
  o += options_.keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
}

void Responder::wake_locked() {
  if (woken_) return;
  if (options_.wake) options_.wake();
  woken_ = true;
}

void Responder::set_pending(size_t bytes) {
  if (options_.unread) options_.unread->change(pending_, bytes);
  pending_ = bytes;
}

// Room for so many more bytes? If not, the reader is too slow.
bool Responder::admit_locked(size_t bytes) {
  bool fits = pending_ == 0 || pending_ + bytes <= options_.max_pending;
  if (fits && (!options_.unread || options_.unread->allows(pending_, bytes))) return true;
  too_slow_.store(true, std::memory_order_relaxed);
  woken_ = false;  // the connection may be in the middle of a write, and not take() before its end
  wake_locked();
  return false;
}

void Responder::append_body(std::string& out, std::string_view bytes) const {
  if (!options_.chunked) {
    out += bytes;
    return;
  }
  char size[16];
  auto end = std::to_chars(size, size + sizeof size, bytes.size(), 16).ptr;
  out.append(size, end).append("\r\n").append(bytes).append("\r\n");
}

// Restores what is queued unless the call came to its end.
struct Responder::Rollback {
  explicit Rollback(Responder& r)
      : responder(r),
        size(r.queued_.size()),
        keep_alive(r.options_.keep_alive),
        started(r.started_),
        streaming(r.streaming_),
        finished(r.finished_) {}
  ~Rollback() {
    if (done) return;
    responder.queued_.resize(size);
    responder.options_.keep_alive = keep_alive;
    responder.started_ = started, responder.streaming_ = streaming, responder.finished_ = finished;
  }
  void commit() {
    responder.wake_locked();
    responder.set_pending(responder.in_flight_ + responder.queued_.size());
    done = true;
  }
  Responder& responder;
  size_t size;
  bool keep_alive, started, streaming, finished, done = false;
};

void Responder::send(HttpResponse response) {
  std::lock_guard lock(mutex_);
  if (started_ || closed()) return;
  if (!admit_locked(response.body.size())) {
    started_ = finished_ = true;
    return;
  }
  Rollback rollback(*this);
  started_ = finished_ = true;
  append_head(response, false);
  if (!options_.head) queued_ += response.body;
  rollback.commit();
}

void Responder::send(HttpResponse head, Producer next) {
  std::string first;
  bool more = true;
  while (more && first.size() < kWholeBytes) more = next(first);
  if (!more) {
    head.body = std::move(first);
    return send(std::move(head));
  }
  std::lock_guard lock(mutex_);
  if (started_ || closed()) return;
  if (!admit_locked(first.size())) {
    started_ = finished_ = true;
    return;
  }
  Rollback rollback(*this);
  started_ = true;
  finished_ = options_.head;
  append_head(head, true);
  if (!options_.head) append_body(queued_, first);
  rollback.commit();
  if (!options_.head) next_ = std::move(next);
}

void Responder::start(HttpResponse head) {
  std::lock_guard lock(mutex_);
  if (started_ || closed()) return;
  Rollback rollback(*this);
  started_ = streaming_ = true;
  append_head(head, true);
  rollback.commit();
}

void Responder::write(std::string_view bytes) {
  std::lock_guard lock(mutex_);
  if (!streaming_ || finished_ || closed() || too_slow() || options_.head || bytes.empty()) return;
  if (!admit_locked(bytes.size())) return;
  Rollback rollback(*this);
  append_body(queued_, bytes);
  rollback.commit();
}

void Responder::finish() {
  std::lock_guard lock(mutex_);
  if (!streaming_ || finished_ || closed()) return;
  Rollback rollback(*this);
  finished_ = true;
  if (options_.chunked && !options_.head) queued_ += "0\r\n\r\n";
  rollback.commit();
}

void Responder::abort() noexcept {
  aborted_.store(true, std::memory_order_relaxed);
  std::lock_guard lock(mutex_);
  woken_ = false;  // as in admit_locked()
  try {
    wake_locked();
  } catch (...) {  // the connection looks by itself from time to time
  }
}

void Responder::add_header(std::string name, std::string value) {
  std::lock_guard lock(mutex_);
  headers_.emplace_back(std::move(name), std::move(value));
}

void Responder::on_closed(std::function<void()> f) {
  {
    std::lock_guard lock(mutex_);
    if (!closed()) {
      on_closed_ = std::move(f);
      return;
    }
  }
  f();
}

void Responder::close_after() {
  std::lock_guard lock(mutex_);
  options_.keep_alive = false;
}

Responder::Progress Responder::take(std::string& out) {
  out.clear();
  Producer next;
  {
    std::lock_guard lock(mutex_);
    woken_ = false;
    out.swap(queued_);
    in_flight_ += out.size();
    if (!out.empty() || !next_)
      return {finished_ && !broken(), false, broken(), options_.keep_alive};
    next.swap(next_);
  }
  std::string piece;
  bool more = next(piece);
  if (!piece.empty()) append_body(out, piece);
  std::lock_guard lock(mutex_);
  if (more) {
    next_.swap(next);
  } else {
    finished_ = true;
    if (options_.chunked) out += "0\r\n\r\n";
  }
  in_flight_ += out.size();
  set_pending(in_flight_ + queued_.size());
  return {finished_ && !broken(), true, broken(), options_.keep_alive};
}

void Responder::on_taken(std::function<void()> f) {
  std::lock_guard lock(mutex_);
  on_taken_ = std::move(f);
}

void Responder::wrote() {
  std::function<void()> f;
  {
    std::lock_guard lock(mutex_);
    in_flight_ = 0;
    if (!closed()) set_pending(queued_.size());
    if (on_taken_) f = on_taken_;
  }
  if (f) f();
}

void Responder::close(bool complete) {
  std::function<void()> f;
  Producer next;
  {
    std::lock_guard lock(mutex_);
    if (closed()) return;
    closed_.store(true, std::memory_order_relaxed);
    f = std::move(on_closed_);
    on_closed_ = nullptr;
    on_taken_ = nullptr;
    next.swap(next_);
    queued_.clear();
    set_pending(0);
  }
  if (!complete && f) f();
}

}  // namespace sluice

#include "net/responder.h"

#include <charconv>

namespace sluice {

std::string_view http_reason(int status) {
  switch (status) {
    case 200:
      return "OK";
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
  for (const auto& [name, value] : r.headers) {
    o += name;
    o += ": ";
    append_value(o, value);
    o += "\r\n";
  }
  if (!streamed) {
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
  woken_ = true;
  if (options_.wake) options_.wake();
}

void Responder::send(HttpResponse response) {
  std::lock_guard lock(mutex_);
  if (started_ || closed()) return;
  started_ = finished_ = true;
  append_head(response, false);
  if (!options_.head) queued_ += response.body;
  wake_locked();
}

void Responder::start(HttpResponse head) {
  std::lock_guard lock(mutex_);
  if (started_ || closed()) return;
  started_ = streaming_ = true;
  append_head(head, true);
  wake_locked();
}

void Responder::write(std::string_view bytes) {
  std::lock_guard lock(mutex_);
  if (!streaming_ || finished_ || closed() || too_slow() || options_.head || bytes.empty()) return;
  if (queued_.size() + bytes.size() > options_.max_pending) {
    too_slow_.store(true, std::memory_order_relaxed);
    return wake_locked();
  }
  if (options_.chunked) {
    char size[16];
    auto end = std::to_chars(size, size + sizeof size, bytes.size(), 16).ptr;
    queued_.append(size, end).append("\r\n").append(bytes).append("\r\n");
  } else {
    queued_ += bytes;
  }
  wake_locked();
}

void Responder::finish() {
  std::lock_guard lock(mutex_);
  if (!streaming_ || finished_ || closed()) return;
  finished_ = true;
  if (options_.chunked && !options_.head) queued_ += "0\r\n\r\n";
  wake_locked();
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
  std::lock_guard lock(mutex_);
  woken_ = false;
  out.swap(queued_);
  return {finished_, too_slow(), options_.keep_alive};
}

void Responder::close(bool complete) {
  std::function<void()> f;
  {
    std::lock_guard lock(mutex_);
    if (closed()) return;
    closed_.store(true, std::memory_order_relaxed);
    f = std::move(on_closed_);
    on_closed_ = nullptr;
    queued_.clear();
  }
  if (!complete && f) f();
}

}  // namespace sluice

// A long text written in pieces: a coroutine that appends to a string and suspends when that is
// full. One thread at a time.
#pragma once

#include <coroutine>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/token.h"

namespace sluice {

class PieceWriter {
 public:
  struct promise_type {
    PieceWriter* inner = nullptr;  // awaited, and not written yet
    std::exception_ptr error;
    PieceWriter get_return_object() {
      return PieceWriter(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { error = std::current_exception(); }
  };
  PieceWriter(PieceWriter&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  PieceWriter& operator=(PieceWriter&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~PieceWriter() {
    if (handle_) handle_.destroy();
  }

  // Writes on until the string is full; false: all is written.
  bool next() {
    promise_type& p = handle_.promise();
    if (p.inner && p.inner->next()) return true;
    p.inner = nullptr;
    handle_.resume();
    if (p.error) std::rethrow_exception(p.error);
    return !handle_.done();
  }
  void finish() {
    while (next()) {
    }
  }

  // co_await write_more(out): its pieces are this one's.
  auto operator co_await() && {
    struct Inner {
      PieceWriter pieces;
      bool await_ready() { return !pieces.next(); }
      void await_suspend(std::coroutine_handle<promise_type> outer) {
        outer.promise().inner = &pieces;
      }
      void await_resume() const {}
    };
    return Inner{std::move(*this)};
  }

 private:
  explicit PieceWriter(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  std::coroutine_handle<promise_type> handle_;
};

// co_await pause_if_full(out) between items.
struct PauseIf {
  bool full;
  bool await_ready() const noexcept { return !full; }
  void await_suspend(std::coroutine_handle<>) const noexcept {}
  void await_resume() const noexcept {}
};
inline PauseIf pause_if_full(const std::string& out) { return {out.size() >= size_t{16} << 10}; }

// A JSON string's inside; `text` is valid UTF-8 and outlives it.
PieceWriter write_escaped(std::string& out, std::string_view text);
// [1,2,3]; `ids` outlives it.
PieceWriter write_ids(std::string& out, const std::vector<Token>& ids);

// What `write(out)` writes, as a body that a Responder pulls. `keep` lives as long.
template <typename F>
std::function<bool(std::string&)> produce(std::shared_ptr<void> keep, F write) {
  struct Body {
    std::string out;
    PieceWriter pieces;
    explicit Body(F& f) : pieces(f(out)) {}
  };
  auto body = std::make_shared<Body>(write);
  return [keep = std::move(keep), body](std::string& to) {
    body->out.clear();
    bool more = body->pieces.next();
    to += body->out;
    return more;
  };
}

}  // namespace sluice

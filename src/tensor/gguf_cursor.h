// Reads numbers and strings out of bytes that may be hostile. Keeps the last error; a view.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "base/str.h"

namespace sluice {

static_assert(std::endian::native == std::endian::little, "GGUF is read in place");

class GgufCursor {
 public:
  explicit GgufCursor(std::span<const std::byte> file) : file_(file) {}

  size_t size() const { return file_.size(); }
  size_t at() const { return at_; }
  size_t left() const { return file_.size() - at_; }
  // What is being read, for messages: a key or a tensor's name.
  std::string_view context() const { return context_; }
  void set_context(std::string_view context) { context_ = context; }
  const Error& error() const { return error_; }

  // Both return false, so that a reader can return them.
  bool fail(std::string message) {
    error_ = Error{400, std::move(message)};
    return false;
  }
  bool cut_off(const char* what) {
    const std::string where = context_.empty() ? "" : strf(", in %s", quote(context_).c_str());
    return fail(
        strf("corrupt or cut off: %s at byte %zu runs past the end at %zu%s; fetch the file "
             "again",
             what, at_, size(), where.c_str()));
  }

  template <typename T>
  bool read(T& out) {
    if (left() < sizeof(T)) return cut_off("a number");
    std::memcpy(&out, file_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return true;
  }

  // A view into the file.
  bool read_string(std::string_view& out) {
    uint64_t num = 0;
    if (!read(num)) return false;
    if (num > left()) return cut_off("a string");
    out = {reinterpret_cast<const char*>(file_.data()) + at_, static_cast<size_t>(num)};
    at_ += static_cast<size_t>(num);
    return true;
  }

  bool skip(size_t num) {
    if (num > left()) return cut_off("an array");
    at_ += num;
    return true;
  }

 private:
  std::span<const std::byte> file_;
  size_t at_ = 0;
  std::string_view context_;
  Error error_;
};

}  // namespace sluice

// Value or error, for failures that input can cause. The interface follows std::expected (C++23).
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace sluice {

// `code` is an HTTP status: 400 bad input, 404 no such thing, 429 too busy, 507 too little
// memory... `message` is one line for the user: what is wrong, and what to do.
struct Error {
  int code = 400;
  std::string message;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : v_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : v_(std::in_place_index<1>, std::move(error)) {}

  bool has_value() const { return v_.index() == 0; }
  explicit operator bool() const { return has_value(); }
  T& value() & { return CHECK(has_value()), std::get<0>(v_); }
  const T& value() const& { return CHECK(has_value()), std::get<0>(v_); }
  T&& value() && { return CHECK(has_value()), std::get<0>(std::move(v_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const Error& error() const { return CHECK(!has_value()), std::get<1>(v_); }

 private:
  std::variant<T, Error> v_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : e_(std::move(error)) {}
  bool has_value() const { return !e_; }
  explicit operator bool() const { return has_value(); }
  void value() const { CHECK(has_value()); }
  const Error& error() const { return CHECK(!has_value()), *e_; }

 private:
  std::optional<Error> e_;
};

}  // namespace sluice

// Fields of a JSON object with range checks: the first failure is remembered, in one line.
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/str.h"

namespace sluice {

// A null is an absent field. Views `object` and `error`.
class HfFields {
 public:
  HfFields(const json::object& object, std::string& error) : object_(object), error_(error) {}

  const json::value* find(const char* key) const {
    const json::value* v = object_.if_contains(key);
    return v && !v->is_null() ? v : nullptr;
  }

  // Also when it is null.
  bool has(const char* key) const { return object_.contains(key); }

  double number(const char* key, double lo, double hi, std::optional<double> fallback = {}) {
    const json::value* v = find(key);
    if (!v && fallback) return *fallback;
    if (!v) return fail(strf("has no %s", key)), lo;
    const std::optional<double> x = as_number(*v);
    if (!x) return fail(strf("%s must be a number", key)), lo;
    if (!(*x >= lo && *x <= hi)) {
      fail(strf("%s is %g, outside %g to %g", key, *x, lo, hi));
      return lo;
    }
    return *x;
  }

  int integer(const char* key, int lo, int hi, std::optional<int> fallback = {}) {
    const double x =
        number(key, lo, hi, fallback ? std::optional<double>(*fallback) : std::nullopt);
    if (x != std::trunc(x)) fail(strf("%s must be a whole number", key));
    return static_cast<int>(x);
  }

  bool boolean(const char* key, bool fallback) {
    const json::value* v = find(key);
    if (!v) return fallback;
    if (!v->is_bool()) fail(strf("%s must be true or false", key));
    return v->is_bool() && v->get_bool();
  }

  std::string string(const char* key, std::string fallback = "") {
    const json::value* v = find(key);
    if (!v) return fallback;
    if (!v->is_string()) fail(strf("%s must be a string", key));
    return v->is_string() ? std::string(v->get_string()) : "";
  }

  const json::object* object(const char* key) {
    const json::value* v = find(key);
    if (v && !v->is_object()) fail(strf("%s must be an object", key));
    return v ? v->if_object() : nullptr;
  }

  // A list of `num` positive numbers.
  std::vector<float> positives(const char* key, size_t num) {
    const json::value* v = find(key);
    const json::array* list = v ? v->if_array() : nullptr;
    std::vector<float> out;
    if (list && list->size() == num) {
      for (const json::value& x : *list) {
        const double d = as_number(x).value_or(0);
        if (d > 0 && d < 1e12) out.push_back(static_cast<float>(d));
      }
    }
    if (out.size() != num) fail(strf("%s must be a list of %zu positive numbers", key, num));
    return out;
  }

  void fail(std::string message) {
    if (error_.empty()) error_ = std::move(message);
  }

 private:
  static std::optional<double> as_number(const json::value& v) {
    if (v.is_double()) return v.get_double();
    if (v.is_int64()) return static_cast<double>(v.get_int64());
    if (v.is_uint64()) return static_cast<double>(v.get_uint64());
    return std::nullopt;
  }

  const json::object& object_;
  std::string& error_;
};

}  // namespace sluice

#include "base/json.h"

#include <charconv>
#include <cmath>
#include <vector>

#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/src.hpp>
#include <boost/json/value_stack.hpp>

#include "base/str.h"

namespace sluice {

namespace {

// Builds the value and stops the parser at a limit. Before an object is built its keys wait in
// `stack`, so that an object with too many is never hashed.
class Builder {
 public:
  static constexpr size_t max_object_size = json::object::max_size();
  static constexpr size_t max_array_size = json::array::max_size();
  static constexpr size_t max_key_size = json::string::max_size();
  static constexpr size_t max_string_size = json::string::max_size();
  using Ec = json::error_code;
  using View = json::string_view;

  explicit Builder(const JsonLimits& limits) : limits_(limits) { stack.reset(); }

  json::value_stack stack;
  const char* exceeded = nullptr;  // the limit that stopped the parser

  bool on_document_begin(Ec&) { return true; }
  bool on_document_end(Ec&) { return true; }
  bool on_object_begin(Ec& ec) {
    keys_.push_back(0);
    return count(ec);
  }
  bool on_object_end(size_t n, Ec&) {
    keys_.pop_back();
    stack.push_object(n);
    return true;
  }
  bool on_array_begin(Ec& ec) { return count(ec); }
  bool on_array_end(size_t n, Ec&) {
    stack.push_array(n);
    return true;
  }
  bool on_key_part(View s, size_t, Ec&) {
    stack.push_chars(s);
    return true;
  }
  bool on_key(View s, size_t, Ec& ec) {
    key_pairs_ += keys_.back()++;
    if (key_pairs_ > limits_.max_key_pairs) return stop(ec, "too many keys in an object");
    stack.push_key(s);
    return true;
  }
  bool on_string_part(View s, size_t, Ec&) {
    stack.push_chars(s);
    return true;
  }
  bool on_string(View s, size_t, Ec& ec) {
    stack.push_string(s);
    return count(ec);
  }
  bool on_number_part(View, Ec&) { return true; }
  bool on_int64(int64_t i, View, Ec& ec) {
    stack.push_int64(i);
    return count(ec);
  }
  bool on_uint64(uint64_t u, View, Ec& ec) {
    stack.push_uint64(u);
    return count(ec);
  }
  // Boost's own value may be off by a unit in the last place; the text is whole, as the parser is
  // given all of it at once.
  bool on_double(double d, View text, Ec& ec) {
    std::from_chars(text.data(), text.data() + text.size(), d);  // out of range: as it was
    stack.push_double(d);
    return count(ec);
  }
  bool on_bool(bool b, Ec& ec) {
    stack.push_bool(b);
    return count(ec);
  }
  bool on_null(Ec& ec) {
    stack.push_null();
    return count(ec);
  }
  bool on_comment_part(View, Ec&) { return true; }
  bool on_comment(View, Ec&) { return true; }

 private:
  bool count(Ec& ec) { return ++values_ <= limits_.max_values || stop(ec, "too many values"); }
  bool stop(Ec& ec, const char* why) {
    exceeded = why;
    ec = json::error::object_too_large;
    return false;
  }

  JsonLimits limits_;
  uint64_t values_ = 0, key_pairs_ = 0;
  std::vector<uint64_t> keys_;  // of the objects around this point
};

}  // namespace

Result<json::value> parse_json(std::string_view text, const JsonLimits& limits) {
  json::parse_options options;
  options.max_depth = 64;
  json::basic_parser<Builder> parser(options, limits);
  json::error_code ec;
  size_t used = parser.write_some(false, text.data(), text.size(), ec);
  if (!ec && used < text.size()) ec = json::error::extra_data;
  if (ec) {
    const char* exceeded = parser.handler().exceeded;
    return Error{400, strf("invalid JSON: %s", exceeded ? exceeded : ec.message().c_str())};
  }
  return parser.handler().stack.release();
}

namespace {

void append_number(std::string& out, double v) {
  if (!std::isfinite(v)) {  // JSON has no such number: as Boost.JSON does it
    out += json::serialize(json::value(v));
    return;
  }
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof(digits), v).ptr;
  const std::string_view text(digits, static_cast<size_t>(end - digits));
  out += text;
  if (text.find_first_of(".e") == std::string_view::npos) out += ".0";  // still no integer
}

void append_value(std::string& out, const json::value& v);

void append_object(std::string& out, const json::object& o) {
  const char* comma = "";
  out += '{';
  for (const auto& [key, member] : o) {
    out += comma;
    out += json::serialize(json::string(key));
    out += ':';
    append_value(out, member);
    comma = ",";
  }
  out += '}';
}

void append_value(std::string& out, const json::value& v) {
  const char* comma = "";
  switch (v.kind()) {
    case json::kind::object:
      return append_object(out, v.get_object());
    case json::kind::array:
      out += '[';
      for (const json::value& element : v.get_array()) {
        out += comma;
        append_value(out, element);
        comma = ",";
      }
      out += ']';
      return;
    case json::kind::double_:
      return append_number(out, v.get_double());
    case json::kind::null:
    case json::kind::bool_:
    case json::kind::int64:
    case json::kind::uint64:
    case json::kind::string:
      break;
  }
  out += json::serialize(v);
}

}  // namespace

std::string plain_json(const json::value& value) {
  std::string out;
  append_value(out, value);
  return out;
}

std::string plain_json(const json::object& object) {
  std::string out;
  append_object(out, object);
  return out;
}

}  // namespace sluice

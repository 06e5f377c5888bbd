// A JSON value, checked byte by byte as it arrives. Constant memory. One thread.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/json_escape.h"

namespace sluice::dialect {

enum class Step : uint8_t {
  more,
  done,         // with this byte
  done_before,  // before this byte, which belongs to what follows
  bad,          // this byte cannot stand here
};

class JsonScanner {
 public:
  static constexpr size_t kMaxDepth = 64;

  // The value as valid JSON is appended to `out`: the byte itself, or the escape of a control
  // character that a model wrote into a string. White space before the value is dropped.
  Step feed(char c, std::string& out);
  bool begun() const { return begun_; }
  // True for numbers: only what follows shows that they are complete.
  bool may_end() const;

 private:
  enum class State : uint8_t {
    value,
    value_or_end,  // after '['
    key_or_end,    // after '{'
    key,           // after ',' in an object
    colon,
    comma_or_end,
    string,
    escape,
    hex,
    word,   // true, false, null
    minus,  // numbers from here on
    zero,
    whole,
    point,
    fraction,
    exponent,
    exponent_sign,
    exponent_digits,
  };
  Step begin_value(char c);
  Step end_value();
  Step feed_string(char c, std::string& out);
  Step feed_number(char c);
  Step feed_punctuation(char c);

  State state_ = State::value;
  bool begun_ = false;
  bool is_key_ = false;  // the string is one
  uint8_t hex_left_ = 0;
  const char* word_ = "";  // the rest of the literal
  size_t depth_ = 0;
  std::bitset<kMaxDepth> objects_;  // which of the open containers are objects
};

inline bool is_json_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

}  // namespace sluice::dialect

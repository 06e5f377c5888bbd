// A value as Python or Gemma writes it, turned into JSON byte by byte: 'text', "text", <escape>text
// <escape>, True, None, lists, and objects whose keys are bare or quoted. One thread.
#pragma once

#include <string>
#include <string_view>

#include "dialect/json_scanner.h"

namespace sluice::dialect {

class LooseValue {
 public:
  struct Style {
    std::string_view quote;  // of strings, beside ' and "; empty: none
    bool bare = false;       // keys, and strings without anything in them that ends a value
  };
  explicit LooseValue(Style style) : style_(style) {}

  // JSON is appended to `out`.
  Step feed(char c, std::string& out);
  // A value that is an object from its opening brace on, which was read already.
  void begin_object(std::string& out);

 private:
  enum class State : uint8_t {
    value,
    value_or_end,
    key_or_end,
    key,
    bare_key,
    colon,
    comma_or_end,
    quoted,  // between ' or "
    escape,  // behind a backslash there
    hex,     // \x, \u, \U
    marked,  // between two style_.quote
    word,    // a number, a name, or bare text
  };
  Step begin_value(char c, std::string& out);
  Step end_value();
  Step end_container(std::string& out);
  Step feed_quoted(char c, std::string& out);
  Step feed_escape(char c, std::string& out);
  Step feed_marked(char c, std::string& out);
  Step feed_key(char c, std::string& out);
  Step finish_word(std::string& out);
  void begin_quoted(char quote, bool key, std::string& out);

  static constexpr size_t kMaxWord = 4096;
  Style style_;
  State state_ = State::value;
  char quote_ = '"';
  bool is_key_ = false;
  size_t matched_ = 0;  // bytes of style_.quote
  std::string word_;
  int hex_left_ = 0;
  uint32_t code_ = 0;
  size_t depth_ = 0;
  std::bitset<JsonScanner::kMaxDepth> objects_;
};

}  // namespace sluice::dialect

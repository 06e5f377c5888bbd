// A model's output, byte by byte, as content, reasoning and tool calls. The events do not depend on
// how the bytes were cut into pieces. Only output is parsed: what users and tools wrote never
// becomes a call. Time is linear, memory bounded. One thread.
//
// A call that is not written as its format wants is content; once its name was given out, it ends
// as not complete and the rest is content. White space next to calls and thinking is dropped.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "dialect/call_blocks.h"
#include "dialect/harmony.h"

namespace sluice::dialect {

class OutputParser {
 public:
  struct Options {
    OutputFormat format;
    std::shared_ptr<const ToolSet> tools;  // null or empty: no calls are looked for
    bool thinking = false;                 // the prompt's end opened the thinking
  };
  explicit OutputParser(Options options);

  void push(std::string_view bytes, std::vector<OutputEvent>& out);
  // The output has ended.
  void finish(std::vector<OutputEvent>& out);
  int num_calls() const { return writer_.num_calls(); }
  // Is what comes next a part of the thinking?
  bool thinking() const { return harmony_ ? harmony_->thinking() : mode_ == Mode::thinking; }

 private:
  enum class Mode : uint8_t { thinking, content, block };
  using Block =
      std::variant<std::monostate, JsonBlock, NamedBlock, XmlBlock, PythonicBlock, BracesBlock>;

  void feed(char c);
  void feed_thinking(char c);
  void feed_content(char c);
  void feed_block(char c);
  void begin_content();
  void begin_block(bool bare, bool second);
  void leave_block();
  void give_thinking(std::string_view text);
  void give_content(std::string_view text);

  static constexpr size_t kMaxRaw = size_t{64} << 10;
  static constexpr size_t kMaxSpace = 4096;
  Options options_;
  std::optional<Harmony> harmony_;
  EventWriter writer_;
  Mode mode_ = Mode::content;
  MarkerScan scan_;
  Block block_;
  std::string marker_;         // that began the block
  std::string raw_;            // of the block: what was not given out yet
  std::string space_;          // held back: white space before a call is dropped
  bool at_start_ = true;       // nothing but white space was given out since the start or a call
  bool may_think_ = true;      // nothing but white space came yet
  bool drop_space_ = false;    // behind the thinking
  bool at_line_start_ = true;  // of content
};

}  // namespace sluice::dialect

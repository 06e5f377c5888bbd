// gpt-oss's output: messages with a channel and perhaps a recipient.
//   <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...
// `analysis` is reasoning, a message to functions.NAME is a call, all else is content. One thread.
#pragma once

#include <string>
#include <string_view>

#include "dialect/format.h"
#include "dialect/json_scanner.h"
#include "dialect/marker_scan.h"
#include "dialect/output_event.h"

namespace sluice::dialect {

class Harmony {
 public:
  Harmony(const ToolFormat& format, const ToolSet* tools);

  void feed(char c, EventWriter& out);
  void finish(EventWriter& out);
  bool thinking() const { return state_ == State::reasoning; }

 private:
  enum class State : uint8_t { start, header, content, reasoning, arguments, after_arguments };
  void begin_header(std::string_view mark);
  void begin_message(EventWriter& out);
  void on_text(std::string_view text, EventWriter& out);
  void on_mark(size_t mark, EventWriter& out);
  void feed_arguments(char c, EventWriter& out);

  static constexpr size_t kMaxHeader = 512;
  std::string_view prefix_;  // of recipients that are tools
  const ToolSet* tools_;
  State state_ = State::start;
  MarkerScan scan_;
  std::string header_;  // as it came, marks included
  JsonScanner scanner_;
};

}  // namespace sluice::dialect

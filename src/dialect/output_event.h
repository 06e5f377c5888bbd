// What a model's output says, piece by piece.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dialect/tool_set.h"

namespace sluice::dialect {

struct OutputEvent {
  enum class Kind : uint8_t {
    content,
    reasoning,
    call_begin,  // text: the name
    arguments,   // text: the next piece of a JSON object
    call_end,
  };
  Kind kind = Kind::content;
  int call = -1;  // number of the call, from 0
  std::string text{};
  bool complete = true;  // of call_end; false: the output ended or went wrong in the arguments

  bool operator==(const OutputEvent&) const = default;
};

// Appends to a list of events; pieces of the same text become one.
class EventWriter {
 public:
  void to(std::vector<OutputEvent>& out) { out_ = &out; }
  void text(OutputEvent::Kind kind, std::string_view text, int call = -1);
  void begin_call(std::string_view name);
  void arguments(std::string_view text);
  void end_call(bool complete = true);
  bool in_call() const { return open_; }
  int num_calls() const { return calls_; }
  // Beginnings, pieces and ends of calls so far.
  size_t changes() const { return changes_; }

 private:
  std::vector<OutputEvent>* out_ = nullptr;
  bool open_ = false;
  int calls_ = 0;
  size_t changes_ = 0;
};

}  // namespace sluice::dialect

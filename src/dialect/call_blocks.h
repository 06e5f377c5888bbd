// Readers of one block of tool calls, one for each way to write calls. A reader takes the bytes
// behind the block's beginning one by one. One thread.
#pragma once

#include <string>
#include <string_view>

#include "dialect/format.h"
#include "dialect/json_scanner.h"
#include "dialect/loose_value.h"
#include "dialect/marker_scan.h"
#include "dialect/output_event.h"

namespace sluice::dialect {

struct BlockContext {
  const ToolFormat* format;
  const ToolSet* tools;
  bool bare = false;    // the block began without a marker: only names of tools are calls
  bool second = false;  // it began with format->begin2
  std::string_view end() const {
    return second && !format->end2.empty() ? format->end2 : format->end;
  }
  bool takes(std::string_view name) const { return !name.empty() && (!bare || tools->find(name)); }
};

constexpr size_t kMaxCallName = 256;

// What all readers have:
//   feed()     done_before: `unread()` bytes and this one belong to what follows the block.
//   at_rest()  the output may end here: no call is half read.

class JsonBlock {
 public:
  explicit JsonBlock(BlockContext context) : context_(context) {}
  Step feed(char c, EventWriter& out);
  size_t unread() const { return expect_.matched(); }
  bool at_rest() const {
    return state_ == State::tail || state_ == State::after_object ||
           (state_ == State::after_value && called_);
  }

 private:
  enum class State : uint8_t {
    open,  // a list or an object
    item,
    key_or_end,
    key,
    in_key,
    colon,
    name,
    args_start,
    args,       // an object, given out at once when the name is known
    args_text,  // a string that holds JSON
    other,      // a value that says nothing to us
    after_value,
    after_object,
    tail,
  };
  Step begin_object();
  Step end_key();
  Step begin_arguments(char c, EventWriter& out);
  Step feed_arguments(char c, EventWriter& out);
  Step end_name(EventWriter& out);
  Step end_text(EventWriter& out);
  void give_call(EventWriter& out);
  Step end_object(EventWriter& out);
  Step feed_tail(char c);

  BlockContext context_;
  State state_ = State::open;
  bool list_ = false;
  bool has_args_ = false, args_null_ = false, called_ = false;  // of this object
  std::string key_, name_, args_;  // args_: held back until the name is known
  JsonScanner scanner_;
  Expect expect_;
};

class NamedBlock {
 public:
  explicit NamedBlock(BlockContext context);
  Step feed(char c, EventWriter& out);
  size_t unread() const { return expect_.matched(); }
  bool at_rest() const { return state_ == State::next || state_ == State::call_end; }

 private:
  enum class State : uint8_t {
    call_begin,
    before_name,
    name,
    after_name,
    id,
    args,
    after_args,
    call_end,
    next,
  };
  void enter(State state);
  Step feed_name(char c);
  Step feed_after_name(char c, EventWriter& out);
  Step feed_args(char c, EventWriter& out);

  BlockContext context_;
  State state_ = State::call_begin;
  std::string name_;
  JsonScanner scanner_;
  Expect expect_;
};

class XmlBlock {
 public:
  explicit XmlBlock(BlockContext context);
  Step feed(char c, EventWriter& out);
  size_t unread() const { return expect_.matched(); }
  bool at_rest() const { return state_ == State::tail; }

 private:
  enum class State : uint8_t { function, name, parameter, key, value, tail };
  Step begin_value(EventWriter& out);
  Step feed_value(char c, EventWriter& out);
  void give_value(std::string_view text, EventWriter& out);
  void end_value(EventWriter& out);

  static constexpr size_t kMaxValue = size_t{64} << 10;  // of those that are not streamed
  BlockContext context_;
  State state_;
  std::string name_, key_, value_;
  const Tool* tool_ = nullptr;
  bool streams_ = false;  // the value is text
  bool first_ = true;     // of the call's parameters
  bool value_began_ = false;
  bool line_break_ = false;  // held back: dropped if the value ends here
  MarkerScan scan_;
  Expect expect_;
};

class PythonicBlock {
 public:
  explicit PythonicBlock(BlockContext context) : context_(context) {}
  Step feed(char c, EventWriter& out);
  size_t unread() const { return expect_.matched(); }
  bool at_rest() const { return state_ == State::tail || state_ == State::after_call; }

 private:
  enum class State : uint8_t { open, name, key_or_end, key, value, after_value, after_call, tail };
  Step feed_name(char c, EventWriter& out);
  Step feed_key(char c, EventWriter& out);
  Step feed_value(char c, EventWriter& out);
  Step end_call(EventWriter& out);

  BlockContext context_;
  State state_ = State::open;
  bool first_ = true;  // of the call's arguments
  std::string name_, key_;
  LooseValue value_{{}};
  Expect expect_;
};

class BracesBlock {
 public:
  explicit BracesBlock(BlockContext context);
  Step feed(char c, EventWriter& out);
  size_t unread() const { return expect_.matched(); }
  bool at_rest() const { return state_ == State::tail; }

 private:
  enum class State : uint8_t { before_name, name, args, tail };
  BlockContext context_;
  State state_ = State::before_name;
  std::string name_;
  LooseValue value_;
  Expect expect_;
};

}  // namespace sluice::dialect

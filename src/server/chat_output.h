// One choice of a chat as OpenAI's answers have it: content, reasoning and tool calls. One thread.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/token.h"
#include "dialect/output_parser.h"
#include "server/piece_writer.h"

namespace sluice {

// How the outputs of a request are read.
struct ChatReading {
  dialect::OutputParser::Options parser;
  std::shared_ptr<const std::vector<Token>> keep;  // control tokens that spell the format's marks
  bool parallel = true;                            // false: the first call only
  bool include_reasoning = true;
  // Of the template, whether it is read or not; null: it writes none.
  const dialect::ThinkFormat* think = nullptr;
  bool thinking_open = false;  // the prompt leaves the model thinking

  // Is there anything to look for?
  bool reads() const {
    return parser.format.think || parser.format.is_harmony() ||
           (parser.format.tools && parser.tools);
  }
  // Control tokens that are text to the parser.
  std::span<const Token> kept_tokens() const {
    return reads() && keep ? std::span<const Token>(*keep) : std::span<const Token>();
  }
};

// A piece of an output. Pieces keep the order in which the model wrote them.
struct OutputPart {
  enum class Kind : uint8_t { content, reasoning, call };
  Kind kind = Kind::content;
  int call = -1;         // number of the call
  std::string id, name;  // of a call; both empty: it began in a part taken earlier
  std::string text;      // of a call: its arguments
};

class ChatOutput {
 public:
  ChatOutput(const ChatReading& reading, std::function<std::string()> new_id);

  void push(std::string_view text, bool finished);
  bool called() const { return parser_.num_calls() > 0; }
  int num_reasoning() const { return num_reasoning_; }  // pushes that began within thinking
  // Has anything come since the last delta?
  bool pending() const { return !parts_.empty(); }
  // What has come since the last append_delta() or take_parts(). Neighbours differ in kind or call.
  std::vector<OutputPart> take_parts() { return std::exchange(parts_, {}); }
  const std::vector<OutputPart>& parts() const { return parts_; }
  // The fields of a delta, without braces: what has come since the last one.
  void append_delta(std::string& out);
  // "content":...,"tool_calls":[...],"reasoning":...,"reasoning_content":... of a whole message.
  PieceWriter write_message(std::string& out) const;

 private:
  void add(OutputPart::Kind kind, std::string_view text);
  void append_text(std::string& out, const char* name, OutputPart::Kind kind) const;
  void append_calls(std::string& out, bool whole) const;
  bool has(OutputPart::Kind kind) const;
  PieceWriter write_text(std::string& out, OutputPart::Kind kind) const;

  dialect::OutputParser parser_;
  std::function<std::string()> new_id_;
  bool parallel_, include_reasoning_;
  std::vector<dialect::OutputEvent> events_;  // of one push
  std::vector<OutputPart> parts_;
  int num_reasoning_ = 0;
};

// A call's arguments, once they are a whole JSON object; nothing where the call was cut off.
std::optional<json::value> whole_arguments(std::string_view text);

}  // namespace sluice

// One choice of a chat as OpenAI's answers have it: content, reasoning and tool calls. One thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
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
  bool thinking_open = false;  // the prompt leaves the model thinking, whether that is read or not

  // Is there anything to look for?
  bool reads() const {
    return parser.format.think || parser.format.is_harmony() ||
           (parser.format.tools && parser.tools);
  }
};

class ChatOutput {
 public:
  ChatOutput(const ChatReading& reading, std::function<std::string()> new_id);

  void push(std::string_view text, bool finished);
  bool called() const { return parser_.num_calls() > 0; }
  // Has anything come since the last delta?
  bool pending() const { return !content_.empty() || !reasoning_.empty() || !calls_.empty(); }
  // The fields of a delta, without braces: what has come since the last one.
  void append_delta(std::string& out);
  // "content":...,"tool_calls":[...],"reasoning":...,"reasoning_content":... of a whole message.
  PieceWriter write_message(std::string& out) const;

 private:
  struct CallPiece {
    int index;
    std::string id, name;  // both empty: it began earlier
    std::string arguments;
  };
  void append_calls(std::string& out, bool whole) const;

  dialect::OutputParser parser_;
  std::function<std::string()> new_id_;
  bool parallel_, include_reasoning_;
  std::vector<dialect::OutputEvent> events_;  // of one push
  std::string content_, reasoning_;
  std::vector<CallPiece> calls_;
};

}  // namespace sluice

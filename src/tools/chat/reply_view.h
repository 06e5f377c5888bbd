// Shows an answer while it is generated, taken apart where there is something to take apart:
// thinking goes to a person at a terminal only, calls are shown by the caller. Used by one thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/json.h"
#include "server/chat_output.h"
#include "tools/chat/answer_view.h"

namespace sluice {

// An answer taken apart: what a conversation keeps of it.
struct ChatReply {
  std::string content, reasoning;
  json::array calls;  // as the API has them: arguments as text
};
// Appends what came since the last time.
void take_reply(ChatOutput& output, ChatReply& reply);
// A whole text taken apart; it has no calls.
ChatReply split_reply(const ChatReading& reading, std::string_view text);

class ReplyView {
 public:
  // `output`: null if the text is the answer as it is, and `reply` stays empty. Both outlive this.
  ReplyView(ChatOutput* output, ChatReply& reply) : output_(output), reply_(reply) {}
  void show(std::string_view piece) { push(piece, false); }
  // What was held back.
  void finish();

 private:
  void push(std::string_view piece, bool finished);

  ChatOutput* output_;
  ChatReply& reply_;
  AnswerView view_;
};

}  // namespace sluice

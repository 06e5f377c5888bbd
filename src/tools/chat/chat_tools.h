// The tools that a model may call in a conversation: read from JSON, shown to the chat template,
// looked for in answers. Nothing is run: a person gives the results. Used by the main thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "runtime/session.h"
#include "server/chat_output.h"
#include "server/openai.h"
#include "tools/chat/conversation.h"
#include "tools/run_constraints.h"

namespace sluice {

class ChatTools {
 public:
  // How an answer is read, and what it has to follow.
  struct Plan {
    ChatReading reading;
    std::shared_ptr<const constrain::Constraint> constraint;  // null: none
    std::shared_ptr<const constrain::Thinking> thinking;      // before the constraint; null: none
  };

  // `text`: a JSON list of tools as the API has them. `must_call`: answers can be nothing but
  // calls.
  static Result<ChatTools> read(const Session& session,
                                std::string_view text,
                                bool must_call,
                                RunConstraints& constraints);
  const json::value& list() const { return fields_.tools.list; }
  // "get_weather, get_time"
  std::string names() const;
  bool must_call() const { return fields_.tools.must_call(); }
  bool constrains() const { return fields_.tools.must_call() || fields_.tools.strict(); }
  // For a prompt that ends with `prompt_end`. `constrained`: another constraint holds the answer,
  // which begins behind the thinking too.
  Result<Plan> plan(const Session& session,
                    std::string_view prompt_end,
                    RunConstraints& constraints,
                    bool constrained) const;
  // An id for the conversation's next call, as the template takes them.
  std::string new_id(const Conversation& talk);

 private:
  ChatFields fields_;
  dialect::OutputFormat format_;
  std::shared_ptr<const std::vector<Token>> marks_;
  int num_calls_ = 0;
};

}  // namespace sluice

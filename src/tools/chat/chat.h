// sluice run without a prompt: a conversation on a terminal, or one message per line of a pipe.
// Used by the main thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/events.h"
#include "runtime/session.h"
#include "tools/chat/chat_tools.h"
#include "tools/chat/command.h"
#include "tools/commands.h"
#include "tools/chat/console.h"
#include "tools/chat/conversation.h"
#include "tools/chat/reply_view.h"
#include "tools/requests.h"
#include "tools/run_constraints.h"

namespace sluice {

class Chat {
 public:
  Chat(Session& session, const RunOptions& options, RunConstraints& constraints);
  // Until the user leaves; the exit code.
  int run();

 private:
  // The figures of one answer.
  struct Turn {
    size_t prompt = 0, cached = 0, output = 0;
    double first = 0, rate = 0;  // seconds, tokens per second
    Finish finish = Finish::none;
  };
  using Argument = const ChatCommand&;
  struct Row {
    std::string_view name;
    const char* argument;
    const char* help;
    void (Chat::*act)(Argument);
  };
  static const Row kCommands[];

  void greet();
  void message(const std::string& text);
  void command(const ChatCommand& command);
  bool answer();
  // A request, and what takes its text apart; null: the text is the answer as it is.
  struct Question {
    Prepared prepared;
    std::unique_ptr<ChatOutput> output;
    ChatReading reading;  // its tokens are named in `prepared`
  };
  Result<Question> prepare_answer();
  Turn generate(Question question, ChatReply& reply);
  void show_calls(const json::array& calls) const;
  void show_turn(const Turn& turn) const;

  void help(Argument);
  void system(Argument);
  void set(Argument);
  void json_schema(Argument);
  void tools(Argument);
  void stats(Argument);
  void retry(Argument);
  void undo(Argument);
  void save(Argument);
  void load(Argument);
  void show_json(Argument);
  void clear(Argument);
  void exit(Argument) { leaving_ = true; }

  // For the person, not part of any answer: beside it on a terminal, else on stderr.
  void say(const std::string& text) const;
  void note(const std::string& text) const;  // the same, dim, unless --quiet
  void fail(const Error& error);

  Session& session_;
  const RunOptions& options_;
  RunConstraints& constraints_;
  SamplingOptions sampling_;
  CatchInterrupt interrupt_;
  Console console_;
  bool terminal_;   // stdout is one
  bool templated_;  // messages go through the model's chat template
  Conversation talk_;
  std::optional<ChatTools> tools_;
  std::string file_;  // last saved or loaded
  Turn last_;
  size_t num_answers_ = 0, num_tokens_ = 0;
  uint64_t retries_ = 0;  // of the present message: each draws anew
  bool leaving_ = false, failed_ = false;
  int code_ = kExitOk;
};

}  // namespace sluice

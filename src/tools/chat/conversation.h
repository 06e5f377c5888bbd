// The messages of a conversation: what was said, how it becomes a prompt, and its file. Used by one
// thread.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "runtime/session.h"
#include "text/segment.h"

namespace sluice {

class Conversation {
 public:
  bool empty() const { return messages_.empty(); }
  const json::array& messages() const { return messages_; }
  size_t size() const { return messages_.size(); }

  std::string system() const;                // empty: none
  void set_system(const std::string& text);  // empty: none
  void add(const char* role, const std::string& content);
  // An answer with its reasoning and calls, each absent where it is empty.
  void add_answer(const std::string& content, const std::string& reasoning, json::array calls);
  // Calls of the last answer that have no result yet, in their order, and the first one's result.
  std::vector<std::string> open_calls() const;  // names
  void add_result(const std::string& content);
  // Whether an answer has a call of that id.
  bool has_call(std::string_view id) const;
  // The last message's role; empty when there is none.
  std::string last_role() const;
  // Takes back the last answer: true when a message of the user is last now.
  bool drop_answer();
  // Takes back the last message of the user and what follows it; false where there is none.
  bool drop_exchange();
  // Everything but the system message.
  void clear();

  // The prompt that asks for the next answer: through the chat template, or, without `templated`,
  // all that was said so far as one text.
  Result<std::vector<TextSegment>> prompt(const Session& session,
                                          bool templated,
                                          const json::value& tools = nullptr) const;

  // A JSON list of messages, as `sluice template` reads it.
  std::string to_json() const;
  static Result<Conversation> from_json(std::string_view text);
  Result<void> save(const std::string& path) const;
  static Result<Conversation> load(const std::string& path);

 private:
  // The last answer's calls that have no result yet; null: none.
  const json::array* last_calls(size_t& num_results) const;

  json::array messages_;
};

}  // namespace sluice

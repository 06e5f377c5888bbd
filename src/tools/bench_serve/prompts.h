// Prompts of a load test: made up to a length in the server's own tokens, or read from a file. One
// thread. For tools/bench_serve.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "net/http_client.h"

namespace sluice {

// The server under test, as the questions before the run see it.
struct Target {
  HttpClient& client;
  HttpUrl url;
  HttpHeaders headers;  // of every request: key, content type
  std::string model;
  bool chat = true;

  HttpReply post(std::string_view path, std::string_view body) const;
  HttpReply get(std::string_view path) const;
};

// A text of words, each of a known number of tokens, that follow each other without merging.
class Vocabulary {
 public:
  // Asks the server: /tokenize where it has it, else the usage of two short answers.
  static Result<Vocabulary> ask(const Target& target);

  bool exact() const { return exact_; }
  bool has_ids() const { return !ids_.empty(); }
  // Of a server that has no vocabulary to ask: ids that every model has.
  void take_any_ids();
  const std::string& how() const { return how_; }  // for people
  int overhead() const { return overhead_; }       // tokens of a prompt that is only its first word

  // Appends so many tokens of text that is a function of `key` alone.
  void append_text(std::string& out, int tokens, uint64_t key) const;
  void append_ids(std::string& out, int tokens, uint64_t key) const;  // "1,2,3"
  static constexpr std::string_view kFirst = "the";

 private:
  bool ask_tokenize(const Target& target);
  bool ask_usage(const Target& target);

  struct Word {
    std::string_view text;
    int tokens = 1;
  };
  std::vector<Word> words_;
  std::vector<int64_t> ids_;
  double tokens_per_word_ = 1.3;  // when not exact
  int overhead_ = 1;
  bool exact_ = false;
  std::string how_;
};

// One request's prompt: `"messages":[...]` or `"prompt":...`.
struct PromptText {
  std::string field;
  int asked_tokens = 0;  // 0: not known (from a file)
  int max_tokens = 0;    // 0: not said
};

struct PromptShape {
  int tokens = 0;
  int prefix = 0;  // tokens in front of them, shared by a group
  uint64_t group = 0;
  std::vector<uint64_t> blocks;  // of a trace: equal ids, equal text
  int block_tokens = 0;
};

PromptText make_prompt(
    const Vocabulary& words, const PromptShape& shape, uint64_t key, bool chat, bool as_ids);

// JSONL: {"messages": [...]}, {"prompt": text or ids} or {"turns": [text, ...]}, each with
// max_tokens or without.
Result<std::vector<PromptText>> read_prompts(const std::string& path, bool chat);

}  // namespace sluice

// One generating HTTP request: its prompts, their choices, and the response they become.
// Made and used on the io thread of its connection; the engine sees it only through its sinks.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/collect.h"
#include "runtime/text_stream.h"
#include "server/openai.h"
#include "server/service.h"

namespace sluice {

// What an answer is made of. `text`, `tokens` and `scores` are what has not been written yet.
struct Choice {
  int index = 0;
  size_t prompt = 0;
  std::optional<TextStream> stream;  // none without a vocabulary
  std::string text;
  std::vector<Token> tokens;
  std::vector<ScoredToken> scores;
  Finish finish = Finish::none;
  Vector pooled;            // of an embedding
  json::value stop_reason;  // the stop string or stop_token_id that ended it, or null
  int num_output = 0;
  size_t text_offset = 0;  // of the next scored token, in the whole text
  Time last_token{0};
  bool begun = false;
};

struct PromptState {
  std::shared_ptr<const std::vector<Token>> tokens;
  std::vector<ScoredToken> scores;  // from the second token on
  RequestId id = 0;
  int num_cached = 0;
  std::string text;  // for echo
};

// How a generation is written: chat or text completion.
class Answer {
 public:
  virtual ~Answer() = default;
  virtual const char* id_prefix() const = 0;
  virtual const char* object(bool chunk) const = 0;
  // Whether the token that ends an answer is scored, though it is not in the text.
  virtual bool scores_end() const { return false; }
  // "delta":{...} or "text":"...", with logprobs, of what the choice has pending.
  virtual void append_chunk(std::string& out, const Generation& g, Choice& c) const = 0;
  // With own_events(), append_event writes the whole of what a choice has pending, and neither
  // OpenAI's frame nor [DONE] is written.
  virtual bool own_events() const { return false; }
  virtual void append_event(std::string&, const Generation&, Choice&) {}
  // The whole body instead of OpenAI's; empty: OpenAI's.
  virtual std::string body(const Generation&, std::span<Choice>) const { return {}; }
  // What precedes the first chunk of a choice, in the same form; empty: nothing.
  virtual void append_first(std::string& out, const Generation& g, Choice& c) const = 0;
  virtual json::object choice(const Generation& g, Choice& c) const = 0;
  // Further fields of a whole answer, each with its comma in front.
  virtual void append_extra(std::string& out, const Generation& g) const = 0;
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(Service& service, Call call, GenerateFields fields, std::unique_ptr<Answer> answer);

  // Checks, admits and submits. Answers the call when something is wrong.
  void start(std::vector<std::vector<Token>> prompts);
  void take(Delivery& delivery);
  void cancel();
  // A comment into a stream that has been silent since `before`, so that nothing between us and the
  // client takes it for dead. Io thread.
  void ping(Time before);

  Service& service() const { return service_; }
  const GenerateFields& fields() const { return fields_; }
  const PromptState& prompt(const Choice& c) const { return prompts_[c.prompt]; }
  const std::vector<PromptState>& prompts() const { return prompts_; }
  size_t thread() const { return call_.out->thread(); }
  bool echo = false, score_only = false;  // completions

 private:
  Refusal check(const std::vector<std::vector<Token>>& prompts) const;
  Refusal resolve_bad_words();
  Request make_request(size_t prompt) const;
  void write(std::string_view bytes);
  void on_event(Delivery& d);
  void begin_stream();
  void write_chunk(Choice& c);
  void append_usage(std::string& out) const;
  void finish();
  void fail(const ApiError& error);

  Service& service_;
  Call call_;
  GenerateFields fields_;
  std::unique_ptr<Answer> answer_;
  std::vector<PromptState> prompts_;
  std::vector<Choice> choices_;
  std::string prefix_;  // of every chunk, up to the choices
  std::string id_;
  int64_t created_ = 0;
  size_t num_done_ = 0;
  Time last_write_{0};
  bool streaming_ = false, over_ = false;
};

// The engine's way to a generation.
class GenerationSink final : public Sink {
 public:
  GenerationSink(std::shared_ptr<Generation> to, size_t prompt, std::unique_ptr<Ticket> ticket);
  void on_event(const Event& event, std::span<const TopLogprob> top) override;
  void on_refused(const Error& error) override;

 private:
  std::shared_ptr<Generation> to_;
  std::shared_ptr<Outbox> outbox_;
  Meters& meters_;
  size_t prompt_;
  std::unique_ptr<Ticket> ticket_;
};

}  // namespace sluice

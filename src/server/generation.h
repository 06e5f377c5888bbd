// One generating HTTP request: its prompts, their choices, and the response they become.
// Made and used on the io thread of its connection; the engine sees it only through its sinks.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/collect.h"
#include "runtime/text_stream.h"
#include "server/chat_output.h"
#include "server/event_log.h"
#include "server/openai.h"
#include "server/piece_writer.h"
#include "server/service.h"

namespace sluice {

// What an answer is made of. `text`, `tokens` and `scores` are what has not been written yet.
struct Choice {
  int index = 0;
  size_t prompt = 0;
  std::optional<TextStream> stream;    // none without a vocabulary
  std::unique_ptr<ChatOutput> output;  // takes the text where calls or reasoning are looked for
  std::string text;
  std::vector<Token> tokens;
  std::vector<ScoredToken> scores;
  Finish finish = Finish::none;
  Vector pooled;            // of an embedding
  json::value stop_reason;  // the stop string or stop_token_id that ended it, or null
  int num_output = 0;
  double logprob = 0;      // best_of: sum over its tokens
  size_t text_offset = 0;  // of the next scored token, in the whole text
  Time last_token{0};
  SeqTiming timing;  // as of its last event
  bool begun = false;
  bool shows_prompt = false;  // its next chunk carries the prompt's token ids
};

struct PromptState {
  std::shared_ptr<const std::vector<Token>> tokens;
  std::vector<ScoredToken> scores;  // from the second token on
  RequestId id = 0;                 // 0: not submitted yet
  int num_cached = 0;
  std::string text;  // for echo
};

// How a generation is written: one class per API.
class Answer {
 public:
  virtual ~Answer() = default;
  virtual const char* id_prefix() const = 0;
  // Reads a choice's text; null: it is content as it is.
  virtual std::unique_ptr<ChatOutput> make_output(Service&) const { return nullptr; }
  // Control tokens that are text to it, sorted.
  virtual std::span<const Token> kept_tokens() const { return {}; }
  // What it keeps of the request while that runs.
  virtual size_t held_bytes() const { return 0; }
  // Whether the token that ends an answer is scored, though it is not in the text.
  virtual bool scores_end() const { return false; }
  // With own_events(), append_event writes the whole of what a choice has pending, and neither
  // OpenAI's frame nor [DONE] is written.
  virtual bool own_events() const { return false; }
  virtual void append_event(std::string&, const Generation&, Choice&) {}
  // Ends a stream that has begun.
  virtual void append_error(std::string& out, const Generation&, const ApiError& error) {
    out += "data: " + error_json(error) + "\n\n";
  }
  virtual const char* stream_type() const { return "text/event-stream; charset=utf-8"; }
  // Keeps a silent stream alive; empty: the format has nothing that clients pass over.
  virtual std::string_view ping() const { return ": ping\n\n"; }
  // Writes the whole body instead of OpenAI's; nothing: OpenAI's.
  virtual std::optional<PieceWriter> body(std::string&, const Generation&, std::span<Choice>) {
    return {};
  }

  // OpenAI's frame. Answers with own_events() and body() need none of these.
  virtual const char* object(bool /*chunk*/) const { return ""; }
  // "delta":{...} or "text":"...", with logprobs, of what the choice has pending.
  virtual void append_chunk(std::string&, const Generation&, Choice&) const {}
  // What precedes the first chunk of a choice, in the same form; empty: nothing.
  virtual void append_first(std::string&, const Generation&, Choice&) const {}
  // Further fields of a chunk, beside its choices, each with its comma in front.
  virtual void append_beside(std::string&, const Generation&, Choice&) const {}
  // A choice's fields, up to finish_reason.
  virtual PieceWriter choice(std::string&, const Generation&, Choice&) const { co_return; }
  // Further fields of a whole answer, each with its comma in front.
  virtual PieceWriter extra(std::string&, const Generation&) const { co_return; }
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(Service& service, Call call, GenerateFields fields, std::unique_ptr<Answer> answer);

  // Checks, admits and submits. Answers the call when something is wrong.
  void start(std::vector<std::vector<Token>> prompts);
  void take(Delivery& delivery);
  void cancel() noexcept;  // io thread
  // With that error, unless it is over. Io thread.
  void end(const ApiError& error) {
    if (!over_) fail(error);
  }
  // After an exception: the request fails, with an error if there is memory for one, else by the
  // end of its connection.
  void lose() noexcept;
  // A comment into a stream that has been silent since `before`, so that nothing between us and the
  // client takes it for dead. Io thread.
  void ping(Time before);
  // Takes up a resumable stream behind its event number `last`, on another connection.
  void resume(Call call, uint64_t last);
  void discard();  // a resumable stream: cancels it, keeps its events no longer
  bool settled() const { return settled_.load(); }  // any thread
  // Once a second or so: writes what a slow client left, ends what nobody came back for.
  void tend();

  Service& service() const { return service_; }
  const GenerateFields& fields() const { return fields_; }
  const PromptState& prompt(const Choice& c) const { return prompts_[c.prompt]; }
  const std::vector<PromptState>& prompts() const { return prompts_; }
  size_t thread() const { return thread_; }
  int key() const { return call_.key; }
  const std::string& id() const { return id_; }  // of the answer
  int64_t created() const { return created_; }   // Unix time
  bool echo = false, score_only = false;         // completions
  // What is echoed of each prompt that came as text; ids are echoed as the text they stand for,
  // special tokens included.
  std::vector<std::optional<std::string>> echo_texts;
  std::vector<Fingerprint> turns;  // of a chat's messages (TurnLog); empty: no chat
  // kv_transfer_params of the answer, as JSON.
  std::string transfer_params() const;

 private:
  void compile(std::vector<std::vector<Token>> prompts);
  void go_on(const ConstraintCache::Answer& answer, std::vector<std::vector<Token>> prompts);
  bool take_constraint(const ConstraintCache::Answer& answer);
  void begin(std::vector<std::vector<Token>> prompts);
  Refusal check(const std::vector<std::vector<Token>>& prompts) const;
  Refusal resolve_bad_words();
  Refusal check_transfer(size_t num_prompts);
  Refusal enter_room();
  Time deadline() const;  // by the engine's clock; 0: none
  PromptBlocks prompt_blocks(size_t prompt) const;
  void fetch_prompt();
  void take_fetched(const KvFetcher::Outcome& outcome);
  Refusal admit(Load all);
  Load load(const std::vector<std::vector<Token>>& prompts) const;
  void make_choices(std::vector<std::vector<Token>> prompts);
  Request make_request(size_t prompt) const;
  void submit_more();
  void submit(size_t prompt);
  void name_block(const Request& request);
  void write(std::string_view bytes);
  void pump();
  void end_stream();
  void watch_connection();
  void on_event(Delivery& d);
  void begin_stream();
  void write_chunk(Choice& c);
  void append_usage(std::string& out) const;
  void append_usage_so_far(std::string& out, const Choice& c, int made) const;
  void keep_best();
  void keep_turn();
  void finish();
  PieceWriter write_answer(std::string& out);
  std::string fingerprint() const;
  void fail(const ApiError& error);
  void count_usage();

  Service& service_;
  Call call_;
  GenerateFields fields_;
  std::unique_ptr<Answer> answer_;
  std::vector<PromptState> prompts_;
  std::vector<Choice> choices_;
  std::vector<Token> turn_output_;  // of a chat's first choice
  std::shared_ptr<const constrain::Constraint> constraint_;
  Time compile_{0};                          // what the constraint took; 0: it was known
  std::optional<LeaseStore::Opened> lease_;  // of the prompt, for another server
  std::optional<FetchedPrompt> fetched_;     // of the prompt, from another server
  Time fetch_began_{0};
  std::string prefix_;  // of every chunk, up to the choices
  std::string id_;
  int64_t created_ = 0;
  size_t thread_;                     // io thread that it lives on; call_.out may be another's
  std::optional<EventLog> log_;       // of a resumable stream
  bool ended_ = false;                // nothing is appended to log_ any more
  std::atomic<bool> behind_{false};   // log_ holds events that the connection had no room for
  std::atomic<bool> settled_{false};  // it has ended, and all of it was written
  std::optional<Time> alone_since_;   // without a client
  size_t num_done_ = 0, num_submitted_ = 0;  // prompts
  size_t num_dropped_ = 0;                   // output tokens of choices that best_of left out
  size_t window_ = 1;                        // prompts that the engine may have at once
  Time started_{0};                          // by the engine's clock
  std::optional<Ticket> ticket_;             // prompts not submitted yet, bytes of the answer
  Time last_write_{0};
  Time first_token_{0};  // by the service's clock
  bool streaming_ = false, over_ = false, cancelled_ = false;
  bool cancel_missed_ = false;  // no memory for the message: sent with the next event
};

// The engine's way to a generation.
class GenerationSink final : public Sink {
 public:
  // `ticket` holds the prompt's tokens and a sequence for each choice. `lease`: of the prompt, 0:
  // none; ends with the request, or is sealed.
  GenerationSink(std::shared_ptr<Generation> to,
                 size_t prompt,
                 std::unique_ptr<Ticket> ticket,
                 LeaseId lease);
  ~GenerationSink() override;
  void on_event(const Event& event, std::span<const TopLogprob> top) override;
  void on_refused(const Error& error) override;
  void on_late(double retry_after) override;

 private:
  void end() noexcept;  // gives back what the request counted for, once

  std::shared_ptr<Generation> to_;
  std::shared_ptr<Outbox> outbox_;
  Meters& meters_;
  size_t prompt_;
  std::unique_ptr<Ticket> ticket_;
  LeaseId lease_;
  bool ended_ = false;
  std::vector<bool> begun_;  // choices that have a token
};

}  // namespace sluice

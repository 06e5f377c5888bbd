// Runs requests to their end and collects their outputs. The command line, the benchmarks and the
// tests use an engine through it. The engine thread only queues events; the caller's thread turns
// them into text.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mailbox.h"
#include "base/result.h"
#include "base/trace.h"
#include "engine/engine.h"
#include "runtime/text_stream.h"

namespace sluice {

// A scored token and the most likely ones in its place.
struct ScoredToken {
  TopLogprob token;
  std::vector<TopLogprob> top;
};

// An event's entries, grouped by position: the token itself comes first, the likely ones follow it.
void append_scores(const std::vector<TopLogprob>& entries, std::vector<ScoredToken>& out);

struct ChoiceOutput {
  std::vector<Token> tokens;
  std::string text;
  std::vector<ScoredToken> logprobs;
  Vector pooled;  // of a request with pooling
  Finish finish = Finish::none;
  SeqTiming timing;
  std::vector<Time> token_times;
};

struct RequestOutput {
  std::optional<Error> refused;
  std::vector<ChoiceOutput> choices;
  std::vector<ScoredToken> prompt_logprobs;  // from the second prompt token on
  int num_terminal = 0;                      // terminal events seen: one, always
};

class Collector {
 public:
  // `tokenizer` may be null: tokens only. on_text(request, choice, text) sees text as it comes.
  // detokenise: who does it. `engine` makes steps wait for it, to be compared with.
  enum class On : uint8_t { caller, engine };
  Collector(Engine& engine, const Tokenizer* tokenizer, On detokenise = On::caller);

  using OnText = std::function<void(size_t request, int choice, const std::string& text)>;
  // Called after each batch of events with the number of requests done.
  using OnProgress = std::function<void(size_t num_done, uint64_t num_tokens)>;

  // From here on: detokenising and on_text become spans of the track, unless it is null. The clock
  // is that of the trace's other tracks.
  void trace(TraceTrack* track, const Clock& clock) { track_ = track, clock_ = &clock; }
  // Adds a request; returns its index. May be called while others run.
  size_t submit(Request request, TextStream::Options text = {});
  // Until all submitted requests have ended. on_progress is called at least every `tick`.
  void wait(const OnText& on_text = {}, const OnProgress& on_progress = {}, Time tick = kNever);
  RequestId id(size_t index) const { return ids_[index]; }
  const std::vector<RequestOutput>& outputs() const { return outputs_; }

 private:
  struct Delivery {
    size_t index;
    std::optional<Error> refused;
    Event event;
    std::vector<TopLogprob> top, prompt;
    std::string text = {};  // of On::engine
  };
  class ToBox;
  void take(Delivery& delivery, const OnText& on_text);

  Engine& engine_;
  const Tokenizer* tokenizer_;
  const On detokenise_;
  std::shared_ptr<Mailbox<Delivery>> box_;
  std::vector<RequestOutput> outputs_;
  std::vector<RequestId> ids_;
  std::vector<std::vector<TextStream>> streams_;  // of On::caller
  size_t num_done_ = 0;
  uint64_t num_tokens_ = 0;
  TraceTrack* track_ = nullptr;
  const Clock* clock_ = nullptr;
};

}  // namespace sluice

#include "runtime/collect.h"

namespace sluice {

class Collector::ToBox final : public Sink {
 public:
  // streams: by choice, to detokenise here; empty: the caller does.
  ToBox(size_t index, std::shared_ptr<Mailbox<Delivery>> box, std::vector<TextStream> streams)
      : index_(index), box_(std::move(box)), streams_(std::move(streams)) {}

  void on_event(const Event& event, std::span<const TopLogprob> top) override {
    Delivery d{index_, {}, event, {}, {}};
    if (!streams_.empty()) d.text = streams_[event.choice].take(event);
    auto piece = [&](uint32_t at, uint32_t num) {
      auto first = top.begin() + at;
      return std::vector<TopLogprob>(first, first + num);
    };
    if (event.num_top > 0) d.top = piece(event.top_at, event.num_top);
    if (event.num_prompt > 0) d.prompt = piece(event.prompt_at, event.num_prompt);
    box_->push(std::move(d));
  }
  void on_refused(const Error& error) override { box_->push({index_, error, {}, {}, {}}); }

 private:
  size_t index_;
  std::shared_ptr<Mailbox<Delivery>> box_;
  std::vector<TextStream> streams_;
};

void append_scores(const std::vector<TopLogprob>& entries, std::vector<ScoredToken>& out) {
  int32_t pos = -1;
  for (const TopLogprob& t : entries) {
    if (t.pos != pos) {
      out.push_back({t, {}});
      pos = t.pos;
    } else {
      out.back().top.push_back(t);
    }
  }
}

Collector::Collector(Engine& engine, const Tokenizer* tokenizer, On detokenise)
    : engine_(engine),
      tokenizer_(tokenizer),
      detokenise_(detokenise),
      box_(std::make_shared<Mailbox<Delivery>>()) {}

size_t Collector::submit(Request request, TextStream::Options text) {
  size_t index = outputs_.size();
  auto n = static_cast<size_t>(std::max(request.n, 1));
  outputs_.emplace_back().choices.resize(n);
  std::vector<TextStream> here, there;
  for (size_t c = 0; c < n && tokenizer_; ++c)
    (detokenise_ == On::engine ? there : here).emplace_back(*tokenizer_, text);
  streams_.push_back(std::move(here));
  ids_.push_back(
      engine_.submit(std::move(request), std::make_shared<ToBox>(index, box_, std::move(there))));
  return index;
}

void Collector::wait(const OnText& on_text, const OnProgress& on_progress, Time tick) {
  std::vector<Delivery> batch;
  while (num_done_ < outputs_.size()) {
    box_->wait_drain(batch, tick);
    for (Delivery& d : batch) take(d, on_text);
    if (on_progress) on_progress(num_done_, num_tokens_);
  }
}

void Collector::take(Delivery& d, const OnText& on_text) {
  RequestOutput& out = outputs_[d.index];
  if (d.refused) {
    out.refused = std::move(d.refused);
    ++num_done_;
    return;
  }
  append_scores(d.prompt, out.prompt_logprobs);
  ChoiceOutput& choice = out.choices[d.event.choice];
  append_scores(d.top, choice.logprobs);
  if (d.event.token != kNoToken) {
    choice.tokens.push_back(d.event.token);
    choice.token_times.push_back(d.event.timing.last_token);
    ++num_tokens_;
  }
  if (tokenizer_) {
    std::string text = std::move(d.text);
    if (detokenise_ == On::caller) {
      const TraceSpan span(track_, clock_, "detokenise");
      text = streams_[d.index][d.event.choice].take(d.event);
    }
    choice.text += text;
    if (on_text && !text.empty()) {
      const TraceSpan span(track_, clock_, "send");
      on_text(d.index, d.event.choice, text);
    }
  }
  if (d.event.finish != Finish::none) {
    choice.finish = d.event.finish;
    choice.pooled = std::move(d.event.pooled);
    choice.timing = d.event.timing;
  }
  if (d.event.last) {
    ++out.num_terminal;
    ++num_done_;
  }
}

}  // namespace sluice

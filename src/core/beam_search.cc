#include "core/beam_search.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace sluice {

BeamSearch::BeamSearch(int width,
                       const BeamSpec& spec,
                       int max_new,
                       std::span<const Token> end_tokens)
    : width_(width),
      max_new_(max_new),
      spec_(spec),
      end_tokens_(end_tokens.begin(), end_tokens.end()) {
  CHECK(width > 0 && max_new > 0);
  if (width == 1) spec_.end = BeamEnd::first;  // then it is greedy search
}

double BeamSearch::score(double logprob, int length) const {
  return logprob / std::pow(static_cast<double>(length), double{spec_.length_penalty});
}

// Of the likeliest continuations over all beams, those that go on become the next beams. One that
// ends becomes an answer if it is among the `width` likeliest: else a better beam is still open.
bool BeamSearch::step(std::span<const Row> rows) {
  CHECK(rows.size() == beams_.size());
  ++length_;
  candidates_.clear();
  for (size_t b = 0; b < rows.size(); ++b) {
    for (const Option& t : rows[b].options) {
      bool ends = std::ranges::find(end_tokens_, t.token) != end_tokens_.end();
      double logprob = beams_[b].logprob + double{t.logprob};
      candidates_.push_back(
          {{static_cast<int>(b), t.token, logprob}, ends, ends || length_ == max_new_});
    }
  }
  // Ties go to the earlier beam, then to the token that its row names first.
  std::stable_sort(
      candidates_.begin(), candidates_.end(),
      [](const Candidate& a, const Candidate& b) { return a.beam.logprob > b.beam.logprob; });

  beams_.clear();
  bool closed = spec_.end == BeamEnd::first && full();
  for (size_t k = 0; k < candidates_.size(); ++k) {
    const Candidate& c = candidates_[k];
    if (!c.last) {
      if (beams_.size() < static_cast<size_t>(width_)) beams_.push_back(c.beam);
    } else if (k < static_cast<size_t>(width_) && !closed) {
      add_answer(c, rows[static_cast<size_t>(c.beam.parent)].output);
    }
  }
  return !beams_.empty() && may_improve();
}

void BeamSearch::add_answer(const Candidate& c, std::span<const Token> output) {
  double points = score(c.beam.logprob, length_);
  auto at = std::ranges::find_if(answers_, [&](const Answer& a) { return a.score < points; });
  if (full() && at == answers_.end()) return;
  Answer a{{output.begin(), output.end()}, points, c.ends};
  a.tokens.push_back(c.beam.token);
  answers_.insert(at, std::move(a));
  if (static_cast<int>(answers_.size()) > width_) answers_.pop_back();
}

// Whether a beam could still become a better answer than the worst that there is.
bool BeamSearch::may_improve() const {
  if (!full()) return true;
  if (spec_.end == BeamEnd::first) return false;
  bool longest = spec_.end == BeamEnd::never && spec_.length_penalty > 0;
  return score(beams_.front().logprob, longest ? max_new_ : length_) > answers_.back().score;
}

}  // namespace sluice

// Beam search of one request: which continuations of its beams live on, which outputs are answers,
// and when to end. Knows tokens and log-probabilities, no blocks and no sequences. The rules are
// those of Hugging Face's generate(num_beams=width). Owned by the scheduler; copyable.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/token.h"
#include "core/request.h"

namespace sluice {

class BeamSearch {
 public:
  struct Option {
    Token token = kNoToken;
    float logprob = 0;
    bool operator==(const Option&) const = default;
  };
  // What a beam has so far, and the most likely tokens to follow it.
  struct Row {
    std::span<const Token> output;
    std::span<const Option> options;  // num_candidates() of them, most likely first
  };
  // A beam of the next step: `token` behind the beam `parent` of the last one.
  struct Beam {
    int parent = 0;
    Token token = kNoToken;
    double logprob = 0;  // of the whole output
    bool operator==(const Beam&) const = default;
  };
  struct Answer {
    std::vector<Token> tokens;  // with the end token, where there is one
    double score = 0;           // log-probability of the output / length^length_penalty
    bool ended = false;         // by an end token, else by max_new
    bool operator==(const Answer&) const = default;
  };

  BeamSearch() = default;
  BeamSearch(int width, const BeamSpec& spec, int max_new, std::span<const Token> end_tokens);

  // Tokens that a row must offer: each end token may be among them, and `width` others must be
  // left. (With one end token Hugging Face takes the 2 * width likeliest of all rows: the same ones
  // live on.)
  static int num_candidates(int width, size_t num_end_tokens) {
    return width + static_cast<int>(num_end_tokens);
  }

  // Takes a row for every beam, in the order of beams(); before the first step there is one beam,
  // the prompt. False: the search is over.
  bool step(std::span<const Row> rows);
  // At most `width`, most likely first.
  std::span<const Beam> beams() const { return beams_; }
  // At most `width`, best first. Final when step() has returned false.
  std::span<const Answer> answers() const { return answers_; }
  bool operator==(const BeamSearch&) const = default;

 private:
  friend struct SchedulerState;
  struct Candidate {
    Beam beam;
    bool ends, last;  // by an end token; by that or by max_new
    bool operator==(const Candidate&) const = default;
  };
  double score(double logprob, int length) const;
  bool full() const { return static_cast<int>(answers_.size()) == width_; }
  void add_answer(const Candidate& c, std::span<const Token> output);
  bool may_improve() const;

  int width_ = 1, max_new_ = 1, length_ = 0;  // length: of the beams' outputs
  BeamSpec spec_;
  std::vector<Token> end_tokens_;
  std::vector<Beam> beams_ = {{}};
  std::vector<Answer> answers_;
  std::vector<Candidate> candidates_;  // step(): its own
};

}  // namespace sluice

// What a user asked for, as the engine takes it. Built by front ends, immutable once submitted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/token.h"

namespace sluice {

namespace constrain {
class Constraint;  // core passes both on and never looks inside
struct Thinking;
}  // namespace constrain

using RequestId = uint64_t;
using TenantId = uint64_t;
using LeaseId = uint64_t;

// How tokens are drawn. Reported log-probabilities are of the raw logits.
struct SamplingSpec {
  float temperature = 1;  // 0: greedy, ties to the lowest id
  int top_k = 0;          // 0: off
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;  // over prompt and output
  float frequency_penalty = 0;   // over output
  float presence_penalty = 0;    // over output
  uint64_t seed = 0;             // draws are keyed by (seed, choice, position)
  int min_tokens = 0;
  int num_logprobs = -1;           // -1 none, 0 the chosen token, k also the k most likely
  int prompt_logprobs = -1;        // the same for every prompt token
  std::vector<Token> logprob_ids;  // not empty: reported instead of the num_logprobs most likely
  std::vector<std::pair<Token, float>> logit_bias;
  std::vector<Token> banned_until_min;  // end and stop ids, forbidden before min_tokens
  std::vector<Token> allowed;           // empty: all
  // Token sequences that the output may not contain: the last token of one is forbidden where the
  // ones before it are the end of the output.
  std::vector<std::vector<Token>> bad_sequences;
  bool operator==(const SamplingSpec&) const = default;
};

// The most that an executor can sample by. Numbers, so that a configuration is plain data.
struct SamplingLimits {
  static constexpr size_t kAny = std::numeric_limits<int>::max();
  size_t logit_bias = kAny;                            // entries
  size_t banned_until_min = kAny;                      // ids
  size_t bad_length = kAny;                            // tokens of one bad sequence
  size_t bad_tokens = kAny;                            // tokens of all bad sequences
  int num_logprobs = std::numeric_limits<int>::max();  // beside the token; of prompt tokens too
  size_t logprob_ids = kAny;
  bool operator==(const SamplingLimits&) const = default;
};
// Whether an executor with these limits can sample by the spec. An empty bad sequence fits none.
bool fits(const SamplingSpec& spec, const SamplingLimits& limits);

struct Stop {
  std::vector<Token> tokens;         // end-of-text ids (empty with ignore_eos) and stop_token_ids
  std::vector<std::string> strings;  // matched over the bytes of the output
};

// What a request wants instead of tokens: its prompt's final hidden states as one vector.
enum class Pooling : uint8_t {
  none,  // tokens
  last,  // of the last position
  mean,  // over all positions
};

// When a beam search with as many answers as beams ends; Hugging Face's early_stopping.
enum class BeamEnd : uint8_t {
  usual,  // false: no beam would be better than the worst answer if it ended now
  first,  // true: at once
  never,  // "never": no beam can get better than the worst answer, at any length
};

// The request's n outputs are the likeliest that a search with n beams finds, best first, instead
// of samples. Nothing is drawn: temperature, top_k, top_p, min_p and the seed have no effect.
struct BeamSpec {
  float length_penalty = 1;  // answers compare by log-probability / length^length_penalty
  BeamEnd end = BeamEnd::usual;
  bool operator==(const BeamSpec&) const = default;
};
// What of a spec beam search has no rule for, by its name in requests; null: nothing.
const char* not_with_beams(const SamplingSpec& spec);

// 128 bits: a collision is not a concern; tokens are compared on a hit all the same.
struct BlockHash {
  uint64_t a = 0, b = 0;
  bool operator==(const BlockHash&) const = default;
};

struct Request {
  RequestId id = 0;  // made by the engine, ascending: ties in any order break by it
  std::shared_ptr<const std::vector<Token>> prompt;
  std::vector<BlockHash> block_hashes;  // of the prompt's full blocks (hash_blocks), may be empty
  std::shared_ptr<const SamplingSpec> sampling;
  Stop stop;
  std::shared_ptr<const constrain::Constraint> constraint;  // what the output must be; null: any
  std::shared_ptr<const constrain::Thinking> thinking;      // of the output; null: as it likes
  int max_new = 16;                                         // 0 with pooling
  int predicted_output = 0;       // tokens that it is expected to sample; 0: nobody knows, max_new
  int n = 1;                      // choices; 1 with pooling
  std::optional<BeamSpec> beams;  // n of them; none: choices are sampled
  Pooling pooling = Pooling::none;
  int priority = 0;      // lower runs first under order=priority
  TenantId tenant = 0;   // prefixes are shared within one
  TenantId account = 0;  // whose share it counts towards under order=fair
  Time arrival{0};
  Time deadline = kNever;
  LeaseId lease = 0;  // not 0: the prompt's blocks are exported under it (kv_exporter.h)

  // Samples obey masks.
  bool masked() const { return constraint || thinking; }
};

}  // namespace sluice

// A constraint at work on one vocabulary, for `sluice constrain` and `bench constraints`.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/result.h"
#include "constrain/matcher.h"
#include "text/tokenizer.h"

namespace sluice {

struct ConstraintModel {
  std::unique_ptr<Tokenizer> tokenizer;
  std::shared_ptr<const constrain::VocabTrie> trie;
};

// The vocabulary of the model that a user names.
Result<ConstraintModel> load_constraint_model(const std::string& name);

// Thread time of each mask, in microseconds.
struct MaskTimes {
  std::vector<double> us;
};

bool judge_text(const std::shared_ptr<const constrain::Constraint>& constraint,
                std::string_view text);
// Runs the text through masks token by token. False when a mask refused a token.
bool judge_tokens(const std::shared_ptr<const constrain::Constraint>& constraint,
                  const Tokenizer& tokenizer,
                  std::string_view text,
                  MaskTimes* times);
// A random text that the constraint allows; endings are favoured, and `hints`, where one may come
// next: chance hardly ever spells the name of a required property. Nothing when it did not end
// within `max_tokens`. The error is a limit that was exceeded, or a state without allowed tokens.
Result<std::optional<std::string>> random_text(
    const std::shared_ptr<const constrain::Constraint>& constraint,
    uint64_t seed,
    int max_tokens,
    std::span<const std::string> hints,
    MaskTimes* times);

double thread_seconds();

}  // namespace sluice

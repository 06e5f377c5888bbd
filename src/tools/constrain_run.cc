#include "tools/constrain_run.h"

#include <time.h>

#include <algorithm>
#include <random>

#include "base/str.h"
#include "load/open.h"
#include "runtime/constraint_vocab.h"
#include "tools/locate_model.h"

namespace sluice {

using constrain::Constraint;
using constrain::Matcher;

double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

Result<ConstraintModel> load_constraint_model(const std::string& name) {
  Result<std::string> path = locate_model(name);
  if (!path) return path.error();
  Result<std::unique_ptr<Checkpoint>> checkpoint = open_text(*path);
  if (!checkpoint) return checkpoint.error();
  if (!has_vocabulary(**checkpoint)) return Error{400, "the model has no vocabulary"};
  Result<std::unique_ptr<Tokenizer>> tokenizer = load_tokenizer(**checkpoint);
  if (!tokenizer) return tokenizer.error();
  const Tokenizer& t = **tokenizer;
  auto trie = constraint_vocab(t, t.size());
  return ConstraintModel{std::move(*tokenizer), std::move(trie)};
}

bool judge_text(const std::shared_ptr<const Constraint>& constraint, std::string_view text) {
  Matcher matcher(constraint);
  // In pieces, so that the work of a step stays that of a token.
  for (size_t i = 0; i < text.size(); i += 16) {
    if (!matcher.accept_bytes(text.substr(i, 16))) return false;
  }
  return matcher.can_end();
}

bool judge_tokens(const std::shared_ptr<const Constraint>& constraint,
                  const Tokenizer& tokenizer,
                  std::string_view text,
                  MaskTimes* times) {
  Result<std::vector<Token>> tokens = tokenizer.encode(text);
  if (!tokens) return false;
  Matcher matcher(constraint);
  std::vector<uint32_t> mask(constraint->trie().mask_words());
  for (Token t : *tokens) {
    double start = thread_seconds();
    bool filled = matcher.fill_mask(mask).has_value();
    if (times) times->us.push_back(1e6 * (thread_seconds() - start));
    if (!filled || !matcher.accept(t)) return false;
  }
  return matcher.can_end();
}

namespace {

// The first of the hints from a random one on that may come next, or that one alone. Late in a text
// all are tried, those first that close something. Empty: none.
std::string_view take_hint(Matcher& matcher,
                           std::span<const std::string> hints,
                           uint64_t random,
                           bool late) {
  for (std::string_view closing : {"}", "]"})
    if (late && matcher.accept_bytes(closing)) return closing;
  const size_t from = random % hints.size();
  for (size_t i = 0; i < (late ? hints.size() : 1); ++i) {
    const std::string& hint = hints[(from + i) % hints.size()];
    if (matcher.accept_bytes(hint)) return hint;
  }
  return {};
}

}  // namespace

Result<std::optional<std::string>> random_text(const std::shared_ptr<const Constraint>& constraint,
                                               uint64_t seed,
                                               int max_tokens,
                                               std::span<const std::string> hints,
                                               MaskTimes* times) {
  const constrain::VocabTrie& trie = constraint->trie();
  std::mt19937_64 random(seed);
  Matcher matcher(constraint);
  std::vector<uint32_t> mask(trie.mask_words());
  std::string text;
  // From a random place, the next allowed token; of those that close something, if there is one.
  std::vector<uint32_t> closing(mask.size());
  for (Token t = 0; t < static_cast<Token>(trie.vocab_size()); ++t) {
    std::string_view bytes = trie.bytes(t);
    if (bytes.empty()) continue;
    bool closes = bytes.back() == '"' || bytes.back() == '}' || bytes.back() == ']';
    if (closes) closing[static_cast<size_t>(t) / 32] |= 1u << (t % 32);
  }
  auto pick = [&](bool only_closing) {
    size_t from = random() % mask.size();
    uint32_t here = ~0u << (random() % 32);
    for (size_t i = 0; i <= mask.size(); ++i, here = ~0u) {
      size_t w = (from + i) % mask.size();
      uint32_t bits = mask[w] & here & (only_closing ? closing[w] : ~0u);
      if (bits != 0) return static_cast<Token>(w * 32 + static_cast<size_t>(__builtin_ctz(bits)));
    }
    return kNoToken;
  };
  for (int step = 0; step < max_tokens; ++step) {
    double start = thread_seconds();
    Result<void> filled = matcher.fill_mask(mask);
    if (times) times->us.push_back(1e6 * (thread_seconds() - start));
    if (!filled) return filled.error();
    if (matcher.can_end() && (matcher.is_done() || random() % 2 == 0)) return std::optional(text);
    const bool late = step >= 40;
    if (!hints.empty() && random() % 8 < (late ? 7 : 4)) {
      const std::string_view taken = take_hint(matcher, hints, random(), late);
      text += taken;
      if (!taken.empty()) continue;
    }
    for (Token t : trie.ends()) mask[static_cast<size_t>(t) / 32] &= ~(1u << (t % 32));
    Token t = kNoToken;
    if (random() % 100 < (step < 30 ? 50u : 90u)) t = pick(true);
    if (t == kNoToken) t = pick(false);
    if (t == kNoToken) {
      return Error{400, strf("no token is allowed after %s", quote(text, 400).c_str())};
    }
    if (!matcher.accept(t)) {
      return Error{400, strf("the mask allowed token %d after %s, which is then refused", t,
                             quote(text, 400).c_str())};
    }
    text += trie.bytes(t);
  }
  return std::optional<std::string>();
}

}  // namespace sluice

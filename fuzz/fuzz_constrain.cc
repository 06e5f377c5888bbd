// Any bytes as a constraint (the first byte names the kind), then a walk through its masks:
// compiling ends within its limits; a token that the mask allows is accepted; a text is never
// stuck; what was rolled back can be accepted again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "constrain/matcher.h"

namespace {

using namespace sluice::constrain;

std::shared_ptr<const VocabTrie> make_trie() {
  std::vector<std::string> tokens{""};
  for (int b = 0; b < 256; ++b) tokens.emplace_back(1, static_cast<char>(b));
  for (const char* t : {"{\"", "\": ", "\", \"", "\"}", "true", "ab", "12", "  ", "\xC3\xA9"}) {
    tokens.emplace_back(t);
  }
  std::vector<std::string_view> views(tokens.begin(), tokens.end());
  const sluice::Token ends[] = {0};
  return std::make_shared<const VocabTrie>(views, ends);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::shared_ptr<const VocabTrie> kTrie = make_trie();
  if (size == 0) return 0;
  ConstraintLimits limits;
  limits.max_compile_work = 200'000;
  limits.max_regex_nodes = 50'000;
  limits.max_step_work = 50'000;
  limits.max_threads = 256;
  auto kind = static_cast<ConstraintKind>(data[0] % std::size(kConstraintKinds));
  std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  auto constraint = Constraint::compile({kind, text}, kTrie, limits);
  if (!constraint) {
    if (constraint.error().message.empty()) std::abort();
    return 0;
  }
  Matcher matcher(*constraint);
  std::vector<uint32_t> mask(kTrie->mask_words());
  uint64_t random = size;
  for (int step = 0; step < 48 && !matcher.is_done(); ++step) {
    if (!matcher.fill_mask(mask)) return 0;  // a limit
    random = random * 6364136223846793005u + data[static_cast<size_t>(step) % size] + 1;
    sluice::Token chosen = sluice::kNoToken;
    sluice::Token start = static_cast<sluice::Token>((random >> 33) % kTrie->vocab_size());
    for (size_t i = 0; i < kTrie->vocab_size() && chosen == sluice::kNoToken; ++i) {
      sluice::Token t =
          static_cast<sluice::Token>((static_cast<size_t>(start) + i) % kTrie->vocab_size());
      if (t != 0 && (mask[static_cast<size_t>(t) / 32] >> (t % 32) & 1)) chosen = t;
    }
    if (chosen == sluice::kNoToken) {
      if (!matcher.can_end()) std::abort();
      return 0;
    }
    if (!matcher.accept(chosen)) {
      if (matcher.failure().empty()) std::abort();
      return 0;
    }
    if (step % 3 == 0) {
      matcher.rollback(1);
      if (!matcher.accept(chosen) && matcher.failure().empty()) std::abort();
    }
  }
  return 0;
}

// Whether a benchmark turns its outputs into text, and on whose thread.
#pragma once

#include <cstdint>
#include <memory>

#include "base/named.h"
#include "runtime/collect.h"
#include "text/tokenizer.h"

namespace sluice {

enum class TextWork : uint8_t {
  none,
  pipelined,  // beside the steps that follow, as servers do
  inline_,    // by the engine thread, before it goes on
};
inline constexpr NamedValue<TextWork> kTextWorks[] = {
    {"none", TextWork::none}, {"pipelined", TextWork::pipelined}, {"inline", TextWork::inline_}};

inline Collector::On detokenise_on(TextWork work) {
  return work == TextWork::inline_ ? Collector::On::engine : Collector::On::caller;
}

// For models without a vocabulary: every token is a word with its number.
std::unique_ptr<Tokenizer> numbered_words(int vocab);

}  // namespace sluice

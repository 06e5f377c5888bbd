// Where a character as a reader sees it ends: extended grapheme clusters (Unicode Standard Annex
// 29). Pure.
#pragma once

#include <cstddef>
#include <string_view>

namespace sluice {

// End of the cluster that starts at byte `pos` of valid UTF-8; pos < text.size().
size_t grapheme_end(std::string_view text, size_t pos);

}  // namespace sluice

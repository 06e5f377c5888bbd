#include "text/charsmap.h"

#include "base/str.h"

namespace sluice {

namespace {

// A unit of the array: label in the low byte, whether a value hangs below it, and where its
// children are.
constexpr bool has_leaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
constexpr uint32_t value_of(uint32_t unit) { return unit & 0x7FFFFFFF; }
constexpr uint32_t label_of(uint32_t unit) { return unit & 0x800000FF; }
constexpr uint32_t offset_of(uint32_t unit) { return unit >> 10 << ((unit >> 6) & 8); }

uint32_t read_u32(std::string_view s, size_t at) {
  uint32_t v = 0;
  for (int i = 3; i >= 0; --i) v = v << 8 | static_cast<uint8_t>(s[at + static_cast<size_t>(i)]);
  return v;
}

}  // namespace

Result<std::shared_ptr<const Charsmap>> Charsmap::parse(std::string_view blob) {
  auto map = std::make_shared<Charsmap>();
  if (blob.size() < 4) return Error{400, "the precompiled character map is cut short"};
  const size_t size = read_u32(blob, 0);
  if (size % 4 != 0 || size == 0 || size > blob.size() - 4) {
    return Error{400, strf("the precompiled character map has a trie of %zu bytes in %zu", size,
                           blob.size())};
  }
  map->units_.resize(size / 4);
  for (size_t i = 0; i < map->units_.size(); ++i) map->units_[i] = read_u32(blob, 4 + 4 * i);
  map->replacements_ = blob.substr(4 + size);
  if (!valid_utf8(map->replacements_)) {
    return Error{400, "the precompiled character map gives invalid UTF-8"};
  }
  return std::shared_ptr<const Charsmap>(std::move(map));
}

template <typename Found>
void Charsmap::walk(std::string_view text, Found found) const {
  uint32_t at = offset_of(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    uint32_t byte = static_cast<uint8_t>(text[i]);
    if (byte == 0) return;
    at ^= byte;
    if (at >= units_.size() || label_of(units_[at]) != byte) return;
    const uint32_t unit = units_[at];
    at ^= offset_of(unit);
    if (!has_leaf(unit)) continue;
    if (at >= units_.size()) return;
    if (!found(i + 1, value_of(units_[at]))) return;
  }
}

std::string_view Charsmap::replacement(uint32_t at) const {
  if (at >= replacements_.size()) return {};
  // Never from the middle of a character.
  if ((static_cast<uint8_t>(replacements_[at]) & 0xC0) == 0x80) return {};
  return std::string_view(replacements_.c_str() + at);
}

Charsmap::Match Charsmap::longest(std::string_view text) const {
  Match best;
  uint32_t value = 0;
  walk(text, [&](size_t size, uint32_t v) {
    best.size = size;
    value = v;
    return true;
  });
  if (best.size != 0) best.replacement = replacement(value);
  return best;
}

Charsmap::Match Charsmap::shortest(std::string_view text) const {
  Match best;
  walk(text, [&](size_t size, uint32_t v) {
    best = {size, replacement(v)};
    return false;
  });
  return best;
}

}  // namespace sluice

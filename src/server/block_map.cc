#include "server/block_map.h"

#include <algorithm>
#include <array>

namespace sluice {

namespace {

constexpr std::array<char, kNumBlockUses> kLetters = {'f', 'c', 'o', 's', 'p', 'r'};  // by BlockUse

void append_run(std::string& out, char letter, size_t count) {
  if (count == 0) return;
  out += letter;
  if (count > 1) out += std::to_string(count);
}

std::string one_by_one(std::span<const BlockUse> blocks) {
  std::string out;
  for (size_t at = 0; at < blocks.size();) {
    size_t end = at;
    while (end < blocks.size() && blocks[end] == blocks[at]) ++end;
    append_run(out, kLetters[static_cast<size_t>(blocks[at])], end - at);
    at = end;
  }
  return out;
}

}  // namespace

std::string block_map(std::span<const BlockUse> blocks, size_t max_cells, size_t& scale) {
  scale = std::max<size_t>((blocks.size() + max_cells - 1) / max_cells, 1);
  if (scale == 1) return one_by_one(blocks);
  using Counts = std::array<size_t, kLetters.size()>;
  std::string out;
  Counts last{};
  size_t repeats = 0;
  auto flush = [&] {
    if (repeats == 0) return;
    if (!out.empty()) out += ' ';
    for (size_t i = 0; i < last.size(); ++i) append_run(out, kLetters[i], last[i]);
    if (repeats > 1) out += '*' + std::to_string(repeats);
  };
  for (size_t at = 0; at < blocks.size(); at += scale) {
    Counts counts{};
    for (BlockUse use : blocks.subspan(at, std::min(scale, blocks.size() - at)))
      ++counts[static_cast<size_t>(use)];
    if (counts != last) {
      flush();
      repeats = 0;
      last = counts;
    }
    ++repeats;
  }
  flush();
  return out;
}

}  // namespace sluice

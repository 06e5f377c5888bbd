#include "base/nearest.h"

#include <algorithm>
#include <vector>

namespace sluice {

namespace {

constexpr size_t kMaxWord = 256;  // longer ones are not compared: the table is quadratic

char lower(char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c); }

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  const size_t width = b.size() + 1;
  std::vector<size_t> before(width), last(width), row(width);  // rows i - 2, i - 1 and i
  for (size_t j = 0; j < width; ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j < width; ++j) {
      char x = lower(a[i - 1]), y = lower(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (x != y)});
      bool swapped = i > 1 && j > 1 && x == lower(b[j - 2]) && lower(a[i - 2]) == y;
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

std::string nearest(std::string_view typed, std::span<const std::string> known) {
  if (typed.empty() || typed.size() > kMaxWord) return "";
  const std::string* best = nullptr;
  const std::string* begins = nullptr;
  size_t least = std::clamp<size_t>(typed.size() / 3, 1, 4) + 1, num_begin = 0;
  for (const std::string& word : known) {
    if (word.size() > kMaxWord) continue;
    size_t distance = edit_distance(typed, word);
    if (distance < least) {
      least = distance;
      best = &word;
    }
    bool begin = typed.size() >= 3 && word.size() > typed.size() &&
                 edit_distance(typed, std::string_view(word).substr(0, typed.size())) == 0;
    if (begin) {
      begins = &word;
      ++num_begin;
    }
  }
  if (best) return *best;
  return num_begin == 1 ? *begins : "";
}

}  // namespace sluice

// Sets of Unicode code points, and the bytes that spell them: UTF-8 as it is, or any way JSON can
// write a character inside a string (raw, "\n", "\u000a", surrogate pairs).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "constrain/regex_pool.h"

namespace sluice::constrain {

struct CodeRange {
  uint32_t lo, hi;
  auto operator<=>(const CodeRange&) const = default;
};

// Sorted, disjoint ranges; never contains surrogates.
class CodeSet {
 public:
  CodeSet() = default;
  CodeSet(std::initializer_list<CodeRange> ranges) {
    for (const CodeRange& r : ranges) add(r.lo, r.hi);
  }
  static CodeSet all() { return {{0, 0x10FFFF}}; }
  void add(uint32_t lo, uint32_t hi) { ranges_.push_back({lo, hi}), sorted_ = false; }
  void add(const CodeSet& other);
  CodeSet inverse() const;
  CodeSet without(const CodeSet& other) const;
  bool empty() const { return ranges().empty(); }
  const std::vector<CodeRange>& ranges() const;

 private:
  mutable std::vector<CodeRange> ranges_;
  mutable bool sorted_ = true;
};

enum class Spelling : uint8_t { utf8, json };

class CodeSpeller {
 public:
  explicit CodeSpeller(RegexPool& pool) : pool_(pool) {}
  RegexId one_of(const CodeSet& set, Spelling spelling);
  RegexId any(Spelling spelling) { return one_of(CodeSet::all(), spelling); }
  // The text, which must be valid UTF-8, then `tail`.
  RegexId literal(std::string_view text, Spelling spelling, RegexId tail = RegexPool::kEps);

 private:
  RegexId utf8(const CodeSet& set);
  RegexId json(const CodeSet& set);
  RegexId json_char(uint32_t code);
  RegexId hex(uint32_t lo, uint32_t hi, int digits);
  RegexId hex_digits(int lo, int hi);
  void utf8_range(uint32_t lo, uint32_t hi, std::vector<RegexId>& out);

  RegexPool& pool_;
  std::array<RegexId, 128> json_ascii_{};  // characters in JSON; kEmpty: not made yet
  std::map<std::vector<CodeRange>, RegexId> utf8_known_, json_known_;
};

// Decodes UTF-8 text known to be valid.
std::vector<uint32_t> code_points_of(std::string_view text);
void append_utf8(std::string& out, uint32_t code);

}  // namespace sluice::constrain

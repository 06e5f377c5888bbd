// Regular expressions over bytes as shared nodes, with intersection and complement, and Brzozowski
// derivatives. Building blocks of every constraint. Not thread-safe: RegexDfa locks it.
//
// Every node but kEmpty has a non-empty language unless it contains And, Not: is_empty() decides
// those by searching.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/keyed_hash.h"
#include "constrain/limits.h"

namespace sluice::constrain {

using RegexId = uint32_t;

struct ByteSet {
  std::array<uint64_t, 4> words{};
  static ByteSet range(int lo, int hi) {
    ByteSet s;
    for (int b = lo; b <= hi; ++b) s.add(static_cast<uint8_t>(b));
    return s;
  }
  void add(uint8_t b) { words[b >> 6] |= uint64_t{1} << (b & 63); }
  bool has(uint8_t b) const { return words[b >> 6] >> (b & 63) & 1; }
  bool empty() const { return (words[0] | words[1] | words[2] | words[3]) == 0; }
  bool operator==(const ByteSet&) const = default;
};

class RegexPool {
 public:
  static constexpr RegexId kEmpty = 0;  // matches nothing
  static constexpr RegexId kEps = 1;    // matches the empty string
  static constexpr RegexId kAll = 2;    // matches everything
  static constexpr uint32_t kInf = UINT32_MAX;

  enum class Kind : uint8_t { empty, eps, bytes, concat, any_of, all_of, complement, repeat, mod };
  struct Part {
    Kind kind;
    bool nullable;
    bool boolean;       // contains And or Not: emptiness needs a search
    uint32_t a, b;      // children; first and count in lists_; index of a byte set
    uint32_t min, max;  // repeat; modulus and remainder
    bool operator==(const Part&) const = default;
  };

  RegexPool(WorkBudget& budget, uint32_t max_nodes);

  RegexId bytes(const ByteSet& set);
  RegexId range(int lo, int hi) { return bytes(ByteSet::range(lo, hi)); }
  // The text, then `tail`.
  RegexId literal(std::string_view text, RegexId tail = kEps);
  RegexId concat(RegexId a, RegexId b);
  RegexId concat(std::initializer_list<RegexId> parts);
  RegexId any_of(std::vector<RegexId> parts);
  RegexId all_of(std::vector<RegexId> parts);
  RegexId complement(RegexId a);
  RegexId repeat(RegexId a, uint32_t min, uint32_t max);
  RegexId star(RegexId a) { return repeat(a, 0, kInf); }
  RegexId optional(RegexId a) { return repeat(a, 0, 1); }
  RegexId minus(RegexId a, RegexId b) { return all_of({a, complement(b)}); }
  // Digits that, appended to a number with remainder `rest`, give a multiple of `modulus`.
  RegexId multiple(uint32_t modulus, uint32_t rest);

  bool nullable(RegexId r) const { return parts_[r].nullable; }
  RegexId derivative(RegexId r, uint8_t byte);
  // The bytes from lo to hi, `byte` among them, that have one derivative.
  struct Span {
    int lo, hi;
  };
  Span same_derivative(RegexId r, uint8_t byte);
  // True when the language is empty; also when the budget ran out (see failed()).
  bool is_empty(RegexId r);
  // How many strings match, at most `cap`.
  uint32_t count(RegexId r, uint32_t cap);
  // Equal for expressions that are built alike, in this pool or another. Texts of at most
  // `longest` bytes cannot tell counts above it apart, so that these are alike too.
  Fingerprint fingerprint(RegexId r, uint32_t longest);

  // Out of budget or nodes: results since then mean nothing.
  bool failed() const { return full_ || budget_->spent(); }
  void set_budget(WorkBudget& budget) { budget_ = &budget; }
  const Part& part(RegexId r) const { return parts_[r]; }
  const uint32_t* list(const Part& p) const { return lists_.data() + p.a; }
  const ByteSet& set(const Part& p) const { return sets_[p.a]; }
  size_t size() const { return parts_.size(); }
  size_t memory_bytes() const {
    constexpr size_t kMapNode = 48;
    return parts_.size() * (sizeof(Part) + kMapNode + 1) + lists_.size() * sizeof(uint32_t) +
           sets_.size() * sizeof(ByteSet) +
           (derived_.size() + fingerprints_[0].size() + fingerprints_[1].size()) * kMapNode;
  }

 private:
  RegexId intern(const Part& part);
  RegexId intern_list(Kind kind, const std::vector<RegexId>& parts);
  void boundaries(RegexId r, ByteSet& out, int depth);
  bool search(RegexId root);
  template <class Visit>
  void for_children(const Part& p, Visit&& visit) const;

  WorkBudget* budget_;
  uint32_t max_nodes_;
  bool full_ = false;
  std::array<RegexId, 256> bytes_{};  // sets of one byte; kEmpty: not made yet
  std::vector<Part> parts_;
  std::vector<uint32_t> lists_;
  std::vector<ByteSet> sets_;
  std::unordered_multimap<uint64_t, RegexId> index_;
  std::unordered_map<uint64_t, RegexId> derived_;  // (node, byte) of boolean nodes and lists
  std::vector<int8_t> emptiness_;                  // per node: 0 unknown, 1 empty, -1 not empty
  std::unordered_map<RegexId, Fingerprint> fingerprints_[2];  // exact, and with limited counts
};

}  // namespace sluice::constrain

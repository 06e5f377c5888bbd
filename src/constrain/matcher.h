// Where one sequence stands in its constraint. Owned by one sequence and used by one thread at a
// time; the constraint behind it is shared. Copying forks the sequence.
//
// All parses are followed at once: each is a stack of cells, the tops of all stacks are a state.
// Keys of objects may come in any order and never twice.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "base/token.h"
#include "constrain/constraint.h"

namespace sluice::constrain {

// What must follow. Tokens: the mask allows each of them alone in its turn, so appending them
// gives exactly what sampling would give.
struct Forced {
  std::string bytes;
  std::vector<Token> tokens;
};

class Matcher {
 public:
  explicit Matcher(std::shared_ptr<const Constraint> constraint);

  // One bit per token, vocab_size bits rounded up to words. End tokens are set exactly where the
  // text may end. Where every allowed token spells a part of what must follow, only the longest is
  // set. The error says which limit was exceeded; the sequence should then finish.
  Result<void> fill_mask(std::span<uint32_t> bits);
  // False when the token is not allowed (nothing changes then) or a limit was exceeded (failure()).
  bool accept(Token token);
  // The bytes alone, whatever tokens spell them: for judging texts.
  bool accept_bytes(std::string_view bytes);
  // Takes back the last n accepted tokens (or runs of bytes), at most num_accepted().
  void rollback(size_t n);
  size_t num_accepted() const { return history_.size() - 1; }
  Forced forced(size_t max_tokens = 64);
  std::vector<Token> forced_tokens(size_t max_tokens);  // the tokens alone
  bool can_end() const { return ended_ || states_[history_.back()].can_end; }
  // Nothing but an end token can follow, or one was accepted.
  bool is_done() const { return ended_ || states_[history_.back()].tops.empty(); }
  // One line where a limit was exceeded; empty otherwise.
  const std::string& failure() const { return failure_; }
  size_t memory_bytes() const;

 private:
  using CellId = uint32_t;
  using StateId = uint32_t;
  static constexpr CellId kEnd = 0;  // the bottom of every stack
  static constexpr uint32_t kUnknownText = UINT32_MAX;
  enum class Kind : uint8_t { bottom, lex, key, extra, seq, rep, array, object };
  enum Phase : uint32_t { kOpen, kComma, kColon, kAfter };

  // Tops:  lex {x: DFA state}; key {x: object, a: trie node}; extra {x: DFA state, a: which,
  //        b: text so far, c: bytes so far, d: seen keys that begin so (first << 16 | last)}.
  // Below: seq {x: rule, a: next part}; rep {x: rule, a: count}; array {x: rule, a: phase,
  //        b: count}; object {x: object, a: phase, b: seen set, c: rule of the value}.
  struct Cell {
    Kind kind;
    uint32_t x = 0, a = 0, b = 0, c = 0, d = 0;
    CellId parent = kEnd;
    bool operator==(const Cell&) const = default;
  };
  struct CellHash {
    size_t operator()(const Cell& c) const;
  };
  // The keys that an object has so far.
  struct Seen {
    std::vector<uint64_t> bits;       // declared ones
    std::vector<std::string> extras;  // others, sorted, as JSON spells them
    uint32_t count = 0, required = 0;
    bool unknown = false;  // while a mask is filled: one more that is not in `extras`
  };
  struct StateSet {
    std::vector<CellId> tops;
    bool can_end = false;
  };
  struct TextNode {
    uint32_t before;
    uint8_t byte;
  };

  CellId cell(const Cell& c);
  StateId state(StateSet set);
  uint32_t seen(Seen s);
  void enter(RuleId rule, CellId parent, int depth);
  void resume(CellId at, int depth);
  void enter_lex(DfaState s, CellId parent, int depth);
  void resume_array(const Cell& c, int depth);
  void resume_object(const Cell& c, int depth);
  void add_keys(const Cell& object, int depth);
  bool may_add_key(const ObjectRule& rule, const Seen& s, bool required) const;
  bool has_open_key(const ObjectRule& rule, const Seen& s, uint32_t first, uint32_t last) const;
  bool extra_possible(const ObjectRule::Extra& extra, const Seen& s);
  void step_top(const Cell& top, uint8_t byte);
  void step_extra(const Cell& top, uint8_t byte);
  void resume_extra(const Cell& top, int depth);
  void drop_duplicates(const Cell& top, std::span<uint32_t> bits) const;
  void begin_set();
  StateId end_set();
  StateId step(StateId s, uint8_t byte);
  bool may_take(StateId s, uint8_t byte) const;
  StateId after(CellId parent);
  void fill_top(CellId top, std::span<uint32_t> bits);
  void add_tokens(uint32_t node, std::span<uint32_t> bits) const;
  void fill_tails(const Tails& tails, StateId from, std::span<uint32_t> bits);
  // Over the nodes [begin, end) of the trie, which are all below one.
  void walk(StateId from, uint32_t begin, uint32_t end, std::span<uint32_t> bits);
  int only_byte(StateId s);
  int only_byte_of(const Cell& c);
  Token longest_forced(StateId s);
  bool fail(const char* limit);
  bool ok() const { return failure_.empty(); }
  void compact();
  std::string text_of(uint32_t text) const;

  std::shared_ptr<const Constraint> constraint_;
  WorkBudget budget_;
  std::string failure_;
  bool ended_ = false;
  bool walking_ = false;
  std::vector<StateId> history_;  // the state after each token, the first before any

  std::vector<Cell> cells_;
  std::unordered_map<Cell, CellId, CellHash> cell_index_;
  std::vector<StateSet> states_;
  std::unordered_map<std::string, StateId> state_index_;
  std::vector<Seen> seen_;
  std::unordered_map<std::string, uint32_t> seen_index_;
  std::vector<TextNode> texts_;
  std::unordered_map<uint64_t, StateId> steps_;  // (state, walking, byte)
  std::unordered_map<uint64_t, StateId> afters_;
  StateSet building_;
  std::unordered_map<uint64_t, bool> visited_;
  std::vector<uint32_t> mask_;  // of mask_state_
  StateId mask_state_ = UINT32_MAX;
  size_t compact_at_ = size_t{8} << 20;
  size_t text_bytes_ = 0;  // in states and seen sets
};

}  // namespace sluice::constrain

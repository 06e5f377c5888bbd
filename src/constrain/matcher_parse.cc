// Matcher: how stacks of cells grow and shrink.
#include <algorithm>

#include "constrain/matcher.h"

namespace sluice::constrain {

namespace {

constexpr int kMaxEntered = 1'000;  // rules entered and left without a byte

bool has_bit(const std::vector<uint64_t>& bits, uint32_t i) {
  return i / 64 < bits.size() && (bits[i / 64] >> (i % 64) & 1);
}

bool may_close(const ObjectRule& rule, uint32_t count, uint32_t required) {
  return count >= rule.min && required == rule.num_required;
}

}  // namespace

void Matcher::enter_lex(DfaState s, CellId parent, int depth) {
  const RegexDfa& dfa = constraint_->dfa();
  if (s == RegexDfa::kDead) return;
  if (dfa.continues(s))
    building_.tops.push_back(cell({.kind = Kind::lex, .x = s, .parent = parent}));
  if (dfa.nullable(s)) resume(parent, depth + 1);
}

void Matcher::enter(RuleId id, CellId parent, int depth) {
  if (depth > kMaxEntered) {
    fail("nesting");
    return;
  }
  if (!ok() ||
      !visited_.try_emplace(uint64_t{1} << 63 | uint64_t{id} << 32 | parent, true).second) {
    return;
  }
  const ConstraintRule& rule = constraint_->rules().rules[id];
  switch (rule.kind) {
    case ConstraintRule::Kind::lex:
      return enter_lex(rule.lex, parent, depth);
    case ConstraintRule::Kind::alt:
      for (RuleId part : rule.parts) enter(part, parent, depth + 1);
      return;
    case ConstraintRule::Kind::seq:
      if (rule.parts.empty()) return resume(parent, depth + 1);
      if (rule.parts.size() == 1) return enter(rule.parts[0], parent, depth + 1);
      return enter(rule.parts[0], cell({.kind = Kind::seq, .x = id, .a = 1, .parent = parent}),
                   depth + 1);
    case ConstraintRule::Kind::rep:
      if (rule.min == 0) resume(parent, depth + 1);
      if (rule.max > 0) {
        enter(rule.parts[0], cell({.kind = Kind::rep, .x = id, .a = 1, .parent = parent}),
              depth + 1);
      }
      return;
    case ConstraintRule::Kind::array:
      return enter_lex(constraint_->rules().json.open_array,
                       cell({.kind = Kind::array, .x = id, .a = kOpen, .parent = parent}), depth);
    case ConstraintRule::Kind::object:
      return enter_lex(constraint_->rules().json.open_object,
                       cell({.kind = Kind::object, .x = rule.object, .a = kOpen, .parent = parent}),
                       depth);
  }
}

void Matcher::resume(CellId at, int depth) {
  if (at == kEnd) {
    building_.can_end = true;
    return;
  }
  if (depth > kMaxEntered) {
    fail("nesting");
    return;
  }
  if (!ok() || !visited_.try_emplace(at, true).second) return;
  const Cell c = cells_[at];
  switch (c.kind) {
    case Kind::seq: {
      const ConstraintRule& rule = constraint_->rules().rules[c.x];
      bool last = c.a + 1 == rule.parts.size();
      CellId parent =
          last ? c.parent : cell({.kind = Kind::seq, .x = c.x, .a = c.a + 1, .parent = c.parent});
      return enter(rule.parts[c.a], parent, depth + 1);
    }
    case Kind::rep: {
      const ConstraintRule& rule = constraint_->rules().rules[c.x];
      if (c.a >= rule.min) resume(c.parent, depth + 1);
      if (c.a >= rule.max) return;
      uint32_t count = c.a + 1;
      if (rule.max == kUnbounded) count = std::min(count, std::max(rule.min, 1u));
      return enter(rule.parts[0],
                   cell({.kind = Kind::rep, .x = c.x, .a = count, .parent = c.parent}), depth + 1);
    }
    case Kind::array:
      return resume_array(c, depth);
    case Kind::object:
      return resume_object(c, depth);
    case Kind::bottom:
    case Kind::lex:
    case Kind::key:
    case Kind::extra:
      return;
  }
}

void Matcher::resume_array(const Cell& c, int depth) {
  const ConstraintRule& rule = constraint_->rules().rules[c.x];
  const auto& json = constraint_->rules().json;
  uint32_t most = std::max(rule.min, static_cast<uint32_t>(rule.parts.size()));
  RuleId item = c.b < rule.parts.size() ? rule.parts[c.b] : rule.items;
  bool more = c.b < rule.max && item != kNoRule;
  auto next_item = [&] {
    uint32_t count = c.b + 1;
    if (rule.max == kUnbounded) count = std::min(count, std::max(most, 1u));
    enter(item, cell({.kind = Kind::array, .x = c.x, .a = kAfter, .b = count, .parent = c.parent}),
          depth + 1);
  };
  if (c.a == kComma) return next_item();
  if (c.b >= rule.min) enter_lex(json.close_array, c.parent, depth);
  if (!more) return;
  if (c.a == kOpen) return next_item();
  enter_lex(json.comma,
            cell({.kind = Kind::array, .x = c.x, .a = kComma, .b = c.b, .parent = c.parent}),
            depth);
}

bool Matcher::may_add_key(const ObjectRule& rule, const Seen& s, bool required) const {
  if (s.count >= rule.max) return false;
  return required || rule.max == kUnbounded || rule.max - s.count > rule.num_required - s.required;
}

bool Matcher::has_open_key(const ObjectRule& rule,
                           const Seen& s,
                           uint32_t first,
                           uint32_t last) const {
  for (uint32_t p = first; p < last; ++p) {
    if (!has_bit(s.bits, p) && may_add_key(rule, s, rule.properties[p].required)) return true;
  }
  return false;
}

bool Matcher::extra_possible(const ObjectRule::Extra& extra, const Seen& s) {
  if (!extra.finite) return true;
  bool more = constraint_->dfa().more_than(
      extra.key, static_cast<uint32_t>(s.extras.size()) + (s.unknown ? 1 : 0), budget_);
  if (budget_.spent()) fail("work");
  return more;
}

void Matcher::resume_object(const Cell& c, int depth) {
  const ObjectRule& rule = constraint_->rules().objects[c.x];
  const auto& json = constraint_->rules().json;
  if (c.a == kColon) {
    return enter(c.c,
                 cell({.kind = Kind::object, .x = c.x, .a = kAfter, .b = c.b, .parent = c.parent}),
                 depth + 1);
  }
  if (c.a != kComma && may_close(rule, seen_[c.b].count, seen_[c.b].required)) {
    enter_lex(json.close_object, c.parent, depth);
  }
  if (c.a != kAfter) return add_keys(c, depth);
  bool more = has_open_key(rule, seen_[c.b], 0, static_cast<uint32_t>(rule.properties.size()));
  for (size_t i = 0; !more && i < rule.extras.size(); ++i) {
    more = may_add_key(rule, seen_[c.b], false) && extra_possible(rule.extras[i], seen_[c.b]);
  }
  if (!more) return;
  enter_lex(json.comma,
            cell({.kind = Kind::object, .x = c.x, .a = kComma, .b = c.b, .parent = c.parent}),
            depth);
}

void Matcher::add_keys(const Cell& object, int) {
  const ObjectRule& rule = constraint_->rules().objects[object.x];
  CellId parent = cell(
      {.kind = Kind::object, .x = object.x, .a = kComma, .b = object.b, .parent = object.parent});
  const Seen s = seen_[object.b];
  if (has_open_key(rule, s, 0, static_cast<uint32_t>(rule.properties.size()))) {
    building_.tops.push_back(cell({.kind = Kind::key, .x = object.x, .parent = parent}));
  }
  if (!may_add_key(rule, s, false)) return;
  if (s.extras.size() > 0xFFFF) {
    fail("keys in an object");
    return;
  }
  for (uint32_t i = 0; i < rule.extras.size(); ++i) {
    if (!extra_possible(rule.extras[i], s)) continue;
    building_.tops.push_back(cell({.kind = Kind::extra,
                                   .x = rule.extras[i].key,
                                   .a = i,
                                   .b = walking_ ? kUnknownText : 0,
                                   .d = static_cast<uint32_t>(s.extras.size()),
                                   .parent = parent}));
  }
}

void Matcher::step_top(const Cell& top, uint8_t byte) {
  RegexDfa& dfa = constraint_->dfa();
  const Cell c = top;
  if (c.kind == Kind::lex) {
    DfaState next = dfa.step(c.x, byte, budget_);
    if (next == RegexDfa::kFailed) {
      fail("work");
      return;
    }
    return enter_lex(next, c.parent, 0);
  }
  if (c.kind == Kind::extra) return step_extra(c, byte);
  const ObjectRule& rule = constraint_->rules().objects[c.x];
  const Cell object = cells_[c.parent];
  for (auto [b, child] : rule.keys[c.a].children) {
    if (b != byte) continue;
    const ObjectRule::KeyNode& node = rule.keys[child];
    if (!has_open_key(rule, seen_[object.b], node.first, node.last)) return;
    if (node.property < 0) {
      building_.tops.push_back(cell({.kind = Kind::key, .x = c.x, .a = child, .parent = c.parent}));
      return;
    }
    Seen now = seen_[object.b];
    uint32_t p = static_cast<uint32_t>(node.property);
    if (now.bits.size() <= p / 64) now.bits.resize(p / 64 + 1);
    now.bits[p / 64] |= uint64_t{1} << (p % 64);
    ++now.count;
    now.required += rule.properties[p].required;
    enter_lex(constraint_->rules().json.colon,
              cell({.kind = Kind::object,
                    .x = c.x,
                    .a = kColon,
                    .b = seen(std::move(now)),
                    .c = rule.properties[p].value,
                    .parent = object.parent}),
              0);
    return;
  }
}

// A key that is not declared: it must differ from all that the object has.
void Matcher::step_extra(const Cell& top, uint8_t byte) {
  RegexDfa& dfa = constraint_->dfa();
  const Cell object = cells_[top.parent];
  const ObjectRule::Extra& extra = constraint_->rules().objects[object.x].extras[top.a];
  Cell c = top;
  c.x = dfa.step(top.x, byte, budget_);
  if (c.x == RegexDfa::kFailed) {
    fail("work");
    return;
  }
  if (c.x == RegexDfa::kDead) return;
  const std::vector<std::string>& extras = seen_[object.b].extras;
  bool closes = dfa.nullable(c.x);
  if (c.d != 0) {
    uint32_t first = c.d >> 16, last = c.d & 0xFFFF;
    auto other = [&](const std::string& e) {
      return e.size() <= c.c || static_cast<uint8_t>(e[c.c]) != byte;
    };
    while (first < last && other(extras[first])) ++first;
    while (first < last && other(extras[last - 1])) --last;
    ++c.c;
    c.d = first < last ? first << 16 | last : 0;
    if (c.d == 0) c.c = 0;
    for (uint32_t k = first; closes && k < last; ++k) {
      if (extras[k].size() == c.c) return;
    }
    if (first < last && extra.finite && !closes && !dfa.more_than(c.x, last - first, budget_)) {
      return;
    }
  }
  if (walking_) {
    c.b = kUnknownText;
  } else {
    texts_.push_back({c.b, byte});
    c.b = static_cast<uint32_t>(texts_.size());
  }
  if (closes) {
    resume_extra(c, 0);
  } else {
    building_.tops.push_back(cell(c));
  }
}

void Matcher::resume_extra(const Cell& top, int depth) {
  const Cell object = cells_[top.parent];
  Seen now = seen_[object.b];
  if (now.unknown) return;  // two new keys within one token: they might be equal
  ++now.count;
  if (walking_) {
    now.unknown = true;
  } else {
    std::string key = text_of(top.b);
    now.extras.insert(std::upper_bound(now.extras.begin(), now.extras.end(), key), key);
  }
  RuleId value = constraint_->rules().objects[object.x].extras[top.a].value;
  enter_lex(constraint_->rules().json.colon,
            cell({.kind = Kind::object,
                  .x = object.x,
                  .a = kColon,
                  .b = seen(std::move(now)),
                  .c = value,
                  .parent = object.parent}),
            depth);
}

}  // namespace sluice::constrain

// SchemaCompiler: union, intersection, difference and emptiness of sets of JSON values.
#include <algorithm>
#include <numeric>

#include "base/str.h"
#include "constrain/schema_compiler.h"

namespace sluice::constrain {

namespace {

constexpr size_t kMaxAlternatives = 256;
constexpr int kMaxSchemaDepth = 300;

bool later(const std::optional<NumberBound>& a, const std::optional<NumberBound>& b) {
  if (!a || !b) return a.has_value();
  int order = a->at.compare(b->at);
  return order > 0 || (order == 0 && a->open);
}

bool earlier(const std::optional<NumberBound>& a, const std::optional<NumberBound>& b) {
  if (!a || !b) return a.has_value();
  int order = a->at.compare(b->at);
  return order < 0 || (order == 0 && a->open);
}

}  // namespace

SchemaCompiler::SchemaCompiler(RuleBuilder& builder)
    : builder_(builder), pool_(builder.pool()), speller_(builder.speller()) {
  all_strings_ = pool_.star(speller_.any(Spelling::json));
  quote_ = pool_.range('"', '"');
  // Keys have one spelling each, so that equal keys are equal bytes.
  ByteSet letters;
  for (char c : std::string_view("\"\\bfnrt")) letters.add(static_cast<uint8_t>(c));
  std::vector<RegexId> chars{
      speller_.one_of({{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x10FFFF}}, Spelling::utf8),
      pool_.concat(pool_.range('\\', '\\'), pool_.bytes(letters))};
  for (uint32_t c = 0; c < 0x20; ++c) {
    if (c != 8 && c != 9 && c != 10 && c != 12 && c != 13) {
      chars.push_back(pool_.literal(strf("\\u%04x", c)));
    }
  }
  all_keys_ = pool_.star(pool_.any_of(std::move(chars)));
  SchemaSet all;
  all.null = all.yes = all.no = true;
  all.strings = all_strings_;
  all.numbers.push_back({});
  all.arrays.push_back({{}, kTrue, 0, kUnbounded});
  all.objects.push_back({{}, {{all_keys_, kTrue}}, {}, 0, kUnbounded});
  schemas_.push_back({.progress = Schema::Progress::done, .empty = -1, .set = std::move(all)});
  schemas_.push_back({.progress = Schema::Progress::done, .empty = 1, .set = {}});
}

Result<void> SchemaCompiler::check_limits() const {
  if (const char* limit = builder_.exceeded()) {
    return Error{400, strf("the schema is too large: more %s than are allowed", limit)};
  }
  if (schemas_.size() > builder_.limits().max_schemas) {
    return Error{400, "the schema is too large: more subschemas than are allowed"};
  }
  return {};
}

SchemaRef SchemaCompiler::add(Schema schema) {
  builder_.budget().spend(20);
  schemas_.push_back(std::move(schema));
  return static_cast<SchemaRef>(schemas_.size() - 1);
}

SchemaRef SchemaCompiler::fixed(SchemaSet set) {
  return add({.progress = Schema::Progress::done, .set = std::move(set)});
}

SchemaRef SchemaCompiler::of(const json::value& source) {
  if (source.is_bool()) return source.get_bool() ? kTrue : kFalse;
  if (source.is_object() && source.get_object().empty()) return kTrue;
  auto [at, is_new] = by_source_.try_emplace(&source, 0);
  if (is_new) at->second = add({.kind = Schema::Kind::source, .source = &source});
  return at->second;
}

SchemaRef SchemaCompiler::both(SchemaRef a, SchemaRef b) {
  if (a == b || b == kTrue || a == kFalse) return a;
  if (a == kTrue || b == kFalse) return b;
  if (a > b) std::swap(a, b);
  auto [at, is_new] = by_pair_.try_emplace({0, a, b}, 0);
  if (is_new) at->second = add({.kind = Schema::Kind::both, .a = a, .b = b});
  return at->second;
}

SchemaRef SchemaCompiler::difference(SchemaRef a, SchemaRef b) {
  if (a == b || b == kTrue || a == kFalse) return kFalse;
  if (b == kFalse) return a;
  auto [at, is_new] = by_pair_.try_emplace({1, a, b}, 0);
  if (is_new) at->second = add({.kind = Schema::Kind::difference, .a = a, .b = b});
  return at->second;
}

SchemaCompiler::Set SchemaCompiler::eval(SchemaRef ref) {
  using Progress = Schema::Progress;
  Schema& s = schemas_[ref];
  if (s.progress == Progress::done) return &s.set;
  if (auto limits = check_limits(); !limits) return limits.error();
  if (s.progress == Progress::running) {
    return Error{400, "$ref leads to itself without a value in between"};
  }
  if (depth_ > kMaxSchemaDepth) return Error{400, "the schema is nested too deep"};
  s.progress = Progress::running;
  ++depth_;
  int outer_query = query_;
  query_ = ++num_queries_;
  Result<SchemaSet> set = SchemaSet{};
  if (s.kind == Schema::Kind::source) {
    set = read(*s.source);
  } else {
    Set a = eval(s.a);
    Set b = a ? eval(s.b) : a;
    if (!a || !b) {
      set = !a ? a.error() : b.error();
    } else {
      set = s.kind == Schema::Kind::both ? intersect(**a, **b) : subtract(**a, **b);
    }
  }
  --depth_;
  query_ = outer_query;
  if (!set) return set.error();
  schemas_[ref].set = std::move(*set);
  schemas_[ref].progress = Progress::done;
  if (auto limits = check_limits(); !limits) return limits.error();
  return &schemas_[ref].set;
}

SchemaSet SchemaCompiler::unite(SchemaSet a, const SchemaSet& b) {
  a.null |= b.null, a.yes |= b.yes, a.no |= b.no;
  a.strings = pool_.any_of({a.strings, b.strings});
  for (const NumberSet& n : b.numbers) {
    if (std::find(a.numbers.begin(), a.numbers.end(), n) == a.numbers.end()) a.numbers.push_back(n);
  }
  a.arrays.insert(a.arrays.end(), b.arrays.begin(), b.arrays.end());
  a.objects.insert(a.objects.end(), b.objects.begin(), b.objects.end());
  return a;
}

std::optional<NumberSet> SchemaCompiler::intersect(const NumberSet& a, const NumberSet& b) {
  NumberSet out;
  out.whole = a.whole || b.whole;
  out.low = later(a.low, b.low) ? a.low : b.low;
  out.high = earlier(a.high, b.high) ? a.high : b.high;
  uint64_t multiple = a.multiple == 0 ? b.multiple : a.multiple;
  if (a.multiple != 0 && b.multiple != 0) {
    multiple = std::lcm(uint64_t{a.multiple}, uint64_t{b.multiple});
  }
  out.multiple = static_cast<uint32_t>(std::min<uint64_t>(multiple, 100'000'000));
  if (out.low && out.high) {
    int order = out.low->at.compare(out.high->at);
    if (order > 0 || (order == 0 && (out.low->open || out.high->open))) return std::nullopt;
  }
  if (multiple > out.multiple) builder_.budget().spend(UINT64_MAX);  // beyond what is supported
  if (pool_.is_empty(number_regex(pool_, out))) return std::nullopt;
  return out;
}

ArraySet SchemaCompiler::intersect(const ArraySet& a, const ArraySet& b) {
  ArraySet out{{}, both(a.items, b.items), std::max(a.min, b.min), std::min(a.max, b.max)};
  for (size_t i = 0; i < std::max(a.prefix.size(), b.prefix.size()); ++i) {
    out.prefix.push_back(both(item_of(a, i), item_of(b, i)));
  }
  return out;
}

bool SchemaCompiler::matches(RegexId keys, const std::string& key) {
  if (keys == all_keys_) return true;
  for (char c : spell_key(key)) keys = pool_.derivative(keys, static_cast<uint8_t>(c));
  return pool_.nullable(keys);
}

SchemaRef SchemaCompiler::value_of(const ObjectSet& o, const std::string& key) {
  for (const auto& [name, value] : o.properties) {
    if (name == key) return value;
  }
  for (const ObjectSet::KeyClass& other : o.others) {
    if (matches(other.keys, key)) return other.value;
  }
  return kFalse;
}

ObjectSet SchemaCompiler::intersect(const ObjectSet& a, const ObjectSet& b) {
  ObjectSet out;
  builder_.budget().spend(a.properties.size() * b.properties.size() / 8);
  for (const auto& [name, value] : a.properties) {
    out.properties.emplace_back(name, both(value, value_of(b, name)));
  }
  for (const auto& [name, value] : b.properties) {
    bool known = std::any_of(a.properties.begin(), a.properties.end(),
                             [&, &n = name](const auto& p) { return p.first == n; });
    if (!known) out.properties.emplace_back(name, both(value, value_of(a, name)));
  }
  for (const ObjectSet::KeyClass& x : a.others) {
    for (const ObjectSet::KeyClass& y : b.others) {
      RegexId keys = x.keys == all_keys_   ? y.keys
                     : y.keys == all_keys_ ? x.keys
                                           : pool_.all_of({x.keys, y.keys});
      if (!pool_.is_empty(keys)) out.others.push_back({keys, both(x.value, y.value)});
    }
  }
  out.required = a.required;
  for (const std::string& r : b.required) {
    if (std::find(out.required.begin(), out.required.end(), r) == out.required.end()) {
      out.required.push_back(r);
    }
  }
  out.min = std::max(a.min, b.min), out.max = std::min(a.max, b.max);
  return out;
}

Result<SchemaSet> SchemaCompiler::intersect(const SchemaSet& a, const SchemaSet& b) {
  SchemaSet out;
  out.null = a.null && b.null, out.yes = a.yes && b.yes, out.no = a.no && b.no;
  out.strings = a.strings == all_strings_   ? b.strings
                : b.strings == all_strings_ ? a.strings
                                            : pool_.all_of({a.strings, b.strings});
  if (pool_.is_empty(out.strings)) out.strings = RegexPool::kEmpty;
  for (const NumberSet& x : a.numbers) {
    for (const NumberSet& y : b.numbers) {
      if (auto n = intersect(x, y)) out.numbers.push_back(std::move(*n));
    }
  }
  for (const ArraySet& x : a.arrays) {
    for (const ArraySet& y : b.arrays) {
      if (std::max(x.min, y.min) <= std::min(x.max, y.max)) out.arrays.push_back(intersect(x, y));
    }
  }
  bool many = a.objects.size() > 1 || b.objects.size() > 1;
  for (const ObjectSet& x : a.objects) {
    for (const ObjectSet& y : b.objects) {
      ObjectSet o = intersect(x, y);
      if (many) {  // keep the product small
        Result<bool> none = empty(o);
        if (!none) return none.error();
        if (*none) continue;
      }
      out.objects.push_back(std::move(o));
    }
  }
  if (std::max({out.numbers.size(), out.arrays.size(), out.objects.size()}) > kMaxAlternatives) {
    return Error{400, "allOf, anyOf and oneOf together have too many combinations"};
  }
  if (auto limits = check_limits(); !limits) return limits.error();
  return out;
}

Result<std::vector<NumberSet>> SchemaCompiler::subtract(const NumberSet& a, const NumberSet& b) {
  if (!intersect(a, b)) return std::vector<NumberSet>{a};
  bool steps = b.multiple > 1 && b.multiple != a.multiple;
  if (steps || (b.whole && !a.whole)) {
    return Error{400, "not (or oneOf): numbers without integers or multiples are not supported"};
  }
  std::vector<NumberSet> out;
  if (b.low) {
    NumberSet below = a;
    below.high = NumberBound{b.low->at, !b.low->open};
    if (auto n = intersect(a, below)) out.push_back(*n);
  }
  if (b.high) {
    NumberSet above = a;
    above.low = NumberBound{b.high->at, !b.high->open};
    if (auto n = intersect(a, above)) out.push_back(*n);
  }
  return out;
}

Result<std::vector<ArraySet>> SchemaCompiler::subtract(const ArraySet& a, const ArraySet& b) {
  std::vector<ArraySet> out;
  auto keep = [&](ArraySet x) -> Result<void> {
    Result<bool> none = x.min > x.max ? Result<bool>(true) : empty(x);
    if (!none) return none.error();
    if (!*none) out.push_back(std::move(x));
    return {};
  };
  Result<bool> apart = empty(intersect(a, b));
  if (!apart) return apart.error();
  if (*apart || std::max(a.min, b.min) > std::min(a.max, b.max)) return std::vector<ArraySet>{a};
  if (b.min > 0) {
    ArraySet shorter = a;
    shorter.max = std::min(a.max, b.min - 1);
    if (auto r = keep(shorter); !r) return r.error();
  }
  if (b.max != kUnbounded) {
    ArraySet longer = a;
    longer.min = std::max(a.min, b.max + 1);
    if (auto r = keep(longer); !r) return r.error();
  }
  size_t fixed_items = std::max(a.prefix.size(), b.prefix.size());
  for (size_t i = 0; i < fixed_items; ++i) {
    ArraySet other = a;
    while (other.prefix.size() <= i) other.prefix.push_back(a.items);
    other.prefix[i] = difference(item_of(a, i), item_of(b, i));
    other.min = std::max(other.min, static_cast<uint32_t>(i) + 1);
    if (auto r = keep(other); !r) return r.error();
  }
  Result<bool> same = empty(difference(a.items, b.items));
  if (!same) return same.error();
  if (!*same && a.max > fixed_items) {
    return Error{400, "not (or oneOf): arrays that differ in some item are not supported"};
  }
  return out;
}

Result<std::vector<ObjectSet>> SchemaCompiler::subtract(const ObjectSet& a, const ObjectSet& b) {
  std::vector<ObjectSet> out;
  auto keep = [&](ObjectSet x) -> Result<void> {
    Result<bool> none = empty(x);
    if (!none) return none.error();
    if (!*none) out.push_back(std::move(x));
    return {};
  };
  auto set_property = [](ObjectSet& o, const std::string& key, SchemaRef value) {
    for (auto& [name, old] : o.properties) {
      if (name == key) {
        old = value;
        return;
      }
    }
    o.properties.emplace_back(key, value);
  };
  Result<bool> apart = empty(intersect(a, b));
  if (!apart) return apart.error();
  if (*apart) return std::vector<ObjectSet>{a};
  for (const std::string& key : b.required) {  // b's key is missing
    ObjectSet other = a;
    set_property(other, key, kFalse);
    if (auto r = keep(std::move(other)); !r) return r.error();
  }
  std::vector<std::string> keys;
  for (const auto& [name, value] : a.properties) keys.push_back(name);
  for (const auto& [name, value] : b.properties) keys.push_back(name);
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  for (const std::string& key : keys) {  // a declared key's value is none of b's
    SchemaRef rest = difference(value_of(a, key), value_of(b, key));
    if (rest == kFalse) continue;
    ObjectSet other = a;
    set_property(other, key, rest);
    if (std::find(other.required.begin(), other.required.end(), key) == other.required.end()) {
      other.required.push_back(key);
    }
    if (auto r = keep(std::move(other)); !r) return r.error();
  }
  std::vector<RegexId> names;
  for (const std::string& key : keys) names.push_back(pool_.literal(spell_key(key)));
  RegexId undeclared = pool_.minus(all_keys_, pool_.any_of(std::move(names)));
  for (const ObjectSet::KeyClass& x : a.others) {
    for (const ObjectSet::KeyClass& y : b.others) {
      if (difference(x.value, y.value) == kFalse) continue;
      if (pool_.is_empty(pool_.all_of({x.keys, y.keys, undeclared}))) continue;
      Result<bool> same = empty(difference(x.value, y.value));
      if (!same) return same.error();
      if (!*same) {
        return Error{400,
                     "not (or oneOf): objects that differ in additionalProperties or "
                     "patternProperties are not supported"};
      }
    }
  }
  if (b.min > 0) {
    ObjectSet fewer = a;
    fewer.max = std::min(a.max, b.min - 1);
    if (auto r = keep(std::move(fewer)); !r) return r.error();
  }
  if (b.max != kUnbounded) {
    ObjectSet more = a;
    more.min = std::max(a.min, b.max + 1);
    if (auto r = keep(std::move(more)); !r) return r.error();
  }
  return out;
}

Result<SchemaSet> SchemaCompiler::subtract(const SchemaSet& a, const SchemaSet& b) {
  SchemaSet out;
  out.null = a.null && !b.null, out.yes = a.yes && !b.yes, out.no = a.no && !b.no;
  out.strings = pool_.minus(a.strings, b.strings);
  if (pool_.is_empty(out.strings)) out.strings = RegexPool::kEmpty;
  auto subtract_all = [&](auto from, const auto& gone) -> Result<decltype(from)> {
    for (const auto& g : gone) {
      decltype(from) next;
      for (const auto& f : from) {
        auto rest = subtract(f, g);
        if (!rest) return rest.error();
        next.insert(next.end(), rest->begin(), rest->end());
      }
      from = std::move(next);
      if (from.size() > kMaxAlternatives) {
        return Error{400, "not (or oneOf) has too many combinations"};
      }
    }
    return from;
  };
  auto numbers = subtract_all(a.numbers, b.numbers);
  if (!numbers) return numbers.error();
  auto arrays = subtract_all(a.arrays, b.arrays);
  if (!arrays) return arrays.error();
  auto objects = subtract_all(a.objects, b.objects);
  if (!objects) return objects.error();
  out.numbers = std::move(*numbers);
  out.arrays = std::move(*arrays);
  out.objects = std::move(*objects);
  if (auto limits = check_limits(); !limits) return limits.error();
  return out;
}

// Values are finite: what needs itself inside itself has none. While a query decides a schema it
// counts as empty for this query, and as not empty for those that schemas read meanwhile ask: they
// must not take sets for disjoint that are not. An answer that rests on either is not remembered.
Result<bool> SchemaCompiler::empty(SchemaRef ref) {
  if (schemas_[ref].empty != 0) return schemas_[ref].empty == 1;
  if (schemas_[ref].deciding == query_) {
    ++assumed_empty_;
    return true;
  }
  if (schemas_[ref].deciding != 0 || schemas_[ref].progress == Schema::Progress::running) {
    ++assumed_not_;
    return false;
  }
  Set set = eval(ref);
  if (!set) return set.error();
  schemas_[ref].deciding = query_;
  int before_empty = assumed_empty_, before_not = assumed_not_;
  Result<bool> none = empty(**set);
  schemas_[ref].deciding = 0;
  if (!none) return none;
  if (!*none && assumed_not_ == before_not) schemas_[ref].empty = -1;
  if (*none && assumed_empty_ == before_empty) schemas_[ref].empty = 1;
  return none;
}

Result<bool> SchemaCompiler::empty(const SchemaSet& set) {
  if (set.null || set.yes || set.no || !set.numbers.empty() || !pool_.is_empty(set.strings)) {
    return false;
  }
  for (size_t i = 0; i < set.arrays.size(); ++i) {
    Result<bool> none = empty(set.arrays[i]);
    if (!none || !*none) return none;
  }
  for (size_t i = 0; i < set.objects.size(); ++i) {
    Result<bool> none = empty(set.objects[i]);
    if (!none || !*none) return none;
  }
  return true;
}

Result<bool> SchemaCompiler::empty(const ArraySet& a) {
  if (a.min > a.max) return true;
  size_t needed = std::min<size_t>(a.min, a.prefix.size() + 1);
  for (size_t i = 0; i < needed; ++i) {
    Result<bool> none = empty(item_of(a, i));
    if (!none || *none) return none;
  }
  return false;
}

Result<bool> SchemaCompiler::empty(const ObjectSet& o) {
  if (o.min > o.max || o.required.size() > o.max) return true;
  for (const std::string& key : o.required) {
    Result<bool> none = empty(value_of(o, key));
    if (!none || *none) return none;
  }
  if (o.min <= o.required.size()) return false;
  // Are there enough keys?
  uint64_t possible = 0;
  std::vector<RegexId> names;
  for (const auto& [name, value] : o.properties) {
    names.push_back(pool_.literal(spell_key(name)));
    Result<bool> none = empty(value);
    if (!none) return none;
    possible += !*none;
  }
  RegexId undeclared = pool_.complement(pool_.any_of(std::move(names)));
  for (const ObjectSet::KeyClass& other : o.others) {
    if (possible >= o.min) break;
    Result<bool> none = empty(other.value);
    if (!none) return none;
    if (*none) continue;
    uint32_t cap = std::min(o.min, 100'000u);
    possible += pool_.count(pool_.all_of({other.keys, undeclared}), cap);
  }
  return possible < o.min;
}

}  // namespace sluice::constrain

// JSON Schema to rules. A schema is first a set of values (SchemaSet), computed on demand and
// closed under union, intersection and difference; then sets become rules.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "constrain/number_range.h"
#include "constrain/rule_builder.h"

namespace sluice::constrain {

using SchemaRef = uint32_t;  // a schema of the compiler, evaluated when it is asked for

struct ArraySet {
  std::vector<SchemaRef> prefix;
  SchemaRef items;
  uint32_t min = 0, max = kUnbounded;
};

struct ObjectSet {
  struct KeyClass {
    RegexId keys;  // what JSON's quotes hold
    SchemaRef value;
  };
  std::vector<std::pair<std::string, SchemaRef>> properties;
  std::vector<KeyClass> others;  // disjoint; together all keys
  std::vector<std::string> required;
  uint32_t min = 0, max = kUnbounded;
};

// The union of all its parts.
struct SchemaSet {
  bool null = false, yes = false, no = false;
  RegexId strings = RegexPool::kEmpty;  // what the quotes hold, in every spelling
  std::vector<NumberSet> numbers;
  std::vector<ArraySet> arrays;
  std::vector<ObjectSet> objects;
};

class SchemaCompiler {
 public:
  explicit SchemaCompiler(RuleBuilder& builder);
  // `document` outlives the compiler.
  Result<RuleId> compile(const json::value& document);
  Result<RuleId> compile_any_object();

 private:
  static constexpr SchemaRef kTrue = 0, kFalse = 1;
  struct Schema {
    enum class Kind : uint8_t { source, both, difference, fixed } kind = Kind::fixed;
    enum class Progress : uint8_t { none, running, done } progress = Progress::none;
    const json::value* source = nullptr;
    SchemaRef a = 0, b = 0;
    int empty = 0;     // 0 not known, 1 empty, -1 not
    int deciding = 0;  // the query that decides it now
    SchemaSet set{};
  };
  using Set = Result<const SchemaSet*>;

  // schema_algebra.cc
  SchemaRef add(Schema schema);
  SchemaRef fixed(SchemaSet set);
  SchemaRef of(const json::value& source);
  SchemaRef both(SchemaRef a, SchemaRef b);
  SchemaRef difference(SchemaRef a, SchemaRef b);
  Set eval(SchemaRef ref);
  Result<SchemaSet> intersect(const SchemaSet& a, const SchemaSet& b);
  Result<SchemaSet> subtract(const SchemaSet& a, const SchemaSet& b);
  SchemaSet unite(SchemaSet a, const SchemaSet& b);
  ArraySet intersect(const ArraySet& a, const ArraySet& b);
  ObjectSet intersect(const ObjectSet& a, const ObjectSet& b);
  Result<std::vector<NumberSet>> subtract(const NumberSet& a, const NumberSet& b);
  Result<std::vector<ArraySet>> subtract(const ArraySet& a, const ArraySet& b);
  Result<std::vector<ObjectSet>> subtract(const ObjectSet& a, const ObjectSet& b);
  std::optional<NumberSet> intersect(const NumberSet& a, const NumberSet& b);
  Result<bool> empty(SchemaRef ref);
  Result<bool> empty(const SchemaSet& set);
  Result<bool> empty(const ArraySet& a);
  Result<bool> empty(const ObjectSet& o);
  SchemaRef value_of(const ObjectSet& o, const std::string& key);
  SchemaRef item_of(const ArraySet& a, size_t i) const {
    return i < a.prefix.size() ? a.prefix[i] : a.items;
  }
  bool matches(RegexId keys, const std::string& key);
  Result<void> check_limits() const;

  // schema_keywords.cc
  Result<SchemaSet> read(const json::value& source);
  Result<SchemaSet> read_own(const json::object& o);
  Result<void> read_types(const json::object& o, SchemaSet& set);
  Result<void> read_numbers(const json::object& o, SchemaSet& set);
  Result<void> read_strings(const json::object& o, SchemaSet& set);
  Result<void> read_array(const json::object& o, SchemaSet& set);
  Result<void> read_object(const json::object& o, SchemaSet& set);
  Result<void> read_dependencies(const json::object& o, SchemaSet& set);
  Result<void> read_combined(const json::object& o, SchemaSet& set);
  Result<SchemaSet> read_one_of(const json::array& options);
  Result<SchemaSet> literal(const json::value& value, int depth = 0);
  Result<RegexId> pattern(std::string_view text);
  Result<const json::value*> resolve(std::string_view ref);
  void collect_ids(const json::value& v, int depth);
  Error wrong(std::string_view keyword, std::string_view what) const;
  Error unsupported(std::string_view keyword, std::string_view why = {}) const;

  // schema_rules.cc
  Result<RuleId> rule(SchemaRef ref);
  Result<RuleId> rule_body(SchemaRef ref, RuleId at);
  Result<RuleId> array_rule(const ArraySet& a);
  Result<RuleId> object_rule(const ObjectSet& o);

  RuleBuilder& builder_;
  RegexPool& pool_;
  CodeSpeller& speller_;
  const json::value* document_ = nullptr;
  std::deque<Schema> schemas_;
  std::unordered_map<const json::value*, SchemaRef> by_source_;
  std::map<std::tuple<int, SchemaRef, SchemaRef>, SchemaRef> by_pair_;
  std::map<std::string, const json::value*, std::less<>> ids_;
  bool nested_ids_ = false;
  std::unordered_map<SchemaRef, RuleId> rules_;
  std::vector<SchemaRef> pending_;
  RegexId all_strings_, all_keys_, quote_;
  int depth_ = 0;
  // empty(): each reading of a schema asks queries of its own.
  int query_ = 1, num_queries_ = 1;
  int assumed_empty_ = 0, assumed_not_ = 0;
};

// A key as JSON spells it, without the quotes. One spelling per key.
std::string spell_key(std::string_view key);

}  // namespace sluice::constrain

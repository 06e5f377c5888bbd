// SchemaCompiler: the keywords of JSON Schema (drafts 4 to 2020-12), each to a set of values.
#include <algorithm>
#include <cmath>

#include "base/str.h"
#include "constrain/formats.h"
#include "constrain/pattern.h"
#include "constrain/schema_compiler.h"

namespace sluice::constrain {

namespace {

// Keywords of the standards that restrict values and are not understood. Others that are not
// listed anywhere say nothing about validity, by the standards.
constexpr std::string_view kRefused[] = {
    "$dynamicRef", "$recursiveRef", "contains", "minContains",      "maxContains",
    "divisibleBy", "disallow",      "extends",  "unevaluatedItems", "unevaluatedProperties"};

constexpr std::string_view kSchemaMaps[] = {"properties",  "patternProperties", "$defs",
                                            "definitions", "dependentSchemas",  "dependencies"};
constexpr std::string_view kSchemaLists[] = {"allOf", "anyOf", "oneOf", "prefixItems", "items"};
constexpr std::string_view kSchemas[] = {
    "items", "additionalItems", "additionalProperties", "not", "if", "then",
    "else",  "propertyNames"};

const json::value* find(const json::object& o, std::string_view key) { return o.if_contains(key); }

std::optional<uint32_t> as_count(const json::value& v) {
  if (v.is_int64() && v.get_int64() >= 0) {
    return static_cast<uint32_t>(std::min<int64_t>(v.get_int64(), kUnbounded - 1));
  }
  if (v.is_uint64()) return kUnbounded - 1;
  if (v.is_double() && v.get_double() >= 0 && v.get_double() == std::floor(v.get_double())) {
    return static_cast<uint32_t>(std::min<double>(v.get_double(), kUnbounded - 1));
  }
  return std::nullopt;
}

}  // namespace

std::string spell_key(std::string_view key) {
  std::string out;
  for (char c : key) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<uint8_t>(c) < 0x20) {
          out += strf("\\u%04x", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
  return out;
}

Error SchemaCompiler::wrong(std::string_view keyword, std::string_view what) const {
  return {400, strf("schema: %.*s %.*s", static_cast<int>(keyword.size()), keyword.data(),
                    static_cast<int>(what.size()), what.data())};
}

Error SchemaCompiler::unsupported(std::string_view keyword, std::string_view why) const {
  return wrong(keyword, why.empty() ? "is not supported"
                                    : strf("is not supported: %.*s", static_cast<int>(why.size()),
                                           why.data()));
}

void SchemaCompiler::collect_ids(const json::value& v, int depth) {
  if (!v.is_object() || depth > 100) return;
  const json::object& o = v.get_object();
  for (const char* name : {"$id", "id", "$anchor"}) {
    const json::value* id = find(o, name);
    if (!id || !id->is_string()) continue;
    std::string text(id->get_string());
    if (name == std::string_view("$anchor")) text = "#" + text;
    while (text.size() > 1 && text.ends_with('#')) text.pop_back();
    // An embedded document: references inside it mean it, not the whole.
    if (depth > 0 && !text.starts_with('#')) nested_ids_ = true;
    ids_.try_emplace(text, &v);
  }
  for (std::string_view key : kSchemaMaps) {
    if (const json::value* m = find(o, key); m && m->is_object()) {
      for (const auto& [name, value] : m->get_object()) collect_ids(value, depth + 1);
    }
  }
  for (std::string_view key : kSchemaLists) {
    if (const json::value* l = find(o, key); l && l->is_array()) {
      for (const json::value& value : l->get_array()) collect_ids(value, depth + 1);
    }
  }
  for (std::string_view key : kSchemas) {
    if (const json::value* s = find(o, key)) collect_ids(*s, depth + 1);
  }
}

Result<const json::value*> SchemaCompiler::resolve(std::string_view ref) {
  std::string name(ref);
  if (nested_ids_) {
    return unsupported("$ref", "the schema has more than one $id");
  }
  size_t hash = name.find('#');
  std::string fragment = hash == std::string::npos ? "" : name.substr(hash + 1);
  std::string place = name.substr(0, hash);
  const json::value* at = document_;
  if (!place.empty()) {
    auto found = ids_.find(place);
    if (found == ids_.end() || found->second != document_) {
      return unsupported("$ref", strf("%s is another document", quote(ref).c_str()));
    }
  }
  if (fragment.empty()) return at;
  if (fragment[0] != '/') {
    auto found = ids_.find("#" + fragment);
    if (found == ids_.end()) return wrong("$ref", strf("%s: no such anchor", quote(ref).c_str()));
    return found->second;
  }
  std::string pointer;
  for (size_t i = 0; i < fragment.size(); ++i) {
    if (fragment[i] == '%' && i + 2 < fragment.size()) {
      pointer += static_cast<char>(std::strtol(fragment.substr(i + 1, 2).c_str(), nullptr, 16));
      i += 2;
    } else {
      pointer += fragment[i];
    }
  }
  for (size_t i = 0; i < pointer.size();) {
    size_t end = std::min(pointer.find('/', i + 1), pointer.size());
    std::string key;
    for (size_t k = i + 1; k < end; ++k) {
      if (pointer[k] == '~' && k + 1 < end) {
        key += pointer[++k] == '1' ? '/' : '~';
      } else {
        key += pointer[k];
      }
    }
    const json::value* next = nullptr;
    if (at->is_object()) {
      next = at->get_object().if_contains(key);
    } else if (at->is_array() && !key.empty() && key.size() < 9 &&
               std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; })) {
      next = at->get_array().if_contains(std::stoul(key));
    }
    if (!next) return wrong("$ref", strf("%s leads nowhere", quote(ref).c_str()));
    at = next;
    i = end;
  }
  return at;
}

Result<RegexId> SchemaCompiler::pattern(std::string_view text) {
  return build_pattern(text, pool_, speller_,
                       {Spelling::json, PatternMatch::search, builder_.limits().max_depth});
}

Result<SchemaSet> SchemaCompiler::literal(const json::value& value, int depth) {
  if (depth > 64) return Error{400, "schema: a value of enum or const is nested too deep"};
  SchemaSet set;
  builder_.budget().spend(5);
  switch (value.kind()) {
    case json::kind::null:
      set.null = true;
      break;
    case json::kind::bool_:
      (value.get_bool() ? set.yes : set.no) = true;
      break;
    case json::kind::string:
      set.strings = speller_.literal(value.get_string(), Spelling::json);
      break;
    case json::kind::array: {
      const json::array& a = value.get_array();
      uint32_t size = static_cast<uint32_t>(a.size());
      ArraySet items{{}, kFalse, size, size};
      for (const json::value& v : a) {
        Result<SchemaSet> one = literal(v, depth + 1);
        if (!one) return one;
        items.prefix.push_back(fixed(std::move(*one)));
      }
      set.arrays.push_back(std::move(items));
      break;
    }
    case json::kind::object: {
      ObjectSet object{{}, {{all_keys_, kFalse}}, {}, 0, kUnbounded};
      for (const auto& [key, v] : value.get_object()) {
        Result<SchemaSet> one = literal(v, depth + 1);
        if (!one) return one;
        object.properties.emplace_back(std::string(key), fixed(std::move(*one)));
        object.required.emplace_back(key);
      }
      set.objects.push_back(std::move(object));
      break;
    }
    default: {
      std::optional<Decimal> at = Decimal::of(value);
      if (!at) return Error{400, "schema: a number of enum or const is out of range"};
      set.numbers.push_back({at->is_whole(), NumberBound{*at}, NumberBound{*at}, 0});
    }
  }
  return set;
}

Result<SchemaSet> SchemaCompiler::read(const json::value& source) {
  if (source.is_bool()) return schemas_[source.get_bool() ? kTrue : kFalse].set;
  if (!source.is_object()) return Error{400, "schema: a schema must be an object or a boolean"};
  const json::object& o = source.get_object();
  for (std::string_view key : kRefused) {
    if (find(o, key)) return unsupported(key);
  }
  Result<SchemaSet> own = read_own(o);
  if (!own) return own;
  SchemaSet set = std::move(*own);
  if (auto r = read_dependencies(o, set); !r) return r.error();
  if (auto r = read_combined(o, set); !r) return r.error();
  return set;
}

Result<SchemaSet> SchemaCompiler::read_own(const json::object& o) {
  SchemaSet set = schemas_[kTrue].set;
  if (auto r = read_types(o, set); !r) return r.error();
  if (!set.numbers.empty()) {
    if (auto r = read_numbers(o, set); !r) return r.error();
  }
  if (set.strings != RegexPool::kEmpty) {
    if (auto r = read_strings(o, set); !r) return r.error();
  }
  if (!set.arrays.empty()) {
    if (auto r = read_array(o, set); !r) return r.error();
  }
  if (!set.objects.empty()) {
    if (auto r = read_object(o, set); !r) return r.error();
  }
  if (const json::value* v = find(o, "enum")) {
    if (!v->is_array()) return wrong("enum", "must be a list");
    SchemaSet values;
    std::vector<RegexId> strings;
    for (const json::value& one : v->get_array()) {
      Result<SchemaSet> add = literal(one);
      if (!add) return add;
      if (pool_.failed()) break;
      strings.push_back(add->strings);
      add->strings = RegexPool::kEmpty;
      values = unite(std::move(values), *add);
    }
    values.strings = pool_.any_of(std::move(strings));
    Result<SchemaSet> kept = intersect(set, values);
    if (!kept) return kept;
    set = std::move(*kept);
  }
  if (const json::value* v = find(o, "const")) {
    Result<SchemaSet> value = literal(*v);
    if (!value) return value;
    return intersect(set, *value);
  }
  return set;
}

Result<void> SchemaCompiler::read_types(const json::object& o, SchemaSet& set) {
  const json::value* v = find(o, "type");
  if (!v) return {};
  SchemaSet all = std::move(set);
  set = {};
  auto take = [&](const json::value& type) -> Result<void> {
    std::string_view name = type.is_string() ? std::string_view(type.get_string()) : "";
    if (name == "null") {
      set.null = all.null;
    } else if (name == "boolean") {
      set.yes = all.yes, set.no = all.no;
    } else if (name == "string") {
      set.strings = all.strings;
    } else if (name == "number") {
      set.numbers = all.numbers;
    } else if (name == "integer") {
      if (set.numbers.empty()) set.numbers.push_back({.whole = true});
    } else if (name == "array") {
      set.arrays = all.arrays;
    } else if (name == "object") {
      set.objects = all.objects;
    } else {
      return wrong("type", strf("%s is no type", quote(json::serialize(type)).c_str()));
    }
    return {};
  };
  if (!v->is_array()) return take(*v);
  for (const json::value& type : v->get_array()) {
    if (auto r = take(type); !r) return r;
  }
  return {};
}

Result<void> SchemaCompiler::read_numbers(const json::object& o, SchemaSet& set) {
  NumberSet limits;
  auto bound = [&](const char* key, bool low, bool open) -> Result<void> {
    const json::value* v = find(o, key);
    if (!v || v->is_bool()) return {};  // draft 4: exclusiveMinimum is true or false
    std::optional<Decimal> at = Decimal::of(*v);
    if (!at) return wrong(key, "must be a number");
    std::optional<NumberBound>& old = low ? limits.low : limits.high;
    NumberBound made{*at, open};
    if (old) {
      int order = old->at.compare(made.at);
      if (low ? order > 0 : order < 0) return {};
      if (order == 0) made.open |= old->open;
    }
    old = made;
    return {};
  };
  auto is_true = [&](const char* key) {
    const json::value* v = find(o, key);
    return v && v->is_bool() && v->get_bool();
  };
  if (auto r = bound("minimum", true, is_true("exclusiveMinimum")); !r) return r;
  if (auto r = bound("maximum", false, is_true("exclusiveMaximum")); !r) return r;
  if (auto r = bound("exclusiveMinimum", true, true); !r) return r;
  if (auto r = bound("exclusiveMaximum", false, true); !r) return r;
  if (const json::value* v = find(o, "multipleOf")) {
    std::optional<Decimal> at = Decimal::of(*v);
    if (!at || at->negative || at->is_zero())
      return wrong("multipleOf", "must be a number above 0");
    bool all_whole = std::all_of(set.numbers.begin(), set.numbers.end(),
                                 [](const NumberSet& n) { return n.whole; });
    if (at->whole == "0" && all_whole &&
        at->fraction == std::string(at->fraction.size() - 1, '0') + "1") {
      // Every integer is a multiple of 0.1, 0.01...
    } else if (!at->is_whole() || at->whole.size() > 8) {
      return unsupported("multipleOf", "only whole numbers below 100000000 are");
    } else {
      limits.whole = true;
      limits.multiple = static_cast<uint32_t>(std::stoul(at->whole));
    }
  }
  if (limits == NumberSet{}) return {};
  std::vector<NumberSet> kept;
  for (const NumberSet& n : set.numbers) {
    if (auto both = intersect(n, limits)) kept.push_back(*both);
  }
  set.numbers = std::move(kept);
  return {};
}

Result<void> SchemaCompiler::read_strings(const json::object& o, SchemaSet& set) {
  uint32_t min = 0, max = RegexPool::kInf;
  for (auto [key, place] : {std::pair{"minLength", &min}, std::pair{"maxLength", &max}}) {
    if (const json::value* v = find(o, key)) {
      std::optional<uint32_t> n = as_count(*v);
      if (!n) return wrong(key, "must be a whole number from 0");
      *place = *n;
    }
  }
  std::vector<RegexId> parts;
  if (min > 0 || max != RegexPool::kInf) {
    parts.push_back(pool_.repeat(speller_.any(Spelling::json), min, max));
  }
  if (const json::value* v = find(o, "pattern")) {
    if (!v->is_string()) return wrong("pattern", "must be a string");
    Result<RegexId> r = pattern(v->get_string());
    if (!r) return r.error();
    parts.push_back(*r);
  }
  if (const json::value* v = find(o, "format"); v && v->is_string()) {
    std::string_view name = v->get_string();
    if (std::optional<FormatRow> row = find_format(name)) {
      if (row->pattern.empty()) return unsupported(strf("format %s", quote(name).c_str()));
      Result<RegexId> r = build_pattern(row->pattern, pool_, speller_, {Spelling::json});
      if (!r) return r.error();
      parts.push_back(*r);
    }
  }
  if (parts.empty()) return {};
  if (set.strings != all_strings_) parts.push_back(set.strings);
  set.strings = pool_.all_of(std::move(parts));
  if (pool_.is_empty(set.strings)) set.strings = RegexPool::kEmpty;
  return {};
}

Result<void> SchemaCompiler::read_array(const json::object& o, SchemaSet& set) {
  ArraySet a{{}, kTrue, 0, kUnbounded};
  for (auto [key, place] : {std::pair{"minItems", &a.min}, std::pair{"maxItems", &a.max}}) {
    if (const json::value* v = find(o, key)) {
      std::optional<uint32_t> n = as_count(*v);
      if (!n) return wrong(key, "must be a whole number from 0");
      *place = *n;
    }
  }
  const json::value* items = find(o, "items");
  const json::value* prefix = find(o, "prefixItems");
  const json::value* rest = items;
  if (items && items->is_array()) prefix = items, rest = find(o, "additionalItems");
  if (prefix) {
    if (!prefix->is_array()) return wrong("prefixItems", "must be a list");
    for (const json::value& v : prefix->get_array()) a.prefix.push_back(of(v));
  }
  if (rest) a.items = of(*rest);
  if (const json::value* v = find(o, "uniqueItems"); v && v->is_bool() && v->get_bool()) {
    if (a.max > 1) return unsupported("uniqueItems");
  }
  set.arrays = {std::move(a)};
  return {};
}

Result<void> SchemaCompiler::read_object(const json::object& o, SchemaSet& set) {
  ObjectSet object;
  for (auto [key, place] :
       {std::pair{"minProperties", &object.min}, std::pair{"maxProperties", &object.max}}) {
    if (const json::value* v = find(o, key)) {
      std::optional<uint32_t> n = as_count(*v);
      if (!n) return wrong(key, "must be a whole number from 0");
      *place = *n;
    }
  }
  SchemaRef extra = kTrue;
  if (const json::value* v = find(o, "additionalProperties")) extra = of(*v);
  // Keys by which patterns they match: every combination is a class.
  std::vector<std::pair<RegexId, SchemaRef>> patterns;
  if (const json::value* v = find(o, "patternProperties")) {
    if (!v->is_object()) return wrong("patternProperties", "must be an object");
    for (const auto& [key, value] : v->get_object()) {
      Result<RegexId> r = pattern(key);
      if (!r) return r.error();
      patterns.emplace_back(pool_.all_of({all_keys_, *r}), of(value));
    }
  }
  struct Class {
    RegexId keys;
    SchemaRef value;
    bool matched;
  };
  std::vector<Class> classes{{all_keys_, kTrue, false}};
  for (const auto& [keys, value] : patterns) {
    std::vector<Class> next;
    for (const Class& c : classes) {
      RegexId in = c.keys == all_keys_ ? keys : pool_.all_of({c.keys, keys});
      RegexId out = pool_.minus(c.keys, keys);
      if (!pool_.is_empty(in)) next.push_back({in, both(c.value, value), true});
      if (!pool_.is_empty(out)) next.push_back({out, c.value, c.matched});
    }
    classes = std::move(next);
    if (classes.size() > 64) return unsupported("patternProperties", "too many overlap");
  }
  for (const Class& c : classes) object.others.push_back({c.keys, c.matched ? c.value : extra});
  if (const json::value* v = find(o, "properties")) {
    if (!v->is_object()) return wrong("properties", "must be an object");
    for (const auto& [key, value] : v->get_object()) {
      SchemaRef ref = of(value);
      for (const auto& [keys, schema] : patterns) {
        if (matches(keys, std::string(key))) ref = both(ref, schema);
      }
      object.properties.emplace_back(std::string(key), ref);
    }
  }
  if (const json::value* v = find(o, "required"); v && !v->is_bool()) {
    if (!v->is_array()) return wrong("required", "must be a list");
    for (const json::value& key : v->get_array()) {
      if (!key.is_string()) return wrong("required", "must be a list of strings");
      std::string name(key.get_string());
      if (std::find(object.required.begin(), object.required.end(), name) ==
          object.required.end()) {
        object.required.push_back(std::move(name));
      }
    }
  } else if (v) {
    return unsupported("required", "a boolean (draft 3)");
  }
  if (const json::value* v = find(o, "propertyNames")) {
    Set names = eval(of(*v));
    if (!names) return names.error();
    RegexId allowed = pool_.all_of({all_keys_, (*names)->strings});
    ObjectSet only{{}, {}, {}, 0, kUnbounded};
    if (!pool_.is_empty(allowed)) only.others.push_back({allowed, kTrue});
    RegexId forbidden = pool_.minus(all_keys_, allowed);
    if (!pool_.is_empty(forbidden)) only.others.push_back({forbidden, kFalse});
    object = intersect(object, only);
  }
  set.objects = {std::move(object)};
  return {};
}

Result<void> SchemaCompiler::read_dependencies(const json::object& o, SchemaSet& set) {
  for (const char* keyword : {"dependencies", "dependentRequired", "dependentSchemas"}) {
    const json::value* v = find(o, keyword);
    if (!v) continue;
    if (!v->is_object()) return wrong(keyword, "must be an object");
    for (const auto& [key, what] : v->get_object()) {
      // Either the key is absent, or what it asks for holds.
      SchemaSet absent = schemas_[kTrue].set;
      absent.objects[0].properties.emplace_back(std::string(key), kFalse);
      SchemaSet present;
      present.objects = schemas_[kTrue].set.objects;
      present.objects[0].required.emplace_back(key);
      if (what.is_array() || what.is_string()) {
        json::array one{what};
        for (const json::value& other : what.is_array() ? what.get_array() : one) {
          if (!other.is_string()) return wrong(keyword, "must name keys");
          if (std::string(other.get_string()) != std::string(key)) {
            present.objects[0].required.emplace_back(other.get_string());
          }
        }
      } else {
        Set schema = eval(of(what));
        if (!schema) return schema.error();
        Result<SchemaSet> both_hold = intersect(present, **schema);
        if (!both_hold) return both_hold.error();
        present = std::move(*both_hold);
      }
      Result<SchemaSet> kept = intersect(set, unite(std::move(absent), present));
      if (!kept) return kept.error();
      set = std::move(*kept);
    }
  }
  return {};
}

Result<SchemaSet> SchemaCompiler::read_one_of(const json::array& options) {
  std::vector<SchemaRef> refs;
  for (const json::value& v : options) refs.push_back(of(v));
  SchemaSet out;
  for (size_t i = 0; i < refs.size(); ++i) {
    SchemaRef rest = refs[i];
    for (size_t k = 0; k < refs.size(); ++k) {
      if (k == i) continue;
      Result<bool> apart = refs[i] == refs[k] ? Result<bool>(false) : empty(both(refs[i], refs[k]));
      if (!apart) return apart.error();
      if (!*apart) rest = difference(rest, refs[k]);
    }
    Set set = eval(rest);
    if (!set) return set.error();
    out = unite(std::move(out), **set);
  }
  return out;
}

Result<void> SchemaCompiler::read_combined(const json::object& o, SchemaSet& set) {
  auto keep = [&](const SchemaSet& other) -> Result<void> {
    Result<SchemaSet> kept = intersect(set, other);
    if (!kept) return kept.error();
    set = std::move(*kept);
    return {};
  };
  if (const json::value* v = find(o, "$ref")) {
    if (!v->is_string()) return wrong("$ref", "must be a string");
    Result<const json::value*> target = resolve(v->get_string());
    if (!target) return target.error();
    Set other = eval(of(**target));
    if (!other) return other.error();
    if (auto r = keep(**other); !r) return r;
  }
  for (const char* keyword : {"allOf", "anyOf", "oneOf"}) {
    const json::value* v = find(o, keyword);
    if (!v) continue;
    if (!v->is_array() || v->get_array().empty())
      return wrong(keyword, "must be a list of schemas");
    const json::array& options = v->get_array();
    if (keyword == std::string_view("oneOf")) {
      Result<SchemaSet> one = read_one_of(options);
      if (!one) return one.error();
      if (auto r = keep(*one); !r) return r;
      continue;
    }
    SchemaSet any;
    for (const json::value& option : options) {
      Set other = eval(of(option));
      if (!other) return other.error();
      if (keyword == std::string_view("allOf")) {
        if (auto r = keep(**other); !r) return r;
      } else {
        any = unite(std::move(any), **other);
      }
    }
    if (keyword == std::string_view("anyOf")) {
      if (auto r = keep(any); !r) return r;
    }
  }
  if (const json::value* v = find(o, "not")) {
    Set other = eval(of(*v));
    if (!other) return other.error();
    Result<SchemaSet> rest = subtract(set, **other);
    if (!rest) return rest.error();
    set = std::move(*rest);
  }
  if (const json::value* v = find(o, "if")) {
    const json::value* then = find(o, "then");
    const json::value* otherwise = find(o, "else");
    if (!then && !otherwise) return {};
    SchemaRef condition = of(*v);
    Set yes = eval(both(condition, then ? of(*then) : kTrue));
    if (!yes) return yes.error();
    Set no = eval(both(difference(kTrue, condition), otherwise ? of(*otherwise) : kTrue));
    if (!no) return no.error();
    if (auto r = keep(unite(**yes, **no)); !r) return r;
  }
  return {};
}

}  // namespace sluice::constrain

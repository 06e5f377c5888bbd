#include "text/jinja/value.h"

#include <algorithm>
#include <cmath>

#include "base/str.h"
#include "text/jinja/bigint.h"

namespace sluice::jinja {

Value Value::boolean(bool b) {
  Value v(Kind::boolean);
  v.b_ = b;
  return v;
}
Value Value::integer(int64_t i) {
  Value v(Kind::integer);
  v.i_ = i;
  return v;
}
Value Value::real(double d) {
  Value v(Kind::real);
  v.d_ = d;
  return v;
}

bool Value::is_seq(SeqKind k) const { return is(Kind::sequence) && seq().kind == k; }
const Text& Value::text() const {
  static const Text kNone = Text::unmetered();
  return object_ ? as<StringObject>().text : kNone;
}
const Values& Value::items() const { return seq().items; }
SeqObject& Value::seq() const { return as<SeqObject>(); }
DictObject& Value::dict() const { return as<DictObject>(); }

Value make_string(Meter& m, Text text, bool markup) {
  m.step();
  auto s = std::make_shared<StringObject>(std::move(text));
  s->charge(m, sizeof(StringObject));
  s->markup = markup;
  return {Kind::string, std::move(s)};
}
Value make_string(Meter& m, std::string text, bool trusted) {
  return make_string(m, Text(m, std::move(text), trusted));
}
Value make_constant(std::string text) {
  return {Kind::string, std::make_shared<StringObject>(Text::unmetered(std::move(text)))};
}
Value make_undefined(Meter& m, std::string why) {
  m.step(4);  // the message was formatted
  auto s = std::make_shared<StringObject>(Text(m, std::move(why), true));
  s->charge(m, sizeof(StringObject));
  return {Kind::undefined, std::move(s)};
}

namespace {
int depth_of(const Value& v) {
  switch (v.kind()) {
    case Kind::sequence:
    case Kind::dict:
    case Kind::function:
    case Kind::loop:
    case Kind::cycler:
      return v.object()->depth;
    default:
      return 0;
  }
}

void check_depth(const Meter& m, int depth) {
  if (depth > kMaxValueDepth) m.fail("values are nested too deeply");
}
}  // namespace

Value make_seq(Meter& m, Values items, SeqKind kind) {
  m.step(1 + items.size() / 8);
  auto s = std::make_shared<SeqObject>(kind, std::move(items));
  s->charge(m, sizeof(SeqObject));
  for (const Value& v : s->items) {
    s->depth = std::max(s->depth, depth_of(v) + 1);
    s->hashable &= hashable(v);
  }
  check_depth(m, s->depth);
  return {Kind::sequence, std::move(s)};
}

Value make_pair(Meter& m, Value a, Value b) {
  Values both(m);
  both.reserve(2);
  both.push_back(std::move(a));
  both.push_back(std::move(b));
  return make_seq(m, std::move(both), SeqKind::tuple);
}

std::shared_ptr<DictObject> new_dict(Meter& m) { return std::make_shared<DictObject>(m); }

Value finish_dict(Meter& m, std::shared_ptr<DictObject> dict) {
  m.step(1 + dict->items.size() / 8);
  dict->charge(m, sizeof(DictObject));
  for (const auto& [k, v] : dict->items) {
    dict->depth = std::max({dict->depth, depth_of(k) + 1, depth_of(v) + 1});
  }
  check_depth(m, dict->depth);
  return {Kind::dict, std::move(dict)};
}

namespace {
constexpr size_t kLinear = 12;  // string keys are hashed in dicts larger than this
}

void DictObject::update_index() const {
  if (items.size() > kLinear && !hashed_) {
    hashed_ = true;
    num_seen_ = 0;
    others_.clear();
  }
  for (; num_seen_ < items.size(); ++num_seen_) {
    const Value& k = items[num_seen_].first;
    if (!k.is(Kind::string)) {
      others_.push_back(num_seen_);
    } else if (hashed_) {
      others_.get_allocator().meter()->search(k.text().size());
      index_.emplace(k.text().view(), num_seen_);
    }
  }
}

const Value* DictObject::find(Meter& m, std::string_view key) const {
  if (items.size() <= kLinear) {
    for (const auto& [k, v] : items) {
      if (!k.is(Kind::string) || k.text().size() != key.size()) continue;
      if (key.size() >= 256) m.scan(key.size());
      if (k.text().view() == key) return &v;
    }
    return nullptr;
  }
  update_index();
  m.search(key.size());
  auto it = index_.find(key);
  return it == index_.end() ? nullptr : &items[it->second].second;
}

const Value* DictObject::find(Meter& m, const Value& key) const {
  if (key.is(Kind::string)) return find(m, key.text().view());
  if (!hashable(key)) m.fail(strf("unhashable type: '%s'", type_name(key)));
  update_index();
  for (size_t i : others_) {
    if (equals(m, items[i].first, key)) return &items[i].second;
  }
  return nullptr;
}

void DictObject::set(Meter& m, Value key, Value value) {
  if (const Value* old = find(m, key)) {
    *const_cast<Value*>(old) = std::move(value);
  } else {
    items.emplace_back(std::move(key), std::move(value));
  }
}

Value* NamespaceObject::find(Meter& m, std::string_view name) {
  m.step(attrs.size() / 16);
  for (auto& [k, v] : attrs) {
    if (k == name) return &v;
  }
  return nullptr;
}

Value from_json(Meter& m, const json::value& v, int depth) {
  if (depth >= kMaxValueDepth) m.fail("the request's JSON is nested too deeply");
  m.step();
  switch (v.kind()) {
    case json::kind::null:
      return Value::none();
    case json::kind::bool_:
      return Value::boolean(v.get_bool());
    case json::kind::int64:
      return Value::integer(v.get_int64());
    case json::kind::uint64: {
      uint64_t u = v.get_uint64();
      if (u <= static_cast<uint64_t>(INT64_MAX)) return Value::integer(static_cast<int64_t>(u));
      return {Kind::big_integer, make_string(m, std::to_string(u), true).shared()};
    }
    case json::kind::double_:
      return Value::real(v.get_double());
    case json::kind::string:
      return make_string(m, std::string(v.get_string()), false);
    case json::kind::array: {
      Values items(m);
      items.reserve(v.get_array().size());
      for (const json::value& e : v.get_array()) items.push_back(from_json(m, e, depth + 1));
      return make_seq(m, std::move(items));
    }
    case json::kind::object: {
      auto dict = new_dict(m);
      dict->items.reserve(v.get_object().size());
      for (const auto& e : v.get_object()) {
        Value key = make_string(m, std::string(e.key()), false);
        dict->items.emplace_back(std::move(key), from_json(m, e.value(), depth + 1));
      }
      return finish_dict(m, std::move(dict));
    }
  }
  return Value::none();
}

bool length_of(const Value& v, size_t& out) {
  switch (v.kind()) {
    case Kind::undefined:
      out = 0;
      return true;
    case Kind::string:
      out = count_code_points(v.text().view());
      return true;
    case Kind::sequence:
      out = v.items().size();
      return v.seq().kind != SeqKind::generator;
    case Kind::dict:
      out = v.dict().items.size();
      return true;
    case Kind::none:
    case Kind::boolean:
    case Kind::integer:
    case Kind::big_integer:
    case Kind::real:
    case Kind::ns:
    case Kind::macro:
    case Kind::function:
    case Kind::loop:
    case Kind::cycler:
    case Kind::joiner:
      return false;
  }
  return false;
}

bool truthy(const Value& v) {
  switch (v.kind()) {
    case Kind::none:
    case Kind::undefined:
      return false;
    case Kind::boolean:
      return v.as_bool();
    case Kind::integer:
      return v.as_int() != 0;
    case Kind::real:
      return v.as_double() != 0;
    case Kind::string:
      return !v.text().empty();
    default: {
      size_t n = 1;
      return !length_of(v, n) || n > 0;
    }
  }
}

namespace {
bool equal_items(Meter& m, const Values& a, const Values& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!equals(m, a[i], b[i])) return false;
  }
  return true;
}

bool equal_dicts(Meter& m, const DictObject& a, const DictObject& b) {
  if (a.items.size() != b.items.size()) return false;
  for (const auto& [k, v] : a.items) {
    const Value* other = b.find(m, k);
    if (!other || !equals(m, v, *other)) return false;
  }
  return true;
}
}  // namespace

bool equals(Meter& m, const Value& a, const Value& b) {
  m.step();
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_int() == b.as_int();
    return a.as_double() == b.as_double();
  }
  if (a.kind() != b.kind()) {
    bool real = a.is(Kind::real) || b.is(Kind::real);  // other whole numbers are smaller
    bool big = a.is(Kind::big_integer) || b.is(Kind::big_integer);
    return real && big && compare_big(m, a, b) == 0;
  }
  switch (a.kind()) {
    case Kind::undefined:
    case Kind::none:
      return true;
    case Kind::string:
    case Kind::big_integer:
      if (a.text().size() != b.text().size()) return false;
      m.scan(a.text().size());
      return a.text().str() == b.text().str();
    case Kind::sequence:
      if (a.object() == b.object()) return true;
      if (a.seq().kind != b.seq().kind || a.seq().kind == SeqKind::generator) return false;
      return equal_items(m, a.items(), b.items());
    case Kind::dict:
      return a.object() == b.object() || equal_dicts(m, a.dict(), b.dict());
    default:
      return a.object() == b.object();
  }
}

int compare(Meter& m, const Value& a, const Value& b) {
  m.step();
  auto order = [](auto x, auto y) { return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2; };
  if (a.is_integral() && b.is_integral()) return order(a.as_int(), b.as_int());
  if (a.is_number() && b.is_number()) return order(a.as_double(), b.as_double());
  if (is_numeric(a) && is_numeric(b)) return compare_big(m, a, b);
  if (a.is(Kind::string) && b.is(Kind::string)) {
    m.scan(std::min(a.text().size(), b.text().size()));
    return order(a.text().str().compare(b.text().str()), 0);
  }
  bool lists = a.is(Kind::sequence) && b.is(Kind::sequence) && a.seq().kind == b.seq().kind &&
               (a.seq().kind == SeqKind::list || a.seq().kind == SeqKind::tuple);
  if (lists) {
    size_t n = std::min(a.items().size(), b.items().size());
    for (size_t i = 0; i < n; ++i) {
      if (!equals(m, a.items()[i], b.items()[i])) return compare(m, a.items()[i], b.items()[i]);
    }
    return order(a.items().size(), b.items().size());
  }
  for (const Value* v : {&a, &b}) {
    if (v->is(Kind::undefined)) m.fail(v->text().str());
  }
  m.fail(strf("'%s' and '%s' cannot be ordered", type_name(a), type_name(b)));
}

bool contains(Meter& m, const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::string:
      if (!item.is(Kind::string)) {
        m.fail(strf("'in <string>' requires string as left operand, not %s", type_name(item)));
      }
      m.search(container.text().size());
      return find_bytes(container.text().view(), item.text().view()) != std::string_view::npos;
    case Kind::dict:
      return container.dict().find(m, item) != nullptr;
    case Kind::ns:
      m.fail("argument of type 'Namespace' is not iterable");
    default: {
      auto same = [&](const Value& v) {
        return (v.object() && v.object() == item.object()) || equals(m, v, item);
      };
      if (container.is(Kind::sequence) && container.seq().kind != SeqKind::generator) {
        return std::any_of(container.items().begin(), container.items().end(), same);
      }
      Values items = iterate(m, container);
      return std::any_of(items.begin(), items.end(), same);
    }
  }
}

bool hashable(const Value& v) {
  if (v.is(Kind::dict)) return false;
  if (!v.is(Kind::sequence)) return true;
  switch (v.seq().kind) {
    case SeqKind::tuple:
      return v.seq().hashable;
    case SeqKind::range:
    case SeqKind::generator:
    case SeqKind::bytes:
      return true;
    case SeqKind::list:
    case SeqKind::dict_keys:
    case SeqKind::dict_values:
    case SeqKind::dict_items:
      return false;
  }
  return false;
}

const char* type_name(const Value& v) {
  switch (v.kind()) {
    case Kind::undefined:
      return "Undefined";
    case Kind::none:
      return "NoneType";
    case Kind::boolean:
      return "bool";
    case Kind::integer:
    case Kind::big_integer:
      return "int";
    case Kind::real:
      return "float";
    case Kind::string:
      return v.as<StringObject>().markup ? "Markup" : "str";
    case Kind::sequence: {
      static constexpr const char* kNames[] = {
          "list", "tuple", "range", "generator", "dict_keys", "dict_values", "dict_items", "bytes"};
      return kNames[static_cast<int>(v.seq().kind)];
    }
    case Kind::dict:
      return "dict";
    case Kind::ns:
      return "Namespace";
    case Kind::macro:
      return "Macro";
    case Kind::function:
      return "function";
    case Kind::loop:
      return "LoopContext";
    case Kind::cycler:
      return "Cycler";
    case Kind::joiner:
      return "Joiner";
  }
  return "object";
}

Values iterate(Meter& m, const Value& v) {
  switch (v.kind()) {
    case Kind::undefined:
      return Values(m);
    case Kind::sequence: {
      SeqObject& s = v.seq();
      m.step();
      if (s.kind != SeqKind::generator) return s.items;
      size_t from = std::exchange(s.next, s.items.size());
      return Values(s.items.begin() + static_cast<std::ptrdiff_t>(from), s.items.end(), m);
    }
    case Kind::dict: {
      Values keys(m);
      m.step();
      keys.reserve(v.dict().items.size());
      for (const auto& e : v.dict().items) keys.push_back(e.first);
      return keys;
    }
    case Kind::string: {
      Values chars(m);
      const Text& t = v.text();
      for (size_t i = 0; i < t.size();) {
        size_t begin = i;
        next_code_point(t.view(), i);
        chars.push_back(make_string(m, t.slice(m, begin, i)));
      }
      return chars;
    }
    default:
      m.fail(strf("'%s' object is not iterable", type_name(v)));
  }
}

}  // namespace sluice::jinja

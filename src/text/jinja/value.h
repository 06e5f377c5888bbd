// The values of the template language, with Python's semantics.
// All values of one rendering belong to its thread and die before its meter.
// Inside the interpreter a failure is the exception TemplateError; ChatTemplate turns it into an
// Error.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/keyed_hash.h"
#include "text/jinja/meter.h"
#include "text/jinja/text.h"

namespace sluice::jinja {

inline constexpr int kMaxValueDepth = 100;

enum class Kind : uint8_t {
  undefined,
  none,
  boolean,
  integer,
  big_integer,
  real,
  string,
  sequence,
  dict,
  ns,
  macro,
  function,
  loop,
  cycler,
  joiner
};
enum class SeqKind : uint8_t {
  list,
  tuple,
  range,
  generator,
  dict_keys,
  dict_values,
  dict_items,
  bytes  // integers below 256: what str.encode() gives
};

// What is shared by reference. `charged` bytes return to the meter with the object.
struct Object {
  Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() {
    if (meter) meter->give(charged);
  }
  void charge(Meter& m, size_t bytes) {
    m.take(bytes);
    meter = &m;
    charged = bytes;
  }
  // Drops references that could close a cycle.
  virtual void clear() {}

  Meter* meter = nullptr;
  size_t charged = 0;
  int depth = 1;  // of containers below this one, itself included
};

struct StringObject;
struct SeqObject;
struct DictObject;
class Value;
using Values = std::vector<Value, Metered<Value>>;

class Value {
 public:
  Value() = default;  // undefined, without a name
  static Value none() { return Value(Kind::none); }
  static Value boolean(bool b);
  static Value integer(int64_t i);
  static Value real(double d);
  Value(Kind kind, std::shared_ptr<Object> object) : kind_(kind), object_(std::move(object)) {}

  Kind kind() const { return kind_; }
  bool is(Kind k) const { return kind_ == k; }
  bool is_seq(SeqKind k) const;
  bool is_integral() const { return kind_ == Kind::integer || kind_ == Kind::boolean; }
  bool is_number() const { return is_integral() || kind_ == Kind::real; }

  bool as_bool() const { return b_; }
  int64_t as_int() const { return kind_ == Kind::boolean ? b_ : i_; }
  double as_double() const { return kind_ == Kind::real ? d_ : static_cast<double>(as_int()); }
  const Text& text() const;     // string; undefined: why; big_integer: digits
  const Values& items() const;  // sequence
  SeqObject& seq() const;
  DictObject& dict() const;
  Object* object() const { return object_.get(); }
  const std::shared_ptr<Object>& shared() const { return object_; }
  template <typename T>
  T& as() const {
    return static_cast<T&>(*object_);
  }

 private:
  explicit Value(Kind k) : kind_(k) {}
  Kind kind_ = Kind::undefined;
  union {
    bool b_;
    int64_t i_ = 0;
    double d_;
  };
  std::shared_ptr<Object> object_;
};

struct StringObject final : Object {
  explicit StringObject(Text t) : text(std::move(t)) {}
  Text text;
  bool markup = false;  // HTML already escaped: `+` escapes what it is joined with
};

struct SeqObject final : Object {
  SeqObject(SeqKind k, Values v) : kind(k), items(std::move(v)) {}
  SeqKind kind;
  bool hashable = true;  // tuple: all items are. Known from the start: walking shared tuples is
                         // exponential in their depth
  Values items;
  size_t next = 0;                      // generator: the first item not yet handed out
  bool is_group = false;                // tuple made by groupby: has .grouper and .list
  int64_t start = 0, stop = 0, by = 1;  // range
};

struct DictObject final : Object {
  using Items = std::vector<std::pair<Value, Value>, Metered<std::pair<Value, Value>>>;
  explicit DictObject(Meter& m) : items(m), others_(m), index_(Index::allocator_type(m)) {}
  Items items;  // insertion order
  // Null when absent. Keys compare as in Python: 1 == 1.0 == True.
  const Value* find(Meter& m, const Value& key) const;
  const Value* find(Meter& m, std::string_view key) const;
  // Replaces or appends. Only while the dict is being built.
  void set(Meter& m, Value key, Value value);

 private:
  using Index = std::unordered_map<std::string_view,
                                   size_t,
                                   KeyedHash,
                                   std::equal_to<>,
                                   Metered<std::pair<const std::string_view, size_t>>>;
  void update_index() const;
  // Positions of keys, built on the first search: other keys one after the other, strings by text
  // once there are many. Views into keys, which never change.
  mutable std::vector<size_t, Metered<size_t>> others_;
  mutable Index index_;
  mutable size_t num_seen_ = 0;
  mutable bool hashed_ = false;
};

struct NamespaceObject final : Object {
  using Attr = std::pair<std::string, Value>;
  explicit NamespaceObject(Meter& m) : attrs(m) {}
  std::vector<Attr, Metered<Attr>> attrs;
  Value* find(Meter& m, std::string_view name);
  void clear() override { attrs.clear(); }
};

Value make_string(Meter& m, Text text, bool markup = false);
Value make_string(Meter& m, std::string text, bool trusted);
Value make_constant(std::string text);  // trusted text of the template itself: not charged
Value make_undefined(Meter& m, std::string why);
Value make_seq(Meter& m, Values items, SeqKind kind = SeqKind::list);
Value make_pair(Meter& m, Value a, Value b);  // a tuple
std::shared_ptr<DictObject> new_dict(Meter& m);
Value finish_dict(Meter& m, std::shared_ptr<DictObject> dict);
// Untrusted strings throughout.
Value from_json(Meter& m, const json::value& v, int depth = 0);

inline bool is_markup(const Value& v) { return v.is(Kind::string) && v.as<StringObject>().markup; }
bool truthy(const Value& v);
bool equals(Meter& m, const Value& a, const Value& b);
// -1, 0, 1, or 2 for numbers that do not compare (nan); fails for types that have no order.
int compare(Meter& m, const Value& a, const Value& b);
bool contains(Meter& m, const Value& container, const Value& item);
bool hashable(const Value& v);
// "str", "int", "list", ...: the name Python has for it.
const char* type_name(const Value& v);
// The elements that a for loop would see; fails for values that cannot be iterated. Uses up
// generators.
Values iterate(Meter& m, const Value& v);
// len(): false where Python has none.
bool length_of(const Value& v, size_t& out);

}  // namespace sluice::jinja

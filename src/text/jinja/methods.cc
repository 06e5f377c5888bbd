// Methods of dicts, lists and the template's own objects, and the lookup of all methods. No method
// changes a value: those that would (append, update, ...) are refused, as in jinja2's immutable
// sandbox.
#include <algorithm>
#include <array>

#include "text/jinja/methods.h"

namespace sluice::jinja {
namespace {

// ---- dict

Value dict_get(Machine& m, const Value& self, CallArgs& args) {
  Bound a(m, "get", args, {"", ""}, 1);
  if (const Value* v = self.dict().find(m.meter, a[0])) return *v;
  return a.has(1) ? a[1] : Value::none();
}

template <SeqKind kind>
Value dict_view(Machine& m, const Value& self, CallArgs& args) {
  Bound(m, "dict method", args, {});
  Values out(m.meter);
  out.reserve(self.dict().items.size());
  for (const auto& [k, v] : self.dict().items) {
    out.push_back(kind == SeqKind::dict_keys     ? k
                  : kind == SeqKind::dict_values ? v
                                                 : make_pair(m.meter, k, v));
  }
  return make_seq(m.meter, std::move(out), kind);
}

Value copy_self(Machine& m, const Value& self, CallArgs& args) {
  Bound(m, "copy", args, {});
  return self;
}

// ---- list, tuple, loop, cycler

Value seq_index(Machine& m, const Value& self, CallArgs& args) {
  Bound a(m, "index", args, {""}, 1);
  for (size_t i = 0; i < self.items().size(); ++i) {
    if (equals(m.meter, self.items()[i], a[0])) return Value::integer(static_cast<int64_t>(i));
  }
  m.fail("the value is not in the list");
}

Value seq_count(Machine& m, const Value& self, CallArgs& args) {
  Bound a(m, "count", args, {""}, 1);
  return Value::integer(std::count_if(self.items().begin(), self.items().end(),
                                      [&](const Value& v) { return equals(m.meter, v, a[0]); }));
}

Value loop_cycle(Machine& m, const Value& self, CallArgs& args) {
  if (args.pos.empty()) m.fail("no items for cycling given");
  return args.pos[self.as<LoopObject>().index % args.pos.size()];
}

Value loop_changed(Machine& m, const Value& self, CallArgs& args) {
  auto& loop = self.as<LoopObject>();
  bool same = loop.seen_any && loop.last_seen.size() == args.pos.size();
  for (size_t i = 0; same && i < args.pos.size(); ++i) {
    same = equals(m.meter, loop.last_seen[i], args.pos[i]);
  }
  if (!loop.seen_any) m.keep(self.shared());
  loop.seen_any = true;
  if (!same) loop.last_seen = args.pos;
  return Value::boolean(!same);
}

Value cycler_next(Machine& m, const Value& self, CallArgs& args) {
  Bound(m, "next", args, {});
  auto& c = self.as<CyclerObject>();
  Value v = c.items.items()[c.index];
  c.index = (c.index + 1) % c.items.items().size();
  return v;
}

Value cycler_reset(Machine& m, const Value& self, CallArgs& args) {
  Bound(m, "reset", args, {});
  self.as<CyclerObject>().index = 0;
  return Value::none();
}

const MethodTable& methods_of(const Value& v) {
  static const MethodTable kNone;
  static const MethodTable kDict = {{"get", dict_get},
                                    {"items", dict_view<SeqKind::dict_items>},
                                    {"keys", dict_view<SeqKind::dict_keys>},
                                    {"values", dict_view<SeqKind::dict_values>},
                                    {"copy", copy_self}};
  static const MethodTable kList = {
      {"index", seq_index}, {"count", seq_count}, {"copy", copy_self}};
  static const MethodTable kTuple = {{"index", seq_index}, {"count", seq_count}};
  static const MethodTable kBytes = {{"decode", bytes_decode}};
  static const MethodTable kLoop = {{"cycle", loop_cycle}, {"changed", loop_changed}};
  static const MethodTable kCycler = {{"next", cycler_next}, {"reset", cycler_reset}};
  switch (v.kind()) {
    case Kind::string:
      return string_methods();
    case Kind::dict:
      return kDict;
    case Kind::sequence:
      if (v.seq().kind == SeqKind::list) return kList;
      if (v.seq().kind == SeqKind::bytes) return kBytes;
      return v.seq().kind == SeqKind::tuple || v.seq().kind == SeqKind::range ? kTuple : kNone;
    case Kind::loop:
      return kLoop;
    case Kind::cycler:
      return kCycler;
    default:
      return kNone;
  }
}

Function find_in(const MethodTable& table, std::string_view name) {
  auto it = table.find(name);
  return it == table.end() ? nullptr : it->second;
}

}  // namespace

Function find_method(const Value& object, std::string_view name) {
  if (name.size() > 32) return nullptr;  // not worth hashing
  if (Function found = find_in(methods_of(object), name)) return found;
  return object.is(Kind::string) ? find_in(string_search_methods(), name) : nullptr;
}

bool is_unsafe_attribute(const Value& object, std::string_view name) {
  if (name.size() > 4 && name.starts_with("__") && name.ends_with("__")) return true;
  static constexpr std::array<std::string_view, 8> kList = {"append", "clear",  "extend",  "insert",
                                                            "pop",    "remove", "reverse", "sort"};
  static constexpr std::array<std::string_view, 5> kDict = {"clear", "pop", "popitem", "setdefault",
                                                            "update"};
  if (object.is_seq(SeqKind::list))
    return std::find(kList.begin(), kList.end(), name) != kList.end();
  if (object.is(Kind::dict)) return std::find(kDict.begin(), kDict.end(), name) != kDict.end();
  return false;
}

}  // namespace sluice::jinja

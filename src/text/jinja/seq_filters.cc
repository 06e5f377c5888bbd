// Filters over sequences and dicts.
#include <algorithm>
#include <random>
#include <unordered_map>

#include "base/str.h"
#include "text/jinja/filters.h"
#include "text/jinja/format.h"

namespace sluice::jinja {
namespace {

// "a.b.0": item after item. `fallback` stands in for what is missing.
Value dotted(Machine& m, Value v, const Value& path, const Value* fallback) {
  if (!path.is(Kind::string)) return m.item(v, path);
  std::string_view rest = path.text().view();
  while (true) {
    m.meter.step(3);
    size_t dot = std::min(rest.find('.'), rest.size());
    std::string part(rest.substr(0, dot));
    bool number =
        !part.empty() && part.size() < 10 &&
        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    v = m.item(v, number ? Value::integer(std::stoll(part)) : make_string(m.meter, part, true));
    if (v.is(Kind::undefined) && fallback) v = *fallback;
    if (dot == rest.size()) return v;
    rest.remove_prefix(dot + 1);
  }
}

Value folded(Machine& m, const Value& v, bool case_sensitive) {
  if (case_sensitive || !v.is(Kind::string)) return v;
  return m.string(change_case(m.meter, v.text(), Case::lower));
}

// Python's sorted(): stable, also when reversed.
void sort_by_keys(Machine& m, DictObject::Items& keyed, bool reverse) {
  auto less = [&](const Value& a, const Value& b) { return compare(m.meter, a, b) == -1; };
  // A comparison that is no order (nan) would be undefined behaviour for std::stable_sort:
  // insertion by binary search ends for every comparison.
  DictObject::Items out(m.meter);
  out.reserve(keyed.size());
  for (auto& e : keyed) {
    size_t lo = 0, hi = out.size();
    if (hi > 0 && !(reverse ? less(out.back().first, e.first) : less(e.first, out.back().first)))
      lo = hi;
    while (lo < hi) {
      size_t mid = lo + (hi - lo) / 2;
      bool before = reverse ? less(out[mid].first, e.first) : less(e.first, out[mid].first);
      (before ? hi : lo) = before ? mid : mid + 1;
    }
    m.meter.step(1 + (out.size() - lo) / 16);
    out.insert(out.begin() + static_cast<std::ptrdiff_t>(lo), std::move(e));
  }
  keyed = std::move(out);
}

Value f_length(Machine& m, const Value& v, CallArgs& args) {
  Bound(m, "length", args, {});
  size_t n = 0;
  if (v.is(Kind::string)) m.meter.search(v.text().size());
  if (!length_of(v, n)) m.fail(strf("object of type '%s' has no len()", type_name(v)));
  return Value::integer(static_cast<int64_t>(n));
}

Value f_list(Machine& m, const Value& v, CallArgs& args) {
  Bound(m, "list", args, {});
  return make_seq(m.meter, iterate(m.meter, v));
}

Value f_items(Machine& m, const Value& v, CallArgs& args) {
  Bound(m, "items", args, {});
  if (v.is(Kind::undefined)) return make_seq(m.meter, Values(m.meter), SeqKind::generator);
  if (!v.is(Kind::dict)) m.fail("items: can only get item pairs from a mapping");
  CallArgs none(m.meter);
  Value view = find_method(v, "items")(m, v, none);
  return make_seq(m.meter, view.items(), SeqKind::generator);
}

Value f_first(Machine& m, const Value& v, CallArgs& args) {
  Bound(m, "first", args, {});
  if (v.is_seq(SeqKind::generator)) {
    SeqObject& s = v.seq();
    if (s.next < s.items.size()) return s.items[s.next++];
  } else {
    Values items = iterate(m.meter, v);
    if (!items.empty()) return items.front();
  }
  return make_undefined(m.meter, "No first item, sequence was empty.");
}

Value f_last(Machine& m, const Value& v, CallArgs& args) {
  Bound(m, "last", args, {});
  if (v.is_seq(SeqKind::generator)) m.fail("'generator' object is not reversible");
  Values items = iterate(m.meter, v);
  return items.empty() ? make_undefined(m.meter, "No last item, sequence was empty.")
                       : items.back();
}

Value f_join(Machine& m, const Value& v, CallArgs& args) {
  Bound a(m, "join", args, {"d", "attribute"});
  Text separator = a.has(0) ? to_text(m.meter, a[0]) : Text(m.meter);
  Text out(m.meter);
  bool first = true;
  for (const Value& e : iterate(m.meter, v)) {
    m.meter.step();
    if (!std::exchange(first, false)) out.append(separator);
    out.append(to_text(m.meter, a.absent_or_none(1) ? e : dotted(m, e, a[1], nullptr)));
  }
  return m.string(std::move(out));
}

// What map and select go through: anything false is empty, even where Python could not iterate it.
Values elements(Machine& m, const Value& v) {
  return truthy(v) ? iterate(m.meter, v) : Values(m.meter);
}

Value f_map(Machine& m, const Value& v, CallArgs& args) {
  Values out(m.meter);
  if (args.pos.empty()) {
    Bound a(m, "map", args, {"attribute", "default"}, 1);
    Value fallback = a[1];
    for (const Value& e : elements(m, v)) {
      out.push_back(dotted(m, e, a[0], a.has(1) ? &fallback : nullptr));
    }
  } else {
    if (!args.pos[0].is(Kind::string)) m.fail("map: expected the name of a filter");
    std::string_view name = args.pos[0].text().view();
    for (const Value& e : elements(m, v)) {
      CallArgs rest = args.from(1);
      out.push_back(m.filter(name, e, rest));
    }
  }
  return make_seq(m.meter, std::move(out), SeqKind::generator);
}

// select, reject, selectattr, rejectattr
template <bool keep, bool attribute>
Value f_select(Machine& m, const Value& v, CallArgs& args) {
  size_t at = 0;
  Value path;
  if (attribute) {
    if (args.pos.empty()) m.fail("selectattr: the name of an attribute is missing");
    path = args.pos[at++];
  }
  std::string_view test;
  if (at < args.pos.size()) {
    if (!args.pos[at].is(Kind::string)) m.fail("select: expected the name of a test");
    test = args.pos[at++].text().view();
  }
  Values out(m.meter);
  for (const Value& e : elements(m, v)) {
    m.meter.step();
    Value subject = attribute ? dotted(m, e, path, nullptr) : e;
    bool yes = truthy(subject);
    if (!test.empty()) {
      CallArgs rest = args.from(at);
      yes = m.test(test, subject, rest);
    }
    if (yes == keep) out.push_back(e);
  }
  return make_seq(m.meter, std::move(out), SeqKind::generator);
}

Value f_sort(Machine& m, const Value& v, CallArgs& args) {
  Bound a(m, "sort", args, {"reverse", "case_sensitive", "attribute"});
  bool case_sensitive = a.flag(1, false);
  Values paths(m.meter);
  if (!a.absent_or_none(2) && a[2].is(Kind::string)) {
    CallArgs comma(m.meter, {make_string(m.meter, ",", true)});
    paths = find_method(a[2], "split")(m, a[2], comma).items();
  } else if (!a.absent_or_none(2)) {
    paths.push_back(a[2]);
  }
  DictObject::Items keyed(m.meter);
  for (const Value& e : iterate(m.meter, v)) {
    Values key(m.meter);
    for (const Value& p : paths) key.push_back(folded(m, dotted(m, e, p, nullptr), case_sensitive));
    if (paths.empty()) key.push_back(folded(m, e, case_sensitive));
    keyed.emplace_back(make_seq(m.meter, std::move(key)), e);
  }
  sort_by_keys(m, keyed, a.flag(0, false));
  Values out(m.meter);
  for (auto& e : keyed) out.push_back(std::move(e.second));
  return make_seq(m.meter, std::move(out));
}

Value f_dictsort(Machine& m, const Value& v, CallArgs& args) {
  Bound a(m, "dictsort", args, {"case_sensitive", "by", "reverse"});
  std::string by = a.text(1, "key").str();
  if (by != "key" && by != "value") m.fail("dictsort: sort by 'key' or 'value'");
  if (!v.is(Kind::dict)) m.fail(strf("dictsort: expected a dict, got %s", type_name(v)));
  DictObject::Items keyed(m.meter);
  for (const auto& [k, x] : v.dict().items) {
    keyed.emplace_back(folded(m, by == "key" ? k : x, a.flag(0, false)), make_pair(m.meter, k, x));
  }
  sort_by_keys(m, keyed, a.flag(2, false));
  Values out(m.meter);
  for (auto& e : keyed) out.push_back(std::move(e.second));
  return make_seq(m.meter, std::move(out));
}

Value f_groupby(Machine& m, const Value& v, CallArgs& args) {
  Bound a(m, "groupby", args, {"attribute", "default", "case_sensitive"}, 1);
  bool case_sensitive = a.flag(2, false);
  Value fallback = a[1];
  DictObject::Items keyed(m.meter);
  for (const Value& e : iterate(m.meter, v)) {
    Value key = dotted(m, e, a[0], a.has(1) ? &fallback : nullptr);
    keyed.emplace_back(folded(m, key, case_sensitive), e);
  }
  sort_by_keys(m, keyed, false);
  Values groups(m.meter);
  for (size_t i = 0; i < keyed.size();) {
    Values members(m.meter);
    Value name = dotted(m, keyed[i].second, a[0], a.has(1) ? &fallback : nullptr);
    size_t begin = i;
    for (; i < keyed.size() && equals(m.meter, keyed[i].first, keyed[begin].first); ++i) {
      members.push_back(keyed[i].second);
    }
    Value list = make_seq(m.meter, std::move(members));
    Value group = make_pair(m.meter, name, list);
    group.seq().is_group = true;
    groups.push_back(std::move(group));
    if (i == begin) ++i;  // a key that does not equal itself
  }
  return make_seq(m.meter, std::move(groups));
}

Value f_unique(Machine& m, const Value& v, CallArgs& args) {
  Bound a(m, "unique", args, {"case_sensitive", "attribute"});
  Values out(m.meter), seen(m.meter);
  for (const Value& e : iterate(m.meter, v)) {
    Value key = folded(m, a.absent_or_none(1) ? e : dotted(m, e, a[1], nullptr), a.flag(0, false));
    if (!hashable(key)) m.fail(strf("unhashable type: '%s'", type_name(key)));
    bool known = std::any_of(seen.begin(), seen.end(),
                             [&](const Value& s) { return equals(m.meter, s, key); });
    if (known) continue;
    seen.push_back(std::move(key));
    out.push_back(e);
  }
  return make_seq(m.meter, std::move(out), SeqKind::generator);
}

template <int sign>
Value f_extreme(Machine& m, const Value& v, CallArgs& args) {
  Bound a(m, sign < 0 ? "min" : "max", args, {"case_sensitive", "attribute"});
  Value best, best_key;
  bool any = false;
  for (const Value& e : iterate(m.meter, v)) {
    Value key = folded(m, a.absent_or_none(1) ? e : dotted(m, e, a[1], nullptr), a.flag(0, false));
    if (std::exchange(any, true) && compare(m.meter, key, best_key) != sign) continue;
    best = e;
    best_key = std::move(key);
  }
  return any ? best : make_undefined(m.meter, "No aggregated item, sequence was empty.");
}

// Any item: the one thing in a template that is not the same each time.
Value f_random(Machine& m, const Value& v, CallArgs& args) {
  Bound(m, "random", args, {});
  Values items = iterate(m.meter, v);
  if (items.empty()) return make_undefined(m.meter, "No random item, sequence was empty.");
  std::random_device random;
  return items[std::uniform_int_distribution<size_t>(0, items.size() - 1)(random)];
}

Value f_sum(Machine& m, const Value& v, CallArgs& args) {
  Bound a(m, "sum", args, {"attribute", "start"});
  Value total = a.has(1) ? a[1] : Value::integer(0);
  for (const Value& e : iterate(m.meter, v)) {
    total = binary(m, Op::add, total, a.absent_or_none(0) ? e : dotted(m, e, a[0], nullptr));
  }
  return total;
}

Value f_reverse(Machine& m, const Value& v, CallArgs& args) {
  Bound(m, "reverse", args, {});
  if (v.is(Kind::string)) {
    return slice_of(m, v, Value::none(), Value::none(), Value::integer(-1));
  }
  Values items = iterate(m.meter, v);
  std::reverse(items.begin(), items.end());
  return make_seq(m.meter, std::move(items), SeqKind::generator);
}

Value f_batch(Machine& m, const Value& v, CallArgs& args) {
  Bound a(m, "batch", args, {"linecount", "fill_with"}, 1);
  int64_t size = a.integer(0, 1);
  Values out(m.meter), row(m.meter);
  for (const Value& e : iterate(m.meter, v)) {
    if (static_cast<int64_t>(row.size()) == size)
      out.push_back(make_seq(m.meter, std::exchange(row, Values(m.meter))));
    row.push_back(e);
  }
  if (!row.empty()) {
    while (!a.absent_or_none(1) && static_cast<int64_t>(row.size()) < size) row.push_back(a[1]);
    out.push_back(make_seq(m.meter, std::move(row)));
  }
  return make_seq(m.meter, std::move(out), SeqKind::generator);
}

Value f_slice(Machine& m, const Value& v, CallArgs& args) {
  Bound a(m, "slice", args, {"slices", "fill_with"}, 1);
  int64_t slices = a.integer(0, 1);
  if (slices <= 0) m.fail("slice: the number of slices must be positive");
  Values items = iterate(m.meter, v);
  auto n = static_cast<int64_t>(items.size());
  m.meter.step(static_cast<uint64_t>(slices));
  int64_t each = n / slices, extra = n % slices, at = 0;
  Values out(m.meter);
  for (int64_t s = 0; s < slices; ++s) {
    int64_t count = each + (s < extra ? 1 : 0);
    Values part(items.begin() + at, items.begin() + at + count, m.meter);
    at += count;
    if (!a.absent_or_none(1) && s >= extra) part.push_back(a[1]);
    out.push_back(make_seq(m.meter, std::move(part)));
  }
  return make_seq(m.meter, std::move(out), SeqKind::generator);
}

// An attribute proper: a method, or a field of the template's own objects; never a dict's key.
Value f_attr(Machine& m, const Value& v, CallArgs& args) {
  Bound a(m, "attr", args, {"name"}, 1);
  std::string name = to_text(m.meter, a[0]).str();
  bool is_key = v.is(Kind::dict) && !find_method(v, name) && !is_unsafe_attribute(v, name);
  if (is_key)
    return make_undefined(m.meter, strf("'dict object' has no attribute %s", quote(name).c_str()));
  return m.attribute(v, name);
}

}  // namespace

Function find_sequence_filter(std::string_view name) {
  static const std::unordered_map<std::string_view, Function> kTable = {
      {"length", f_length},
      {"count", f_length},
      {"list", f_list},
      {"items", f_items},
      {"first", f_first},
      {"last", f_last},
      {"join", f_join},
      {"map", f_map},
      {"select", f_select<true, false>},
      {"reject", f_select<false, false>},
      {"selectattr", f_select<true, true>},
      {"rejectattr", f_select<false, true>},
      {"sort", f_sort},
      {"dictsort", f_dictsort},
      {"groupby", f_groupby},
      {"unique", f_unique},
      {"min", f_extreme<-1>},
      {"max", f_extreme<1>},
      {"random", f_random},
      {"sum", f_sum},
      {"reverse", f_reverse},
      {"batch", f_batch},
      {"slice", f_slice},
      {"attr", f_attr},
  };
  auto it = kTable.find(name);
  return it == kTable.end() ? nullptr : it->second;
}

}  // namespace sluice::jinja

// The functions every template can call.
#include <algorithm>
#include <unordered_map>

#include "base/str.h"
#include "text/jinja/eval.h"
#include "text/jinja/format.h"

namespace sluice::jinja {
namespace {

Value raise_exception(Machine& m, const Value&, CallArgs& args) {
  Bound a(m, "raise_exception", args, {"message"}, 1);
  m.fail(to_text(m.meter, a[0]).str());
}

Value range(Machine& m, const Value&, CallArgs& args) {
  constexpr int64_t kMaxRange = 100'000;  // the sandbox's limit
  Bound a(m, "range", args, {"", "", ""}, 1);
  auto s = std::make_shared<SeqObject>(SeqKind::range, Values(m.meter));
  s->stop = a.integer(0, 0);
  if (a.has(1)) s->start = s->stop, s->stop = a.integer(1, 0);
  s->by = a.integer(2, 1);
  if (s->by == 0) m.fail("range() arg 3 must not be zero");
  // Distances as unsigned: stop - start may not fit into int64_t.
  auto u = [](int64_t i) { return static_cast<uint64_t>(i); };
  uint64_t distance = 0, stride = s->by > 0 ? u(s->by) : 0 - u(s->by);
  if (s->by > 0 && s->start < s->stop) distance = u(s->stop) - u(s->start);
  if (s->by < 0 && s->start > s->stop) distance = u(s->start) - u(s->stop);
  uint64_t count = distance / stride + (distance % stride != 0);
  if (count > u(kMaxRange)) m.fail("range too big: the sandbox allows 100000 items");
  m.meter.step(1 + count / 8);
  s->charge(m.meter, sizeof(SeqObject));
  s->items.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    s->items.push_back(Value::integer(static_cast<int64_t>(u(s->start) + i * u(s->by))));
  }
  return {Kind::sequence, std::move(s)};
}

// dict(mapping_or_pairs, **kwargs)
std::shared_ptr<DictObject> build_dict(Machine& m, CallArgs& args) {
  auto out = new_dict(m.meter);
  if (args.pos.size() > 1) m.fail("dict expected at most 1 argument");
  if (!args.pos.empty() && args.pos[0].is(Kind::dict)) {
    for (const auto& [k, v] : args.pos[0].dict().items) out->set(m.meter, k, v);
  } else if (!args.pos.empty()) {
    for (const Value& pair : iterate(m.meter, args.pos[0])) {
      Values kv = iterate(m.meter, pair);
      if (kv.size() != 2) m.fail("dict(): every element must be a pair");
      out->set(m.meter, kv[0], kv[1]);
    }
  }
  for (auto& [k, v] : args.kw) out->set(m.meter, make_string(m.meter, k, true), v);
  return out;
}

Value dict(Machine& m, const Value&, CallArgs& args) {
  return finish_dict(m.meter, build_dict(m, args));
}

Value name_space(Machine& m, const Value&, CallArgs& args) {
  auto from = build_dict(m, args);
  auto ns = std::make_shared<NamespaceObject>(m.meter);
  size_t names = 0;
  for (const auto& e : from->items) names += e.first.is(Kind::string) ? e.first.text().size() : 0;
  ns->charge(m.meter, sizeof(NamespaceObject) + names);
  ns->attrs.reserve(from->items.size());
  for (const auto& [k, v] : from->items) {
    if (!k.is(Kind::string)) m.fail("namespace attributes must have names");
    if (k.text().view().starts_with("_")) {
      m.fail("namespace attributes cannot start with an underscore");
    }
    ns->attrs.emplace_back(k.text().str(), v);
  }
  m.keep(ns);
  return {Kind::ns, std::move(ns)};
}

Value cycler(Machine& m, const Value&, CallArgs& args) {
  if (args.pos.empty() || !args.kw.empty()) m.fail("cycler() needs at least one item");
  auto c = std::make_shared<CyclerObject>();
  c->charge(m.meter, sizeof(CyclerObject));
  c->items = make_seq(m.meter, args.pos);
  c->depth = c->items.object()->depth + 1;
  return {Kind::cycler, std::move(c)};
}

Value joiner(Machine& m, const Value&, CallArgs& args) {
  Bound a(m, "joiner", args, {"sep"});
  auto j = std::make_shared<JoinerObject>();
  j->charge(m.meter, sizeof(JoinerObject));
  j->separator = m.string(a.text(0, ", "));
  return {Kind::joiner, std::move(j)};
}

Value strftime_now(Machine& m, const Value&, CallArgs& args) {
  Bound a(m, "strftime_now", args, {"format"}, 1);
  Text format = a.text(0, "");
  if (format.size() > 4096 || format.str().find('\0') != std::string::npos) {
    m.fail("strftime_now(): bad format");
  }
  m.meter.walk(12 * format.size());
  // A time without a zone has none to show; nor microseconds worth showing.
  std::string f;
  const std::string& s = format.str();
  for (size_t i = 0; i < s.size(); ++i) {
    if (s[i] != '%' || i + 1 >= s.size()) {
      f.push_back(s[i]);
      continue;
    }
    char c = s[++i];
    if (c == 'f') f += "000000";
    if (c != 'f' && c != 'z' && c != 'Z') f += {'%', c};
  }
  if (f.empty()) return make_string(m.meter, Text(m.meter));
  char buf[16384];
  size_t n = std::strftime(buf, sizeof buf, f.c_str(), &m.now());
  std::string out(buf, n);
  if (!valid_utf8(out)) m.fail("strftime_now(): bad format");
  return make_string(m.meter, std::move(out), format.trusted());
}

}  // namespace

Function find_global(std::string_view name) {
  static const std::unordered_map<std::string_view, Function> kTable = {
      {"raise_exception", raise_exception},
      {"range", range},
      {"dict", dict},
      {"namespace", name_space},
      {"cycler", cycler},
      {"joiner", joiner},
      {"strftime_now", strftime_now},
  };
  auto it = kTable.find(name);
  return it == kTable.end() ? nullptr : it->second;
}

}  // namespace sluice::jinja

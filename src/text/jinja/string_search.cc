// Methods of strings that look for something in them: split, partition, startswith, find, count.
#include <algorithm>

#include "base/str.h"
#include "text/jinja/eval.h"
#include "text/jinja/methods.h"
#include "text/unicode.h"

namespace sluice::jinja {
namespace {

using Pieces = std::vector<ByteRange>;

// Words between runs of white space; at most `limit` splits, taken from the end when `reverse`.
Pieces split_space(std::string_view s, int64_t limit, bool reverse) {
  Pieces out;
  ByteRange rest = strip_space_range(s, true, true);
  if (reverse) {
    while (rest.begin < rest.end) {
      size_t at = rest.end, word = at;
      while (at > rest.begin) {
        size_t prev = at - 1;
        while (prev > rest.begin && (static_cast<uint8_t>(s[prev]) & 0xC0) == 0x80) --prev;
        size_t next = prev;
        if (is_space(next_code_point(s, next))) break;
        word = at = prev;
      }
      if (limit >= 0 && static_cast<int64_t>(out.size()) >= limit) word = 0;
      out.push_back({word, rest.end});
      if (word <= rest.begin) break;
      rest.end =
          rest.begin + strip_space_range(s.substr(rest.begin, word - rest.begin), false, true).end;
    }
    std::reverse(out.begin(), out.end());
    return out;
  }
  while (rest.begin < rest.end) {
    size_t end = rest.begin;
    bool last = limit >= 0 && static_cast<int64_t>(out.size()) >= limit;
    while (end < rest.end && !last) {
      size_t next = end;
      if (is_space(next_code_point(s, next))) break;
      end = next;
    }
    if (last) end = s.size();
    out.push_back({rest.begin, end});
    if (end >= rest.end) break;
    rest.begin = end + strip_space_range(s.substr(end, rest.end - end), true, false).begin;
  }
  return out;
}

Pieces split_on(std::string_view s, std::string_view sep, int64_t limit, bool reverse) {
  std::vector<size_t> cuts;
  if (reverse) {
    std::string rs(s.rbegin(), s.rend()), rsep(sep.rbegin(), sep.rend());
    for (size_t at = 0; limit < 0 || static_cast<int64_t>(cuts.size()) < limit;) {
      if ((at = find_bytes(rs, rsep, at)) == std::string_view::npos) break;
      cuts.push_back(s.size() - at - sep.size());
      at += sep.size();
    }
    std::reverse(cuts.begin(), cuts.end());
  } else {
    for (size_t at = 0; limit < 0 || static_cast<int64_t>(cuts.size()) < limit;) {
      if ((at = find_bytes(s, sep, at)) == std::string_view::npos) break;
      cuts.push_back(at);
      at += sep.size();
    }
  }
  Pieces out;
  size_t begin = 0;
  for (size_t cut : cuts) {
    out.push_back({begin, cut});
    begin = cut + sep.size();
  }
  out.push_back({begin, s.size()});
  return out;
}

Value slices(Machine& m, const Value& self, const Pieces& pieces) {
  Values out(m.meter);
  out.reserve(pieces.size());
  for (ByteRange r : pieces)
    out.push_back(same_kind(m, self, self.text().slice(m.meter, r.begin, r.end)));
  return make_seq(m.meter, std::move(out));
}

Value split_either(Machine& m, const Value& self, CallArgs& args, bool reverse) {
  Bound a(m, reverse ? "rsplit" : "split", args, {"sep", "maxsplit"});
  int64_t limit = a.integer(1, -1);
  std::string_view s = self.text().view();
  m.meter.walk(s.size());
  m.meter.require(s.size() * sizeof(ByteRange));
  if (a.absent_or_none(0)) return slices(m, self, split_space(s, limit, reverse));
  Text sep = a.text(0, "");
  if (sep.empty()) m.fail("empty separator");
  return slices(m, self, split_on(s, sep.view(), limit, reverse));
}
Value str_split(Machine& m, const Value& s, CallArgs& a) { return split_either(m, s, a, false); }
Value str_rsplit(Machine& m, const Value& s, CallArgs& a) { return split_either(m, s, a, true); }

Value str_splitlines(Machine& m, const Value& self, CallArgs& args) {
  Bound a(m, "splitlines", args, {"keepends"});
  bool keep = a.flag(0, false);
  std::string_view s = self.text().view();
  m.meter.walk(s.size());
  m.meter.require(s.size() * sizeof(ByteRange));
  Pieces out;
  size_t begin = 0;
  for (size_t i = 0; i < s.size();) {
    size_t end = i;
    char32_t c = next_code_point(s, i);
    bool line_end = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                    c == 0x2028 || c == 0x2029;
    if (!line_end) continue;
    if (c == '\r' && i < s.size() && s[i] == '\n') ++i;
    out.push_back({begin, keep ? i : end});
    begin = i;
  }
  if (begin < s.size()) out.push_back({begin, s.size()});
  return slices(m, self, out);
}

Value partition_either(Machine& m, const Value& self, CallArgs& args, bool reverse) {
  Bound a(m, "partition", args, {""}, 1);
  Text sep = a.text(0, "");
  const Text& t = self.text();
  if (sep.empty()) m.fail("empty separator");
  m.meter.search(2 * t.size());
  size_t at = reverse ? rfind_bytes(t.view(), sep.view()) : find_bytes(t.view(), sep.view());
  ByteRange head{0, at}, middle{at, at + sep.size()}, tail{at + sep.size(), t.size()};
  if (at == std::string_view::npos) {
    head = {0, reverse ? 0 : t.size()};
    middle = {0, 0};
    tail = {0, reverse ? t.size() : 0};
  }
  Values out(m.meter);
  for (ByteRange r : {head, middle, tail})
    out.push_back(m.string(t.slice(m.meter, r.begin, r.end)));
  return make_seq(m.meter, std::move(out), SeqKind::tuple);
}
Value str_partition(Machine& m, const Value& s, CallArgs& a) {
  return partition_either(m, s, a, false);
}
Value str_rpartition(Machine& m, const Value& s, CallArgs& a) {
  return partition_either(m, s, a, true);
}

// The window [start, end) in code points that several methods take, in bytes.
ByteRange window(Machine& m, const Text& t, const Bound& a) {
  m.meter.search(t.size());
  if (a.absent_or_none(1) && a.absent_or_none(2)) return {0, t.size()};
  auto n = static_cast<int64_t>(count_code_points(t.view()));
  auto clamp = [&](size_t i, int64_t fallback) {
    int64_t v = a.absent_or_none(i) ? fallback : a.integer(i, fallback);
    if (v < 0) v = v < -n ? 0 : v + n;
    return static_cast<size_t>(v);
  };
  size_t from = clamp(1, 0), to = clamp(2, n);
  if (from > static_cast<size_t>(n) || from > to) return {1, 0};
  return {code_point_offset(t.view(), from), code_point_offset(t.view(), to)};
}

Value affix(Machine& m, const Value& self, CallArgs& args, bool prefix) {
  Bound a(m, prefix ? "startswith" : "endswith", args, {"", "", ""}, 1);
  ByteRange w = window(m, self.text(), a);
  if (w.begin > w.end) return Value::boolean(false);
  std::string_view s = self.text().view().substr(w.begin, w.end - w.begin);
  auto match = [&](const Value& v) {
    if (!v.is(Kind::string))
      m.fail(strf("expected a string or a tuple of strings, got %s", type_name(v)));
    m.meter.scan(v.text().size());
    return prefix ? s.starts_with(v.text().view()) : s.ends_with(v.text().view());
  };
  if (!a[0].is_seq(SeqKind::tuple)) return Value::boolean(match(a[0]));
  return Value::boolean(std::any_of(a[0].items().begin(), a[0].items().end(), match));
}
Value str_startswith(Machine& m, const Value& s, CallArgs& a) { return affix(m, s, a, true); }
Value str_endswith(Machine& m, const Value& s, CallArgs& a) { return affix(m, s, a, false); }

Value remove_affix(Machine& m, const Value& self, CallArgs& args, bool prefix) {
  Bound a(m, "removeprefix", args, {""}, 1);
  Text x = a.text(0, "");
  m.meter.scan(x.size());
  const Text& t = self.text();
  bool hit = prefix ? t.view().starts_with(x.view()) : t.view().ends_with(x.view());
  if (!hit) return self;
  return m.string(prefix ? t.slice(m.meter, x.size(), t.size())
                         : t.slice(m.meter, 0, t.size() - x.size()));
}
Value str_removeprefix(Machine& m, const Value& s, CallArgs& a) {
  return remove_affix(m, s, a, true);
}
Value str_removesuffix(Machine& m, const Value& s, CallArgs& a) {
  return remove_affix(m, s, a, false);
}

enum class Search { find, rfind, index, rindex };
template <Search how>
Value str_find(Machine& m, const Value& self, CallArgs& args) {
  Bound a(m, "find", args, {"", "", ""}, 1);
  Text needle = a.text(0, "");
  ByteRange w = window(m, self.text(), a);
  size_t at = std::string_view::npos;
  if (w.begin <= w.end) {
    std::string_view s = self.text().view().substr(w.begin, w.end - w.begin);
    bool last = how == Search::rfind || how == Search::rindex;
    if (last) m.meter.search(2 * s.size());
    at = last ? rfind_bytes(s, needle.view()) : find_bytes(s, needle.view());
  }
  if (at != std::string_view::npos) {
    return Value::integer(
        static_cast<int64_t>(count_code_points(self.text().view().substr(0, w.begin + at))));
  }
  if (how == Search::index || how == Search::rindex) m.fail("substring not found");
  return Value::integer(-1);
}

Value str_count(Machine& m, const Value& self, CallArgs& args) {
  Bound a(m, "count", args, {"", "", ""}, 1);
  Text needle = a.text(0, "");
  ByteRange w = window(m, self.text(), a);
  if (w.begin > w.end) return Value::integer(0);
  std::string_view s = self.text().view().substr(w.begin, w.end - w.begin);
  if (needle.empty()) return Value::integer(static_cast<int64_t>(count_code_points(s)) + 1);
  int64_t n = 0;
  for (size_t at = 0; (at = find_bytes(s, needle.view(), at)) != std::string_view::npos; ++n) {
    at += needle.size();
    if (n % 4 == 0) m.meter.step();
  }
  return Value::integer(n);
}

}  // namespace

const MethodTable& string_search_methods() {
  static const MethodTable kTable = {
      {"split", str_split},
      {"rsplit", str_rsplit},
      {"splitlines", str_splitlines},
      {"partition", str_partition},
      {"rpartition", str_rpartition},
      {"startswith", str_startswith},
      {"endswith", str_endswith},
      {"removeprefix", str_removeprefix},
      {"removesuffix", str_removesuffix},
      {"find", str_find<Search::find>},
      {"rfind", str_find<Search::rfind>},
      {"index", str_find<Search::index>},
      {"rindex", str_find<Search::rindex>},
      {"count", str_count},
  };
  return kTable;
}

}  // namespace sluice::jinja

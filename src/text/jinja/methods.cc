// Methods of strings, dicts, lists and the template's own objects. Nothing here changes a value:
// the methods that would (append, update, ...) are refused, as in jinja2's immutable sandbox.
#include <algorithm>
#include <array>
#include <unordered_map>

#include "base/str.h"
#include "text/jinja/eval.h"
#include "text/jinja/format.h"
#include "text/unicode.h"

namespace sluice::jinja {
namespace {

Value same_kind(Machine& m, const Value& self, Text t) {
  return make_string(m.meter, std::move(t), is_markup(self));
}

// ---- str

Value strip_sides(Machine& m, const Value& self, CallArgs& args, bool left, bool right) {
  Bound a(m, "strip", args, {""});
  const Text& t = self.text();
  m.meter.walk(t.size());
  if (a.has(0) && a[0].is(Kind::string)) m.meter.walk(8 * a[0].text().size());  // sorted
  ByteRange r = a.absent_or_none(0) ? strip_space_range(t.view(), left, right)
                                    : strip_range(t.view(), a.text(0, "").view(), left, right);
  return same_kind(m, self, t.slice(m.meter, r.begin, r.end));
}
Value str_strip(Machine& m, const Value& s, CallArgs& a) {
  return strip_sides(m, s, a, true, true);
}
Value str_lstrip(Machine& m, const Value& s, CallArgs& a) {
  return strip_sides(m, s, a, true, false);
}
Value str_rstrip(Machine& m, const Value& s, CallArgs& a) {
  return strip_sides(m, s, a, false, true);
}

template <Case how>
Value str_case(Machine& m, const Value& self, CallArgs& args) {
  Bound(m, "str method", args, {});
  return same_kind(m, self, change_case(m.meter, self.text(), how));
}

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
  m.meter.room(s.size() * sizeof(ByteRange));
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
  m.meter.room(s.size() * sizeof(ByteRange));
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

Value str_replace(Machine& m, const Value& self, CallArgs& args) {
  Bound a(m, "str.replace", args, {"", "", ""}, 2);
  CallArgs same(m.meter, {a[0], a[1]});
  if (a.has(2)) same.pos.push_back(a[2]);
  return m.filter("replace", self, same);
}

Value str_join(Machine& m, const Value& self, CallArgs& args) {
  Bound a(m, "join", args, {""}, 1);
  Text out(m.meter);
  bool first = true;
  for (const Value& v : iterate(m.meter, a[0])) {
    m.meter.step();
    if (!v.is(Kind::string)) m.fail(strf("join(): expected strings, found %s", type_name(v)));
    if (!std::exchange(first, false)) out.append(self.text());
    out.append(v.text());
  }
  return m.string(std::move(out));
}

// One {...} of str.format: which value, then !conversion and :specification.
Text format_field(Machine& m, const Text& field, CallArgs& args, size_t& automatic) {
  std::string_view f = field.view();
  size_t spec_at = std::min(f.find(':'), f.size());
  size_t name_end = std::min(f.find('!'), spec_at);
  std::string_view name = f.substr(0, name_end),
                   conversion = f.substr(name_end, spec_at - name_end);
  size_t first = std::min(name.find_first_of(".["), name.size());
  std::string_view head = name.substr(0, first);
  Value v;
  if (head.empty() ||
      std::all_of(head.begin(), head.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    size_t i = head.empty() ? automatic++ : 0;
    if (head.size() > 6) m.fail("format index out of range");
    for (char c : head) i = i * 10 + static_cast<size_t>(c - '0');
    if (i >= args.pos.size()) m.fail("replacement index out of range");
    v = args.pos[i];
  } else {
    auto kw = std::find_if(args.kw.begin(), args.kw.end(),
                           [&](const auto& k) { return k.first == head; });
    if (kw == args.kw.end()) m.fail("format(): no argument named " + quote(head));
    v = kw->second;
  }
  for (size_t i = first; i < name.size();) {
    bool bracket = name[i] == '[';
    size_t end =
        std::min(bracket ? name.find(']', i) : name.find_first_of(".[", i + 1), name.size());
    std::string key(name.substr(i + 1, end - i - 1));
    bool number = bracket && !key.empty() && key.size() < 10 &&
                  std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (number) {
      v = m.item(v, Value::integer(std::stoll(key)));
    } else {
      v = bracket ? m.item(v, make_string(m.meter, key, true)) : m.attribute(v, key);
    }
    i = end + (bracket ? 1 : 0);
  }
  if (conversion == "!r") v = m.string(repr(m.meter, v));
  if (conversion == "!s") v = m.string(to_text(m.meter, v));
  if (!conversion.empty() && conversion != "!r" && conversion != "!s") m.fail("unknown conversion");
  return format_value(m.meter, v, spec_at < f.size() ? f.substr(spec_at + 1) : "");
}

Value str_format(Machine& m, const Value& self, CallArgs& args) {
  const Text& t = self.text();
  std::string_view f = t.view();
  m.meter.scan(t.size());
  Text out(m.meter);
  size_t automatic = 0;
  for (size_t i = 0; i < f.size();) {
    size_t brace = std::min(f.find_first_of("{}", i), f.size());
    out.append(t.slice(m.meter, i, brace));
    if (brace == f.size()) break;
    if (brace + 1 < f.size() && f[brace + 1] == f[brace]) {
      out.append(t.slice(m.meter, brace, brace + 1));
      i = brace + 2;
      continue;
    }
    if (f[brace] == '}') m.fail("single '}' encountered in format string");
    size_t close = f.find('}', brace);
    if (close == std::string_view::npos) m.fail("expected '}' before end of string");
    m.meter.step();
    out.append(format_field(m, t.slice(m.meter, brace + 1, close), args, automatic));
    i = close + 1;
  }
  return m.string(std::move(out));
}

Value str_zfill(Machine& m, const Value& self, CallArgs& args) {
  Bound a(m, "zfill", args, {""}, 1);
  const Text& t = self.text();
  bool sign = t.view().starts_with("-") || t.view().starts_with("+");
  auto width = static_cast<size_t>(std::max<int64_t>(a.integer(0, 0), 0));
  Text out = t.slice(m.meter, 0, sign ? 1 : 0);
  size_t used = sign ? 1 : 0;
  out.append(
      pad(m.meter, t.slice(m.meter, used, t.size()), width > used ? width - used : 0, '>', "0"));
  return m.string(std::move(out));
}

template <char align>
Value str_just(Machine& m, const Value& self, CallArgs& args) {
  Bound a(m, "ljust", args, {"", ""}, 1);
  auto width = static_cast<size_t>(std::max<int64_t>(a.integer(0, 0), 0));
  Text fill = a.text(1, " ");
  if (count_code_points(fill.view()) != 1)
    m.fail("the fill character must be exactly one character long");
  Text out = pad(m.meter, self.text(), width, align, fill.view());
  if (!fill.trusted()) out = Text(m.meter, out.str(), false);
  return m.string(std::move(out));
}

using CharTest = bool (*)(char32_t);
template <CharTest test>
Value str_all(Machine& m, const Value& self, CallArgs& args) {
  Bound(m, "str method", args, {});
  std::string_view s = self.text().view();
  m.meter.walk(s.size());
  for (size_t i = 0; i < s.size();) {
    if (!test(next_code_point(s, i))) return Value::boolean(false);
  }
  return Value::boolean(!s.empty());
}
bool is_ascii_digit(char32_t c) { return c >= '0' && c <= '9'; }
bool is_alnum(char32_t c) { return is_ascii_digit(c) || is_alpha(c); }

// At least one cased letter, and none of the other case.
template <bool upper>
Value str_is_case(Machine& m, const Value& self, CallArgs& args) {
  Bound(m, "str method", args, {});
  std::string_view s = self.text().view();
  m.meter.walk(s.size());
  bool any = false;
  for (size_t i = 0; i < s.size();) {
    char32_t c = next_code_point(s, i);
    if (upper ? is_lower(c) : is_upper(c)) return Value::boolean(false);
    any |= upper ? is_upper(c) : is_lower(c);
  }
  return Value::boolean(any);
}

Value str_isascii(Machine& m, const Value& self, CallArgs& args) {
  Bound(m, "isascii", args, {});
  std::string_view s = self.text().view();
  m.meter.scan(s.size());
  return Value::boolean(
      std::all_of(s.begin(), s.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; }));
}

// Capitals only where a word begins, and nothing else there.
Value str_istitle(Machine& m, const Value& self, CallArgs& args) {
  Bound(m, "istitle", args, {});
  std::string_view s = self.text().view();
  m.meter.walk(s.size());
  bool any = false, in_word = false;
  for (size_t i = 0; i < s.size();) {
    char32_t c = next_code_point(s, i);
    bool capital = is_upper(c) || is_title(c), small = !capital && is_lower(c);
    if ((capital && in_word) || (small && !in_word)) return Value::boolean(false);
    in_word = capital || small;
    any |= in_word;
  }
  return Value::boolean(any);
}

Value str_isidentifier(Machine& m, const Value& self, CallArgs& args) {
  Bound(m, "isidentifier", args, {});
  std::string_view s = self.text().view();
  m.meter.walk(s.size());
  for (size_t i = 0; i < s.size();) {
    bool first = i == 0;
    char32_t c = next_code_point(s, i);
    if (!(first ? is_identifier_start(c) : is_identifier_part(c))) return Value::boolean(false);
  }
  return Value::boolean(!s.empty());
}

// ---- bytes

// What a codec can write, and what it does with the rest.
struct Codec {
  char32_t most = 0x10FFFF;
  enum { strict, ignore, replace } errors = strict;
};

Codec find_codec(Machine& m, const Bound& a) {
  Codec codec;
  std::string name = a.text(0, "utf-8").str(), errors = a.text(1, "strict").str();
  for (char& c : name) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c == '_' ? '-' : c);
  if (name == "ascii" || name == "us-ascii") {
    codec.most = 0x7F;
  } else if (name == "latin-1" || name == "latin1" || name == "iso-8859-1") {
    codec.most = 0xFF;
  } else if (name != "utf-8" && name != "utf8") {
    m.fail("unknown encoding: " + quote(name));
  }
  if (errors == "ignore") {
    codec.errors = Codec::ignore;
  } else if (errors == "replace") {
    codec.errors = Codec::replace;
  } else if (errors != "strict") {
    m.fail("unknown error handler name " + quote(errors));
  }
  return codec;
}

Value str_encode(Machine& m, const Value& self, CallArgs& args) {
  Bound a(m, "encode", args, {"encoding", "errors"});
  Codec codec = find_codec(m, a);
  std::string_view s = self.text().view();
  m.meter.walk(s.size());
  Values bytes(m.meter);
  bytes.reserve(s.size());
  for (size_t i = 0; i < s.size();) {
    size_t begin = i;
    char32_t c = next_code_point(s, i);
    if (codec.most > 0xFF) {
      for (; begin < i; ++begin)
        bytes.push_back(Value::integer(static_cast<unsigned char>(s[begin])));
    } else if (c <= codec.most) {
      bytes.push_back(Value::integer(static_cast<int64_t>(c)));
    } else if (codec.errors == Codec::replace) {
      bytes.push_back(Value::integer('?'));
    } else if (codec.errors == Codec::strict) {
      m.fail("a character cannot be encoded");
    }
  }
  return make_seq(m.meter, std::move(bytes), SeqKind::bytes);
}

// Never trusted: where the bytes came from is not known any more.
Value bytes_decode(Machine& m, const Value& self, CallArgs& args) {
  Bound a(m, "decode", args, {"encoding", "errors"});
  Codec codec = find_codec(m, a);
  m.meter.walk(8 * self.items().size());  // a value per byte
  m.meter.room(2 * self.items().size());
  std::string raw, text;
  for (const Value& b : self.items()) raw.push_back(static_cast<char>(b.as_int()));
  for (size_t i = 0; i < raw.size();) {
    auto byte = static_cast<unsigned char>(raw[i]);
    Utf8Step step = utf8_step(std::string_view(raw).substr(i));
    size_t size = codec.most > 0xFF ? step.size : byte <= codec.most ? 1 : 0;
    if (size > 0) {
      append_utf8(text, codec.most > 0xFF ? code_point_at(raw, i).value : byte);
    } else if (codec.errors == Codec::strict) {
      m.fail("a byte cannot be decoded");
    } else {
      if (codec.errors == Codec::replace) append_utf8(text, 0xFFFD);
      size = codec.most > 0xFF ? std::max<size_t>(step.bad, 1) : 1;
    }
    i += size;
  }
  return make_string(m.meter, std::move(text), false);
}

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

using Table = std::unordered_map<std::string_view, Function>;

const Table& string_methods() {
  static const Table kTable = {
      {"strip", str_strip},
      {"lstrip", str_lstrip},
      {"rstrip", str_rstrip},
      {"upper", str_case<Case::upper>},
      {"lower", str_case<Case::lower>},
      {"casefold", str_case<Case::fold>},
      {"swapcase", str_case<Case::swap>},
      {"encode", str_encode},
      {"title", str_case<Case::title>},
      {"capitalize", str_case<Case::capitalize>},
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
      {"replace", str_replace},
      {"join", str_join},
      {"format", str_format},
      {"zfill", str_zfill},
      {"ljust", str_just<'<'>},
      {"rjust", str_just<'>'>},
      {"center", str_just<'c'>},
      {"isdigit", str_all<is_ascii_digit>},
      {"isdecimal", str_all<is_ascii_digit>},
      {"isnumeric", str_all<is_ascii_digit>},
      {"isalpha", str_all<is_alpha>},
      {"isalnum", str_all<is_alnum>},
      {"isspace", str_all<is_space>},
      {"isascii", str_isascii},
      {"istitle", str_istitle},
      {"isidentifier", str_isidentifier},
      {"isupper", str_is_case<true>},
      {"islower", str_is_case<false>},
  };
  return kTable;
}

const Table& methods_of(const Value& v) {
  static const Table kNone;
  static const Table kDict = {{"get", dict_get},
                              {"items", dict_view<SeqKind::dict_items>},
                              {"keys", dict_view<SeqKind::dict_keys>},
                              {"values", dict_view<SeqKind::dict_values>},
                              {"copy", copy_self}};
  static const Table kList = {{"index", seq_index}, {"count", seq_count}, {"copy", copy_self}};
  static const Table kTuple = {{"index", seq_index}, {"count", seq_count}};
  static const Table kBytes = {{"decode", bytes_decode}};
  static const Table kLoop = {{"cycle", loop_cycle}, {"changed", loop_changed}};
  static const Table kCycler = {{"next", cycler_next}, {"reset", cycler_reset}};
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

}  // namespace

Function find_method(const Value& object, std::string_view name) {
  if (name.size() > 32) return nullptr;  // not worth hashing
  const Table& table = methods_of(object);
  auto it = table.find(name);
  return it == table.end() ? nullptr : it->second;
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

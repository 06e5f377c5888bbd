// Methods of strings that make a new one, or ask what its characters are.
#include <algorithm>

#include "base/str.h"
#include "text/jinja/eval.h"
#include "text/jinja/format.h"
#include "text/jinja/methods.h"
#include "text/unicode.h"

namespace sluice::jinja {
namespace {

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

}  // namespace

const MethodTable& string_methods() {
  static const MethodTable kTable = {
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

}  // namespace sluice::jinja

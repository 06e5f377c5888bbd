// `value | filter(...)`: text, numbers and the table of all filters.
#include "text/jinja/filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_map>

#include "base/str.h"
#include "text/jinja/bigint.h"
#include "text/jinja/format.h"

namespace sluice::jinja {
namespace {

// str(), but text that is marked safe stays so.
Value soft_string(Machine& m, const Value& v) {
  return v.is(Kind::string) ? v : m.string(to_text(m.meter, v));
}

Value by_method(Machine& m, const char* method, const Value& v, CallArgs& args) {
  Value s = soft_string(m, v);
  return find_method(s, method)(m, s, args);
}

Value f_upper(Machine& m, const Value& v, CallArgs& a) { return by_method(m, "upper", v, a); }
Value f_lower(Machine& m, const Value& v, CallArgs& a) { return by_method(m, "lower", v, a); }
Value f_capitalize(Machine& m, const Value& v, CallArgs& a) {
  return by_method(m, "capitalize", v, a);
}
Value f_trim(Machine& m, const Value& v, CallArgs& args) {
  Bound a(m, "trim", args, {"chars"});
  CallArgs chars(m.meter);
  if (a.has(0)) chars.pos.push_back(a[0]);
  return by_method(m, "strip", v, chars);
}

// A capital after each of - ( { [ < and white space.
Value f_title(Machine& m, const Value& v, CallArgs& args) {
  Bound(m, "title", args, {});
  Text t = to_text(m.meter, v);
  m.meter.walk(4 * t.size());  // several table look-ups a character
  Text out(m.meter);
  bool start = true;
  size_t i = 0;
  for (const Text::Run& run : t.runs()) {
    std::string piece;
    while (i < run.end) {
      char32_t c = next_code_point(t.view(), i);
      if (start) {
        append_upper(piece, c);
      } else {
        append_lower(piece, c);
      }
      start = is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    }
    out.append(piece, run.trusted);
  }
  return m.string(std::move(out));
}

Value f_string(Machine& m, const Value& v, CallArgs& args) {
  Bound(m, "string", args, {});
  return soft_string(m, v);
}

Value f_safe(Machine& m, const Value& v, CallArgs& args) {
  Bound(m, "safe", args, {});
  return make_string(m.meter, to_text(m.meter, v), true);
}

Value f_escape(Machine& m, const Value& v, CallArgs& args) {
  Bound(m, "escape", args, {});
  if (is_markup(v)) return v;
  return make_string(m.meter, escape_html(m.meter, to_text(m.meter, v)), true);
}

Value f_forceescape(Machine& m, const Value& v, CallArgs& args) {
  Bound(m, "forceescape", args, {});
  return make_string(m.meter, escape_html(m.meter, to_text(m.meter, v)), true);
}

Value f_default(Machine& m, const Value& v, CallArgs& args) {
  Bound a(m, "default", args, {"default_value", "boolean"});
  bool missing = v.is(Kind::undefined) || (a.flag(1, false) && !truthy(v));
  if (!missing) return v;
  return a.has(0) ? a[0] : make_string(m.meter, Text(m.meter));
}

Value f_replace(Machine& m, const Value& v, CallArgs& args) {
  Bound a(m, "replace", args, {"old", "new", "count"}, 2);
  Text s = to_text(m.meter, v), from = to_text(m.meter, a[0]), to = to_text(m.meter, a[1]);
  int64_t limit = a.absent_or_none(2) ? -1 : a.integer(2, -1);
  m.meter.search(s.size());
  Text out(m.meter);
  size_t at = 0;
  int64_t done = 0;
  if (from.empty()) {  // before every character, and at the end
    while (limit < 0 || done < limit) {
      m.meter.step();
      out.append(to);
      ++done;
      if (at == s.size()) break;
      size_t next = at;
      next_code_point(s.view(), next);
      out.append(s, at, next);
      at = next;
    }
  }
  while (!from.empty() && (limit < 0 || done < limit)) {
    size_t hit = find_bytes(s.view(), from.view(), at);
    if (hit == std::string_view::npos) break;
    m.meter.step();
    out.append(s, at, hit);
    out.append(to);
    at = hit + from.size();
    ++done;
  }
  out.append(s, at, s.size());
  return make_string(m.meter, std::move(out), is_markup(v));
}

Value f_indent(Machine& m, const Value& v, CallArgs& args) {
  Bound a(m, "indent", args, {"width", "first", "blank"});
  if (!v.is(Kind::string)) m.fail(strf("indent: expected a string, got %s", type_name(v)));
  Text unit(m.meter, std::string(4, ' '), true);
  if (a.has(0) && a[0].is(Kind::string)) {
    unit = Text(m.meter, a[0].text());
  } else if (a.has(0)) {
    int64_t n = std::max<int64_t>(a.integer(0, 4), 0);
    if (n > 10000) m.fail("indent: width too large");
    unit = Text(m.meter, std::string(static_cast<size_t>(n), ' '), true);
  }
  bool first = a.flag(1, false), blank = a.flag(2, false);
  Text with_end(m.meter, v.text());
  with_end.append("\n", true);
  Value source = m.string(std::move(with_end));
  CallArgs none(m.meter);
  Value lines = find_method(source, "splitlines")(m, source, none);
  Text out(m.meter);
  for (size_t i = 0; i < lines.items().size(); ++i) {
    const Text& line = lines.items()[i].text();
    if (i > 0) out.append("\n", true);
    if (i == 0 ? first : blank || !line.empty()) out.append(unit);
    out.append(line);
  }
  return make_string(m.meter, std::move(out), is_markup(v));
}

Value f_center(Machine& m, const Value& v, CallArgs& args) {
  Bound a(m, "center", args, {"width"});
  CallArgs width(m.meter, {Value::integer(a.integer(0, 80))});
  return by_method(m, "center", v, width);
}

Value f_truncate(Machine& m, const Value& v, CallArgs& args) {
  Bound a(m, "truncate", args, {"length", "killwords", "end", "leeway"});
  Text end = a.text(2, "...");
  int64_t length = a.integer(0, 255), leeway = a.absent_or_none(3) ? 5 : a.integer(3, 5);
  auto end_size = static_cast<int64_t>(count_code_points(end.view()));
  if (length < end_size || leeway < 0) m.fail("truncate: bad length or leeway");
  size_t num = 0;
  if (v.is(Kind::string)) m.meter.search(v.text().size());
  if (!length_of(v, num)) m.fail(strf("truncate: expected a string, got %s", type_name(v)));
  auto size = static_cast<int64_t>(num);
  if (size <= length || size - length <= leeway) return v;
  if (!v.is(Kind::string)) m.fail(strf("truncate: expected a string, got %s", type_name(v)));
  const Text& s = v.text();
  m.meter.scan(s.size());
  Text head =
      s.slice(m.meter, 0, code_point_offset(s.view(), static_cast<size_t>(length - end_size)));
  if (!a.flag(1, false)) {
    size_t space = head.str().rfind(' ');
    if (space != std::string::npos) head = head.slice(m.meter, 0, space);
  }
  head.append(end);
  return m.string(std::move(head));
}

bool is_word(char32_t c) { return c == '_' || (c >= '0' && c <= '9') || is_alpha(c); }

Value f_wordcount(Machine& m, const Value& v, CallArgs& args) {
  Bound(m, "wordcount", args, {});
  Text s = to_text(m.meter, v);
  m.meter.walk(s.size());
  int64_t n = 0;
  bool inside = false;
  for (size_t i = 0; i < s.size();) {
    bool word = is_word(next_code_point(s.view(), i));
    n += word && !inside;
    inside = word;
  }
  return Value::integer(n);
}

Value f_striptags(Machine& m, const Value& v, CallArgs& args) {
  Bound(m, "striptags", args, {});
  Text s = to_text(m.meter, v), plain(m.meter);
  m.meter.scan(s.size());
  std::string_view t = s.view();
  for (size_t i = 0; i < t.size();) {
    size_t open = std::min(t.find('<', i), t.size());
    bool comment = t.substr(open).starts_with("<!--");
    size_t close =
        open < t.size() ? find_bytes(t, comment ? "-->" : ">", open) : std::string_view::npos;
    if (close == std::string_view::npos) open = t.size();
    plain.append(s, i, open);
    i = open == t.size() ? open : close + (comment ? 3 : 1);
  }
  Value all = m.string(std::move(plain));
  CallArgs none(m.meter);
  Value words = find_method(all, "split")(m, all, none);
  Value space = make_string(m.meter, " ", true);
  CallArgs join(m.meter, {words});
  Value joined = find_method(space, "join")(m, space, join);
  static constexpr std::pair<const char*, const char*> kEntities[] = {
      {"&lt;", "<"},    {"&gt;", ">"},  {"&#34;", "\""},
      {"&quot;", "\""}, {"&#39;", "'"}, {"&amp;", "&"}};
  for (auto [entity, character] : kEntities) {
    CallArgs pair(m.meter, {make_string(m.meter, entity, true),
                            make_string(m.meter, character, joined.text().trusted())});
    joined = m.filter("replace", joined, pair);
  }
  return joined;
}

// In a query, '/' is escaped too and a space is '+'.
Text percent_encoded(Machine& m, const Value& v, bool query) {
  Text s = to_text(m.meter, v);
  m.meter.walk(s.size());
  m.meter.require(s.size() * 3);
  std::string out;
  for (char c : s.str()) {
    bool keep = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                std::string_view("_.-~").find(c) != std::string_view::npos || (c == '/' && !query);
    if (keep || (query && c == ' ')) {
      out.push_back(c == ' ' ? '+' : c);
    } else {
      constexpr std::string_view kHex = "0123456789ABCDEF";
      auto byte = static_cast<uint8_t>(c);
      out += {'%', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return Text(m.meter, std::move(out), s.trusted());
}

Value f_urlencode(Machine& m, const Value& v, CallArgs& args) {
  Bound(m, "urlencode", args, {});
  if (!v.is(Kind::dict) && !v.is(Kind::sequence)) return m.string(percent_encoded(m, v, false));
  DictObject::Items pairs(m.meter);
  if (v.is(Kind::dict)) {
    pairs = v.dict().items;
  } else {
    for (const Value& p : iterate(m.meter, v)) {
      Values kv = iterate(m.meter, p);
      if (kv.size() != 2) m.fail("urlencode: expected pairs");
      pairs.emplace_back(kv[0], kv[1]);
    }
  }
  Text out(m.meter);
  for (const auto& [k, x] : pairs) {
    if (!out.empty()) out.append("&", true);
    out.append(percent_encoded(m, k, true));
    out.append("=", true);
    out.append(percent_encoded(m, x, true));
  }
  return m.string(std::move(out));
}

Value f_format(Machine& m, const Value& v, CallArgs& args) {
  if (!args.pos.empty() && !args.kw.empty())
    m.fail("format: positional and keyword arguments mixed");
  Value values;
  if (args.kw.empty()) {
    values = make_seq(m.meter, args.pos, SeqKind::tuple);
  } else {
    auto d = new_dict(m.meter);
    for (auto& [k, x] : args.kw) d->set(m.meter, make_string(m.meter, k, true), x);
    values = finish_dict(m.meter, std::move(d));
  }
  return m.string(percent_format(m.meter, to_text(m.meter, v), values));
}

Value f_tojson(Machine& m, const Value& v, CallArgs& args) {
  Bound a(m, "tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = a.flag(0, false);
  style.sort_keys = a.flag(3, false);
  if (!a.absent_or_none(1)) {
    style.indented = true;
    style.item_separator = ",";
    if (a[1].is(Kind::string)) {
      m.meter.scan(a[1].text().size());
      style.indent = a[1].text().str();
    } else {
      int64_t n = std::clamp<int64_t>(a.integer(1, 0), 0, 1000);
      style.indent.assign(static_cast<size_t>(n), ' ');
    }
  }
  if (!a.absent_or_none(2)) {
    Values both = iterate(m.meter, a[2]);
    if (both.size() != 2 || !both[0].is(Kind::string) || !both[1].is(Kind::string)) {
      m.fail("tojson: separators must be a pair of strings");
    }
    for (const Value& part : both) m.meter.scan(part.text().size());
    style.item_separator = both[0].text().str();
    style.key_separator = both[1].text().str();
  }
  return m.string(to_json(m.meter, v, style));
}

// ---- numbers

// Text as Python's float() reads it, or false.
bool parse_real(std::string_view s, double& out) {
  ByteRange r = strip_space_range(s, true, true);
  std::string text(s.substr(r.begin, r.end - r.begin));
  std::erase(text, '_');
  if (text.starts_with("+")) text.erase(0, 1);
  if (text.empty() || text.find_first_of("xXpP") != std::string::npos) return false;
  auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), out);
  return ec == std::errc() && end == text.data() + text.size();
}

bool parse_integer(Meter& m, std::string_view s, int radix, Value& out) {
  ByteRange r = strip_space_range(s, true, true);
  std::string text(s.substr(r.begin, r.end - r.begin));
  bool minus = text.starts_with("-");
  if (minus || text.starts_with("+")) text.erase(0, 1);
  if (text.size() > 2 && text[0] == '0') {
    char c = static_cast<char>(text[1] | 32);
    if ((c == 'x' && radix == 16) || (c == 'o' && radix == 8) || (c == 'b' && radix == 2))
      text.erase(0, 2);
  }
  std::erase(text, '_');
  if (text.empty() || text[0] == '-') return false;
  if (minus) text.insert(0, "-");
  int64_t i = 0;
  auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), i, radix);
  if (end != text.data() + text.size()) return false;
  out = Value::integer(i);
  if (ec == std::errc()) return true;
  if (text.size() > kMaxDigits) return false;  // as int() refuses it
  BigInt big(m);
  if (ec != std::errc::result_out_of_range || !BigInt::parse(m, text, radix, big)) return false;
  out = big.value();
  return true;
}

Value f_int(Machine& m, const Value& v, CallArgs& args) {
  Bound a(m, "int", args, {"default", "base"});
  Value fallback = a.has(0) ? a[0] : Value::integer(0);
  if (v.is_integral()) return Value::integer(v.as_int());
  if (v.is(Kind::big_integer)) return v;
  double d = 0;
  if (v.is(Kind::string)) {
    m.meter.walk(v.text().size());
    int64_t radix = a.integer(1, 10);
    if (radix < 2 || radix > 36) m.fail("int: base must be 2 to 36");
    Value i;
    if (parse_integer(m.meter, v.text().view(), static_cast<int>(radix), i)) return i;
    if (!parse_real(v.text().view(), d)) return fallback;
  } else if (v.is(Kind::real)) {
    d = v.as_double();
  } else if (v.is(Kind::undefined)) {
    m.fail(v.object() ? v.text().str() : "undefined value");
  } else {
    return fallback;
  }
  if (!std::isfinite(d)) return fallback;
  return whole_from_double(m.meter, std::trunc(d));
}

Value f_float(Machine& m, const Value& v, CallArgs& args) {
  Bound a(m, "float", args, {"default"});
  double d = 0;
  if (v.is_number()) return Value::real(v.as_double());
  if (v.is(Kind::big_integer)) {
    d = to_double(m.meter, v);
    if (std::isinf(d)) m.fail("int too large to convert to float");
    return Value::real(d);
  }
  if (v.is(Kind::undefined)) m.fail(v.object() ? v.text().str() : "undefined value");
  if (v.is(Kind::string)) m.meter.walk(v.text().size());
  if (v.is(Kind::string) && parse_real(v.text().view(), d)) return Value::real(d);
  return a.has(0) ? a[0] : Value::real(0.0);
}

Value f_abs(Machine& m, const Value& v, CallArgs& args) {
  Bound(m, "abs", args, {});
  if (v.is(Kind::real)) return Value::real(std::fabs(v.as_double()));
  if (v.is_integral() && v.as_int() >= 0) return Value::integer(v.as_int());
  if (v.is(Kind::big_integer) && !v.text().view().starts_with('-')) return v;
  return negate(m, v);
}

Value f_round(Machine& m, const Value& v, CallArgs& args) {
  Bound a(m, "round", args, {"precision", "method"});
  int64_t precision = std::clamp<int64_t>(a.integer(0, 0), -300, 300);
  std::string method = a.text(1, "common").str();
  if (method != "common" && method != "ceil" && method != "floor") {
    m.fail("round: method must be common, ceil or floor");
  }
  if (v.is(Kind::big_integer) && method == "common" && precision >= 0) return v;
  if (!v.is_number()) m.fail(strf("round: expected a number, got %s", type_name(v)));
  double d = v.as_double();
  if (method != "common") {
    double scale = std::pow(10.0, static_cast<double>(precision));
    return Value::real((method == "ceil" ? std::ceil(d * scale) : std::floor(d * scale)) / scale);
  }
  if (v.is_integral() && precision >= 0) return Value::integer(v.as_int());
  if (precision < 0) {
    double scale = std::pow(10.0, static_cast<double>(-precision));
    double r = std::nearbyint(d / scale) * scale;
    if (v.is_integral() && std::fabs(r) < 9.2e18) return Value::integer(static_cast<int64_t>(r));
    return Value::real(r);
  }
  if (!std::isfinite(d)) return Value::real(d);
  // printf rounds the exact binary value, half to even, as Python does.
  char buf[1024];
  int n = std::snprintf(buf, sizeof buf, "%.*f", static_cast<int>(precision), d);
  double r = d;
  std::from_chars(buf, buf + std::clamp(n, 0, 1023), r);
  return Value::real(r);
}

}  // namespace

Function find_filter(std::string_view name) {
  static const std::unordered_map<std::string_view, Function> kText = {
      {"upper", f_upper},
      {"lower", f_lower},
      {"capitalize", f_capitalize},
      {"trim", f_trim},
      {"title", f_title},
      {"string", f_string},
      {"safe", f_safe},
      {"escape", f_escape},
      {"e", f_escape},
      {"forceescape", f_forceescape},
      {"default", f_default},
      {"d", f_default},
      {"replace", f_replace},
      {"indent", f_indent},
      {"center", f_center},
      {"truncate", f_truncate},
      {"wordcount", f_wordcount},
      {"striptags", f_striptags},
      {"urlencode", f_urlencode},
      {"format", f_format},
      {"tojson", f_tojson},
      {"int", f_int},
      {"float", f_float},
      {"abs", f_abs},
      {"round", f_round},
  };
  auto it = kText.find(name);
  if (it != kText.end()) return it->second;
  Function f = find_sequence_filter(name);
  return f ? f : find_layout_filter(name);
}

}  // namespace sluice::jinja

// Filters that lay out text: wordwrap, pprint, urlize, xmlattr, filesizeformat.
#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <unordered_map>

#include "base/str.h"
#include "text/jinja/bigint.h"
#include "text/jinja/filters.h"
#include "text/jinja/format.h"
#include "text/unicode.h"

namespace sluice::jinja {
namespace {

using Pieces = std::vector<ByteRange, Metered<ByteRange>>;

size_t num_chars(Meter& m, std::string_view s, ByteRange r) {
  m.scan(r.end - r.begin);
  return count_code_points(s.substr(r.begin, r.end - r.begin));
}

bool is_letter(char32_t c) { return char_class(c) == CharClass::letter; }

// ---- wordwrap, as Python's textwrap does it

// Where a word may end after its hyphen at `at`: two letters before it, a letter behind.
bool breaks_after(std::string_view word, size_t at) {
  auto before = [&](size_t i) { return i > 0 ? static_cast<unsigned char>(word[i - 1]) : '\0'; };
  auto letter = [](unsigned char c) { return c >= 0x80 || is_letter(c); };
  if (at < 2 || at + 2 >= word.size() + 1) return false;
  bool two = letter(before(at)) && letter(before(at - 1));
  bool behind = at + 2 < word.size() && letter(static_cast<unsigned char>(word[at + 1])) &&
                (letter(static_cast<unsigned char>(word[at + 2])) || word[at + 2] == '-');
  return two && behind;
}

// Runs of white space, and words, cut at their hyphens.
Pieces chunks_of(Meter& m, std::string_view s, ByteRange line, bool hyphens) {
  Pieces out(m);
  for (size_t i = line.begin; i < line.end;) {
    size_t begin = i, next = i;
    bool space = is_space(next_code_point(s, next));
    while (i < line.end) {
      next = i;
      if (is_space(next_code_point(s, next)) != space) break;
      i = next;
    }
    if (!space && hyphens) {
      for (size_t k = begin; k < i; ++k) {
        if (s[k] != '-' || !breaks_after(s.substr(begin, i - begin), k - begin)) continue;
        out.push_back({begin, k + 1});
        begin = k + 1;
      }
    }
    out.push_back({begin, i});
  }
  return out;
}

struct Wrap {
  size_t width;
  bool break_words, hyphens;
};

// Lines as ranges of `s`: pieces of one line are adjacent.
Pieces wrapped(Meter& m, std::string_view s, ByteRange line, const Wrap& w) {
  Pieces chunks = chunks_of(m, s, line, w.hyphens), lines(m);
  auto blank = [&](ByteRange r) {
    return strip_space_range(s.substr(r.begin, r.end - r.begin), true, false).begin ==
           r.end - r.begin;
  };
  for (size_t at = 0; at < chunks.size();) {
    m.step();
    if (blank(chunks[at]) && !lines.empty()) {
      ++at;
      continue;
    }
    ByteRange now{chunks[at].begin, chunks[at].begin};
    size_t used = 0, last = at;  // first chunk that is not on this line
    while (last < chunks.size() && used + num_chars(m, s, chunks[last]) <= w.width) {
      used += num_chars(m, s, chunks[last]);
      now.end = chunks[last++].end;
    }
    if (last < chunks.size() && num_chars(m, s, chunks[last]) > w.width) {
      ByteRange& c = chunks[last];
      std::string_view word = s.substr(c.begin, c.end - c.begin);
      if (w.break_words) {
        size_t fits = w.width > used ? w.width - used : w.width < 1 ? 1 : 0;
        size_t cut = code_point_offset(word, fits);
        size_t hyphen = w.hyphens ? word.substr(0, cut).rfind('-') : word.npos;
        if (hyphen != word.npos && hyphen > 0 &&
            word.substr(0, hyphen).find_first_not_of('-') != word.npos)
          cut = hyphen + 1;
        now.end = c.begin + cut;
        c.begin += cut;
      } else if (last == at) {
        now.end = c.end;
        ++last;
      }
    }
    at = last;
    now.end =
        now.begin + strip_space_range(s.substr(now.begin, now.end - now.begin), false, true).end;
    if (now.end > now.begin) lines.push_back(now);
  }
  return lines;
}

Value f_wordwrap(Machine& m, const Value& v, CallArgs& args) {
  Bound a(m, "wordwrap", args, {"width", "break_long_words", "wrapstring", "break_on_hyphens"});
  int64_t width = a.integer(0, 79);
  if (width <= 0) m.fail("wordwrap: width must be above 0");
  Wrap wrap{static_cast<size_t>(width), a.flag(1, true), a.flag(3, true)};
  Text end = a.absent_or_none(2) ? Text(m.meter, "\n", true) : a.text(2, "\n");
  Value source = v.is(Kind::string) ? v : m.string(to_text(m.meter, v));
  const Text& t = source.text();
  m.meter.walk(2 * t.size());
  CallArgs none(m.meter);
  Value lines = find_method(source, "splitlines")(m, source, none);
  Text out(m.meter);
  for (size_t i = 0; i < lines.items().size(); ++i) {
    const Text& line = lines.items()[i].text();
    if (i > 0) out.append(end);
    Pieces parts = wrapped(m.meter, line.view(), {0, line.size()}, wrap);
    for (size_t k = 0; k < parts.size(); ++k) {
      if (k > 0) out.append(end);
      out.append(line, parts[k].begin, parts[k].end);
    }
  }
  return m.string(std::move(out));
}

// ---- pprint

// With the keys of dicts in order, as pprint writes them.
Value sorted_dicts(Machine& m, const Value& v) {
  m.meter.step();
  if (v.is_seq(SeqKind::list) || v.is_seq(SeqKind::tuple)) {
    Values items(m.meter);
    items.reserve(v.items().size());
    for (const Value& e : v.items()) items.push_back(sorted_dicts(m, e));
    return make_seq(m.meter, std::move(items), v.seq().kind);
  }
  if (!v.is(Kind::dict)) return v;
  DictObject::Items items = v.dict().items;
  bool text = std::all_of(items.begin(), items.end(),
                          [](const auto& e) { return e.first.is(Kind::string); });
  bool numbers =
      std::all_of(items.begin(), items.end(), [](const auto& e) { return is_numeric(e.first); });
  if (text || numbers) {
    std::stable_sort(items.begin(), items.end(), [&](const auto& x, const auto& y) {
      return compare(m.meter, x.first, y.first) < 0;
    });
  }
  auto d = new_dict(m.meter);
  for (auto& [k, x] : items) d->items.emplace_back(k, sorted_dicts(m, x));
  return finish_dict(m.meter, std::move(d));
}

class PrettyPrinter {
 public:
  explicit PrettyPrinter(Machine& m) : m_(m), out(m.meter) {}

  // `v` at column `indent`, with `allowance` columns behind it.
  void value(const Value& v, size_t indent, size_t allowance, int level) {
    Text flat = repr(m_.meter, v);
    if (count_code_points(flat.view()) + indent + allowance <= kWidth) return out.append(flat);
    if (v.is(Kind::string) && !is_markup(v)) return text(v.text(), indent, allowance, level);
    if (v.is_seq(SeqKind::list)) return items(v.items(), "[", "]", indent, allowance, level);
    if (v.is_seq(SeqKind::tuple))
      return items(v.items(), "(", v.items().size() == 1 ? ",)" : ")", indent, allowance, level);
    if (v.is(Kind::dict)) return dict(v.dict(), indent, allowance, level);
    out.append(flat);
  }

  static constexpr size_t kWidth = 80;

 private:
  void new_line(size_t indent) { out.append("\n" + std::string(indent, ' '), true); }

  void items(const Values& all,
             const char* open,
             const char* close,
             size_t indent,
             size_t allowance,
             int level) {
    out.append(open, true);
    for (size_t i = 0; i < all.size(); ++i) {
      bool last = i + 1 == all.size();
      value(all[i], indent + 1, last ? allowance + std::string_view(close).size() : 1, level + 1);
      if (last) break;
      out.append(",", true);
      new_line(indent + 1);
    }
    out.append(close, true);
  }

  void dict(const DictObject& d, size_t indent, size_t allowance, int level) {
    out.append("{", true);
    for (size_t i = 0; i < d.items.size(); ++i) {
      bool last = i + 1 == d.items.size();
      Text key = repr(m_.meter, d.items[i].first);
      out.append(key);
      out.append(": ", true);
      value(d.items[i].second, indent + count_code_points(key.view()) + 3, last ? allowance + 1 : 1,
            level + 1);
      if (last) break;
      out.append(",", true);
      new_line(indent + 1);
    }
    out.append("}", true);
  }

  // A long string is written as several literals, cut behind line ends and white space.
  void text(const Text& t, size_t indent, size_t allowance, int level) {
    if (level == 1) ++indent, ++allowance;
    size_t width = kWidth > indent ? kWidth - indent : 0;
    std::string_view s = t.view();
    m_.meter.walk(4 * s.size());
    std::vector<Text> literals;
    auto literal = [&](size_t begin, size_t end) {
      return repr(m_.meter, m_.string(t.slice(m_.meter, begin, end)));
    };
    auto fits = [&](size_t begin, size_t end, size_t most) {
      return count_code_points(literal(begin, end).view()) <= most;
    };
    for (size_t at = 0; at < s.size();) {
      size_t line = std::min(s.find('\n', at), s.size() - 1) + 1;
      bool last_line = line == s.size();
      if (fits(at, line, width - (last_line ? std::min(allowance, width) : 0))) {
        literals.push_back(literal(at, line));
        at = line;
        continue;
      }
      size_t current = at;
      while (at < line) {
        size_t end = at;  // of the next word and the space behind it
        auto skip = [&](bool space) {
          while (end < line) {
            size_t next = end;
            if (is_space(next_code_point(s, next)) != space) break;
            end = next;
          }
        };
        skip(false), skip(true);
        bool last = last_line && end == line;
        if (!fits(current, end, width - (last ? std::min(allowance, width) : 0)) && at > current) {
          literals.push_back(literal(current, at));
          current = at;
        }
        at = end;
      }
      literals.push_back(literal(current, line));
    }
    if (literals.size() == 1) return out.append(literals[0]);
    if (level == 1) out.append("(", true);
    for (size_t i = 0; i < literals.size(); ++i) {
      if (i > 0) new_line(indent);
      out.append(literals[i]);
    }
    if (level == 1) out.append(")", true);
  }

  Machine& m_;

 public:
  Text out;
};

Value f_pprint(Machine& m, const Value& v, CallArgs& args) {
  Bound(m, "pprint", args, {});
  PrettyPrinter p(m);
  p.value(sorted_dicts(m, v), 0, 0, 1);
  return m.string(std::move(p.out));
}

// ---- urlize

bool is_url_word(std::string_view s, bool dots) {
  for (size_t i = 0; i < s.size();) {
    char32_t c = next_code_point(s, i);
    if (!is_word(c) && c != '%' && c != '-' && !(dots && c == '.')) return false;
  }
  return !s.empty();
}

bool all_digits(std::string_view s, size_t most) {
  return !s.empty() && s.size() <= most &&
         std::all_of(s.begin(), s.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::vector<std::string_view> labels_of(std::string_view host) {
  std::vector<std::string_view> out;
  for (size_t at = 0; at <= host.size();) {
    size_t dot = std::min(host.find('.', at), host.size());
    out.push_back(host.substr(at, dot - at));
    at = dot + 1;
  }
  return out;
}

std::string lower_ascii(std::string_view s) {
  std::string out(s);
  for (char& c : out) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  return out;
}

bool is_top_level(std::string_view label) {
  std::string s = lower_ascii(label);
  if (s.starts_with("xn--")) {
    std::string_view rest = std::string_view(s).substr(4);
    return rest.size() >= 2 && rest.size() <= 59 && is_url_word(rest, false) &&
           rest.find('-') == rest.npos;
  }
  return s.size() >= 2 && s.size() <= 63 &&
         std::all_of(s.begin(), s.end(), [](char c) { return c >= 'a' && c <= 'z'; });
}

// Host with a port and a path, if it has them.
bool is_web_address(std::string_view s) {
  std::string low = lower_ascii(s);
  size_t scheme = low.starts_with("https://")  ? 8
                  : low.starts_with("http://") ? 7
                  : low.starts_with("www.")    ? 4
                                               : 0;
  std::string_view rest = s.substr(scheme);
  std::string_view host, behind;
  if (rest.starts_with('[') && scheme >= 7) {
    size_t close = rest.find(']');
    if (close == rest.npos ||
        rest.substr(0, close).find_first_not_of("[0123456789abcdefABCDEF:") != rest.npos)
      return false;
    host = rest.substr(0, close + 1);
    behind = rest.substr(close + 1);
  } else {
    host = rest.substr(0, rest.find_first_of(":/?#"));
    behind = rest.substr(host.size());
    std::vector<std::string_view> labels = labels_of(host);
    bool words = std::all_of(labels.begin(), labels.end(),
                             [](std::string_view l) { return is_url_word(l, false); });
    bool numbers = scheme >= 7 && labels.size() == 4 &&
                   std::all_of(labels.begin(), labels.end(),
                               [](std::string_view l) { return all_digits(l, 3); });
    if (scheme > 0) {
      if (!words || !(numbers || is_top_level(labels.back()))) return false;
    } else {
      static const std::set<std::string_view> kKnown = {"com", "net", "int",  "edu",
                                                        "gov", "org", "info", "mil"};
      std::string last = lower_ascii(labels.back());
      if (!words || labels.size() < 2 || !kKnown.contains(last)) return false;
      for (size_t i = 0; i + 1 < labels.size(); ++i) {
        size_t n = count_code_points(labels[i]);
        if (n < 2 || n > 63) return false;
      }
    }
  }
  if (behind.starts_with(':')) {
    size_t end = std::min(behind.find_first_of("/?#"), behind.size());
    if (!all_digits(behind.substr(1, end - 1), 5)) return false;
    behind.remove_prefix(end);
  }
  return behind.empty() || std::string_view("/?#").find(behind[0]) != std::string_view::npos;
}

bool is_email(std::string_view s) {
  size_t at = s.rfind('@');
  if (at == s.npos || at == 0) return false;
  std::string_view host = s.substr(at + 1);
  size_t dot = host.rfind('.');
  if (dot == host.npos || dot == 0 || dot + 1 == host.size()) return false;
  auto word = [](std::string_view t, bool more) {
    return is_url_word(t, more) && t.find('%') == t.npos && (more || t.find('-') == t.npos);
  };
  return host[0] != '.' && host[0] != '-' && word(host.substr(0, dot), true) &&
         word(host.substr(dot + 1), false);
}

struct Links {
  std::string attributes;   // rel and target, each with a space in front
  size_t limit = SIZE_MAX;  // characters of an address that are shown
  std::vector<std::string> schemes;
};

std::string link(std::string_view word, const Links& how) {
  auto shown = [&](std::string_view s) {
    size_t end = how.limit == SIZE_MAX ? s.size() : code_point_offset(s, how.limit);
    return std::string(s.substr(0, end)) + (end < s.size() ? "..." : "");
  };
  std::string w(word);
  if (is_web_address(word)) {
    bool scheme = word.starts_with("https://") || word.starts_with("http://");
    return "<a href=\"" + (scheme ? w : "https://" + w) + "\"" + how.attributes + ">" +
           shown(word) + "</a>";
  }
  if (word.starts_with("mailto:") && is_email(word.substr(7)))
    return "<a href=\"" + w + "\">" + w.substr(7) + "</a>";
  if (!word.starts_with("www.") && word.find(':') == word.npos && is_email(word))
    return "<a href=\"mailto:" + w + "\">" + w + "</a>";
  for (const std::string& scheme : how.schemes) {
    if (word != scheme && word.starts_with(scheme))
      return "<a href=\"" + w + "\"" + how.attributes + ">" + w + "</a>";
  }
  return w;
}

size_t count_of(std::string_view s, std::string_view what) {
  size_t n = 0;
  for (size_t at = 0; (at = find_bytes(s, what, at)) != s.npos; at += what.size()) ++n;
  return n;
}

// One word: brackets and punctuation around an address are not part of it, unless they balance.
std::string linked_word(Meter& m, std::string_view word, const Links& how) {
  m.walk(2 * word.size());
  m.step(4 + how.schemes.size() / 8);
  size_t head = 0, tail = word.size();
  for (bool more = true; more;) {
    std::string_view rest = word.substr(head);
    more = rest.starts_with('(') || rest.starts_with('<') || rest.starts_with("&lt;");
    if (more) head += rest[0] == '&' ? 4 : 1;
  }
  for (bool more = true; more && tail > head;) {
    std::string_view rest = word.substr(head, tail - head);
    more = rest.ends_with("&gt;") || std::string_view(")>.,").find(rest.back()) != rest.npos;
    if (more) tail -= rest.ends_with("&gt;") ? 4 : 1;
  }
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kPairs = {
      {{"(", ")"}, {"<", ">"}, {"&lt;", "&gt;"}}};
  for (const auto& [open, close] : kPairs) {
    std::string_view middle = word.substr(head, tail - head);
    size_t opened = count_of(middle, open);
    if (opened <= count_of(middle, close)) continue;
    for (size_t n = std::min(opened, count_of(word.substr(tail), close)); n > 0; --n)
      tail = find_bytes(word, close, tail) + close.size();
  }
  std::string middle = tail > head ? link(word.substr(head, tail - head), how) : std::string();
  return std::string(word.substr(0, head)) + middle + std::string(word.substr(tail));
}

Value f_urlize(Machine& m, const Value& v, CallArgs& args) {
  Bound a(m, "urlize", args, {"trim_url_limit", "nofollow", "target", "rel", "extra_schemes"});
  Links how;
  if (!a.absent_or_none(0)) how.limit = static_cast<size_t>(std::max<int64_t>(a.integer(0, 0), 0));
  std::set<std::string> rel = {"noopener"};
  if (a.flag(1, false)) rel.insert("nofollow");
  if (!a.absent_or_none(3)) {
    Value words = m.string(a.text(3, ""));
    CallArgs none(m.meter);
    Value parts = find_method(words, "split")(m, words, none);
    for (const Value& part : parts.items()) rel.insert(part.text().str());
  }
  std::string names;
  for (const std::string& r : rel) names += (names.empty() ? "" : " ") + r;
  auto escaped = [&](const std::string& s) {
    return escape_html(m.meter, Text(m.meter, s, true)).str();
  };
  how.attributes = " rel=\"" + escaped(names) + "\"";
  if (!a.absent_or_none(2)) how.attributes += " target=\"" + escaped(a.text(2, "").str()) + "\"";
  if (!a.absent_or_none(4)) {
    for (const Value& s : iterate(m.meter, a[4])) {
      if (!s.is(Kind::string)) m.fail("urlize: extra_schemes must be strings");
      how.schemes.push_back(s.text().str());
    }
  }
  Text source = to_text(m.meter, v);
  Text t = is_markup(v) ? std::move(source) : escape_html(m.meter, source);
  std::string_view s = t.view();
  m.meter.walk(s.size());
  Text out(m.meter);
  for (size_t i = 0; i < s.size();) {
    size_t begin = i, next = i;
    bool space = is_space(next_code_point(s, next));
    while (i < s.size()) {
      next = i;
      if (is_space(next_code_point(s, next)) != space) break;
      i = next;
    }
    std::string_view piece = s.substr(begin, i - begin);
    out.append(space ? std::string(piece) : linked_word(m.meter, piece, how), t.trusted());
  }
  return m.string(std::move(out));
}

// ---- xmlattr, filesizeformat

Value f_xmlattr(Machine& m, const Value& v, CallArgs& args) {
  Bound a(m, "xmlattr", args, {"autospace"});
  if (!v.is(Kind::dict)) m.fail(strf("xmlattr: expected a mapping, got %s", type_name(v)));
  Text out(m.meter);
  for (const auto& [k, x] : v.dict().items) {
    if (x.is(Kind::none) || x.is(Kind::undefined)) continue;
    Text name = to_text(m.meter, k);
    m.meter.walk(name.size());
    for (size_t i = 0; i < name.size();) {
      char32_t c = next_code_point(name.view(), i);
      if (is_space(c) || c == '/' || c == '>' || c == '=')
        m.fail("invalid character in attribute name: " + quote(name.view()));
    }
    if (!out.empty() || a.flag(0, true)) out.append(" ", true);
    out.append(escape_html(m.meter, name));
    out.append("=\"", true);
    Text text = to_text(m.meter, x);
    out.append(is_markup(x) ? std::move(text) : escape_html(m.meter, text));
    out.append("\"", true);
  }
  return m.string(std::move(out));
}

Value f_filesizeformat(Machine& m, const Value& v, CallArgs& args) {
  Bound a(m, "filesizeformat", args, {"binary"});
  CallArgs none(m.meter);
  Value number = v;
  if (v.is(Kind::string)) {
    none.pos.push_back(Value::none());
    number = m.filter("float", v, none);
  }
  if (!is_numeric(number)) m.fail("filesizeformat: expected a number");
  double bytes = to_double(m.meter, number);
  bool binary = a.flag(0, false);
  double base = binary ? 1024 : 1000;
  auto text = [&](const std::string& s) { return make_string(m.meter, s, true); };
  if (bytes == 1) return text("1 Byte");
  if (!(bytes >= base)) return text(strf("%.0f Bytes", std::trunc(bytes)));
  static constexpr std::array<const char*, 8> kDecimal = {"kB", "MB", "GB", "TB",
                                                          "PB", "EB", "ZB", "YB"};
  static constexpr std::array<const char*, 8> kBinary = {"KiB", "MiB", "GiB", "TiB",
                                                         "PiB", "EiB", "ZiB", "YiB"};
  double unit = base * base;
  size_t i = 0;
  for (; i + 1 < kDecimal.size() && bytes >= unit; ++i) unit *= base;
  return text(strf("%.1f %s", base * bytes / unit, binary ? kBinary[i] : kDecimal[i]));
}

}  // namespace

Function find_layout_filter(std::string_view name) {
  static const std::unordered_map<std::string_view, Function> kTable = {
      {"wordwrap", f_wordwrap},
      {"pprint", f_pprint},
      {"urlize", f_urlize},
      {"xmlattr", f_xmlattr},
      {"filesizeformat", f_filesizeformat},
  };
  auto it = kTable.find(name);
  return it == kTable.end() ? nullptr : it->second;
}

}  // namespace sluice::jinja

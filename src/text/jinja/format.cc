#include "text/jinja/format.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/str.h"
#include "text/jinja/bigint.h"

namespace sluice::jinja {

std::string float_repr(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d > 0 ? "inf" : "-inf";
  char buf[64];
  auto [end, ec] = std::to_chars(buf, buf + sizeof buf, d, std::chars_format::scientific);
  std::string_view s(buf, static_cast<size_t>(end - buf));
  size_t e = s.find('e');
  int exponent = 0;
  std::from_chars(s.data() + e + (s[e + 1] == '+' ? 2 : 1), s.data() + s.size(), exponent);
  // Python: plain notation for 1e-4 <= |d| < 1e16.
  if (exponent < -4 || exponent >= 16) return std::string(s);
  auto [stop, ec2] = std::to_chars(buf, buf + sizeof buf, d, std::chars_format::fixed);
  std::string out(buf, stop);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

namespace {

// One trust for the whole: a quote or bracket between request strings has no owner of its own.
Text uniform(Meter& m, Text t) {
  if (t.trusted()) return t;
  return Text(m, t.str(), false);
}

bool printable(char32_t c) {
  if (c < 0x7F) return c >= 0x20;
  if (c < 0xA1 || c == 0xAD || is_space(c)) return false;
  return !((c >= 0x200B && c <= 0x200F) || (c >= 0x202A && c <= 0x202E) ||
           (c >= 0x2060 && c <= 0x206F) || (c >= 0xE000 && c <= 0xF8FF) || c == 0xFEFF ||
           (c >= 0xFFF0 && c <= 0xFFFB) || c >= 0xE0000);
}

Text repr_string(Meter& m, const Text& t) {
  m.walk(t.size());
  bool single = t.str().find('\'') == std::string::npos || t.str().find('"') != std::string::npos;
  char quote = single ? '\'' : '"';
  std::string out(1, quote);
  for (size_t i = 0; i < t.size();) {
    m.require(out.size());
    char32_t c = next_code_point(t.view(), i);
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\\' || c == static_cast<char32_t>(quote)) {
      out.push_back('\\');
      out.push_back(static_cast<char>(c));
    } else if (printable(c)) {
      append_utf8(out, c);
    } else {
      out += c < 0x100 ? "\\x" : c < 0x10000 ? "\\u" : "\\U";
      append_hex(out, c, c < 0x100 ? 2 : c < 0x10000 ? 4 : 8);
    }
  }
  out.push_back(quote);
  return Text(m, std::move(out), t.trusted());
}

class Repr {
 public:
  explicit Repr(Meter& m) : out(m), m_(m) {}
  Text out;

  void value(const Value& v, int depth = 0) {
    if (depth > kMaxValueDepth) m_.fail("a value that contains itself cannot be printed");
    m_.step();
    switch (v.kind()) {
      case Kind::undefined:
        return put("Undefined");
      case Kind::none:
        return put("None");
      case Kind::boolean:
        return put(v.as_bool() ? "True" : "False");
      case Kind::integer:
        return put(std::to_string(v.as_int()));
      case Kind::real:
        return put(float_repr(v.as_double()));
      case Kind::big_integer:
        return out.append(v.text());
      case Kind::string:
        if (is_markup(v)) put("Markup(");
        out.append(repr_string(m_, v.text()));
        if (is_markup(v)) put(")");
        return;
      case Kind::sequence:
        return sequence(v, depth);
      case Kind::dict:
        put("{");
        for (size_t i = 0; i < v.dict().items.size(); ++i) {
          if (i > 0) put(", ");
          value(v.dict().items[i].first, depth + 1);
          put(": ");
          value(v.dict().items[i].second, depth + 1);
        }
        return put("}");
      case Kind::ns:
        return space(v.as<NamespaceObject>(), depth);
      case Kind::macro:
      case Kind::function:
      case Kind::loop:
      case Kind::cycler:
      case Kind::joiner:
        return put(strf("<%s>", type_name(v)));
    }
  }

 private:
  void put(std::string_view s) { out.append(s, true); }

  void sequence(const Value& v, int depth) {
    const SeqObject& s = v.seq();
    switch (s.kind) {
      case SeqKind::list:
        return list("[", s.items, "]", depth);
      case SeqKind::tuple:
        return list("(", s.items, s.items.size() == 1 ? ",)" : ")", depth);
      case SeqKind::range:
        put(strf("range(%lld, %lld", static_cast<long long>(s.start),
                 static_cast<long long>(s.stop)));
        return put(s.by == 1 ? ")" : strf(", %lld)", static_cast<long long>(s.by)));
      case SeqKind::generator:
        return put("<generator object>");
      case SeqKind::bytes:
        return bytes(s.items);
      case SeqKind::dict_keys:
      case SeqKind::dict_values:
      case SeqKind::dict_items:
        put(type_name(v));
        return list("([", s.items, "])", depth);
    }
  }

  // Not trusted: where the bytes came from is not known any more.
  void bytes(const Values& items) {
    m_.walk(4 * items.size());
    auto has = [&](char c) {
      return std::any_of(items.begin(), items.end(),
                         [&](const Value& b) { return b.as_int() == c; });
    };
    char quote = has('\'') && !has('"') ? '"' : '\'';
    std::string s = std::string("b") + quote;
    for (const Value& b : items) {
      auto c = static_cast<char>(b.as_int());
      static constexpr std::string_view kFrom = "\t\n\r\\", kTo = "tnr\\";
      size_t named = kFrom.find(c);
      if (named != kFrom.npos || c == quote) {
        s += {'\\', c == quote ? quote : kTo[named]};
      } else if (c >= 0x20 && c < 0x7F) {
        s.push_back(c);
      } else {
        s += "\\x";
        append_hex(s, static_cast<uint8_t>(c), 2);
      }
    }
    s.push_back(quote);
    out.append(s, false);
  }

  void list(std::string_view open, const Values& items, std::string_view close, int depth) {
    put(open);
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) put(", ");
      value(items[i], depth + 1);
    }
    put(close);
  }

  void space(const NamespaceObject& ns, int depth) {
    put("<Namespace {");
    for (size_t i = 0; i < ns.attrs.size(); ++i) {
      if (i > 0) put(", ");
      out.append(repr_string(m_, Text(m_, ns.attrs[i].first, true)));
      put(": ");
      value(ns.attrs[i].second, depth + 1);
    }
    put("}>");
  }

  Meter& m_;
};

class JsonWriter {
 public:
  JsonWriter(Meter& m, const JsonStyle& style) : out(m), m_(m), style_(style) {}
  Text out;

  void value(const Value& v, int depth) {
    m_.step();
    switch (v.kind()) {
      case Kind::none:
        return put("null");
      case Kind::boolean:
        return put(v.as_bool() ? "true" : "false");
      case Kind::integer:
        return put(std::to_string(v.as_int()));
      case Kind::big_integer:
        return out.append(v.text());
      case Kind::real:
        return put(real(v.as_double()));
      case Kind::string:
        return string(v.text());
      case Kind::sequence:
        if (v.seq().kind == SeqKind::list || v.seq().kind == SeqKind::tuple)
          return list(v.items(), depth);
        break;
      case Kind::dict:
        return dict(v.dict(), depth);
      case Kind::undefined:
      case Kind::ns:
      case Kind::macro:
      case Kind::function:
      case Kind::loop:
      case Kind::cycler:
      case Kind::joiner:
        break;
    }
    std::string why = v.is(Kind::undefined) && v.object() ? " (" + v.text().str() + ")" : "";
    m_.fail(strf("Object of type %s is not JSON serializable%s", type_name(v), why.c_str()));
  }

 private:
  void put(std::string_view s) { out.append(s, true); }

  static std::string real(double d) {
    if (std::isnan(d)) return "NaN";
    if (std::isinf(d)) return d > 0 ? "Infinity" : "-Infinity";
    return float_repr(d);
  }

  void new_line(int depth) {
    if (!style_.indented) return;
    put("\n");
    for (int i = 0; i < depth; ++i) put(style_.indent);
  }

  void list(const Values& items, int depth) {
    if (items.empty()) return put("[]");
    put("[");
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) put(style_.item_separator);
      new_line(depth + 1);
      value(items[i], depth + 1);
    }
    new_line(depth);
    put("]");
  }

  void dict(const DictObject& d, int depth) {
    if (d.items.empty()) return put("{}");
    using Item = const std::pair<Value, Value>*;
    std::vector<Item, Metered<Item>> order(m_);
    for (const auto& e : d.items) order.push_back(&e);
    if (style_.sort_keys) {
      std::stable_sort(order.begin(), order.end(), [&](const auto* a, const auto* b) {
        return compare(m_, a->first, b->first) == -1;
      });
    }
    put("{");
    for (size_t i = 0; i < order.size(); ++i) {
      if (i > 0) put(style_.item_separator);
      new_line(depth + 1);
      key(order[i]->first);
      put(style_.key_separator);
      value(order[i]->second, depth + 1);
    }
    new_line(depth);
    put("}");
  }

  void key(const Value& k) {
    if (k.is(Kind::string)) return string(k.text());
    if (!is_numeric(k) && !k.is(Kind::none)) {
      m_.fail(strf("JSON keys must be str, int, float, bool or None, not %s", type_name(k)));
    }
    put("\"");
    value(k, 0);
    put("\"");
  }

  void string(const Text& t) {
    m_.walk(2 * t.size());
    std::string s = "\"";
    for (size_t i = 0; i < t.size();) {
      m_.require(s.size());
      escape(s, next_code_point(t.view(), i));
    }
    s.push_back('"');
    out.append(s, t.trusted());
  }

  void escape(std::string& s, char32_t c) const {
    static constexpr std::string_view kFrom = "\"\\\n\r\t\f\b", kTo = "\"\\nrtfb";
    size_t simple = c < 0x80 ? kFrom.find(static_cast<char>(c)) : std::string_view::npos;
    if (simple != std::string_view::npos) {
      s.push_back('\\');
      s.push_back(kTo[simple]);
    } else if (c < 0x20 || (style_.ensure_ascii && c > 0x7E && c < 0x10000 && c != 0x7F)) {
      s += "\\u";
      append_hex(s, c, 4);
    } else if (style_.ensure_ascii && c >= 0x10000) {
      char32_t v = c - 0x10000;
      s += "\\u";
      append_hex(s, 0xD800 + (v >> 10), 4);
      s += "\\u";
      append_hex(s, 0xDC00 + (v & 0x3FF), 4);
    } else {
      append_utf8(s, c);
    }
  }

  Meter& m_;
  const JsonStyle& style_;
};

}  // namespace

Text to_text(Meter& m, const Value& v) {
  if (v.is(Kind::string)) return Text(m, v.text());
  if (v.is(Kind::undefined)) return Text(m);
  return repr(m, v);
}

Text repr(Meter& m, const Value& v) {
  Repr r(m);
  r.value(v);
  return uniform(m, std::move(r.out));
}

Text to_json(Meter& m, const Value& v, const JsonStyle& style) {
  JsonWriter w(m, style);
  w.value(v, 0);
  return uniform(m, std::move(w.out));
}

Text escape_html(Meter& m, const Text& s) {
  m.walk(s.size());
  Text out(m);
  size_t i = 0;
  for (const Text::Run& run : s.runs()) {
    std::string piece;
    for (; i < run.end; ++i) {
      m.require(out.size() + piece.size());
      switch (s.str()[i]) {
        case '&':
          piece += "&amp;";
          break;
        case '<':
          piece += "&lt;";
          break;
        case '>':
          piece += "&gt;";
          break;
        case '"':
          piece += "&#34;";
          break;
        case '\'':
          piece += "&#39;";
          break;
        default:
          piece.push_back(s.str()[i]);
      }
    }
    out.append(piece, run.trusted);
  }
  return out;
}

}  // namespace sluice::jinja

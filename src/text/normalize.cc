#include "text/normalize.h"

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "text/byte_level.h"
#include "text/graphemes.h"
#include "text/normal_sink.h"
#include "text/unicode.h"

namespace sluice {

namespace {

constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";

using Kind = NormalizerStep::Kind;

bool is_space(const CodePoint& p) { return p.cls == CharClass::space; }

NormalForm form_of(Kind kind) {
  return kind == Kind::nfc    ? NormalForm::nfc
         : kind == Kind::nfd  ? NormalForm::nfd
         : kind == Kind::nfkc ? NormalForm::nfkc
                              : NormalForm::nfkd;
}

// Stretches that can be brought to the form on their own; ASCII among itself stays.
void put_normal_form(NormalForm form, NormalSink& sink) {
  const std::string_view text = sink.text();
  std::string changed;
  for (size_t pos = 0; pos < text.size();) {
    size_t end = pos;
    while (end < text.size() && static_cast<uint8_t>(text[end]) < 0x80) ++end;
    if (end > pos) {  // the last of a run may be joined by what follows
      size_t stable = end < text.size() ? end - 1 : end;
      sink.copy(pos, stable);
      pos = stable;
      if (pos == text.size()) break;
    }
    end = pos + code_point_at(text, pos).size;
    for (CodePoint p = code_point_at(text, end); p.size != 0 && !is_boundary(form, p.value);
         p = code_point_at(text, end)) {
      end += p.size;
    }
    changed.clear();
    append_normal(form, text.substr(pos, end - pos), changed);
    sink.put(changed, pos, end);
    pos = end;
  }
}

// Characters one by one: `put(p, pos)` writes what each becomes.
template <typename Put>
void each_char(NormalSink& sink, Put put) {
  const std::string_view text = sink.text();
  for (size_t pos = 0; pos < text.size();) {
    CodePoint p = code_point_at(text, pos);
    put(p, pos);
    pos += p.size;
  }
}

void put_lower(NormalSink& sink) {
  std::string lower;
  each_char(sink, [&](const CodePoint& p, size_t pos) {
    lower.clear();
    append_lower(lower, p.value);
    sink.put(lower, pos, pos + p.size);
  });
}

template <typename Drop>
void put_without(NormalSink& sink, Drop drop) {
  each_char(sink, [&](const CodePoint& p, size_t pos) {
    if (!drop(p.value)) sink.copy(pos, pos + p.size);
  });
}

void put_stripped(const NormalizerStep& step, NormalSink& sink) {
  const std::string_view text = sink.text();
  size_t begin = 0, end = 0;
  for (size_t pos = 0; pos < text.size();) {
    CodePoint p = code_point_at(text, pos);
    pos += p.size;
    if (!is_space(p)) end = pos;
    if (is_space(p) && end == 0) begin = pos;
  }
  if (!step.right) end = text.size();
  if (!step.left) begin = 0;
  sink.copy(begin, std::max(begin, end));
}

void put_nmt(NormalSink& sink) {
  each_char(sink, [&](const CodePoint& p, size_t pos) {
    const char32_t c = p.value;
    if ((c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F ||
        c == 0x9F) {
      return;
    }
    bool space = c == 9 || c == 10 || c == 12 || c == 13 || c == 0x1680 ||
                 (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                 c == 0xFEFF || c == 0xFFFD;
    sink.put(space ? " " : sink.text().substr(pos, p.size), pos, pos + p.size);
  });
}

bool is_chinese(char32_t c) {
  return (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x4E00 && c <= 0x9FFF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0x2F800 && c <= 0x2FA1F);
}

void put_clean(NormalSink& sink) {
  each_char(sink, [&](const CodePoint& p, size_t pos) {
    if (is_bert_control(p.value)) return;
    sink.put(is_space(p) ? " " : sink.text().substr(pos, p.size), pos, pos + p.size);
  });
}

void put_chinese(NormalSink& sink) {
  each_char(sink, [&](const CodePoint& p, size_t pos) {
    if (!is_chinese(p.value)) return sink.copy(pos, pos + p.size);
    sink.put(" ", pos, pos + p.size);
    sink.copy(pos, pos + p.size);
    sink.put(" ", pos, pos + p.size);
  });
}

// A grapheme of less than 6 bytes is looked up whole, then every character; the shortest key that
// starts it decides for all of it.
void put_charsmap(const Charsmap& map, NormalSink& sink) {
  const std::string_view text = sink.text();
  for (size_t pos = 0; pos < text.size();) {
    size_t end = grapheme_end(text, pos);
    if (end - pos < 6) {
      if (Charsmap::Match m = map.shortest(text.substr(pos, end - pos)); m.size != 0) {
        sink.put(m.replacement, pos, end);
        pos = end;
        continue;
      }
    }
    while (pos < end) {
      size_t size = code_point_at(text, pos).size;
      Charsmap::Match m = map.shortest(text.substr(pos, size));
      sink.put(m.size != 0 ? m.replacement : text.substr(pos, size), pos, pos + size);
      pos += size;
    }
  }
}

void put_bytes(NormalSink& sink) {
  const std::string_view text = sink.text();
  for (size_t pos = 0; pos < text.size(); ++pos) {
    sink.put(byte_level_char(static_cast<uint8_t>(text[pos])), pos, pos + 1);
  }
}

// What SentencePiece makes of the text from pos on: a stretch of it and its replacement.
struct Prefix {
  size_t size = 0;
  std::string_view text;
};

Prefix sentencepiece_prefix(const NormalizerStep& step, const NormalSink& sink, size_t pos) {
  const std::string_view rest = sink.text().substr(pos);
  if (step.user_defined) {
    SpecialTokens::Match m = step.user_defined->match(rest, sink.num_trusted(pos));
    if (m.token != kNoToken) return {m.size, rest.substr(0, m.size)};
  }
  if (step.charsmap) {
    Charsmap::Match m = step.charsmap->longest(rest);
    if (m.size != 0) return {m.size, m.replacement};
  }
  size_t size = code_point_at(rest, 0).size;
  return {size, rest.substr(0, size)};
}

void put_sentencepiece(const NormalizerStep& step, NormalSink& sink) {
  const std::string_view text = sink.text();
  const std::string_view space = step.escape_spaces ? kSpaceSymbol : " ";
  size_t pos = 0;
  while (step.remove_extra_spaces && pos < text.size()) {
    Prefix p = sentencepiece_prefix(step, sink, pos);
    if (p.text != " ") break;
    pos += p.size;
  }
  if (pos == text.size()) return;
  if (step.dummy_prefix) sink.put(space, pos, pos);
  bool after_space = step.remove_extra_spaces;
  while (pos < text.size()) {
    Prefix p = sentencepiece_prefix(step, sink, pos);
    while (after_space && p.text.starts_with(' ')) p.text.remove_prefix(1);
    if (!p.text.empty()) {
      for (size_t i = 0; i < p.text.size();) {
        size_t end = std::min(p.text.find(' ', i), p.text.size());
        sink.put(p.text.substr(i, end - i), pos, pos + p.size);
        if (end < p.text.size()) sink.put(space, pos, pos + p.size);
        i = end + 1;
      }
      after_space = p.text.ends_with(' ');
    }
    if (!step.remove_extra_spaces) after_space = false;
    pos += p.size;
  }
  while (step.remove_extra_spaces && sink.drop_end(space)) {
  }
}

Result<void> put_replaced(const NormalizerStep& step, RegexScratch& scratch, NormalSink& sink) {
  std::vector<TextRange> matches;
  if (auto ok = step.pattern.find_all(sink.text(), scratch, matches); !ok) return ok.error();
  size_t pos = 0;
  for (const TextRange& m : matches) {
    sink.copy(pos, m.begin);
    sink.put(step.content, m.begin, m.end);
    pos = m.end;
  }
  sink.copy(pos, sink.text().size());
  return {};
}

void run_bert(const NormalizerStep& step, NormalText& text) {
  auto pass = [&](bool wanted, auto put) {
    if (!wanted) return;
    NormalSink sink(text);
    put(sink);
    sink.finish(text);
  };
  pass(step.clean, put_clean);
  pass(step.chinese, put_chinese);
  pass(step.accents, [](NormalSink& s) { put_normal_form(NormalForm::nfd, s); });
  pass(step.accents, [](NormalSink& s) { put_without(s, is_bert_accent); });
  pass(step.lower, put_lower);
}

Result<void> run_step(const NormalizerStep& step, RegexScratch& scratch, NormalText& text) {
  if (step.kind == Kind::bert) {
    run_bert(step, text);
    return {};
  }
  NormalSink sink(text);
  Result<void> ok;
  switch (step.kind) {
    case Kind::nfc:
    case Kind::nfd:
    case Kind::nfkc:
    case Kind::nfkd:
      put_normal_form(form_of(step.kind), sink);
      break;
    case Kind::lowercase:
      put_lower(sink);
      break;
    case Kind::strip:
      put_stripped(step, sink);
      break;
    case Kind::strip_accents:
      put_without(sink, is_accent);
      break;
    case Kind::replace:
      ok = put_replaced(step, scratch, sink);
      break;
    case Kind::prepend:
      if (!sink.text().empty()) sink.put(step.content, 0, 0);
      sink.copy(0, sink.text().size());
      break;
    case Kind::charsmap:
      put_charsmap(*step.charsmap, sink);
      break;
    case Kind::nmt:
      put_nmt(sink);
      break;
    case Kind::byte_level:
      put_bytes(sink);
      break;
    case Kind::sentencepiece:
      put_sentencepiece(step, sink);
      break;
    case Kind::bert:
      break;
  }
  if (!ok) return ok.error();
  if (sink.overflow()) return Error{400, "the tokenizer's normalizer makes the text too long"};
  sink.finish(text);
  return {};
}

}  // namespace

Result<void> TextPattern::find_all(std::string_view text,
                                   RegexScratch& scratch,
                                   std::vector<TextRange>& out) const {
  if (regex) return regex->find_all(text, scratch, out);
  CHECK(!literal.empty());
  out.clear();
  for (size_t at = text.find(literal); at != text.npos; at = text.find(literal, at)) {
    size_t end = at + literal.size();
    out.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(end)});
    at = end;
  }
  return {};
}

Result<void> normalize(const std::vector<NormalizerStep>& steps,
                       RegexScratch& scratch,
                       NormalText& text) {
  for (const NormalizerStep& step : steps) {
    // Normal text is the usual case, and then nothing is copied.
    if (step.kind == Kind::nfc) {
      std::optional<std::string> changed = to_nfc(text.text);
      if (!changed) continue;
      if (text.trusted.empty()) {
        text.storage = std::move(*changed);
        text.text = text.storage;
        continue;
      }
    }
    if (auto ok = run_step(step, scratch, text); !ok) return ok.error();
  }
  return {};
}

}  // namespace sluice

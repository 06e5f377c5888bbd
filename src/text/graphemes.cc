#include "text/graphemes.h"

#include "text/unicode.h"

namespace sluice {

namespace {

// The low three bits of grapheme_properties; those from cr on are computed.
enum class GraphemeClass : uint8_t {
  other,
  control,
  extend,
  prepend,
  spacing_mark,
  l,
  v,
  t,
  cr,
  lf,
  zwj,
  regional,
  lv,
  lvt
};

constexpr uint32_t kPictographic = 8, kConsonant = 16, kLinker = 32, kConjoining = 64;

struct Grapheme {
  GraphemeClass cls = GraphemeClass::other;
  uint32_t properties = 0;
};

Grapheme classify(char32_t c) {
  if (c >= 0x20 && c < 0x7F) return {};
  Grapheme g;
  g.properties = grapheme_properties(c);
  g.cls = static_cast<GraphemeClass>(g.properties & 7);
  if (c == '\r') g.cls = GraphemeClass::cr;
  if (c == '\n') g.cls = GraphemeClass::lf;
  if (c == 0x200D) g.cls = GraphemeClass::zwj;
  if (c >= 0x1F1E6 && c <= 0x1F1FF) g.cls = GraphemeClass::regional;
  if (c >= 0xAC00 && c < 0xAC00 + 11172) {
    g.cls = (c - 0xAC00) % 28 == 0 ? GraphemeClass::lv : GraphemeClass::lvt;
  }
  return g;
}

// What the rules that look back beyond one character need.
struct Before {
  bool pictograph = false;  // GB11: pictograph Extend* (ZWJ) so far
  bool consonant = false;   // GB9c: consonant, then extenders and linkers
  bool linked = false;      // ... with a linker among them
  bool odd_regional = false;
};

bool joins(const Grapheme& a, const Grapheme& b, const Before& before) {
  using G = GraphemeClass;
  if (a.cls == G::cr && b.cls == G::lf) return true;
  auto control = [](G c) { return c == G::control || c == G::cr || c == G::lf; };
  if (control(a.cls) || control(b.cls)) return false;
  if (a.cls == G::l && (b.cls == G::l || b.cls == G::v || b.cls == G::lv || b.cls == G::lvt)) {
    return true;
  }
  if ((a.cls == G::lv || a.cls == G::v) && (b.cls == G::v || b.cls == G::t)) return true;
  if ((a.cls == G::lvt || a.cls == G::t) && b.cls == G::t) return true;
  if (b.cls == G::extend || b.cls == G::zwj || b.cls == G::spacing_mark) return true;
  if (a.cls == G::prepend) return true;
  if (before.linked && (b.properties & kConsonant) != 0) return true;
  if (a.cls == G::zwj && before.pictograph && (b.properties & kPictographic) != 0) return true;
  return a.cls == G::regional && b.cls == G::regional && before.odd_regional;
}

void advance(Before& before, const Grapheme& g) {
  using G = GraphemeClass;
  if ((g.properties & kPictographic) != 0) {
    before.pictograph = true;
  } else if (g.cls != G::extend && g.cls != G::zwj) {
    before.pictograph = false;
  }
  if ((g.properties & kConsonant) != 0) {
    before.consonant = true;
    before.linked = false;
  } else if ((g.properties & kLinker) != 0) {
    before.linked = before.consonant;
  } else if ((g.properties & kConjoining) == 0 && g.cls != G::zwj) {
    before.consonant = before.linked = false;
  }
  before.odd_regional = g.cls == G::regional && !before.odd_regional;
}

}  // namespace

size_t grapheme_end(std::string_view text, size_t pos) {
  CodePoint p = code_point_at(text, pos);
  Grapheme last = classify(p.value);
  Before before;
  advance(before, last);
  pos += p.size;
  for (p = code_point_at(text, pos); p.size != 0; p = code_point_at(text, pos)) {
    Grapheme next = classify(p.value);
    if (!joins(last, next, before)) break;
    advance(before, next);
    last = next;
    pos += p.size;
  }
  return pos;
}

}  // namespace sluice

#include "text/jinja/text.h"

#include <locale.h>
#include <string.h>
#include <wctype.h>

#include <algorithm>
#include <utility>

#include "text/unicode.h"

namespace sluice::jinja {

Text::Text(Meter& m, std::string bytes, bool trusted) : meter_(&m) {
  meter_->take(bytes.size());
  charged_ = bytes.size();
  bytes_ = std::move(bytes);
  if (!bytes_.empty()) runs_.push_back({bytes_.size(), trusted});
}

Text Text::unmetered(std::string bytes, bool trusted) {
  Text t;
  t.bytes_ = std::move(bytes);
  if (!t.bytes_.empty()) t.runs_.push_back({t.bytes_.size(), trusted});
  return t;
}

Text& Text::operator=(Text&& other) noexcept {
  if (this == &other) return *this;
  release();
  meter_ = other.meter_;
  charged_ = std::exchange(other.charged_, 0);
  charged_runs_ = std::exchange(other.charged_runs_, 0);
  bytes_ = std::exchange(other.bytes_, {});
  runs_ = std::exchange(other.runs_, {});
  return *this;
}

void Text::release() {
  if (meter_) meter_->give(charged_ + charged_runs_ * sizeof(Run));
}

void Text::reserve(size_t size) {
  if (!meter_ || size <= charged_) return;
  // The old bytes are there until the new ones are.
  size_t wanted = charged_ == 0 ? size : std::max(size, 2 * charged_);
  meter_->take(wanted);
  size_t old = std::exchange(charged_, wanted);
  bytes_.reserve(wanted);
  meter_->give(old);
}

bool Text::trusted() const {
  return std::all_of(runs_.begin(), runs_.end(), [](const Run& r) { return r.trusted; });
}

void Text::append(std::string_view bytes, bool trusted) {
  if (bytes.empty()) return;
  reserve(bytes_.size() + bytes.size());
  bytes_.append(bytes);
  if (!runs_.empty() && runs_.back().trusted == trusted) {
    runs_.back().end = bytes_.size();
  } else {
    if (meter_ && runs_.size() > charged_runs_) {  // the first run is free
      meter_->take((runs_.size() + 1) * sizeof(Run));
      charged_runs_ += runs_.size() + 1;
    }
    runs_.push_back({bytes_.size(), trusted});
  }
}

void Text::append(const Text& other, size_t begin, size_t end) {
  auto run = std::upper_bound(other.runs_.begin(), other.runs_.end(), begin,
                              [](size_t at, const Run& r) { return at < r.end; });
  for (; begin < end; ++run) {
    size_t stop = std::min(end, run->end);
    append(other.view().substr(begin, stop - begin), run->trusted);
    begin = stop;
  }
}

Text Text::slice(Meter& m, size_t begin, size_t end) const {
  Text out(m);
  if (begin < end) out.append(*this, begin, end);
  return out;
}

char32_t next_code_point(std::string_view s, size_t& i) {
  auto b = static_cast<uint8_t>(s[i++]);
  int extra = b >= 0xF0 ? 3 : b >= 0xE0 ? 2 : b >= 0xC0 ? 1 : 0;
  if (extra == 0 || i + static_cast<size_t>(extra) > s.size()) return b;
  char32_t c = b & (0x3F >> extra);
  for (int k = 0; k < extra; ++k) c = (c << 6) | (static_cast<uint8_t>(s[i++]) & 0x3F);
  return c;
}

void append_utf8(std::string& out, char32_t c) {
  auto put = [&](char32_t v) { out.push_back(static_cast<char>(v)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6)), put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12)), put(0x80 | ((c >> 6) & 0x3F)), put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18)), put(0x80 | ((c >> 12) & 0x3F));
    put(0x80 | ((c >> 6) & 0x3F)), put(0x80 | (c & 0x3F));
  }
}

void append_hex(std::string& out, uint32_t v, int digits) {
  for (int i = digits - 1; i >= 0; --i) out.push_back("0123456789abcdef"[v >> 4 * i & 15]);
}

namespace {
bool is_lead(char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }

// glibc's built-in Unicode tables, independent of the process locale. Null where libc has none:
// then only ASCII has case.
locale_t unicode_locale() {
  static const locale_t kLocale = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  return kLocale;
}

bool has_class(char32_t c, int (*of_ascii)(wint_t), int (*of_locale)(wint_t, locale_t)) {
  locale_t loc = unicode_locale();
  if (c < 0x80 || loc == nullptr) return c < 0x80 && of_ascii(static_cast<wint_t>(c)) != 0;
  return of_locale(static_cast<wint_t>(c), loc) != 0;
}
}  // namespace

size_t count_code_points(std::string_view s) {
  return static_cast<size_t>(std::count_if(s.begin(), s.end(), is_lead));
}

size_t code_point_offset(std::string_view s, size_t index) {
  size_t i = 0;
  for (; i < s.size(); ++i) {
    if (is_lead(s[i]) && index-- == 0) return i;
  }
  return s.size();
}

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x1F);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}
bool is_alpha(char32_t c) { return has_class(c, iswalpha, iswalpha_l); }
bool is_upper(char32_t c) { return has_class(c, iswupper, iswupper_l); }
bool is_lower(char32_t c) { return has_class(c, iswlower, iswlower_l) || c == 0xDF; }

char32_t to_upper(char32_t c) {
  if (c < 0x80) return c >= 'a' && c <= 'z' ? c - 32 : c;
  locale_t loc = unicode_locale();
  return loc ? static_cast<char32_t>(towupper_l(static_cast<wint_t>(c), loc)) : c;
}

char32_t to_lower(char32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + 32 : c;
  locale_t loc = unicode_locale();
  return loc ? static_cast<char32_t>(towlower_l(static_cast<wint_t>(c), loc)) : c;
}

namespace {

struct SpecialCase {
  char32_t c;
  const char *upper, *title;
};
constexpr SpecialCase kSpecialCases[] = {
#include "text/jinja/casing.inc"
};

const SpecialCase* special_case(char32_t c) {
  if (c < 0x80) return nullptr;
  const SpecialCase* end = std::end(kSpecialCases);
  const SpecialCase* at = std::lower_bound(
      std::begin(kSpecialCases), end, c, [](const SpecialCase& s, char32_t x) { return s.c < x; });
  return at != end && at->c == c ? at : nullptr;
}

constexpr char32_t kCapitalSigma = 0x3A3, kSigma = 0x3C3, kFinalSigma = 0x3C2;

bool is_cased(char32_t c) { return is_upper(c) || is_lower(c) || is_title(c); }

// What stands between letters without ending a word.
bool is_case_ignorable(char32_t c) {
  if (c < 0x80) return c == '\'' || c == '.' || c == ':' || c == '^' || c == '`';
  Category k = category(c);
  return k == Category::mn || k == Category::me || k == Category::cf || k == Category::lm ||
         k == Category::sk || c == 0xB7 || c == 0x2019 || c == 0x2018 || c == 0x2024 || c == 0x2027;
}

// A capital sigma in [begin, end) of s that ends a word has a small form of its own.
bool ends_word(Meter& m, std::string_view s, size_t begin, size_t end) {
  size_t at = begin;
  bool before = false, behind = false;
  while (at > 0) {
    m.step();
    do --at;
    while (at > 0 && !is_lead(s[at]));
    size_t next = at;
    char32_t c = next_code_point(s, next);
    if (is_case_ignorable(c)) continue;
    before = is_cased(c);
    break;
  }
  for (at = end; before && at < s.size();) {
    m.step();
    char32_t c = next_code_point(s, at);
    if (is_case_ignorable(c)) continue;
    behind = is_cased(c);
    break;
  }
  return before && !behind;
}

}  // namespace

bool is_title(char32_t c) { return c >= 0x80 && category(c) == Category::lt; }

bool is_identifier_start(char32_t c) {
  if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  Category k = category(c);
  return (k >= Category::lu && k <= Category::lo && c != 0x37A) || k == Category::nl ||
         c == 0x1885 || c == 0x1886 || c == 0x2118 || c == 0x212E;
}

bool is_identifier_part(char32_t c) {
  if (c < 0x80) return (c >= '0' && c <= '9') || is_identifier_start(c);
  Category k = category(c);
  return is_identifier_start(c) || k == Category::mn || k == Category::mc || k == Category::nd ||
         k == Category::pc || c == 0xB7 || c == 0x387 || (c >= 0x1369 && c <= 0x1371) ||
         c == 0x19DA;
}

void append_upper(std::string& out, char32_t c) {
  if (const SpecialCase* s = special_case(c)) {
    out += s->upper;
  } else {
    append_utf8(out, to_upper(c));
  }
}

void append_title(std::string& out, char32_t c) {
  if (const SpecialCase* s = special_case(c)) {
    out += s->title;
  } else {
    append_utf8(out, to_upper(c));
  }
}

void append_lower(std::string& out, char32_t c) {
  append_utf8(out, c == 0x130 ? U'i' : to_lower(c));
  if (c == 0x130) append_utf8(out, 0x307);  // the dot above stays
}

Text change_case(Meter& m, const Text& s, Case how) {
  m.walk(4 * s.size());  // several table look-ups a character
  Text out(m);
  bool in_word = false, first = true;
  size_t i = 0;
  for (const Text::Run& run : s.runs()) {
    std::string piece;
    while (i < run.end) {
      size_t begin = i;
      char32_t c = next_code_point(s.view(), i);
      bool title = (how == Case::capitalize && first) || (how == Case::title && !in_word);
      bool up = how == Case::upper || (how == Case::swap && is_lower(c));
      bool down = how != Case::swap || is_upper(c);
      first = false;
      if (how == Case::title) in_word = is_cased(c);
      if (title) {
        append_title(piece, c);
      } else if (up) {
        append_upper(piece, c);
      } else if (!down) {
        append_utf8(piece, c);
      } else if (c == kCapitalSigma && how != Case::fold) {
        append_utf8(piece, ends_word(m, s.view(), begin, i) ? kFinalSigma : kSigma);
      } else if (how == Case::fold && c != 0x131) {  // without the differences between small forms
        std::string upper;
        append_upper(upper, c);
        for (size_t k = 0; k < upper.size();) append_lower(piece, next_code_point(upper, k));
      } else {
        append_lower(piece, c);
      }
    }
    out.append(piece, run.trusted);
  }
  return out;
}

namespace {
template <typename Drop>
ByteRange strip_where(std::string_view s, bool left, bool right, Drop drop) {
  size_t begin = 0, end = s.size();
  while (left && begin < end) {
    size_t next = begin;
    if (!drop(next_code_point(s, next))) break;
    begin = next;
  }
  while (right && end > begin) {
    size_t last = end - 1;
    while (last > begin && !is_lead(s[last])) --last;
    size_t next = last;
    if (!drop(next_code_point(s, next))) break;
    end = last;
  }
  return {begin, end};
}
}  // namespace

ByteRange strip_range(std::string_view s, std::string_view chars, bool left, bool right) {
  std::u32string set;
  for (size_t i = 0; i < chars.size();) set.push_back(next_code_point(chars, i));
  std::sort(set.begin(), set.end());
  return strip_where(s, left, right,
                     [&](char32_t c) { return std::binary_search(set.begin(), set.end(), c); });
}

ByteRange strip_space_range(std::string_view s, bool left, bool right) {
  return strip_where(s, left, right, is_space);
}

size_t find_bytes(std::string_view s, std::string_view needle, size_t from) {
  if (from > s.size()) return std::string_view::npos;
  if (needle.empty()) return from;
  // memmem is linear in glibc; std::string_view::find is quadratic on repetitive text.
  const void* p = memmem(s.data() + from, s.size() - from, needle.data(), needle.size());
  if (p == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(p) - s.data());
}

size_t rfind_bytes(std::string_view s, std::string_view needle) {
  if (needle.empty()) return s.size();
  // The reversed search keeps the linear bound.
  std::string rs(s.rbegin(), s.rend()), rn(needle.rbegin(), needle.rend());
  size_t at = find_bytes(rs, rn);
  return at == std::string_view::npos ? at : s.size() - at - needle.size();
}

}  // namespace sluice::jinja

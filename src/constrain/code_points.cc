#include "constrain/code_points.h"

#include <algorithm>
#include <string>

namespace sluice::constrain {

void CodeSet::add(const CodeSet& other) {
  for (const CodeRange& r : other.ranges()) add(r.lo, r.hi);
}

const std::vector<CodeRange>& CodeSet::ranges() const {
  if (sorted_) return ranges_;
  std::vector<CodeRange> parts;
  for (CodeRange r : ranges_) {  // surrogates are no characters
    r.hi = std::min(r.hi, 0x10FFFFu);
    if (r.lo > r.hi) continue;
    if (r.lo < 0xD800) parts.push_back({r.lo, std::min(r.hi, 0xD7FFu)});
    if (r.hi > 0xDFFF) parts.push_back({std::max(r.lo, 0xE000u), r.hi});
  }
  std::sort(parts.begin(), parts.end());
  ranges_.clear();
  for (const CodeRange& r : parts) {
    if (!ranges_.empty() && r.lo <= ranges_.back().hi + 1) {
      ranges_.back().hi = std::max(ranges_.back().hi, r.hi);
    } else {
      ranges_.push_back(r);
    }
  }
  sorted_ = true;
  return ranges_;
}

CodeSet CodeSet::inverse() const {
  CodeSet out;
  uint32_t next = 0;
  for (const CodeRange& r : ranges()) {
    if (r.lo > next) out.add(next, r.lo - 1);
    next = r.hi + 1;
  }
  if (next <= 0x10FFFF) out.add(next, 0x10FFFF);
  return out;
}

CodeSet CodeSet::without(const CodeSet& other) const {
  CodeSet gone = inverse();
  gone.add(other);
  return gone.inverse();
}

RegexId CodeSpeller::one_of(const CodeSet& set, Spelling spelling) {
  return spelling == Spelling::utf8 ? utf8(set) : json(set);
}

// Splits a range at the edges where lengths and continuation bytes change.
void CodeSpeller::utf8_range(uint32_t lo, uint32_t hi, std::vector<RegexId>& out) {
  static constexpr uint32_t kLengthEnds[] = {0x7F, 0x7FF, 0xFFFF};
  for (uint32_t end : kLengthEnds) {
    if (lo <= end && hi > end) {
      utf8_range(lo, end, out);
      return utf8_range(end + 1, hi, out);
    }
  }
  if (hi <= 0x7F) {
    out.push_back(pool_.range(static_cast<int>(lo), static_cast<int>(hi)));
    return;
  }
  int length = hi <= 0x7FF ? 2 : hi <= 0xFFFF ? 3 : 4;
  for (int i = 1; i < length; ++i) {
    uint32_t mask = (1u << (6 * i)) - 1;
    if ((lo & ~mask) != (hi & ~mask)) {
      if (lo & mask) {
        utf8_range(lo, lo | mask, out);
        return utf8_range((lo | mask) + 1, hi, out);
      }
      if ((hi & mask) != mask) {
        utf8_range(lo, (hi & ~mask) - 1, out);
        return utf8_range(hi & ~mask, hi, out);
      }
    }
  }
  static constexpr uint32_t kLead[] = {0, 0, 0xC0, 0xE0, 0xF0};
  RegexId r = RegexPool::kEps;
  for (int i = 0; i < length; ++i) {
    uint32_t a = lo >> (6 * i), b = hi >> (6 * i);
    if (i + 1 < length) {
      a = 0x80 | (a & 0x3F), b = 0x80 | (b & 0x3F);
    } else {
      a |= kLead[length], b |= kLead[length];
    }
    r = pool_.concat(pool_.range(static_cast<int>(a), static_cast<int>(b)), r);
  }
  out.push_back(r);
}

RegexId CodeSpeller::utf8(const CodeSet& set) {
  auto [at, is_new] = utf8_known_.try_emplace(set.ranges(), RegexPool::kEmpty);
  if (!is_new) return at->second;
  std::vector<RegexId> options;
  for (const CodeRange& r : set.ranges()) utf8_range(r.lo, r.hi, options);
  return at->second = pool_.any_of(std::move(options));
}

RegexId CodeSpeller::hex_digits(int lo, int hi) {
  ByteSet set;
  for (int d = lo; d <= hi; ++d) {
    set.add(static_cast<uint8_t>("0123456789abcdef"[d]));
    set.add(static_cast<uint8_t>("0123456789ABCDEF"[d]));
  }
  return pool_.bytes(set);
}

// The numbers from lo to hi in so many hexadecimal digits.
RegexId CodeSpeller::hex(uint32_t lo, uint32_t hi, int digits) {
  if (digits == 0) return RegexPool::kEps;
  int shift = 4 * (digits - 1);
  uint32_t rest = (1u << shift) - 1;
  uint32_t a = lo >> shift, b = hi >> shift;
  if (a == b) {
    return pool_.concat(hex_digits(static_cast<int>(a), static_cast<int>(a)),
                        hex(lo & rest, hi & rest, digits - 1));
  }
  std::vector<RegexId> options;
  if (lo & rest) {
    options.push_back(pool_.concat(hex_digits(static_cast<int>(a), static_cast<int>(a)),
                                   hex(lo & rest, rest, digits - 1)));
    ++a;
  }
  if ((hi & rest) != rest) {
    options.push_back(pool_.concat(hex_digits(static_cast<int>(b), static_cast<int>(b)),
                                   hex(0, hi & rest, digits - 1)));
    --b;
  }
  if (a <= b) {
    options.push_back(pool_.concat(hex_digits(static_cast<int>(a), static_cast<int>(b)),
                                   hex(0, rest, digits - 1)));
  }
  return pool_.any_of(std::move(options));
}

RegexId CodeSpeller::json(const CodeSet& set) {
  auto [at, is_new] = json_known_.try_emplace(set.ranges(), RegexPool::kEmpty);
  if (!is_new) return at->second;
  static const CodeSet kEscaped{{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
  std::vector<RegexId> options{utf8(set.without(kEscaped))};
  ByteSet letters;
  static constexpr std::pair<uint32_t, char> kShort[] = {
      {'"', '"'}, {'\\', '\\'}, {'/', '/'}, {8, 'b'}, {12, 'f'}, {10, 'n'}, {13, 'r'}, {9, 't'}};
  RegexId backslash = pool_.range('\\', '\\');
  RegexId unicode = pool_.literal("\\u");
  for (const CodeRange& r : set.ranges()) {
    for (auto [code, letter] : kShort) {
      if (code >= r.lo && code <= r.hi) letters.add(static_cast<uint8_t>(letter));
    }
    if (r.lo <= 0xFFFF) {
      options.push_back(pool_.concat(unicode, hex(r.lo, std::min(r.hi, 0xFFFFu), 4)));
    }
    if (r.hi < 0x10000) continue;
    // Surrogate pairs: blocks of 0x400 share the first half.
    uint32_t lo = std::max(r.lo, 0x10000u) - 0x10000, hi = r.hi - 0x10000;
    while (lo <= hi) {
      uint32_t block = lo >> 10, first = lo & 0x3FF, last = 0x3FF, end = block;
      if (first == 0 && ((hi + 1) >> 10) > block) {
        end = ((hi + 1) >> 10) - 1;  // whole blocks
      } else {
        last = std::min(hi - (block << 10), 0x3FFu);
      }
      options.push_back(pool_.concat({unicode, hex(0xD800 + block, 0xD800 + end, 4), unicode,
                                      hex(0xDC00 + first, 0xDC00 + last, 4)}));
      lo = (end << 10) + last + 1;
    }
  }
  options.push_back(pool_.concat(backslash, pool_.bytes(letters)));
  return at->second = pool_.any_of(std::move(options));
}

RegexId CodeSpeller::json_char(uint32_t code) {
  if (code >= json_ascii_.size()) return json({{code, code}});
  if (json_ascii_[code] == RegexPool::kEmpty) json_ascii_[code] = json({{code, code}});
  return json_ascii_[code];
}

RegexId CodeSpeller::literal(std::string_view text, Spelling spelling, RegexId tail) {
  if (spelling == Spelling::utf8) return pool_.literal(text, tail);
  std::vector<uint32_t> codes = code_points_of(text);
  for (size_t i = codes.size(); i-- > 0 && tail != RegexPool::kEmpty;)
    tail = pool_.concat(json_char(codes[i]), tail);
  return tail;
}

std::vector<uint32_t> code_points_of(std::string_view text) {
  std::vector<uint32_t> out;
  for (size_t i = 0; i < text.size();) {
    uint8_t b = static_cast<uint8_t>(text[i]);
    int length = b < 0x80 ? 1 : b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
    uint32_t code = length == 1 ? b : b & (0xFFu >> (length + 1));
    for (int k = 1; k < length && i + static_cast<size_t>(k) < text.size(); ++k) {
      code = code << 6 | (static_cast<uint8_t>(text[i + static_cast<size_t>(k)]) & 0x3F);
    }
    out.push_back(code);
    i += static_cast<size_t>(length);
  }
  return out;
}

void append_utf8(std::string& out, uint32_t code) {
  auto tail = [&](int shift) { out += static_cast<char>(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | code >> 6), tail(0);
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | code >> 12), tail(6), tail(0);
  } else {
    out += static_cast<char>(0xF0 | code >> 18), tail(12), tail(6), tail(0);
  }
}

}  // namespace sluice::constrain

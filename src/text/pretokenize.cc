#include "text/pretokenize.h"

#include <algorithm>

#include "text/byte_level.h"
#include "text/unicode.h"

namespace sluice {

namespace {

using Step = PreTokenizerStep;
using Kind = PreTokenizerStep::Kind;

// A stretch of a piece and whether the pattern matched it.
struct Stretch {
  uint32_t begin, end;
  bool match;
};

// The stretches of one piece, and what a step keeps of all pieces; reused between pieces.
struct Splitter {
  std::vector<Stretch> stretches;
  std::vector<TextRange> kept, matches;
  bool removed = false;

  void keep(uint32_t begin, uint32_t end) {
    if (begin < end) kept.push_back({begin, end});
  }
};

// Every character of which `is` holds is a match of its own.
template <typename Is>
void match_chars(std::string_view text, size_t begin, size_t end, Splitter& s, Is is) {
  s.stretches.clear();
  size_t last = begin;
  for (size_t pos = begin; pos < end;) {
    CodePoint p = code_point_at(text, pos);
    size_t next = pos + p.size;
    if (is(p)) {
      if (last < pos) s.stretches.push_back({uint32_t(last), uint32_t(pos), false});
      s.stretches.push_back({uint32_t(pos), uint32_t(next), true});
      last = next;
    }
    pos = next;
  }
  if (last < end) s.stretches.push_back({uint32_t(last), uint32_t(end), false});
}

void match_ranges(size_t begin, size_t end, Splitter& s) {
  s.stretches.clear();
  uint32_t last = uint32_t(begin);
  for (const TextRange& m : s.matches) {
    uint32_t from = uint32_t(begin) + m.begin, to = uint32_t(begin) + m.end;
    if (last != from) s.stretches.push_back({last, from, false});
    s.stretches.push_back({from, to, true});
    last = to;
  }
  if (last != end) s.stretches.push_back({last, uint32_t(end), false});
}

// A match joins the stretch before it (or after it), unless that was a match, too.
void keep_merged(Splitter& s, bool with_previous) {
  const size_t first = s.kept.size();
  if (!with_previous) std::reverse(s.stretches.begin(), s.stretches.end());
  std::vector<TextRange> out;
  bool after_match = false;
  for (const Stretch& x : s.stretches) {
    if (x.match && !after_match && !out.empty()) {
      (with_previous ? out.back().end : out.back().begin) = with_previous ? x.end : x.begin;
    } else {
      out.push_back({x.begin, x.end});
    }
    after_match = x.match;
  }
  for (const TextRange& r : out) s.keep(r.begin, r.end);
  if (!with_previous) std::reverse(s.kept.begin() + static_cast<ptrdiff_t>(first), s.kept.end());
}

void keep_contiguous(Splitter& s) {
  bool after_match = false, open = false;
  TextRange run;
  for (const Stretch& x : s.stretches) {
    if (open && x.match == after_match) {
      run.end = x.end;
    } else {
      if (open) s.keep(run.begin, run.end);
      run = {x.begin, x.end};
    }
    open = true;
    after_match = x.match;
  }
  if (open) s.keep(run.begin, run.end);
}

void keep_stretches(Splitter& s, SplitBehavior behavior) {
  switch (behavior) {
    case SplitBehavior::isolated:
      for (const Stretch& x : s.stretches) s.keep(x.begin, x.end);
      return;
    case SplitBehavior::removed:
      for (const Stretch& x : s.stretches) {
        if (!x.match) s.keep(x.begin, x.end);
        s.removed = s.removed || x.match;
      }
      return;
    case SplitBehavior::with_previous:
    case SplitBehavior::with_next:
      return keep_merged(s, behavior == SplitBehavior::with_previous);
    case SplitBehavior::contiguous:
      return keep_contiguous(s);
  }
}

// The pieces become the kept ranges of their text.
void apply(Splitter& s, Pieces& pieces) {
  pieces.ends.clear();
  if (!s.removed) {
    for (const TextRange& r : s.kept) pieces.ends.push_back(r.end);
    return;
  }
  std::string out;
  pieces.at_start = pieces.at_start && !s.kept.empty() && s.kept[0].begin == 0;
  for (const TextRange& r : s.kept) {
    out.append(pieces.text, r.begin, r.end - r.begin);
    pieces.ends.push_back(static_cast<uint32_t>(out.size()));
  }
  pieces.storage = std::move(out);
  pieces.text = pieces.storage;
}

bool is_space(const CodePoint& p) { return p.cls == CharClass::space; }
bool is_numeric_char(const CodePoint& p) {
  return p.value < 0x80 ? p.cls == CharClass::number : is_numeric(p.value);
}

void split_whitespace(std::string_view text, size_t begin, size_t end, Splitter& s) {
  for (size_t pos = begin; pos < end;) {
    CodePoint p = code_point_at(text, pos);
    bool space = is_space(p), word = is_word(p.value);
    size_t from = pos;
    while (pos < end && is_space(p) == space && is_word(p.value) == word) {
      p = code_point_at(text, pos += p.size);
    }
    if (!space) s.keep(uint32_t(from), uint32_t(pos));
    s.removed = s.removed || space;
  }
}

void split_bert(std::string_view text, size_t begin, size_t end, Splitter& s) {
  size_t from = begin;
  for (size_t pos = begin; pos < end;) {
    CodePoint p = code_point_at(text, pos);
    size_t next = pos + p.size;
    if (is_space(p) || is_punctuation(p.value)) {
      s.keep(uint32_t(from), uint32_t(pos));
      if (!is_space(p)) s.keep(uint32_t(pos), uint32_t(next));
      s.removed = s.removed || is_space(p);
      from = next;
    }
    pos = next;
  }
  s.keep(uint32_t(from), uint32_t(end));
}

void split_fixed(const Step& step, std::string_view text, size_t begin, size_t end, Splitter& s) {
  size_t from = begin, count = 0;
  for (size_t pos = begin; pos < end;) {
    pos += code_point_at(text, pos).size;
    if (++count % step.length == 0 || pos == end) {
      s.keep(uint32_t(from), uint32_t(pos));
      from = pos;
    }
  }
}

Result<void> split_pattern(const Step& step,
                           std::string_view text,
                           size_t begin,
                           size_t end,
                           RegexScratch& scratch,
                           Splitter& s) {
  std::string_view piece = text.substr(begin, end - begin);
  if (auto ok = step.pattern.find_all(piece, scratch, s.matches); !ok) return ok.error();
  match_ranges(begin, end, s);
  if (step.invert) {
    for (Stretch& x : s.stretches) x.match = !x.match;
  }
  keep_stretches(s, step.behavior);
  return {};
}

Result<void> run_split(const Step& step, RegexScratch& scratch, Pieces& pieces) {
  Splitter s;
  s.kept.reserve(pieces.ends.size() * 2);
  size_t begin = 0;
  for (uint32_t end : pieces.ends) {
    const std::string_view text = pieces.text.substr(0, end);
    if (step.kind == Kind::split) {
      if (auto ok = split_pattern(step, text, begin, end, scratch, s); !ok) return ok.error();
    } else if (step.kind == Kind::digits) {
      match_chars(text, begin, end, s, is_numeric_char);
      keep_stretches(s, step.behavior);
    } else if (step.kind == Kind::punctuation) {
      match_chars(text, begin, end, s, [](const CodePoint& p) { return is_punctuation(p.value); });
      keep_stretches(s, step.behavior);
    } else if (step.kind == Kind::whitespace) {
      split_whitespace(text, begin, end, s);
    } else if (step.kind == Kind::whitespace_split) {
      match_chars(text, begin, end, s, is_space);
      keep_stretches(s, SplitBehavior::removed);
    } else if (step.kind == Kind::bert) {
      split_bert(text, begin, end, s);
    } else {
      split_fixed(step, text, begin, end, s);
    }
    begin = end;
  }
  apply(s, pieces);
  return {};
}

void run_known(const Step& step, Pieces& pieces) {
  std::vector<uint32_t> ends;
  ends.reserve(pieces.text.size() / 4 + pieces.ends.size());
  size_t begin = 0;
  for (uint32_t end : pieces.ends) {
    split_known(step.known, pieces.text.substr(begin, end - begin), begin, ends);
    begin = end;
  }
  pieces.ends = std::move(ends);
}

// Rewrites every piece: `change(piece, index, out)` appends what it becomes.
template <typename Change>
void rewrite(Pieces& pieces, Change change) {
  std::string out;
  out.reserve(pieces.text.size() + pieces.text.size() / 4);
  size_t begin = 0, index = 0;
  for (uint32_t& end : pieces.ends) {
    change(pieces.text.substr(begin, end - begin), index++, out);
    begin = end;
    end = static_cast<uint32_t>(out.size());
  }
  pieces.storage = std::move(out);
  pieces.text = pieces.storage;
}

void append_replaced(std::string_view text, std::string_view replacement, std::string& out) {
  for (size_t pos = 0; pos < text.size();) {
    size_t end = std::min(text.find(' ', pos), text.size());
    out.append(text, pos, end - pos);
    if (end < text.size()) out.append(replacement);
    pos = end + 1;
  }
}

void run_metaspace(const Step& step, Pieces& pieces) {
  rewrite(pieces, [&](std::string_view piece, size_t index, std::string& out) {
    bool wanted = step.prepend == Step::Prepend::always ||
                  (step.prepend == Step::Prepend::first && index == 0 && pieces.at_start);
    if (wanted && !piece.starts_with(' ') && !piece.starts_with(step.replacement)) {
      out.append(step.replacement);
    }
    append_replaced(piece, step.replacement, out);
  });
  if (!step.split) return;
  Splitter s;
  size_t begin = 0;
  const char32_t symbol = code_point_at(step.replacement, 0).value;
  for (uint32_t end : pieces.ends) {
    match_chars(pieces.text.substr(0, end), begin, end, s,
                [&](const CodePoint& p) { return p.value == symbol; });
    keep_merged(s, false);
    begin = end;
  }
  apply(s, pieces);
}

Result<void> run_step(const Step& step, RegexScratch& scratch, Pieces& pieces) {
  switch (step.kind) {
    case Kind::known:
      run_known(step, pieces);
      return {};
    case Kind::prefix_space:
      rewrite(pieces, [](std::string_view piece, size_t, std::string& out) {
        if (!piece.starts_with(' ')) out += ' ';
        out.append(piece);
      });
      return {};
    case Kind::byte_level:
      rewrite(pieces, [](std::string_view piece, size_t, std::string& out) {
        for (char c : piece) out += byte_level_char(static_cast<uint8_t>(c));
      });
      return {};
    case Kind::metaspace:
      run_metaspace(step, pieces);
      return {};
    case Kind::split:
    case Kind::digits:
    case Kind::punctuation:
    case Kind::whitespace:
    case Kind::whitespace_split:
    case Kind::bert:
    case Kind::fixed_length:
      return run_split(step, scratch, pieces);
  }
  return {};
}

}  // namespace

Result<void> pre_tokenize(const std::vector<PreTokenizerStep>& steps,
                          RegexScratch& scratch,
                          Pieces& pieces) {
  for (const PreTokenizerStep& step : steps) {
    if (auto ok = run_step(step, scratch, pieces); !ok) return ok.error();
  }
  return {};
}

}  // namespace sluice

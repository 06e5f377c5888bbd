#include "text/regex.h"

#include <algorithm>
#include <chrono>

#include "base/str.h"
#include "text/unicode.h"

namespace sluice {

namespace {

// An encode may take this long in one pattern, and so much more per byte of text: far more than
// any pattern that people use, far less than a hang.
constexpr std::chrono::nanoseconds kTimeLimit = std::chrono::seconds(2), kTimePerByte{2000};
constexpr size_t kAttemptsBetweenLooks = 64;

// The end of the one match at pos, or npos.
size_t class_match(const ClassPattern& p, std::string_view text, size_t pos, size_t first_set) {
  for (size_t i = first_set; i + 1 < p.sets.size(); ++i) {
    CodePoint c = code_point_at(text, pos);
    if (c.size == 0 || !p.sets[i].has(c.value)) return text.npos;
    pos += c.size;
  }
  const CharSet& last = p.sets.back();
  size_t count = 0, end = p.line_end ? text.npos : pos;
  for (CodePoint c = code_point_at(text, pos); count < p.max && c.size != 0 && last.has(c.value);
       c = code_point_at(text, pos)) {
    pos += c.size;
    ++count;
    if (!p.line_end) {
      end = pos;
    } else if (count >= p.min && (pos == text.size() || text[pos] == '\n')) {
      end = pos;
    }
  }
  return count >= p.min ? end : text.npos;
}

}  // namespace

void CharSet::index() {
  for (char32_t c = 0; c < 0x80; ++c) {
    if (find(c)) ascii[c / 64] |= uint64_t{1} << c % 64;
  }
}

bool CharSet::find(char32_t c) const {
  bool in = (categories >> static_cast<uint32_t>(category(c)) & 1) != 0 ||
            (space && char_class(c) == CharClass::space);
  for (size_t i = 0; i < ranges.size() && !in; ++i) {
    in = c >= ranges[i].first && c <= ranges[i].second;
  }
  return in != negated;
}

Result<std::shared_ptr<const Regex>> Regex::compile(std::string_view pattern) {
  auto regex = std::make_shared<Regex>();
  regex->pattern_ = pattern;
  regex->classes_ = parse_class_pattern(pattern);
  if (regex->classes_) return std::shared_ptr<const Regex>(std::move(regex));
  auto failed = [&](const std::string& why) {
    return Error{400,
                 strf("the pattern %s cannot be used: %s", quote(pattern).c_str(), why.c_str())};
  };
  Result<std::string> translated = translate_pattern(pattern);
  if (!translated) return failed(translated.error().message);
  Result<std::unique_ptr<RegexProgram>> program = RegexProgram::compile(*translated);
  if (!program) return failed(program.error().message);
  regex->program_ = std::move(*program);
  return std::shared_ptr<const Regex>(std::move(regex));
}

void Regex::find_classes(std::string_view text, std::vector<TextRange>& out) const {
  const ClassPattern& p = *classes_;
  for (size_t pos = 0; pos < text.size();) {
    size_t end = class_match(p, text, pos, 0);
    if (end == text.npos && p.optional_first) end = class_match(p, text, pos, 1);
    if (end != text.npos && end > pos) {
      out.push_back({static_cast<uint32_t>(pos), static_cast<uint32_t>(end)});
      pos = end;
      continue;
    }
    CodePoint c = code_point_at(text, pos);
    // What does not reach the end of its line from here does not from further on.
    while (p.line_end && c.size != 0 && p.sets.size() == 1 && p.max > 1 && p.sets[0].has(c.value)) {
      c = code_point_at(text, pos += c.size);
      if (c.size != 0 && c.value == '\n') break;
    }
    pos += c.size;
  }
}

Result<void> Regex::find_all(std::string_view text,
                             RegexScratch& scratch,
                             std::vector<TextRange>& out) const {
  out.clear();
  if (classes_) {
    find_classes(text, out);
    return {};
  }
  using Clock = std::chrono::steady_clock;
  Clock::time_point deadline = {};
  size_t attempts = 0;
  bool after_match = false;  // the last match ended at pos
  for (size_t pos = 0; pos <= text.size();) {
    if (++attempts % kAttemptsBetweenLooks == 0) {
      Clock::time_point now = Clock::now();
      if (deadline == Clock::time_point()) {
        deadline = now + kTimeLimit + kTimePerByte * static_cast<int64_t>(text.size());
      }
      if (now > deadline) attempts = 0;
    }
    size_t end = pos;
    auto outcome =
        attempts == 0 ? RegexProgram::Outcome::too_much : program_->match(text, pos, scratch, end);
    if (outcome == RegexProgram::Outcome::too_much) {
      return Error{400, strf("the tokenizer's pattern %s takes too long on this text",
                             quote(pattern_).c_str())};
    }
    if (outcome == RegexProgram::Outcome::match && !(end == pos && after_match)) {
      out.push_back({static_cast<uint32_t>(pos), static_cast<uint32_t>(end)});
      after_match = true;
      pos = end;
      continue;
    }
    after_match = false;
    pos += std::max<size_t>(code_point_at(text, pos).size, 1);
  }
  return {};
}

}  // namespace sluice

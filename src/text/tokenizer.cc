#include "text/tokenizer.h"

#include <algorithm>
#include <functional>

#include "base/str.h"
#include "text/unicode.h"

namespace sluice {

namespace {

constexpr size_t kMaxText = size_t{1} << 30;  // offsets are 32 bits; no context is near

// Words repeat: a piece seen before in the same text takes the tokens it gave then, out of the
// output itself. Halves the time of long prose; short texts go without.
class PieceCache {
 public:
  PieceCache(std::string_view text, std::vector<Token>& out) : text_(text), out_(out) {
    if (text.size() >= kMinText) slots_.resize(kNumSlots);
  }

  // Appends the tokens of text[begin, begin + size) where they are known.
  bool repeat(size_t begin, size_t size) {
    if (!caches(size)) return false;
    const Slot& slot = slot_of(begin, size);
    if (slot.size != size || text_.substr(slot.begin, size) != text_.substr(begin, size)) {
      return false;
    }
    for (uint32_t i = 0; i < slot.num_tokens; ++i) {
      Token t = out_[slot.first + i];
      out_.push_back(t);
    }
    return true;
  }
  // They are the tokens in the output from `first` on.
  void remember(size_t begin, size_t size, size_t first) {
    if (!caches(size)) return;
    slot_of(begin, size) = {static_cast<uint32_t>(begin), static_cast<uint32_t>(size),
                            static_cast<uint32_t>(first),
                            static_cast<uint32_t>(out_.size() - first)};
  }

 private:
  static constexpr size_t kMinText = 2048, kNumSlots = 4096, kMinPiece = 2, kMaxPiece = 48;
  struct Slot {
    uint32_t begin = 0, size = 0, first = 0, num_tokens = 0;
  };

  bool caches(size_t size) const {
    return !slots_.empty() && size >= kMinPiece && size <= kMaxPiece;
  }
  Slot& slot_of(size_t begin, size_t size) {
    return slots_[std::hash<std::string_view>()(text_.substr(begin, size)) % kNumSlots];
  }

  std::string_view text_;
  std::vector<Token>& out_;
  std::vector<Slot> slots_;
};

// Per byte of text[begin, end); empty where all are trusted.
std::vector<uint8_t> trust_bytes(size_t begin, size_t end, TrustRuns trust) {
  std::vector<uint8_t> out;
  bool trusted = trust.first_trusted, all = true;
  size_t run_begin = 0;
  for (size_t run_end : trust.ends) {
    size_t from = std::max(run_begin, begin), to = std::min(run_end, end);
    if (from < to) {
      out.resize(to - begin, trusted ? 1 : 0);
      all = all && trusted;
    }
    run_begin = run_end;
    trusted = !trusted;
  }
  if (all) out.clear();
  return out;
}

// The same as runs.
std::vector<size_t> trust_ends(const NormalText& text) {
  std::vector<size_t> ends;
  for (size_t i = 1; i < text.trusted.size(); ++i) {
    if (text.trusted[i] != text.trusted[i - 1]) ends.push_back(i);
  }
  ends.push_back(text.text.size());
  return ends;
}

}  // namespace

std::string_view Tokenizer::bytes(Token t) const {
  if (!contains(t)) return {};
  return std::string_view(bytes_).substr(bytes_at_[t], bytes_at_[t + 1] - bytes_at_[t]);
}

size_t Tokenizer::counted_bytes(std::string_view text) const {
  size_t dropped = 0;
  for (char c : text) dropped += dropped_[static_cast<uint8_t>(c)];
  return text.size() - dropped;
}

std::string_view Tokenizer::spelling(Token t) const {
  return contains(t) ? std::string_view(spec_.tokens[t]) : std::string_view();
}

bool Tokenizer::is_control(Token t) const {
  return contains(t) &&
         (spec_.types[t] == TokenType::control || spec_.types[t] == TokenType::unknown);
}

bool Tokenizer::is_eog(Token t) const { return std::binary_search(eog_.begin(), eog_.end(), t); }

std::optional<Token> Tokenizer::find(std::string_view spelling) const {
  auto it = by_spelling_.find(spelling);
  return it == by_spelling_.end() ? std::nullopt : std::optional<Token>(it->second);
}

Result<std::vector<Token>> Tokenizer::encode(std::string_view text,
                                             EncodeOptions options,
                                             bool trusted) const {
  size_t end = text.size();
  return encode_runs(text, {std::span(&end, 1), trusted}, options);
}

Result<std::vector<Token>> Tokenizer::encode(std::span<const TextSegment> segments,
                                             EncodeOptions options) const {
  size_t size = 0;
  for (const TextSegment& s : segments) size += s.text.size();
  std::string text;
  text.reserve(size);
  // Runs alternate between trusted and not; empty segments part nothing.
  std::vector<size_t> run_ends;
  bool first_trusted = false, trusted = false;
  for (const TextSegment& s : segments) {
    if (s.text.empty()) continue;
    if (text.empty()) {
      first_trusted = trusted = s.trusted;
    } else if (s.trusted != trusted) {
      run_ends.push_back(text.size());
      trusted = s.trusted;
    }
    text += s.text;
  }
  run_ends.push_back(text.size());
  return encode_runs(text, {run_ends, first_trusted}, options);
}

Result<std::vector<Token>> Tokenizer::encode_runs(std::string_view text,
                                                  TrustRuns trust,
                                                  EncodeOptions options) const {
  if (text.size() > kMaxText) {
    return Error{400,
                 strf("text of %zu bytes is too long; the limit is %zu", text.size(), kMaxText)};
  }
  if (std::optional<size_t> at = first_invalid_utf8(text)) {
    return Error{400, strf("text is not valid UTF-8: byte %zu (0x%02X) begins no character", *at,
                           static_cast<uint8_t>(text[*at]))};
  }
  std::vector<Token> out;
  Scratch scratch;
  raw_specials_.find_all(text, trust, scratch.raw_hits);
  size_t pos = 0;
  for (const SpecialTokens::Hit& hit : scratch.raw_hits) {
    if (auto ok = encode_raw(text, pos, hit.begin, trust, scratch, out); !ok) return ok.error();
    out.push_back(hit.token);
    pos = hit.end;
  }
  if (auto ok = encode_raw(text, pos, text.size(), trust, scratch, out); !ok) return ok.error();
  if (options.add_special) {
    const std::vector<Token>& prefix = spec_.prefix;
    bool there =
        out.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), out.begin());
    if (!there) out.insert(out.begin(), prefix.begin(), prefix.end());
    out.insert(out.end(), spec_.suffix.begin(), spec_.suffix.end());
  }
  return out;
}

Result<void> Tokenizer::encode_raw(std::string_view text,
                                   size_t begin,
                                   size_t end,
                                   TrustRuns trust,
                                   Scratch& scratch,
                                   std::vector<Token>& out) const {
  if (begin >= end) return {};
  NormalText normal;
  normal.text = text.substr(begin, end - begin);
  normal.at_start = begin == 0;
  if (asks_trust_) normal.trusted = trust_bytes(begin, end, trust);
  if (auto ok = normalize(spec_.normalizer, scratch.regex, normal); !ok) return ok.error();
  scratch.model.take_symbols = model_->takes_symbols() && normal.trusted.empty();
  if (normal_specials_.empty() || scratch.model.take_symbols) {
    return encode_plain(normal.text, normal.at_start, scratch, out);
  }
  std::vector<size_t> ends = trust_ends(normal);
  bool first_trusted = normal.trusted.empty() || normal.trusted[0] != 0;
  normal_specials_.find_all(normal.text, {ends, first_trusted}, scratch.normal_hits);
  size_t pos = 0;
  auto plain = [&](size_t to) -> Result<void> {
    if (pos >= to) return {};
    return encode_plain(normal.text.substr(pos, to - pos), normal.at_start && pos == 0, scratch,
                        out);
  };
  for (const SpecialTokens::Hit& hit : scratch.normal_hits) {
    if (auto ok = plain(hit.begin); !ok) return ok.error();
    out.push_back(hit.token);
    pos = hit.end;
  }
  return plain(normal.text.size());
}

Result<void> Tokenizer::encode_plain(std::string_view text,
                                     bool at_start,
                                     Scratch& scratch,
                                     std::vector<Token>& out) const {
  if (text.empty()) return {};
  Pieces pieces;
  pieces.text = text;
  pieces.at_start = at_start;
  pieces.ends = std::move(scratch.ends);
  pieces.ends.assign(1, static_cast<uint32_t>(text.size()));
  auto split = pre_tokenize(spec_.pre_tokenizer, scratch.regex, pieces);
  if (!split) return split.error();
  text = pieces.text;
  if (model_->cuts()) {
    std::vector<uint32_t> ends;
    size_t begin = 0;
    for (uint32_t end : pieces.ends) {
      model_->cut(text.substr(begin, end - begin), begin, ends);
      begin = end;
    }
    pieces.ends = std::move(ends);
  }
  PieceCache cache(text, out);
  size_t begin = 0;
  for (uint32_t end : pieces.ends) {
    if (!cache.repeat(begin, end - begin)) {
      size_t first = out.size();
      if (!model_->encode(text.substr(begin, end - begin), scratch.model, out)) {
        return Error{400,
                     "the text has a character that the vocabulary lacks, and there is no "
                     "unknown token"};
      }
      cache.remember(begin, end - begin, first);
    }
    begin = end;
  }
  scratch.ends = std::move(pieces.ends);
  return {};
}

}  // namespace sluice

#include "text/tokenizer.h"

#include <algorithm>
#include <functional>

#include "base/str.h"
#include "text/unicode.h"

namespace sluice {

namespace {
constexpr size_t kMaxText = size_t{1} << 30;  // offsets are 32 bits; no context is near
constexpr char32_t kSpmSpace = 0x2581;

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

}  // namespace

std::string_view Tokenizer::bytes(Token t) const {
  if (!contains(t)) return {};
  return std::string_view(bytes_).substr(bytes_at_[t], bytes_at_[t + 1] - bytes_at_[t]);
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
  return encode_runs(text, std::span(&end, 1), trusted, options);
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
  return encode_runs(text, run_ends, first_trusted, options);
}

Result<std::vector<Token>> Tokenizer::encode_runs(std::string_view text,
                                                  std::span<const size_t> run_ends,
                                                  bool first_trusted,
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
  size_t begin = 0;  // of the plain text not yet encoded
  size_t pos = 0;
  for (size_t run = 0; run < run_ends.size(); ++run) {
    const bool trusted = first_trusted == (run % 2 == 0);
    while (pos < run_ends[run]) {
      if (!specials_.may_start(text[pos])) {
        ++pos;
        continue;
      }
      size_t allowed = trusted ? run_ends[run] - pos : 0;
      SpecialTokens::Match m = specials_.match(text.substr(pos), allowed);
      if (m.token == kNoToken) {
        ++pos;
        continue;
      }
      encode_plain(text.substr(begin, pos - begin), scratch, out);
      out.push_back(m.token);
      begin = pos += m.size;
    }
  }
  encode_plain(text.substr(begin), scratch, out);
  if (options.add_special) {
    if (adds_bos() && (out.empty() || out.front() != spec_.bos)) out.insert(out.begin(), spec_.bos);
    if (spec_.add_eos && spec_.eos != kNoToken) out.push_back(spec_.eos);
  }
  return out;
}

void Tokenizer::encode_plain(std::string_view text,
                             Scratch& scratch,
                             std::vector<Token>& out) const {
  if (text.empty()) return;
  std::string changed;
  if (spec_.kind == VocabSpec::Kind::bpe) {
    if (pre_->nfc) {
      if (std::optional<std::string> normal = to_nfc(text)) text = changed = std::move(*normal);
    }
    pre_tokenize(*pre_, text, scratch.ends);
  } else {
    if (spec_.add_space_prefix) text = changed.append(" ").append(text);
    split_spm_words(text, scratch.ends);
  }
  PieceCache cache(text, out);
  size_t begin = 0;
  for (uint32_t end : scratch.ends) {
    std::string_view piece = text.substr(begin, end - begin);
    if (!cache.repeat(begin, piece.size())) {
      size_t first = out.size();
      if (spec_.kind == VocabSpec::Kind::bpe) {
        encode_bpe_piece(piece, scratch, out);
      } else {
        encode_spm_piece(piece, scratch, out);
      }
      cache.remember(begin, piece.size(), first);
    }
    begin = end;
  }
}

void Tokenizer::encode_bpe_piece(std::string_view piece,
                                 Scratch& scratch,
                                 std::vector<Token>& out) const {
  if (pre_->ignore_merges) {
    if (auto it = whole_.find(piece); it != whole_.end()) return out.push_back(it->second);
  }
  scratch.symbols.clear();
  for (char c : piece) {
    // A byte without a token is left out before merging, as training did.
    Token t = byte_tokens_[static_cast<uint8_t>(c)];
    if (t != kNoToken) scratch.symbols.push_back(t);
  }
  merge_pairs(pairs_, scratch.symbols, nullptr, scratch.merge);
  out.insert(out.end(), scratch.symbols.begin(), scratch.symbols.end());
}

void Tokenizer::split_spm_words(std::string_view text, std::vector<uint32_t>& ends) const {
  ends.clear();
  bool after_space = true;
  for (size_t pos = 0; pos < text.size() && split_words_;) {
    CodePoint p = code_point_at(text, pos);
    bool space = p.value == ' ' || p.value == kSpmSpace;
    if (space && !after_space) ends.push_back(static_cast<uint32_t>(pos));
    after_space = space;
    pos += p.size;
  }
  ends.push_back(static_cast<uint32_t>(text.size()));
}

void Tokenizer::encode_spm_piece(std::string_view piece,
                                 Scratch& scratch,
                                 std::vector<Token>& out) const {
  scratch.symbols.clear();
  scratch.sources.clear();
  for (size_t pos = 0; pos < piece.size();) {
    CodePoint p = code_point_at(piece, pos);
    auto it = chars_.find(p.value == ' ' ? kSpmSpace : p.value);
    scratch.symbols.push_back(it == chars_.end() ? kNoToken : it->second);
    scratch.sources.push_back(static_cast<uint32_t>(pos));
    pos += p.size;
  }
  merge_pairs(pairs_, scratch.symbols, &scratch.sources, scratch.merge);
  bool unknown_open = false;  // adjacent unknown characters are one unknown token
  for (size_t i = 0; i < scratch.symbols.size(); ++i) {
    Token symbol = scratch.symbols[i];
    if (contains(symbol)) {
      out.push_back(symbol);
      unknown_open = false;
      continue;
    }
    size_t at = scratch.sources[i];
    std::string_view character = piece.substr(at, code_point_at(piece, at).size);
    auto has_token = [&](char c) { return byte_tokens_[static_cast<uint8_t>(c)] != kNoToken; };
    if (std::all_of(character.begin(), character.end(), has_token)) {
      for (char c : character) out.push_back(byte_tokens_[static_cast<uint8_t>(c)]);
      unknown_open = false;
    } else if (!unknown_open) {
      out.push_back(spec_.unk);
      unknown_open = true;
    }
  }
}

}  // namespace sluice

#include "text/tokenizer.h"

#include <algorithm>

#include "base/str.h"
#include "text/unicode.h"

namespace sluice {

namespace {
constexpr size_t kMaxText = size_t{1} << 30;  // offsets are 32 bits; no context is near
constexpr char32_t kSpmSpace = 0x2581;
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
  switch (spec_.kind) {
    case VocabSpec::Kind::bpe:
      return encode_bpe(text, scratch, out);
    case VocabSpec::Kind::spm:
      return encode_spm(text, scratch, out);
  }
}

void Tokenizer::encode_bpe(std::string_view text, Scratch& scratch, std::vector<Token>& out) const {
  std::optional<std::string> normal;
  if (pre_->nfc) normal = to_nfc(text);
  if (normal) text = *normal;
  pre_tokenize(*pre_, text, scratch.ends);
  size_t begin = 0;
  for (uint32_t end : scratch.ends) {
    std::string_view piece = text.substr(begin, end - begin);
    begin = end;
    if (pre_->ignore_merges) {
      if (auto it = whole_.find(piece); it != whole_.end()) {
        out.push_back(it->second);
        continue;
      }
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
}

void Tokenizer::encode_spm(std::string_view text, Scratch& scratch, std::vector<Token>& out) const {
  std::string prefixed;
  if (spec_.add_space_prefix) {
    prefixed.reserve(text.size() + 1);
    prefixed += ' ';
    prefixed += text;
    text = prefixed;
  }
  scratch.symbols.clear();
  scratch.sources.clear();
  bool after_space = true;
  for (size_t pos = 0; pos < text.size();) {
    CodePoint p = code_point_at(text, pos);
    char32_t c = p.value == ' ' ? kSpmSpace : p.value;
    if (c == kSpmSpace && !after_space && split_words_) emit_spm_word(text, scratch, out);
    after_space = c == kSpmSpace;
    auto it = chars_.find(c);
    scratch.symbols.push_back(it == chars_.end() ? kNoToken : it->second);
    scratch.sources.push_back(static_cast<uint32_t>(pos));
    pos += p.size;
  }
  emit_spm_word(text, scratch, out);
}

void Tokenizer::emit_spm_word(std::string_view text,
                              Scratch& scratch,
                              std::vector<Token>& out) const {
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
    std::string_view character = text.substr(at, code_point_at(text, at).size);
    auto has_token = [&](char c) { return byte_tokens_[static_cast<uint8_t>(c)] != kNoToken; };
    if (std::all_of(character.begin(), character.end(), has_token)) {
      for (char c : character) out.push_back(byte_tokens_[static_cast<uint8_t>(c)]);
      unknown_open = false;
    } else if (!unknown_open) {
      out.push_back(spec_.unk);
      unknown_open = true;
    }
  }
  scratch.symbols.clear();
  scratch.sources.clear();
}

}  // namespace sluice

// Tokenizer::make: checks a VocabSpec and turns it into lookup tables.
#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>

#include "base/str.h"
#include "text/byte_level.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace sluice {

namespace {

constexpr size_t kMaxTokens = size_t{1} << 24;
constexpr size_t kMaxVocabBytes = size_t{1} << 30;
constexpr size_t kMaxSpmPiece = 1024;  // bytes; splitting a piece every way is quadratic
constexpr std::string_view kSpmSpaceUtf8 = "\xE2\x96\x81";

constexpr std::string_view kEogSpellings[] = {
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<|end_of_turn|>",
    "<end_of_utterance>",
    "<EOT>",
    "<|END_OF_TURN_TOKEN|>",
    "<｜end▁of▁sentence｜>",
};

// "<0x0A>" -> 10
std::optional<uint8_t> byte_token_value(std::string_view s) {
  if (s.size() != 6 || s.substr(0, 3) != "<0x" || s[5] != '>') return std::nullopt;
  int value = 0;
  for (char c : s.substr(3, 2)) {
    int digit = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                       : -1;
    if (digit < 0) return std::nullopt;
    value = value * 16 + digit;
  }
  return static_cast<uint8_t>(value);
}

bool all_white_space(std::string_view s) {
  if (s.empty() || !valid_utf8(s)) return false;
  for (size_t pos = 0; pos < s.size();) {
    CodePoint p = code_point_at(s, pos);
    if (p.cls != CharClass::space) return false;
    pos += p.size;
  }
  return true;
}

// A space inside or at the end of a piece, after something that is not a space.
bool space_after_text(std::string_view piece) {
  while (piece.substr(0, kSpmSpaceUtf8.size()) == kSpmSpaceUtf8) {
    piece.remove_prefix(kSpmSpaceUtf8.size());
  }
  return piece.find(kSpmSpaceUtf8) != piece.npos;
}

}  // namespace

Tokenizer::Tokenizer(VocabSpec spec) : spec_(std::move(spec)) {
  std::fill(std::begin(byte_tokens_), std::end(byte_tokens_), kNoToken);
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::make(VocabSpec spec) {
  if (spec.types.empty()) spec.types.assign(spec.tokens.size(), TokenType::normal);
  std::unique_ptr<Tokenizer> t(new Tokenizer(std::move(spec)));
  if (auto ok = t->check_spec(); !ok) return ok.error();
  t->index_tokens();
  t->collect_specials();
  t->collect_eog();
  auto built = t->spec_.kind == VocabSpec::Kind::bpe ? t->build_bpe() : t->build_spm();
  if (!built) return built.error();
  t->spec_.merges = {};
  t->spec_.scores = {};
  return t;
}

Result<void> Tokenizer::check_spec() const {
  const size_t n = spec_.tokens.size();
  if (n == 0) return Error{400, "the vocabulary has no tokens"};
  if (n > kMaxTokens) {
    return Error{400, strf("the vocabulary has %zu tokens; the limit is %zu", n, kMaxTokens)};
  }
  if (spec_.types.size() != n) {
    return Error{400,
                 strf("the vocabulary has %zu tokens but %zu token types", n, spec_.types.size())};
  }
  size_t bytes = 0;
  for (const std::string& s : spec_.tokens) bytes += s.size();
  if (bytes > kMaxVocabBytes) {
    return Error{400, strf("the vocabulary's tokens have %zu bytes; the limit is %zu", bytes,
                           kMaxVocabBytes)};
  }
  const std::pair<const char*, Token> ids[] = {{"bos", spec_.bos},
                                               {"eos", spec_.eos},
                                               {"eot", spec_.eot},
                                               {"unknown", spec_.unk},
                                               {"padding", spec_.pad}};
  for (const auto& [name, id] : ids) {
    if (id != kNoToken && !contains(id)) {
      return Error{400, strf("%s token %d is outside the vocabulary of %zu tokens", name, id, n)};
    }
  }
  return {};
}

std::string Tokenizer::token_bytes(Token t) const {
  const std::string& text = spec_.tokens[t];
  const TokenType type = spec_.types[t];
  if (type == TokenType::control || type == TokenType::unknown) return text;
  if (spec_.kind == VocabSpec::Kind::bpe) {
    if (type == TokenType::user_defined) return text;
    return byte_level_decode(text).value_or(text);
  }
  if (type == TokenType::byte) {
    if (std::optional<uint8_t> b = byte_token_value(text)) return std::string(1, char(*b));
  }
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    size_t space = std::min(text.find(kSpmSpaceUtf8, pos), text.size());
    out.append(text, pos, space - pos);
    if (space < text.size()) out += ' ';
    pos = space + kSpmSpaceUtf8.size();
  }
  return out;
}

void Tokenizer::index_tokens() {
  by_spelling_.reserve(spec_.tokens.size());
  bytes_at_.reserve(spec_.tokens.size() + 1);
  for (Token t = 0; t < size(); ++t) {
    bytes_at_.push_back(static_cast<uint32_t>(bytes_.size()));
    bytes_ += token_bytes(t);
    // Of two tokens spelled alike, the one that merging may build is the one meant.
    auto [it, fresh] = by_spelling_.try_emplace(spec_.tokens[t], t);
    if (!fresh && mergeable(t) && !mergeable(it->second)) it->second = t;
  }
  bytes_at_.push_back(static_cast<uint32_t>(bytes_.size()));
}

void Tokenizer::collect_specials() {
  for (Token t = 0; t < size(); ++t) {
    const TokenType type = spec_.types[t];
    if (type == TokenType::normal || type == TokenType::unused || type == TokenType::byte) continue;
    std::string_view text = bytes(t);
    if (text.empty() || !valid_utf8(text)) continue;
    specials_.add(text, t, type == TokenType::user_defined && all_white_space(text));
  }
}

void Tokenizer::collect_eog() {
  for (std::string_view s : kEogSpellings) {
    std::optional<Token> t = find(s);
    if (t &&
        (spec_.types[*t] == TokenType::control || spec_.types[*t] == TokenType::user_defined)) {
      eog_.push_back(*t);
    }
  }
  for (Token t : {spec_.eos, spec_.eot}) {
    if (t != kNoToken) eog_.push_back(t);
  }
  std::sort(eog_.begin(), eog_.end());
  eog_.erase(std::unique(eog_.begin(), eog_.end()), eog_.end());
}

Result<void> Tokenizer::build_bpe() {
  pre_ = find_pre_tokenizer(spec_.pre);
  if (pre_ == nullptr) {
    return Error{400, strf("unknown pre-tokenizer %s; known: %s", quote(spec_.pre).c_str(),
                           known_pre_tokenizers().c_str())};
  }
  auto normal = [&](std::string_view s) -> Token {
    std::optional<Token> t = find(s);
    return t && mergeable(*t) ? *t : kNoToken;
  };
  for (int b = 0; b < 256; ++b) byte_tokens_[b] = normal(byte_level_char(static_cast<uint8_t>(b)));
  pairs_ = PairTable(spec_.merges.size());
  std::string joined;
  for (size_t rank = 0; rank < spec_.merges.size(); ++rank) {
    const std::string_view merge = spec_.merges[rank];
    size_t space = merge.find(' ', 1);
    if (space == merge.npos || space + 1 == merge.size()) {
      return Error{400, strf("merge %zu (%s) is not two tokens with a space between; the file is "
                             "damaged",
                             rank, quote(merge).c_str())};
    }
    joined.assign(merge.substr(0, space)).append(merge.substr(space + 1));
    Token left = normal(merge.substr(0, space)), right = normal(merge.substr(space + 1));
    Token merged = normal(joined);
    if (left == kNoToken || right == kNoToken || merged == kNoToken) {
      return Error{400, strf("merge %zu (%s) uses or makes a token that the vocabulary lacks; the "
                             "file is damaged",
                             rank, quote(merge).c_str())};
    }
    pairs_.insert({left, right, static_cast<uint32_t>(rank), merged});
  }
  if (pre_->ignore_merges) {
    whole_.reserve(spec_.tokens.size());
    for (Token t = 0; t < size(); ++t) {
      if (mergeable(t) && !bytes(t).empty()) whole_.try_emplace(bytes(t), t);
    }
  }
  return {};
}

Result<void> Tokenizer::build_spm() {
  if (spec_.scores.size() != spec_.tokens.size()) {
    return Error{400, strf("the vocabulary has %zu tokens but %zu scores", spec_.tokens.size(),
                           spec_.scores.size())};
  }
  for (float s : spec_.scores) {
    if (std::isnan(s)) return Error{400, "the vocabulary has a score that is not a number"};
  }
  Result<std::vector<Token>> pieces = index_spm_pieces();
  if (!pieces) return pieces.error();
  if (spec_.unk == kNoToken && std::find(std::begin(byte_tokens_), std::end(byte_tokens_),
                                         kNoToken) != std::end(byte_tokens_)) {
    return Error{400, "the vocabulary has neither all 256 byte tokens nor an unknown token"};
  }
  build_spm_pairs(*pieces);
  return {};
}

// Finds byte tokens, single characters, and the longer pieces that merging may build (returned).
Result<std::vector<Token>> Tokenizer::index_spm_pieces() {
  split_words_ = true;
  std::vector<Token> pieces;
  for (Token t = 0; t < size(); ++t) {
    const std::string& s = spec_.tokens[t];
    if (spec_.types[t] == TokenType::byte) {
      if (std::optional<uint8_t> b = byte_token_value(s)) byte_tokens_[*b] = t;
    }
    if (!mergeable(t) || s.empty() || by_spelling_.at(s) != t || !valid_utf8(s)) continue;
    if (s.size() > kMaxSpmPiece) {
      return Error{400,
                   strf("token %d has %zu bytes; the limit is %zu", t, s.size(), kMaxSpmPiece)};
    }
    if (code_point_at(s, 0).size == s.size()) {
      chars_[code_point_at(s, 0).value] = t;
    } else {
      pieces.push_back(t);
      split_words_ = split_words_ && !space_after_text(s);
    }
  }
  Token next_symbol = size();
  for (Token t : pieces) {
    const std::string& s = spec_.tokens[t];
    for (size_t pos = 0; pos < s.size();) {
      CodePoint p = code_point_at(s, pos);
      if (chars_.try_emplace(p.value, next_symbol).second) ++next_symbol;
      pos += p.size;
    }
  }
  return pieces;
}

// Every way to make a piece of two symbols, ranked by the piece's score.
void Tokenizer::build_spm_pairs(const std::vector<Token>& pieces) {
  std::vector<float> order = spec_.scores;  // descending: a score's place is its rank
  std::sort(order.begin(), order.end(), std::greater<>());
  order.erase(std::unique(order.begin(), order.end()), order.end());
  auto symbol = [&](std::string_view s) -> Token {
    CodePoint p = code_point_at(s, 0);
    if (p.size == s.size()) return chars_.at(p.value);
    auto it = by_spelling_.find(s);
    return it != by_spelling_.end() && mergeable(it->second) ? it->second : kNoToken;
  };
  std::vector<PairTable::Entry> entries;
  for (Token t : pieces) {
    const std::string_view s = spec_.tokens[t];
    auto place = std::lower_bound(order.begin(), order.end(), spec_.scores[t], std::greater<>());
    for (size_t pos = code_point_at(s, 0).size; pos < s.size(); pos += code_point_at(s, pos).size) {
      Token left = symbol(s.substr(0, pos));
      if (left == kNoToken) continue;
      Token right = symbol(s.substr(pos));
      if (right == kNoToken) continue;
      entries.push_back({left, right, static_cast<uint32_t>(place - order.begin()), t});
    }
  }
  pairs_ = PairTable(entries.size());
  for (const PairTable::Entry& e : entries) pairs_.insert(e);
}

}  // namespace sluice

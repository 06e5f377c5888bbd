#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>

#include "base/str.h"
#include "text/bpe.h"
#include "text/unicode.h"

namespace sluice {

namespace {
constexpr size_t kMaxPiece = 1024;  // bytes; splitting a piece every way is quadratic
}  // namespace

Result<std::unique_ptr<TextModel>> ScoreBpe::make(const VocabView& vocab,
                                                  const std::vector<float>& scores,
                                                  Token unk) {
  if (scores.size() != vocab.tokens.size()) {
    return Error{400, strf("the vocabulary has %zu tokens but %zu scores", vocab.tokens.size(),
                           scores.size())};
  }
  for (float s : scores) {
    if (std::isnan(s)) return Error{400, "the vocabulary has a score that is not a number"};
  }
  std::unique_ptr<ScoreBpe> model(new ScoreBpe(unk));
  model->num_tokens_ = static_cast<Token>(vocab.tokens.size());
  std::fill(std::begin(model->byte_tokens_), std::end(model->byte_tokens_), kNoToken);
  Result<std::vector<Token>> pieces = model->index_pieces(vocab);
  if (!pieces) return pieces.error();
  if (unk == kNoToken && std::find(std::begin(model->byte_tokens_), std::end(model->byte_tokens_),
                                   kNoToken) != std::end(model->byte_tokens_)) {
    return Error{400, "the vocabulary has neither all 256 byte tokens nor an unknown token"};
  }
  model->index_pairs(vocab, scores, *pieces);
  return std::unique_ptr<TextModel>(std::move(model));
}

// Finds byte tokens, single characters, and the longer pieces that merging may build (returned).
Result<std::vector<Token>> ScoreBpe::index_pieces(const VocabView& vocab) {
  std::vector<Token> pieces;
  for (Token t = 0; t < num_tokens_; ++t) {
    const std::string& s = vocab.tokens[t];
    if (vocab.types[t] == TokenType::byte) {
      if (std::optional<uint8_t> b = byte_token_value(s)) byte_tokens_[*b] = t;
    }
    if (s.empty() || vocab.find(s) != t || !valid_utf8(s)) continue;
    if (s.size() > kMaxPiece) {
      return Error{400, strf("token %d has %zu bytes; the limit is %zu", t, s.size(), kMaxPiece)};
    }
    if (code_point_at(s, 0).size == s.size()) {
      chars_[code_point_at(s, 0).value] = t;
    } else {
      pieces.push_back(t);
      spaces_.add(s);
    }
  }
  // A known U+2581 ends a run of unknown characters, so that text may be cut before it.
  cuts_ = chars_.contains(0x2581);
  Token next_symbol = num_tokens_;
  for (Token t : pieces) {
    const std::string& s = vocab.tokens[t];
    for (size_t pos = 0; pos < s.size();) {
      CodePoint p = code_point_at(s, pos);
      if (chars_.try_emplace(p.value, next_symbol).second) ++next_symbol;
      pos += p.size;
    }
  }
  return pieces;
}

// Every way to make a piece of two symbols, ranked by the piece's score.
void ScoreBpe::index_pairs(const VocabView& vocab,
                           const std::vector<float>& scores,
                           const std::vector<Token>& pieces) {
  std::vector<float> order = scores;  // descending: a score's place is its rank
  std::sort(order.begin(), order.end(), std::greater<>());
  order.erase(std::unique(order.begin(), order.end()), order.end());
  auto symbol = [&](std::string_view s) -> Token {
    CodePoint p = code_point_at(s, 0);
    return p.size == s.size() ? chars_.at(p.value) : vocab.find(s);
  };
  std::vector<PairTable::Entry> entries;
  for (Token t : pieces) {
    const std::string_view s = vocab.tokens[t];
    auto place = std::lower_bound(order.begin(), order.end(), scores[t], std::greater<>());
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

bool ScoreBpe::encode(std::string_view piece,
                      ModelScratch& scratch,
                      std::vector<Token>& out) const {
  scratch.symbols.clear();
  scratch.sources.clear();
  for (size_t pos = 0; pos < piece.size();) {
    CodePoint p = code_point_at(piece, pos);
    auto it = chars_.find(p.value);
    scratch.symbols.push_back(it == chars_.end() ? kNoToken : it->second);
    scratch.sources.push_back(static_cast<uint32_t>(pos));
    pos += p.size;
  }
  merge_pairs(pairs_, scratch.symbols, &scratch.sources, scratch.merge);
  bool unknown_open = false;  // adjacent unknown characters are one unknown token
  for (size_t i = 0; i < scratch.symbols.size(); ++i) {
    Token symbol = scratch.symbols[i];
    if (symbol >= 0 && symbol < num_tokens_) {
      out.push_back(symbol);
      unknown_open = false;
      continue;
    }
    size_t at = scratch.sources[i];
    std::string_view character = piece.substr(at, code_point_at(piece, at).size);
    if (character == "\xE2\x96\x81") character = " ";  // what it stands for
    auto has_token = [&](char c) { return byte_tokens_[static_cast<uint8_t>(c)] != kNoToken; };
    if (std::all_of(character.begin(), character.end(), has_token)) {
      for (char c : character) out.push_back(byte_tokens_[static_cast<uint8_t>(c)]);
      unknown_open = false;
    } else if (!unknown_open) {
      out.push_back(unk_);
      unknown_open = true;
    }
  }
  return true;
}

}  // namespace sluice

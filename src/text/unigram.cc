#include "text/unigram.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <iterator>
#include <limits>

#include "base/str.h"
#include "text/unicode.h"

namespace sluice {

namespace {
constexpr size_t kMaxPiece = 1024;  // bytes; the search is quadratic in it
constexpr double kUnknownPenalty = 10;
// SentencePiece (0.2.2 on): a symbol's score grows with its bytes, and a path's sum starts anew
// beyond a limit, so that long texts keep their precision.
constexpr double kSymbolByte = 0.1;
constexpr float kSumLimit = 100'000;

// Takes the sum at `start`, where it is beyond the limit, from all sums that may still grow. Places
// not reached yet have none: their first offer sets it.
void start_anew(size_t start, size_t reached, ModelScratch& s) {
  const auto sum = static_cast<float>(s.scores[start]);
  if (std::abs(sum) <= kSumLimit) return;
  for (size_t i = start; i <= reached; ++i) {
    s.scores[i] = static_cast<float>(s.scores[i]) - sum;
  }
}
}  // namespace

TokenTrie::TokenTrie(size_t num_bytes)
    : slots_(std::bit_ceil(num_bytes + num_bytes / 2 + 2)), mask_(slots_.size() - 1), tokens_(1) {
  tokens_[0] = kNoToken;
}

size_t TokenTrie::slot_of(uint32_t node, uint8_t byte) const {
  uint64_t key = uint64_t{node} << 8 | byte;
  size_t slot = (key * 0x9E3779B97F4A7C15u >> 29) & mask_;
  while (slots_[slot].child != kNone && (slots_[slot].node != node || slots_[slot].byte != byte)) {
    slot = (slot + 1) & mask_;
  }
  return slot;
}

void TokenTrie::insert(std::string_view key, Token token) {
  uint32_t node = kRoot;
  for (char c : key) {
    Slot& slot = slots_[slot_of(node, static_cast<uint8_t>(c))];
    if (slot.child == kNone) {
      slot = {node, static_cast<uint32_t>(tokens_.size()), static_cast<uint8_t>(c)};
      tokens_.push_back(kNoToken);
    }
    node = slot.child;
  }
  tokens_[node] = token;
}

uint32_t TokenTrie::step(uint32_t node, char c) const {
  return slots_[slot_of(node, static_cast<uint8_t>(c))].child;
}

Result<std::unique_ptr<TextModel>> Unigram::make(const VocabView& vocab,
                                                 std::vector<double> scores,
                                                 UnigramOptions options) {
  const size_t n = vocab.tokens.size();
  if (scores.size() > n || (options.sentencepiece && scores.size() < n)) {
    return Error{400, strf("the vocabulary has %zu tokens but %zu scores", n, scores.size())};
  }
  std::unique_ptr<Unigram> model(new Unigram(options));
  std::fill(std::begin(model->byte_tokens_), std::end(model->byte_tokens_), kNoToken);
  double lowest = options.sentencepiece ? double{FLT_MAX} : std::numeric_limits<double>::infinity();
  size_t bytes = 0;
  for (size_t t = 0; t < scores.size(); ++t) {
    if (!std::isfinite(scores[t])) {
      return Error{400, "the vocabulary has a score that is not a number"};
    }
    const TokenType type = vocab.types[t];
    if (!options.sentencepiece || type == TokenType::normal) lowest = std::min(lowest, scores[t]);
    bytes += vocab.tokens[t].size();
    bool in_trie =
        type == TokenType::normal || (options.sentencepiece && type == TokenType::user_defined);
    if (vocab.tokens[t].size() > kMaxPiece && in_trie) {
      return Error{400, strf("token %zu has %zu bytes; the limit is %zu", t, vocab.tokens[t].size(),
                             kMaxPiece)};
    }
    std::optional<uint8_t> b = byte_token_value(vocab.tokens[t]);
    if (!b) continue;
    bool spelled = vocab.tokens[t] == strf("<0x%02X>", *b);
    if (options.sentencepiece ? type == TokenType::byte : spelled) {
      model->byte_tokens_[*b] = static_cast<Token>(t);
    }
  }
  model->trie_ = TokenTrie(bytes);
  for (size_t t = 0; t < scores.size(); ++t) {
    // Unknown is an ordinary piece to the library: its spelling in text is it.
    bool in_text = vocab.types[t] == TokenType::normal ||
                   (!options.sentencepiece && static_cast<Token>(t) == options.unk);
    bool symbol = options.sentencepiece && vocab.types[t] == TokenType::user_defined;
    if ((in_text || symbol) && !vocab.tokens[t].empty()) {
      model->trie_.insert(vocab.tokens[t], static_cast<Token>(t));
    }
    model->symbols_.push_back(symbol);
    model->has_symbols_ = model->has_symbols_ || symbol;
  }
  model->unk_score_ = lowest - kUnknownPenalty;
  if (options.sentencepiece) {
    model->unk_score_ = static_cast<float>(lowest) - static_cast<float>(kUnknownPenalty);
  }
  model->scores_ = std::move(scores);
  return std::unique_ptr<TextModel>(std::move(model));
}

// Best scores from left to right; of equals, the first found stays. SentencePiece rounds every sum.
template <typename Score>
bool Unigram::search(std::string_view piece, ModelScratch& s) const {
  constexpr uint32_t kUnreached = UINT32_MAX;
  s.scores.assign(piece.size() + 1, 0);
  s.starts.assign(piece.size() + 1, kUnreached);
  s.ids.assign(piece.size() + 1, kNoToken);
  size_t reached = 0;  // the last end
  auto offer = [&](size_t end, Score score, size_t start, Token id) {
    reached = std::max(reached, end);
    if (s.starts[end] != kUnreached && !(score > s.scores[end])) return;
    s.scores[end] = score;
    s.starts[end] = static_cast<uint32_t>(start);
    s.ids[end] = id;
  };
  for (size_t start = 0; start < piece.size();) {
    const size_t size = code_point_at(piece, start).size;
    if (options_.sentencepiece) start_anew(start, reached, s);
    const Score here = static_cast<Score>(s.scores[start]);
    bool single = false;
    uint32_t node = TokenTrie::kRoot;
    for (size_t end = start; end < piece.size();) {
      node = trie_.step(node, piece[end++]);
      if (node == TokenTrie::kNone) break;
      Token t = trie_.token(node);
      if (t == kNoToken) continue;
      Score score = static_cast<Score>(scores_[t]);
      if (symbols_[static_cast<size_t>(t)]) {
        if (!s.take_symbols) continue;
        score = static_cast<Score>(kSymbolByte * static_cast<double>(end - start - 1));
      }
      offer(end, score + here, start, t);
      single = single || end - start == size;
    }
    if (!single) {
      if (options_.unk == kNoToken) return false;
      offer(start + size, static_cast<Score>(unk_score_) + here, start, options_.unk);
    }
    start += size;
  }
  return true;
}

// A run of unknown characters. It may spell a token after all.
void Unigram::put_unknown(std::string_view text, std::vector<Token>& out) const {
  auto has_byte = [&](char c) { return byte_tokens_[static_cast<uint8_t>(c)] != kNoToken; };
  if (!options_.sentencepiece) {
    uint32_t node = TokenTrie::kRoot;
    for (size_t i = 0; i < text.size() && node != TokenTrie::kNone; ++i) {
      node = trie_.step(node, text[i]);
    }
    if (node != TokenTrie::kNone && trie_.token(node) != kNoToken) {
      return out.push_back(trie_.token(node));
    }
  }
  if (options_.byte_fallback && std::all_of(text.begin(), text.end(), has_byte)) {
    for (char c : text) out.push_back(byte_tokens_[static_cast<uint8_t>(c)]);
  } else {
    out.push_back(options_.unk);
  }
}

bool Unigram::encode(std::string_view piece, ModelScratch& s, std::vector<Token>& out) const {
  bool found = options_.sentencepiece ? search<float>(piece, s) : search<double>(piece, s);
  if (!found) return false;
  // Ends of the best path, from the last to the first.
  s.sources.clear();
  for (size_t end = piece.size(); end > 0; end = s.starts[end]) {
    s.sources.push_back(static_cast<uint32_t>(end));
  }
  for (size_t i = s.sources.size(); i-- > 0;) {
    size_t end = s.sources[i], start = s.starts[end];
    if (s.ids[end] != options_.unk) {
      out.push_back(s.ids[end]);
      continue;
    }
    while (i > 0 && s.ids[s.sources[i - 1]] == options_.unk) end = s.sources[--i];
    put_unknown(piece.substr(start, end - start), out);
  }
  return true;
}

}  // namespace sluice

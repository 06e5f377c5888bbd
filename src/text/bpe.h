// The three BPE models. All share the merge loop; they differ in what they start from and in how
// they treat characters that the vocabulary lacks.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "text/model.h"
#include "text/vocab.h"

namespace sluice {

using SpellingIndex = std::unordered_map<std::string_view, Token>;

// What building a model reads: the tokens, which of them text may become, and their spellings.
struct VocabView {
  const std::vector<std::string>& tokens;
  const std::vector<TokenType>& types;
  const SpellingIndex& by_spelling;

  // The token that merging may build of this spelling, or kNoToken.
  Token find(std::string_view spelling) const;
};

struct BpeOptions {
  bool ignore_merges = false;  // a piece that is a token is that token, whatever the merges say
  // Merges that build a special token: left out (text may not become one), or an error.
  bool drop_special_merges = false;
  // Only over characters:
  Token unk = kNoToken;
  bool fuse_unk = false, byte_fallback = false;
  std::string prefix;  // continuing_subword_prefix
  std::string suffix;  // end_of_word_suffix
};

// Merges by rank as pairs of tokens; of equal pairs the last stands.
Result<PairTable> make_pairs(const VocabView& vocab,
                             const std::vector<Merge>& merges,
                             const BpeOptions& options);

// Where a text may be cut before U+2581: after every character that no token joins to it.
class SpaceCuts {
 public:
  void add(std::string_view spelling);
  void cut(std::string_view piece, size_t base, std::vector<uint32_t>& ends) const;

 private:
  std::unordered_set<char32_t> before_;
};

// "<0x0A>" -> 10
std::optional<uint8_t> byte_token_value(std::string_view s);

// Starts from bytes; `merges` and tokens are spelled in the byte-level alphabet.
class ByteBpe final : public TextModel {
 public:
  static Result<std::unique_ptr<TextModel>> make(const VocabView& vocab,
                                                 const std::vector<Merge>& merges,
                                                 const BpeOptions& options);
  bool encode(std::string_view piece,
              ModelScratch& scratch,
              std::vector<Token>& out) const override;

 private:
  PairTable pairs_;
  Token byte_tokens_[256];                             // kNoToken where the vocabulary has none
  std::string bytes_;                                  // what the keys of whole_ view
  std::unordered_map<std::string_view, Token> whole_;  // ignore_merges: by bytes
};

// Starts from characters, as tokenizer.json defines it.
class CharBpe final : public TextModel {
 public:
  static Result<std::unique_ptr<TextModel>> make(const VocabView& vocab,
                                                 const std::vector<Merge>& merges,
                                                 BpeOptions options);
  bool encode(std::string_view piece,
              ModelScratch& scratch,
              std::vector<Token>& out) const override;
  void cut(std::string_view piece, size_t base, std::vector<uint32_t>& ends) const override {
    spaces_.cut(piece, base, ends);
  }
  bool cuts() const override { return cuts_; }

 private:
  explicit CharBpe(BpeOptions options) : options_(std::move(options)) {}
  Token char_token(std::string_view c, bool first, bool last) const;

  BpeOptions options_;
  PairTable pairs_;
  std::unordered_map<char32_t, Token> chars_;
  std::unordered_map<std::string, Token> marked_;  // characters with prefix or suffix
  std::unordered_map<std::string, Token> whole_;   // ignore_merges
  Token byte_tokens_[256];
  bool cuts_ = false;
  SpaceCuts spaces_;
};

// SentencePiece BPE: scores order the merges; characters are merged even where only what they
// build is a token.
class ScoreBpe final : public TextModel {
 public:
  static Result<std::unique_ptr<TextModel>> make(const VocabView& vocab,
                                                 const std::vector<float>& scores,
                                                 Token unk);
  bool encode(std::string_view piece,
              ModelScratch& scratch,
              std::vector<Token>& out) const override;
  void cut(std::string_view piece, size_t base, std::vector<uint32_t>& ends) const override {
    spaces_.cut(piece, base, ends);
  }
  bool cuts() const override { return cuts_; }

 private:
  explicit ScoreBpe(Token unk) : unk_(unk) {}
  Result<std::vector<Token>> index_pieces(const VocabView& vocab);
  void index_pairs(const VocabView& vocab,
                   const std::vector<float>& scores,
                   const std::vector<Token>& pieces);

  Token unk_;
  Token num_tokens_ = 0;
  PairTable pairs_;
  Token byte_tokens_[256];
  // The symbol of a single character. Characters that are no token but part of one have symbols
  // from num_tokens_ up.
  std::unordered_map<char32_t, Token> chars_;
  bool cuts_ = false;
  SpaceCuts spaces_;
};

}  // namespace sluice

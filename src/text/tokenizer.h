// Text to tokens and back, for byte-level BPE and SentencePiece BPE vocabularies.
// Made once per model; immutable after, so any thread may use it.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "base/token.h"
#include "text/merge.h"
#include "text/pretokenize.h"
#include "text/segment.h"
#include "text/special_tokens.h"
#include "text/vocab.h"

namespace sluice {

struct EncodeOptions {
  // BOS before and EOS after, as the vocabulary asks; never a second BOS where the text begins with
  // one.
  bool add_special = false;
};

class Tokenizer {
 public:
  static Result<std::unique_ptr<Tokenizer>> make(VocabSpec spec);
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // The segments are tokenised as one text. A control or user-defined token is recognised only
  // where all its bytes are trusted; user-defined runs of white space are plain text and recognised
  // everywhere. The error (400) gives the byte offset of invalid UTF-8.
  Result<std::vector<Token>> encode(std::span<const TextSegment> segments,
                                    EncodeOptions options = {}) const;
  // One segment of text. `trusted`: it may name special tokens.
  Result<std::vector<Token>> encode(std::string_view text,
                                    EncodeOptions options = {},
                                    bool trusted = false) const;

  int size() const { return static_cast<int>(spec_.tokens.size()); }
  bool contains(Token t) const { return t >= 0 && t < size(); }
  // The bytes a token stands for, perhaps part of a character. A control token gives its spelling.
  // Empty for a token outside the vocabulary (models may have rows that no token uses).
  std::string_view bytes(Token t) const;
  // As the vocabulary spells it ("Ġthe", "▁the", "<0x0A>").
  std::string_view spelling(Token t) const;
  // Control and unknown tokens: markers that stand for no text.
  bool is_control(Token t) const;
  // Ends a generation: EOS, EOT, and the end-of-turn tokens models use.
  bool is_eog(Token t) const;
  std::span<const Token> eog() const { return eog_; }
  Token bos() const { return spec_.bos; }
  Token eos() const { return spec_.eos; }
  bool adds_bos() const { return spec_.add_bos && spec_.bos != kNoToken; }
  // Encoding puts a space before text, which decoding from the beginning takes away.
  bool adds_space() const { return spec_.kind == VocabSpec::Kind::spm && spec_.add_space_prefix; }
  // The token that the vocabulary spells so.
  std::optional<Token> find(std::string_view spelling) const;

 private:
  struct Scratch {
    MergeScratch merge;
    std::vector<uint32_t> ends, sources;
    std::vector<Token> symbols;
  };

  explicit Tokenizer(VocabSpec spec);
  Result<void> check_spec() const;
  void index_tokens();
  std::string token_bytes(Token t) const;
  void collect_specials();
  void collect_eog();
  Result<void> build_bpe();
  Result<void> build_spm();
  Result<std::vector<Token>> index_spm_pieces();
  void build_spm_pairs(const std::vector<Token>& pieces);
  bool mergeable(Token t) const { return spec_.types[t] == TokenType::normal; }

  Result<std::vector<Token>> encode_runs(std::string_view text,
                                         std::span<const size_t> run_ends,
                                         bool first_trusted,
                                         EncodeOptions options) const;
  void encode_plain(std::string_view text, Scratch& scratch, std::vector<Token>& out) const;
  void encode_bpe_piece(std::string_view piece, Scratch& scratch, std::vector<Token>& out) const;
  void encode_spm_piece(std::string_view piece, Scratch& scratch, std::vector<Token>& out) const;
  void split_spm_words(std::string_view text, std::vector<uint32_t>& ends) const;

  VocabSpec spec_;                  // merges and scores are dropped once built
  std::string bytes_;               // of all tokens, end to end
  std::vector<uint32_t> bytes_at_;  // size() + 1 offsets into bytes_
  std::unordered_map<std::string_view, Token> by_spelling_;  // views into spec_.tokens
  SpecialTokens specials_;
  std::vector<Token> eog_;  // ascending
  PairTable pairs_;
  Token byte_tokens_[256];  // kNoToken where the vocabulary has none

  const PreTokenizer* pre_ = nullptr;                  // bpe
  std::unordered_map<std::string_view, Token> whole_;  // bpe, ignore_merges: by bytes

  // spm: the symbol of a single character. Characters that are no token but part of one have
  // symbols from size() up.
  std::unordered_map<char32_t, Token> chars_;
  bool split_words_ = false;  // no token reaches over the beginning of a word
};

}  // namespace sluice

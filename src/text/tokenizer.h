// Text to tokens and back: added tokens, normalizer, pre-tokenizer, model, decoder, as a
// TokenizerSpec has them. Made once per model; immutable after, so any thread may use it.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/token.h"
#include "text/bpe.h"
#include "text/model.h"
#include "text/segment.h"
#include "text/special_tokens.h"
#include "text/tokenizer_spec.h"
#include "text/vocab.h"

namespace sluice {

struct EncodeOptions {
  // BOS before and EOS after, or what the post-processor says; never a second time before text
  // that begins with it.
  bool add_special = false;
};

class Tokenizer {
 public:
  static Result<std::unique_ptr<Tokenizer>> make(VocabSpec spec);
  static Result<std::unique_ptr<Tokenizer>> make(TokenizerSpec spec);
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // The segments are tokenised as one text. A control or user-defined token is recognised only
  // where all its bytes are trusted; user-defined runs of white space are plain text and recognised
  // everywhere. The error (400) gives the byte offset of invalid UTF-8, or says what of the
  // tokenizer the text is too much for.
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
  Token pad() const { return spec_.pad; }
  const GapTokens& gap() const { return spec_.gap; }
  TokenType type(Token t) const { return spec_.types[static_cast<size_t>(t)]; }
  // How few tokens may stand for a text of so many counted bytes: counted_bytes(text) is at most
  // most_bytes() for each of its tokens. 0: no such bound is known (steps that drop text, or
  // unknown characters that share a token).
  size_t most_bytes() const { return most_bytes_; }
  size_t counted_bytes(std::string_view text) const;
  // What transformers calls a tokenizer like it: "GPT2TokenizerFast".
  const std::string& class_name() const { return spec_.class_name; }
  bool adds_bos() const { return !spec_.prefix.empty() && spec_.prefix.front() == spec_.bos; }
  // Encoding puts a space before text, which decoding from the beginning takes away.
  bool adds_space() const { return spec_.strip_space; }
  // The last token's trailing space is no text (words end in a suffix that stands for it).
  bool drops_last_space() const { return spec_.strip_last_space; }
  // The token that the vocabulary spells so.
  std::optional<Token> find(std::string_view spelling) const;

 private:
  struct Scratch {
    ModelScratch model;
    RegexScratch regex;
    std::vector<uint32_t> ends;
    std::vector<SpecialTokens::Hit> raw_hits, normal_hits;
  };

  explicit Tokenizer(TokenizerSpec spec) : spec_(std::move(spec)) {}
  Result<void> check_spec() const;
  void index_tokens();
  std::string token_bytes(Token t) const;
  Result<void> collect_specials();
  void collect_eog();
  size_t bound_bytes();
  Result<void> build_model();

  Result<std::vector<Token>> encode_runs(std::string_view text,
                                         TrustRuns trust,
                                         EncodeOptions options) const;
  // text[begin, end), where no token was found before normalisation.
  Result<void> encode_raw(std::string_view text,
                          size_t begin,
                          size_t end,
                          TrustRuns trust,
                          Scratch& scratch,
                          std::vector<Token>& out) const;
  // Normalised text without added tokens.
  Result<void> encode_plain(std::string_view text,
                            bool at_start,
                            Scratch& scratch,
                            std::vector<Token>& out) const;

  TokenizerSpec spec_;              // merges and scores are dropped once built
  std::string bytes_;               // of all tokens, end to end
  std::vector<uint32_t> bytes_at_;  // size() + 1 offsets into bytes_
  SpellingIndex by_spelling_;       // views into spec_.tokens
  std::vector<bool> added_;         // per token: it was added as a whole
  SpecialTokens raw_specials_, normal_specials_;
  bool asks_trust_ = false;  // normalised text must know which of its bytes are trusted
  std::vector<Token> eog_;   // ascending
  size_t most_bytes_ = 0;
  std::array<bool, 256> dropped_{};  // bytes that the vocabulary has no token for
  std::unique_ptr<TextModel> model_;
};

}  // namespace sluice

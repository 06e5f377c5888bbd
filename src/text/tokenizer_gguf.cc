// GGUF's vocabulary kinds as pipelines.
#include <algorithm>

#include "base/str.h"
#include "text/tokenizer_spec.h"

namespace sluice {

namespace {

constexpr const char* kSpaceSymbol = "\xE2\x96\x81";

Result<void> read_merges(const std::vector<std::string>& lines, std::vector<Merge>& merges) {
  merges.reserve(lines.size());
  for (size_t rank = 0; rank < lines.size(); ++rank) {
    const std::string& line = lines[rank];
    size_t space = line.find(' ', 1);
    if (space == line.npos || space + 1 == line.size()) {
      return Error{400, strf("merge %zu (%s) is not two tokens with a space between; the file is "
                             "damaged",
                             rank, quote(line).c_str())};
    }
    merges.push_back({line.substr(0, space), line.substr(space + 1)});
  }
  return {};
}

Result<void> add_byte_bpe(const VocabSpec& vocab, TokenizerSpec& spec) {
  std::optional<NamedPreTokenizer> pre = find_pre_tokenizer(vocab.pre);
  if (!pre) {
    return Error{400, strf("unknown pre-tokenizer %s; known: %s", quote(vocab.pre).c_str(),
                           known_pre_tokenizers().c_str())};
  }
  spec.pre_tokenizer = std::move(pre->steps);
  if (pre->nfc) spec.normalizer.emplace_back();
  spec.model.kind = ModelSpec::Kind::byte_bpe;
  spec.model.bpe.ignore_merges = pre->ignore_merges;
  spec.decoder.push_back({.kind = DecoderStep::Kind::byte_level});
  return read_merges(vocab.merges, spec.model.merges);
}

// Spaces as U+2581, lines apart, byte tokens for what the vocabulary lacks.
Result<void> add_char_bpe(const VocabSpec& vocab, TokenizerSpec& spec) {
  NormalizerStep spaces;
  spaces.kind = NormalizerStep::Kind::replace;
  spaces.pattern.literal = " ";
  spaces.content = kSpaceSymbol;
  spec.normalizer.push_back(std::move(spaces));
  PreTokenizerStep lines;
  lines.kind = PreTokenizerStep::Kind::split;
  Result<std::shared_ptr<const Regex>> regex = Regex::compile("\n+");
  if (!regex) return regex.error();
  lines.pattern.regex = *regex;
  spec.pre_tokenizer.push_back(std::move(lines));
  spec.model.kind = ModelSpec::Kind::char_bpe;
  spec.model.bpe.ignore_merges = spec.model.bpe.byte_fallback = spec.model.bpe.fuse_unk = true;
  spec.model.bpe.unk = vocab.unk;
  return read_merges(vocab.merges, spec.model.merges);
}

Result<void> add_sentencepiece(const VocabSpec& vocab, TokenizerSpec& spec) {
  NormalizerStep step;
  step.kind = NormalizerStep::Kind::sentencepiece;
  step.dummy_prefix = vocab.add_space_prefix;
  step.remove_extra_spaces = vocab.remove_extra_spaces;
  step.escape_spaces = true;
  if (!vocab.charsmap.empty()) {
    Result<std::shared_ptr<const Charsmap>> map = Charsmap::parse(vocab.charsmap);
    if (!map) return map.error();
    step.charsmap = *map;
  }
  spec.normalizer.push_back(std::move(step));
  spec.model.scores.assign(vocab.scores.begin(), vocab.scores.end());
  spec.model.unk = vocab.unk;
  spec.strip_space = vocab.add_space_prefix;
  if (vocab.kind == VocabSpec::Kind::spm) {
    spec.model.kind = ModelSpec::Kind::score_bpe;
    return {};
  }
  spec.model.kind = ModelSpec::Kind::unigram;
  spec.model.sentencepiece = true;
  for (TokenType type : spec.types) {
    spec.model.byte_fallback = spec.model.byte_fallback || type == TokenType::byte;
  }
  return {};
}

}  // namespace

Result<TokenizerSpec> spec_from_vocab(VocabSpec vocab) {
  if (vocab.tokens.empty()) return Error{400, "the vocabulary has no tokens"};
  TokenizerSpec spec;
  spec.types = std::move(vocab.types);
  if (spec.types.empty()) spec.types.assign(vocab.tokens.size(), TokenType::normal);
  Result<void> ok;
  switch (vocab.kind) {
    case VocabSpec::Kind::bpe:
      ok = add_byte_bpe(vocab, spec);
      break;
    case VocabSpec::Kind::char_bpe:
      ok = add_char_bpe(vocab, spec);
      break;
    case VocabSpec::Kind::spm:
    case VocabSpec::Kind::unigram:
      ok = add_sentencepiece(vocab, spec);
      break;
  }
  if (!ok) return ok.error();
  if (vocab.kind != VocabSpec::Kind::bpe) {
    spec.decoder.push_back({.kind = DecoderStep::Kind::byte_fallback});
    spec.decoder.push_back({.kind = DecoderStep::Kind::replace, .from = kSpaceSymbol, .to = " "});
  }
  spec.tokens = std::move(vocab.tokens);
  for (size_t t = 0; t < std::min(spec.types.size(), spec.tokens.size()); ++t) {
    const TokenType type = spec.types[t];
    if (type != TokenType::control && type != TokenType::user_defined &&
        type != TokenType::unknown) {
      continue;
    }
    AddedToken added;
    added.id = static_cast<Token>(t);
    added.content = spec.tokens[t];
    added.special = type != TokenType::user_defined;
    // SentencePiece writes the spaces of user-defined tokens as U+2581.
    size_t at = vocab.kind == VocabSpec::Kind::bpe || added.special ? added.content.npos : 0;
    while (at != added.content.npos &&
           (at = added.content.find(kSpaceSymbol, at)) != added.content.npos) {
      added.content.replace(at, 3, " ");
    }
    spec.added.push_back(std::move(added));
  }
  spec.bos = vocab.bos;
  spec.eos = vocab.eos;
  spec.eot = vocab.eot;
  spec.pad = vocab.pad;
  if (vocab.add_bos && vocab.bos != kNoToken) spec.prefix.push_back(vocab.bos);
  if (vocab.add_eos && vocab.eos != kNoToken) spec.suffix.push_back(vocab.eos);
  return spec;
}

}  // namespace sluice

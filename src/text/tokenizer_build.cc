// Tokenizer::make: checks a TokenizerSpec and turns it into lookup tables.
#include <algorithm>
#include <unordered_map>

#include "base/str.h"
#include "text/byte_level.h"
#include "text/tokenizer.h"
#include "text/unicode.h"
#include "text/unigram.h"

namespace sluice {

namespace {

constexpr size_t kMaxTokens = size_t{1} << 24;
constexpr size_t kMaxVocabBytes = size_t{1} << 30;
constexpr size_t kMaxAddedBytes = 1024;  // bytes of an added token; finding them is linear in it

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
    "<turn|>",
    "<|return|>",
    "<|call|>",
};

bool all_white_space(std::string_view s) {
  if (s.empty() || !valid_utf8(s)) return false;
  for (size_t pos = 0; pos < s.size();) {
    CodePoint p = code_point_at(s, pos);
    if (p.cls != CharClass::space) return false;
    pos += p.size;
  }
  return true;
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    size_t at = std::min(text.find(from, pos), text.size());
    out.append(text, pos, at - pos);
    if (at < text.size()) out.append(to);
    pos = at + from.size();
  }
  return out;
}

const char* usual_class(ModelSpec::Kind kind) {
  switch (kind) {
    case ModelSpec::Kind::byte_bpe:
      return "GPT2TokenizerFast";
    case ModelSpec::Kind::char_bpe:
    case ModelSpec::Kind::score_bpe:
      return "LlamaTokenizerFast";
    case ModelSpec::Kind::unigram:
      return "T5TokenizerFast";
  }
  return "";
}

std::string stripped(std::string_view text, const DecoderStep& step) {
  for (size_t i = 0; i < step.start && text.starts_with(step.from); ++i) {
    text.remove_prefix(step.from.size());
  }
  for (size_t i = 0; i < step.stop && text.ends_with(step.from); ++i) {
    text.remove_suffix(step.from.size());
  }
  return std::string(text);
}

// How many times shorter a step may make a text; 0: there is no limit.
size_t shrinks(const NormalizerStep& step) {
  switch (step.kind) {
    case NormalizerStep::Kind::byte_level:
    case NormalizerStep::Kind::prepend:
      return 1;
    case NormalizerStep::Kind::nfc:        // three Hangul letters are one syllable of their size
    case NormalizerStep::Kind::nfd:        // U+2126 is two bytes of Omega
    case NormalizerStep::Kind::lowercase:  // U+212A is one byte of k
      return 3;
    case NormalizerStep::Kind::nfkd:  // four bytes of a mathematical A are one of A
      return 4;
    case NormalizerStep::Kind::nfkc:
      return 12;
    case NormalizerStep::Kind::replace: {
      size_t from = step.pattern.literal.size(), to = step.content.size();
      if (step.pattern.regex || to == 0) return 0;
      return (from + to - 1) / to;
    }
    case NormalizerStep::Kind::sentencepiece:
      return step.charsmap || step.remove_extra_spaces ? 0 : 1;
    case NormalizerStep::Kind::strip:
    case NormalizerStep::Kind::strip_accents:
    case NormalizerStep::Kind::charsmap:
    case NormalizerStep::Kind::bert:
    case NormalizerStep::Kind::nmt:
      return 0;
  }
  return 0;
}

bool drops_text(const PreTokenizerStep& step) {
  switch (step.kind) {
    case PreTokenizerStep::Kind::whitespace:
    case PreTokenizerStep::Kind::whitespace_split:
    case PreTokenizerStep::Kind::bert:
      return true;
    case PreTokenizerStep::Kind::split:
    case PreTokenizerStep::Kind::punctuation:
    case PreTokenizerStep::Kind::digits:
      return step.behavior == SplitBehavior::removed;
    case PreTokenizerStep::Kind::metaspace:
    case PreTokenizerStep::Kind::known:
    case PreTokenizerStep::Kind::fixed_length:
    case PreTokenizerStep::Kind::prefix_space:
    case PreTokenizerStep::Kind::byte_level:
      return false;
  }
  return true;
}

}  // namespace

size_t Tokenizer::bound_bytes() {
  const ModelSpec& m = spec_.model;
  size_t factor = 1;
  for (const NormalizerStep& step : spec_.normalizer) factor *= shrinks(step);
  if (factor == 0 || factor > 1000) return 0;
  if (std::ranges::any_of(spec_.pre_tokenizer, drops_text)) return 0;
  if (std::ranges::any_of(spec_.added, [](const AddedToken& a) { return a.lstrip || a.rstrip; }))
    return 0;
  // A byte without a token is dropped, and what has no token in other models may share one.
  bool byte_level = m.kind == ModelSpec::Kind::byte_bpe;
  if (m.kind == ModelSpec::Kind::char_bpe && !m.bpe.byte_fallback) return 0;
  if (m.kind == ModelSpec::Kind::unigram && !m.byte_fallback) return 0;
  for (int b = 0; b < 256; ++b) {
    bool in_utf8 = b < 0xC0 || (b >= 0xC2 && b <= 0xF4);
    auto byte = static_cast<uint8_t>(b);
    if (!in_utf8 || find(byte_level ? byte_level_char(byte) : strf("<0x%02X>", b))) continue;
    if (!byte_level || !spec_.normalizer.empty()) return 0;
    dropped_[byte] = true;
  }
  size_t longest = 1;
  for (Token t = 0; t < size(); ++t)
    longest = std::max({longest, bytes(t).size(), byte_level ? 0 : spelling(t).size()});
  return longest * factor;
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::make(VocabSpec vocab) {
  Result<TokenizerSpec> spec = spec_from_vocab(std::move(vocab));
  if (!spec) return spec.error();
  return make(std::move(*spec));
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::make(TokenizerSpec spec) {
  std::unique_ptr<Tokenizer> t(new Tokenizer(std::move(spec)));
  if (auto ok = t->check_spec(); !ok) return ok.error();
  t->index_tokens();
  if (auto ok = t->collect_specials(); !ok) return ok.error();
  t->collect_eog();
  if (auto ok = t->build_model(); !ok) return ok.error();
  t->most_bytes_ = t->bound_bytes();
  if (t->spec_.class_name.empty()) t->spec_.class_name = usual_class(t->spec_.model.kind);
  t->spec_.model = {};
  t->spec_.added = {};
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
  auto outside = [&](const char* name, Token id) {
    return Error{400, strf("%s token %d is outside the vocabulary of %zu tokens", name, id, n)};
  };
  const std::pair<const char*, Token> ids[] = {{"bos", spec_.bos},
                                               {"eos", spec_.eos},
                                               {"eot", spec_.eot},
                                               {"unknown", spec_.model.unk},
                                               {"unknown", spec_.model.bpe.unk},
                                               {"padding", spec_.pad}};
  for (const auto& [name, id] : ids) {
    if (id != kNoToken && !contains(id)) return outside(name, id);
  }
  for (const AddedToken& a : spec_.added) {
    if (!contains(a.id)) return outside("added", a.id);
  }
  for (const std::vector<Token>* list : {&spec_.prefix, &spec_.suffix}) {
    for (Token id : *list) {
      if (!contains(id)) return outside("post-processor", id);
    }
  }
  return {};
}

std::string Tokenizer::token_bytes(Token t) const {
  std::string text = spec_.tokens[t];
  const TokenType type = spec_.types[t];
  if (type == TokenType::control || type == TokenType::unknown) return text;
  for (const DecoderStep& step : spec_.decoder) {
    switch (step.kind) {
      case DecoderStep::Kind::byte_level:
        text = byte_level_decode(text).value_or(text);
        break;
      case DecoderStep::Kind::byte_fallback:
        if (std::optional<uint8_t> b = byte_token_value(text)) return std::string(1, char(*b));
        break;
      case DecoderStep::Kind::replace:
        text = replaced(text, step.from, step.to);
        break;
      case DecoderStep::Kind::strip:
        text = stripped(text, step);
        break;
    }
  }
  return text;
}

void Tokenizer::index_tokens() {
  by_spelling_.reserve(spec_.tokens.size());
  bytes_at_.reserve(spec_.tokens.size() + 1);
  added_.assign(spec_.tokens.size(), false);
  std::unordered_map<Token, std::string_view> contents;
  for (const AddedToken& a : spec_.added) {
    added_[static_cast<size_t>(a.id)] = true;
    contents.try_emplace(a.id, a.content);
  }
  auto mergeable = [&](Token t) { return spec_.types[t] == TokenType::normal; };
  for (Token t = 0; t < size(); ++t) {
    bytes_at_.push_back(static_cast<uint32_t>(bytes_.size()));
    if (auto it = contents.find(t); it != contents.end()) {
      bytes_ += it->second;
    } else {
      bytes_ += token_bytes(t);
    }
    // Of two tokens spelled alike, the one that merging may build is the one meant.
    auto [it, fresh] = by_spelling_.try_emplace(spec_.tokens[t], t);
    if (!fresh && mergeable(t) && !mergeable(it->second)) it->second = t;
  }
  bytes_at_.push_back(static_cast<uint32_t>(bytes_.size()));
}

Result<void> Tokenizer::collect_specials() {
  RegexScratch scratch;
  for (bool special : {true, false}) {  // of two that are spelled alike, the special one
    for (const AddedToken& a : spec_.added) {
      if (a.special != special || a.content.empty() || !valid_utf8(a.content)) continue;
      if (a.content.size() > kMaxAddedBytes) {
        return Error{400, strf("added token %d has %zu bytes; the limit is %zu", a.id,
                               a.content.size(), kMaxAddedBytes)};
      }
      SpecialTokens::Flags flags{.anywhere = !a.special && all_white_space(a.content),
                                 .single_word = a.single_word,
                                 .lstrip = a.lstrip,
                                 .rstrip = a.rstrip};
      if (!a.normalized) {
        raw_specials_.add(a.content, a.id, flags);
        continue;
      }
      NormalText text;
      if (a.as_spelled) {
        normal_specials_.add(spec_.tokens[static_cast<size_t>(a.id)], a.id, flags);
        continue;
      }
      text.text = a.content;
      text.at_start = true;
      if (auto ok = normalize(spec_.normalizer, scratch, text); !ok) return ok.error();
      if (!text.text.empty()) normal_specials_.add(text.text, a.id, flags);
    }
  }
  asks_trust_ = !normal_specials_.empty();
  return {};
}

void Tokenizer::collect_eog() {
  for (std::string_view s : kEogSpellings) {
    std::optional<Token> t = find(s);
    if (t && (added_[static_cast<size_t>(*t)] || spec_.types[*t] == TokenType::control ||
              spec_.types[*t] == TokenType::user_defined)) {
      eog_.push_back(*t);
    }
  }
  for (Token t : {spec_.eos, spec_.eot}) eog_.push_back(t);
  eog_.insert(eog_.end(), spec_.more_eog.begin(), spec_.more_eog.end());
  std::erase_if(eog_, [&](Token t) { return !contains(t); });
  std::sort(eog_.begin(), eog_.end());
  eog_.erase(std::unique(eog_.begin(), eog_.end()), eog_.end());
}

Result<void> Tokenizer::build_model() {
  ModelSpec& m = spec_.model;
  const VocabView vocab{spec_.tokens, spec_.types, by_spelling_};
  auto make_one = [&]() -> Result<std::unique_ptr<TextModel>> {
    switch (m.kind) {
      case ModelSpec::Kind::byte_bpe:
        return ByteBpe::make(vocab, m.merges, m.bpe);
      case ModelSpec::Kind::char_bpe:
        return CharBpe::make(vocab, m.merges, m.bpe);
      case ModelSpec::Kind::score_bpe:
        return ScoreBpe::make(vocab, {m.scores.begin(), m.scores.end()}, m.unk);
      case ModelSpec::Kind::unigram:
        return Unigram::make(
            vocab, std::move(m.scores),
            {.unk = m.unk, .byte_fallback = m.byte_fallback, .sentencepiece = m.sentencepiece});
    }
    return Error{500, "no such model"};
  };
  Result<std::unique_ptr<TextModel>> made = make_one();
  if (!made) return made.error();
  model_ = std::move(*made);
  return {};
}

}  // namespace sluice

// SentencePiece models: the protobuf wire format by hand, every length checked.
#include <algorithm>
#include <bit>

#include "base/str.h"
#include "text/tokenizer_spec.h"

namespace sluice {

namespace {

constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";

// Fields of one message, one by one.
class Wire {
 public:
  explicit Wire(std::string_view data) : data_(data) {}

  // False at the end, or where the data is damaged (`bad`).
  bool next() {
    if (pos_ >= data_.size()) return false;
    uint64_t key = varint();
    field = static_cast<uint32_t>(std::min<uint64_t>(key >> 3, UINT32_MAX));
    number = 0;
    bytes = {};
    switch (key & 7) {
      case 0:
        number = varint();
        break;
      case 1:
        bytes = take(8);
        break;
      case 2:
        bytes = take(varint());
        break;
      case 5:
        bytes = take(4);
        break;
      default:
        bad = true;
    }
    if (field == 0) bad = true;
    return !bad;
  }

  // A field of four bytes.
  float real() const {
    if (bytes.size() != 4) return 0;
    uint32_t v = 0;
    for (size_t i = 4; i-- > 0;) v = v << 8 | static_cast<uint8_t>(bytes[i]);
    return std::bit_cast<float>(v);
  }

  uint32_t field = 0;
  uint64_t number = 0;
  std::string_view bytes;
  bool bad = false;

 private:
  uint64_t varint() {
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (pos_ >= data_.size()) break;
      uint8_t b = static_cast<uint8_t>(data_[pos_++]);
      v |= uint64_t{b & 0x7Fu} << shift;
      if (b < 0x80) return v;
    }
    bad = true;
    return 0;
  }
  std::string_view take(uint64_t size) {
    if (bad || size > data_.size() - pos_) {
      bad = true;
      return {};
    }
    std::string_view out = data_.substr(pos_, size);
    pos_ += size;
    return out;
  }

  std::string_view data_;
  size_t pos_ = 0;
};

const Error kDamaged{400, "the SentencePiece model is damaged"};

struct Model {
  TokenizerSpec spec;
  NormalizerStep normalizer;
  uint64_t model_type = 1;  // 1 Unigram, 2 BPE, 3 words, 4 characters
  bool byte_fallback = false;
  bool space_suffix = false;
  int64_t unk = 0, bos = 1, eos = 2, pad = -1;

  Result<void> read(std::string_view data);
  Result<void> read_piece(std::string_view data);
  Result<void> read_trainer(std::string_view data);
  Result<void> read_normalizer(std::string_view data);
  Result<void> finish();
};

Result<void> Model::read_piece(std::string_view data) {
  std::string_view piece;
  float score = 0;
  uint64_t type = 1;
  Wire w(data);
  while (w.next()) {
    if (w.field == 1) piece = w.bytes;
    if (w.field == 2) score = w.real();
    if (w.field == 3) type = w.number;
  }
  if (w.bad) return kDamaged;
  if (type < 1 || type > 6) {
    return Error{400, strf("piece %zu has the unknown type %llu", spec.tokens.size(),
                           static_cast<unsigned long long>(type))};
  }
  if (piece.empty() || !valid_utf8(piece)) {
    return Error{400, strf("piece %zu is empty or not valid UTF-8", spec.tokens.size())};
  }
  spec.tokens.emplace_back(piece);
  spec.types.push_back(static_cast<TokenType>(type));
  spec.model.scores.push_back(score);
  return {};
}

Result<void> Model::read_trainer(std::string_view data) {
  Wire w(data);
  while (w.next()) {
    if (w.field == 3) model_type = w.number;
    if (w.field == 24) space_suffix = w.number != 0;
    if (w.field == 35) byte_fallback = w.number != 0;
    if (w.field == 40) unk = static_cast<int32_t>(w.number);
    if (w.field == 41) bos = static_cast<int32_t>(w.number);
    if (w.field == 42) eos = static_cast<int32_t>(w.number);
    if (w.field == 43) pad = static_cast<int32_t>(w.number);
  }
  return w.bad ? Result<void>(kDamaged) : Result<void>();
}

Result<void> Model::read_normalizer(std::string_view data) {
  Wire w(data);
  while (w.next()) {
    if (w.field == 2 && !w.bytes.empty()) {
      Result<std::shared_ptr<const Charsmap>> map = Charsmap::parse(w.bytes);
      if (!map) return map.error();
      normalizer.charsmap = *map;
    }
    if (w.field == 3) normalizer.dummy_prefix = w.number != 0;
    if (w.field == 4) normalizer.remove_extra_spaces = w.number != 0;
    if (w.field == 5) normalizer.escape_spaces = w.number != 0;
  }
  return w.bad ? Result<void>(kDamaged) : Result<void>();
}

Result<void> Model::read(std::string_view data) {
  normalizer.kind = NormalizerStep::Kind::sentencepiece;
  normalizer.dummy_prefix = normalizer.remove_extra_spaces = normalizer.escape_spaces = true;
  Wire w(data);
  while (w.next()) {
    Result<void> ok;
    if (w.field == 1) ok = read_piece(w.bytes);
    if (w.field == 2) ok = read_trainer(w.bytes);
    if (w.field == 3) ok = read_normalizer(w.bytes);
    if (!ok) return ok.error();
  }
  if (w.bad || spec.tokens.empty()) return kDamaged;
  return {};
}

std::string with_spaces(std::string_view piece) {
  std::string out;
  for (size_t pos = 0; pos < piece.size();) {
    size_t at = std::min(piece.find(kSpaceSymbol, pos), piece.size());
    out.append(piece, pos, at - pos);
    if (at < piece.size()) out += ' ';
    pos = at + kSpaceSymbol.size();
  }
  return out;
}

Result<void> Model::finish() {
  if (model_type != 1 && model_type != 2) {
    return Error{400, strf("the SentencePiece model has type %llu; known: 1 (Unigram), 2 (BPE)",
                           static_cast<unsigned long long>(model_type))};
  }
  if (space_suffix) return Error{400, "the SentencePiece model writes spaces after words"};
  auto id = [&](int64_t given) {
    bool there = given >= 0 && static_cast<uint64_t>(given) < spec.tokens.size();
    return there ? static_cast<Token>(given) : kNoToken;
  };
  spec.model.kind = model_type == 2 ? ModelSpec::Kind::score_bpe : ModelSpec::Kind::unigram;
  spec.model.sentencepiece = true;
  spec.model.byte_fallback = byte_fallback;
  spec.model.unk = id(unk);
  for (size_t t = 0; t < spec.types.size(); ++t) {
    if (spec.types[t] == TokenType::unknown) spec.model.unk = static_cast<Token>(t);
    // Byte pieces count only where the model says so.
    if (spec.types[t] == TokenType::byte && !byte_fallback) spec.types[t] = TokenType::unused;
  }
  spec.bos = id(bos);
  spec.eos = id(eos);
  spec.pad = id(pad);
  auto symbols = std::make_shared<SpecialTokens>();
  for (size_t t = 0; t < spec.tokens.size(); ++t) {
    const TokenType type = spec.types[t];
    const bool user = type == TokenType::user_defined;
    if (!user && type != TokenType::control) continue;
    AddedToken a;
    a.id = static_cast<Token>(t);
    a.special = !user;
    a.normalized = a.as_spelled = user;
    a.content = user ? with_spaces(spec.tokens[t]) : spec.tokens[t];
    bool spaces = user && a.content.find_first_not_of(' ') == a.content.npos;
    if (user) symbols->add(spec.tokens[t], a.id, {.anywhere = spaces});
    spec.added.push_back(std::move(a));
  }
  normalizer.user_defined = symbols;
  spec.strip_space = normalizer.dummy_prefix;
  spec.normalizer.push_back(std::move(normalizer));
  spec.decoder.push_back({.kind = DecoderStep::Kind::byte_fallback});
  DecoderStep spaces{.kind = DecoderStep::Kind::replace};
  spaces.from = kSpaceSymbol;
  spaces.to = " ";
  spec.decoder.push_back(std::move(spaces));
  if (spec.bos != kNoToken) spec.prefix.push_back(spec.bos);
  return {};
}

}  // namespace

Result<TokenizerSpec> spec_from_sentencepiece(std::string_view data) {
  Model model;
  if (auto ok = model.read(data); !ok) return ok.error();
  if (auto ok = model.finish(); !ok) return ok.error();
  return std::move(model.spec);
}

}  // namespace sluice

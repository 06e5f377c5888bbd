#include "text/bpe.h"

#include <algorithm>
#include <iterator>

#include "base/str.h"
#include "text/byte_level.h"
#include "text/unicode.h"

namespace sluice {

namespace {
constexpr char32_t kSpaceSymbol = 0x2581;
}  // namespace

Token VocabView::find(std::string_view spelling) const {
  auto it = by_spelling.find(spelling);
  if (it == by_spelling.end()) return kNoToken;
  return types[it->second] == TokenType::normal ? it->second : kNoToken;
}

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

Result<PairTable> make_pairs(const VocabView& vocab,
                             const std::vector<Merge>& merges,
                             const BpeOptions& options) {
  PairTable pairs(merges.size());
  std::string joined;
  for (size_t rank = merges.size(); rank-- > 0;) {  // the first that is inserted stays
    const Merge& m = merges[rank];
    auto failed = [&](const char* why) {
      return Error{400, strf("merge %zu (%s) %s; the file is damaged", rank,
                             quote(m.left + " " + m.right).c_str(), why)};
    };
    if (!m.right.starts_with(options.prefix)) return failed("lacks the prefix of subwords");
    joined.assign(m.left).append(m.right, options.prefix.size());
    Token ids[3];
    const std::string_view spellings[3] = {m.left, m.right, joined};
    bool special = false;
    for (int i = 0; i < 3; ++i) {
      auto it = vocab.by_spelling.find(spellings[i]);
      ids[i] = it == vocab.by_spelling.end() ? kNoToken : it->second;
      bool normal = ids[i] != kNoToken && vocab.types[ids[i]] == TokenType::normal;
      special = special || (ids[i] != kNoToken && !normal);
      if (!normal && !(options.drop_special_merges && ids[i] != kNoToken)) {
        return failed("uses or makes a token that the vocabulary lacks");
      }
    }
    if (!special) pairs.insert({ids[0], ids[1], static_cast<uint32_t>(rank), ids[2]});
  }
  return pairs;
}

void SpaceCuts::add(std::string_view spelling) {
  char32_t last = 0;
  for (size_t pos = 0; pos < spelling.size();) {
    CodePoint p = code_point_at(spelling, pos);
    if (pos > 0 && p.value == kSpaceSymbol) before_.insert(last);
    last = p.value;
    pos += p.size;
  }
}

void SpaceCuts::cut(std::string_view piece, size_t base, std::vector<uint32_t>& ends) const {
  char32_t last = kSpaceSymbol;
  for (size_t pos = 0; pos < piece.size();) {
    CodePoint p = code_point_at(piece, pos);
    if (p.value == kSpaceSymbol && pos > 0 && !before_.contains(last)) {
      ends.push_back(static_cast<uint32_t>(base + pos));
    }
    last = p.value;
    pos += p.size;
  }
  ends.push_back(static_cast<uint32_t>(base + piece.size()));
}

Result<std::unique_ptr<TextModel>> ByteBpe::make(const VocabView& vocab,
                                                 const std::vector<Merge>& merges,
                                                 const BpeOptions& options) {
  auto model = std::make_unique<ByteBpe>();
  for (int b = 0; b < 256; ++b) {
    model->byte_tokens_[b] = vocab.find(byte_level_char(static_cast<uint8_t>(b)));
  }
  Result<PairTable> pairs = make_pairs(vocab, merges, options);
  if (!pairs) return pairs.error();
  model->pairs_ = std::move(*pairs);
  if (options.ignore_merges) {
    std::vector<std::pair<size_t, Token>> places;
    for (size_t t = 0; t < vocab.tokens.size(); ++t) {
      if (vocab.types[t] != TokenType::normal || vocab.tokens[t].empty()) continue;
      std::optional<std::string> bytes = byte_level_decode(vocab.tokens[t]);
      if (!bytes) continue;
      places.push_back({model->bytes_.size(), static_cast<Token>(t)});
      model->bytes_ += *bytes;
    }
    model->whole_.reserve(places.size());
    for (size_t i = 0; i < places.size(); ++i) {
      size_t end = i + 1 < places.size() ? places[i + 1].first : model->bytes_.size();
      std::string_view key(model->bytes_.data() + places[i].first, end - places[i].first);
      model->whole_.try_emplace(key, places[i].second);
    }
  }
  return std::unique_ptr<TextModel>(std::move(model));
}

bool ByteBpe::encode(std::string_view piece, ModelScratch& scratch, std::vector<Token>& out) const {
  if (!whole_.empty()) {
    if (auto it = whole_.find(piece); it != whole_.end()) {
      out.push_back(it->second);
      return true;
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
  return true;
}

Result<std::unique_ptr<TextModel>> CharBpe::make(const VocabView& vocab,
                                                 const std::vector<Merge>& merges,
                                                 BpeOptions options) {
  std::unique_ptr<CharBpe> model(new CharBpe(std::move(options)));
  const BpeOptions& o = model->options_;
  Result<PairTable> pairs = make_pairs(vocab, merges, o);
  if (!pairs) return pairs.error();
  model->pairs_ = std::move(*pairs);
  std::fill(std::begin(model->byte_tokens_), std::end(model->byte_tokens_), kNoToken);
  for (size_t t = 0; t < vocab.tokens.size(); ++t) {
    const std::string& s = vocab.tokens[t];
    if (s.empty() || vocab.types[t] == TokenType::control) continue;
    const Token id = static_cast<Token>(t);
    // Only the spelling that the library writes.
    if (std::optional<uint8_t> b = byte_token_value(s); b && s == strf("<0x%02X>", *b)) {
      model->byte_tokens_[*b] = id;
    }
    if (vocab.find(s) != id || !valid_utf8(s)) continue;
    if (code_point_at(s, 0).size == s.size()) model->chars_[code_point_at(s, 0).value] = id;
    if (!o.prefix.empty() || !o.suffix.empty()) model->marked_[s] = id;
    if (o.ignore_merges) model->whole_[s] = id;
  }
  // A known U+2581 ends a run of unknown characters, so that text may be cut before it.
  model->cuts_ = model->chars_.contains(kSpaceSymbol) && o.prefix.empty() && o.suffix.empty() &&
                 !o.ignore_merges;
  for (const Merge& m : merges) model->spaces_.add(m.left + m.right);
  return std::unique_ptr<TextModel>(std::move(model));
}

Token CharBpe::char_token(std::string_view c, bool first, bool last) const {
  if ((first || options_.prefix.empty()) && (!last || options_.suffix.empty())) {
    auto it = chars_.find(code_point_at(c, 0).value);
    return it == chars_.end() ? kNoToken : it->second;
  }
  std::string s = first ? std::string() : options_.prefix;
  s.append(c);
  if (last) s.append(options_.suffix);
  auto it = marked_.find(s);
  return it == marked_.end() ? kNoToken : it->second;
}

bool CharBpe::encode(std::string_view piece, ModelScratch& scratch, std::vector<Token>& out) const {
  if (options_.ignore_merges) {
    if (auto it = whole_.find(std::string(piece)); it != whole_.end()) {
      out.push_back(it->second);
      return true;
    }
  }
  std::vector<Token>& symbols = scratch.symbols;
  symbols.clear();
  bool unknown = false;  // one is due, but not written: what follows may join it
  auto has_byte = [&](char c) { return byte_tokens_[static_cast<uint8_t>(c)] != kNoToken; };
  for (size_t pos = 0; pos < piece.size();) {
    size_t size = code_point_at(piece, pos).size;
    std::string_view c = piece.substr(pos, size);
    const bool first = pos == 0, last = pos + size == piece.size();
    pos += size;
    if (Token t = char_token(c, first, last); t != kNoToken) {
      if (unknown) symbols.push_back(options_.unk);
      unknown = false;
      symbols.push_back(t);
      continue;
    }
    if (options_.byte_fallback) {
      std::string marked;
      if (!first) marked = options_.prefix;
      marked.append(c);
      if (last) marked.append(options_.suffix);
      if (std::all_of(marked.begin(), marked.end(), has_byte)) {
        for (char b : marked) symbols.push_back(byte_tokens_[static_cast<uint8_t>(b)]);
        continue;
      }
    }
    if (options_.unk == kNoToken) continue;  // left out
    if (unknown && !options_.fuse_unk) symbols.push_back(options_.unk);
    unknown = true;
  }
  if (unknown) symbols.push_back(options_.unk);
  merge_pairs(pairs_, symbols, nullptr, scratch.merge);
  out.insert(out.end(), symbols.begin(), symbols.end());
  return true;
}

}  // namespace sluice

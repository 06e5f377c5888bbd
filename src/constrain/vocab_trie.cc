#include "constrain/vocab_trie.h"

#include <algorithm>

#include "base/str.h"

namespace sluice::constrain {

namespace {

bool is_plain(std::string_view s) {
  for (char c : s) {
    if (static_cast<uint8_t>(c) < 0x20 || c == '"' || c == '\\') return false;
  }
  // A pattern's dot matches every plain character.
  bool breaks_line = s.find("\xE2\x80\xA8") != s.npos || s.find("\xE2\x80\xA9") != s.npos;
  return !breaks_line && valid_utf8(s);
}

uint32_t num_chars(std::string_view s) {
  uint32_t n = 0;
  for (char c : s) n += (static_cast<uint8_t>(c) & 0xC0) != 0x80;
  return n;
}

}  // namespace

VocabTrie::VocabTrie(std::span<const std::string_view> bytes, std::span<const Token> ends)
    : vocab_size_(bytes.size()), ends_(ends.begin(), ends.end()), same_(bytes.size(), kNoToken) {
  std::sort(ends_.begin(), ends_.end());
  std::erase_if(ends_, [&](Token t) { return t < 0 || static_cast<size_t>(t) >= bytes.size(); });
  std::vector<Token> plain, other;
  text_at_.push_back(0);
  for (size_t t = 0; t < bytes.size(); ++t) {
    Token token = static_cast<Token>(t);
    bool counts = !bytes[t].empty() && !is_end(token);
    if (counts) {
      text_ += bytes[t];
      longest_ = std::max(longest_, static_cast<uint32_t>(bytes[t].size()));
    }
    text_at_.push_back(static_cast<uint32_t>(text_.size()));
    if (counts) (is_plain(bytes[t]) ? plain : other).push_back(token);
  }
  build(plain, bytes);
  plain_end_ = static_cast<uint32_t>(nodes_.size());
  build(other, bytes);
  plain_.assign(kLongPlain + 1, std::vector<uint32_t>(mask_words(), 0));
  for (Token t : plain) {
    uint32_t chars = num_chars(bytes[static_cast<size_t>(t)]);
    if (chars > kLongPlain) long_plain_.push_back({t, chars});
    for (uint32_t n = chars; n <= kLongPlain; ++n) {
      plain_[n][static_cast<size_t>(t) / 32] |= 1u << (t % 32);
    }
  }
}

void VocabTrie::build(std::vector<Token>& tokens, std::span<const std::string_view> bytes) {
  auto text = [&](Token t) { return bytes[static_cast<size_t>(t)]; };
  std::sort(tokens.begin(), tokens.end(), [&](Token a, Token b) {
    int order = text(a).compare(text(b));
    return order != 0 ? order < 0 : a < b;
  });
  std::vector<uint32_t> path;  // nodes of the token before
  std::string_view before;
  auto close = [&](size_t depth) {
    while (path.size() > depth) {
      nodes_[path.back()].end = static_cast<uint32_t>(nodes_.size());
      path.pop_back();
    }
  };
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::string_view s = text(tokens[i]);
    size_t shared = 0;
    while (shared < before.size() && shared < s.size() && before[shared] == s[shared]) ++shared;
    close(shared);
    for (size_t k = shared; k < s.size(); ++k) {
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back({0, kNoToken, static_cast<uint8_t>(s[k])});
    }
    Token& at = nodes_[path.back()].token;
    if (at == kNoToken) {
      at = tokens[i];
    } else {
      same_[static_cast<size_t>(tokens[i - 1])] = tokens[i];
    }
    before = s;
  }
  close(0);
}

bool VocabTrie::is_end(Token t) const { return std::binary_search(ends_.begin(), ends_.end(), t); }

void VocabTrie::add_plain(uint32_t max_chars, std::span<uint32_t> bits) const {
  const std::vector<uint32_t>& plain = plain_[std::min(max_chars, kLongPlain)];
  for (size_t i = 0; i < plain.size(); ++i) bits[i] |= plain[i];
  for (const LongToken& t : long_plain_) {
    if (t.chars <= max_chars) bits[static_cast<size_t>(t.token) / 32] |= 1u << (t.token % 32);
  }
}

size_t VocabTrie::memory_bytes() const {
  size_t bytes = masks_.max_bytes() + text_.size() + text_at_.size() * sizeof(text_at_[0]) +
                 nodes_.size() * sizeof(Entry) + same_.size() * sizeof(Token) +
                 long_plain_.size() * sizeof(LongToken);
  for (const std::vector<uint32_t>& bits : plain_) bytes += bits.size() * sizeof(bits[0]);
  return bytes;
}

}  // namespace sluice::constrain

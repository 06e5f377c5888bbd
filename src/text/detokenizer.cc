#include "text/detokenizer.h"

#include <algorithm>

#include "base/check.h"
#include "text/unicode.h"

namespace sluice {

namespace {
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

bool is_byte(const Tokenizer& tokenizer, Token t) {
  return tokenizer.contains(t) && tokenizer.type(t) == TokenType::byte;
}
}  // namespace

std::string Detokenizer::push(Token token) {
  if (skip_ && tokenizer_->is_control(token)) return {};
  std::string out;
  bool byte = is_byte(*tokenizer_, token);
  if (by_byte_ && !byte) out = give_up_pending();
  by_byte_ = byte;
  return out += push_bytes(tokenizer_->bytes(token));
}

std::string Detokenizer::give_up_pending() {
  std::string out;
  for (size_t n = by_byte_ ? num_pending_ : std::min<size_t>(num_pending_, 1); n > 0; --n)
    out += kReplacement;
  num_pending_ = 0;
  return out;
}

std::string Detokenizer::push_bytes(std::string_view bytes) {
  if (bytes.empty()) return {};
  if (strip_) {
    strip_ = false;
    if (bytes[0] == ' ') bytes.remove_prefix(1);
  }
  std::string joined;
  if (num_pending_ > 0 || space_) {
    joined.reserve(num_pending_ + 1 + bytes.size());
    joined.append(pending_, num_pending_).append(space_ ? " " : "").append(bytes);
    bytes = joined;
    num_pending_ = 0;
    space_ = false;
  }
  if (tokenizer_->drops_last_space() && bytes.ends_with(' ')) {
    space_ = true;
    bytes.remove_suffix(1);
  }
  std::string out;
  out.reserve(bytes.size());
  for (size_t pos = 0; pos < bytes.size();) {
    Utf8Step step = utf8_step(bytes.substr(pos));
    if (step.size > 0) {
      out.append(bytes, pos, step.size);
      pos += step.size;
    } else if (step.truncated) {
      num_pending_ = static_cast<uint8_t>(bytes.size() - pos);
      CHECK(num_pending_ < sizeof pending_);
      std::copy(bytes.begin() + static_cast<ptrdiff_t>(pos), bytes.end(), pending_);
      break;
    } else {
      for (size_t n = by_byte_ ? step.bad : 1; n > 0; --n) out += kReplacement;
      pos += step.bad;
    }
  }
  return out;
}

std::string Detokenizer::flush() {
  std::string out = give_up_pending();  // the beginning of one character
  strip_ = space_ = by_byte_ = false;
  return out;
}

std::string detokenize(const Tokenizer& tokenizer,
                       std::span<const Token> tokens,
                       DetokenizeOptions options) {
  Detokenizer d(tokenizer, options);
  std::string out, run;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (!is_byte(tokenizer, tokens[i])) {
      out += d.push(tokens[i]);
      continue;
    }
    size_t end = i;
    run.clear();
    for (; end < tokens.size(); ++end) {
      bool skipped = options.skip_special && tokenizer.is_control(tokens[end]);
      if (!skipped && !is_byte(tokenizer, tokens[end])) break;
      if (!skipped) run += tokenizer.bytes(tokens[end]);
    }
    if (first_invalid_utf8(run)) run.assign(run.size(), '\xFF');  // never part of a character
    out += d.push_bytes(run);
    i = end - 1;
  }
  return out += d.flush();
}

}  // namespace sluice

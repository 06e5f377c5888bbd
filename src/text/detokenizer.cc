#include "text/detokenizer.h"

#include <algorithm>

#include "base/check.h"
#include "text/unicode.h"

namespace sluice {

namespace {
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
}  // namespace

std::string Detokenizer::push(Token token) {
  if (skip_ && tokenizer_->is_control(token)) return {};
  return push_bytes(tokenizer_->bytes(token));
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
      out += kReplacement;
      pos += step.bad;
    }
  }
  return out;
}

std::string Detokenizer::flush() {
  // What is pending is the beginning of one character: one maximal subpart.
  std::string out(num_pending_ > 0 ? kReplacement : std::string_view());
  num_pending_ = 0;
  strip_ = space_ = false;
  return out;
}

std::string detokenize(const Tokenizer& tokenizer,
                       std::span<const Token> tokens,
                       DetokenizeOptions options) {
  Detokenizer d(tokenizer, options);
  std::string out;
  for (Token t : tokens) out += d.push(t);
  return out += d.flush();
}

}  // namespace sluice

#include "runtime/text_stream.h"

#include <algorithm>

namespace sluice {

TextStream::TextStream(const Tokenizer& tokenizer, Options options)
    : tokenizer_(&tokenizer),
      options_(options),
      detokenizer_(tokenizer,
                   {.skip_special = options.skip_special,
                    .strip_leading_space = options.strip_leading_space}) {}

bool TextStream::shows(Token control) const {
  return !options_.skip_special ||
         std::binary_search(options_.keep.begin(), options_.keep.end(), control);
}

std::string TextStream::take(const Event& event) {
  std::string out;
  if (event.token != kNoToken && !event.is_end_token) {
    if (!tokenizer_->is_control(event.token)) {
      held_ += tokenizer_->bytes(event.token);
    } else if (shows(event.token)) {
      // The stop matcher sees no bytes in a control token: what was held is in front of it.
      out =
          detokenizer_.push_bytes(held_) + detokenizer_.push_bytes(tokenizer_->bytes(event.token));
      held_.clear();
    }
  }
  size_t cut = options_.include_stop ? event.trail : event.cut;
  held_.resize(held_.size() - std::min(cut, held_.size()));
  size_t keep = event.finish == Finish::none ? std::min<size_t>(event.held, held_.size()) : 0;
  out += detokenizer_.push_bytes(std::string_view(held_).substr(0, held_.size() - keep));
  held_.erase(0, held_.size() - keep);
  if (event.finish != Finish::none) out += detokenizer_.flush();
  return out;
}

}  // namespace sluice

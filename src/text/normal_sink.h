// Where a normalizer's step writes: collects the new text and, where somebody asks, which of its
// bytes stem from trusted text. One per step.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/normalize.h"

namespace sluice {

// A step may not make text longer than this: offsets are 32 bits, and memory is finite.
inline size_t max_normal_text(size_t size) {
  return std::min((size_t{1} << 20) + 64 * size, size_t{1} << 30);
}

class NormalSink {
 public:
  explicit NormalSink(const NormalText& from) : from_(from) {
    out_.reserve(from.text.size() + from.text.size() / 8);
    if (from.trusted.empty()) return;
    // Trusted bytes from each place on, in one pass from the end.
    num_trusted_.assign(from.text.size() + 1, 0);
    for (size_t i = from.text.size(); i-- > 0;) {
      if (from.trusted[i] != 0) num_trusted_[i] = num_trusted_[i + 1] + 1;
    }
  }

  std::string_view text() const { return from_.text; }
  // How many bytes from pos on are trusted.
  size_t num_trusted(size_t pos) const {
    return num_trusted_.empty() ? text().size() - pos : num_trusted_[pos];
  }

  void copy(size_t begin, size_t end) {
    if (begin == end) return;
    if (end - begin > max_normal_text(text().size()) - out_.size()) overflow_ = true;
    if (overflow_) return;
    start(begin);
    out_.append(from_.text, begin, end - begin);
    if (!num_trusted_.empty()) {
      trusted_.insert(trusted_.end(), from_.trusted.begin() + static_cast<ptrdiff_t>(begin),
                      from_.trusted.begin() + static_cast<ptrdiff_t>(end));
    }
  }

  // `s` stands for text()[begin, end); where that is empty, it goes with what follows.
  void put(std::string_view s, size_t begin, size_t end) {
    if (s.empty()) return;
    if (s.size() > max_normal_text(text().size()) - out_.size()) overflow_ = true;
    if (overflow_) return;
    start(begin);
    out_.append(s);
    if (num_trusted_.empty()) return;
    size_t last = std::max(end, std::min(begin + 1, text().size()));
    trusted_.resize(out_.size(), num_trusted_[begin] >= last - begin ? 1 : 0);
  }

  // Takes `s` off the end of what was written, where it is there.
  bool drop_end(std::string_view s) {
    if (!std::string_view(out_).ends_with(s)) return false;
    out_.resize(out_.size() - s.size());
    if (!num_trusted_.empty()) trusted_.resize(out_.size());
    return true;
  }

  // What was written did not fit.
  bool overflow() const { return overflow_; }

  void finish(NormalText& to) {
    to.storage = std::move(out_);
    to.text = to.storage;
    to.trusted = std::move(trusted_);
    to.at_start = to.at_start && (started_at_ == 0 || to.text.empty());
  }

 private:
  void start(size_t begin) {
    if (out_.empty()) started_at_ = begin;
  }

  const NormalText& from_;
  std::string out_;
  std::vector<uint8_t> trusted_;
  std::vector<size_t> num_trusted_;
  size_t started_at_ = 0;
  bool overflow_ = false;
};

}  // namespace sluice

// Parses server-sent events from a stream of bytes that may be cut anywhere. One thread.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>

namespace sluice {

class SseReader {
 public:
  // Calls f(std::string_view data) for every event that ends in `bytes`; several data lines are
  // joined by line feeds; comments and other fields are passed over. A line ends with LF, CRLF or
  // CR. False: an event is larger than `max_event`, and the stream is of no more use.
  template <typename F>
  bool feed(std::string_view bytes, F&& f) {
    while (!bytes.empty()) {
      if (skip_lf_) {  // the other half of a CRLF
        skip_lf_ = false;
        if (bytes[0] == '\n') {
          bytes.remove_prefix(1);
          continue;
        }
      }
      size_t end = line_end(bytes);
      if (end == std::string_view::npos) {
        line_ += bytes;
        return line_.size() + data_.size() <= kMaxEvent;
      }
      skip_lf_ = bytes[end] == '\r';
      std::string_view line = bytes.substr(0, end);
      if (!line_.empty()) {
        line_ += line;
        line = line_;
      }
      bytes.remove_prefix(end + 1);
      if (line.empty()) {
        if (has_data_) f(std::string_view(data_));
        has_data_ = false;
        data_.clear();
      } else {
        take(line);
      }
      line_.clear();
      if (data_.size() > kMaxEvent) return false;
    }
    return true;
  }

  // Is there the beginning of an event that has not ended?
  bool within_event() const { return has_data_ || !line_.empty(); }

  static constexpr size_t kMaxEvent = size_t{16} << 20;

 private:
  static size_t line_end(std::string_view s) {
    const void* lf = std::memchr(s.data(), '\n', s.size());
    size_t n = lf ? static_cast<size_t>(static_cast<const char*>(lf) - s.data()) : s.size();
    const void* cr = std::memchr(s.data(), '\r', n);
    if (cr) return static_cast<size_t>(static_cast<const char*>(cr) - s.data());
    return lf ? n : std::string_view::npos;
  }

  void take(std::string_view line) {
    if (first_) {
      first_ = false;
      if (line.starts_with("\xef\xbb\xbf")) line.remove_prefix(3);
    }
    if (!line.starts_with("data")) return;
    line.remove_prefix(4);
    if (!line.empty()) {
      if (line[0] != ':') return;  // another field, "database: ..."
      line.remove_prefix(1);
      if (line.starts_with(' ')) line.remove_prefix(1);
    }
    if (has_data_) data_ += '\n';
    has_data_ = true;
    data_ += line;
  }

  std::string line_, data_;
  bool has_data_ = false, skip_lf_ = false, first_ = true;
};

}  // namespace sluice

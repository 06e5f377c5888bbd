// Text with provenance: UTF-8 bytes and, per byte range, whether they may be trusted (literals of
// the template) or came from the request. Plus the code-point functions Python strings need.
// Values; used on whichever thread renders.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/meter.h"

namespace sluice::jinja {

class Text {
 public:
  struct Run {
    size_t end;  // one past the last byte; the run starts where the previous one ends
    bool trusted;
  };

  explicit Text(Meter& m) : meter_(&m) {}  // empty; growing is charged
  Text(Meter& m, std::string bytes, bool trusted);
  Text(Meter& m, const Text& other) : meter_(&m) { append(other); }
  // Text of the template itself, or bounded by other means: not charged.
  static Text unmetered(std::string bytes = {}, bool trusted = true);
  Text(Text&& other) noexcept
      : meter_(other.meter_),
        charged_(std::exchange(other.charged_, 0)),
        charged_runs_(std::exchange(other.charged_runs_, 0)),
        bytes_(std::move(other.bytes_)),
        runs_(std::move(other.runs_)) {}
  Text& operator=(Text&& other) noexcept;
  ~Text() { release(); }

  const std::string& str() const { return bytes_; }
  std::string_view view() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  const std::vector<Run>& runs() const { return runs_; }
  // No byte came from the request.
  bool trusted() const;

  void append(std::string_view bytes, bool trusted);
  void append(const Text& other) { append(other, 0, other.size()); }
  // Bytes [begin, end) of `other`, which must not be *this.
  void append(const Text& other, size_t begin, size_t end);
  Text slice(Meter& m, size_t begin, size_t end) const;
  void reserve(size_t size);  // charges; at least doubles

 private:
  Text() = default;
  void release();

  Meter* meter_ = nullptr;
  size_t charged_ = 0, charged_runs_ = 0;  // bytes; runs
  std::string bytes_;
  std::vector<Run> runs_;  // ascending, adjacent runs differ in trust
};

// Decodes the code point at s[i] and moves i past it. Malformed bytes come out one by one.
char32_t next_code_point(std::string_view s, size_t& i);
void append_utf8(std::string& out, char32_t c);
// The last `digits` digits of v in lower-case hexadecimal.
void append_hex(std::string& out, uint32_t v, int digits);
size_t count_code_points(std::string_view s);
// Byte offset of code point `index`, or s.size() when there are fewer.
size_t code_point_offset(std::string_view s, size_t index);

bool is_space(char32_t c);  // str.isspace()
bool is_alpha(char32_t c);
bool is_upper(char32_t c);
bool is_lower(char32_t c);
char32_t to_upper(char32_t c);
char32_t to_lower(char32_t c);

// A letter, or what else may begin a Python identifier; or what else may be in one.
bool is_identifier_start(char32_t c);
bool is_identifier_part(char32_t c);
bool is_title(char32_t c);  // a digraph with a capital first letter
// One character may become several.
void append_upper(std::string& out, char32_t c);
void append_title(std::string& out, char32_t c);
void append_lower(std::string& out, char32_t c);

enum class Case { upper, lower, capitalize, title, swap, fold };
// Python's str.upper() and so on; provenance is kept byte range by byte range.
Text change_case(Meter& m, const Text& s, Case how);

// Byte range of s without leading/trailing code points for which `drop` holds.
struct ByteRange {
  size_t begin, end;
};
ByteRange strip_range(std::string_view s, std::string_view chars, bool left, bool right);
ByteRange strip_space_range(std::string_view s, bool left, bool right);

// First position of `needle` at or after `from`, npos if absent. Linear time for every input.
size_t find_bytes(std::string_view s, std::string_view needle, size_t from = 0);
size_t rfind_bytes(std::string_view s, std::string_view needle);

}  // namespace sluice::jinja

// Writes MessagePack, the part of it that our messages need. Appends to a string; the shortest form
// of every number, as other writers choose it. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

class MsgpackWriter {
 public:
  explicit MsgpackWriter(std::string& out) : out_(out) {}

  void nil() { out_ += '\xc0'; }
  void boolean(bool v) { out_ += v ? '\xc3' : '\xc2'; }
  void integer(int64_t v);
  void natural(uint64_t v);
  void real(double v);
  void text(std::string_view v);  // UTF-8
  void bytes(std::string_view v);
  // So many values follow; of a map, so many pairs.
  void array(uint32_t count);
  void map(uint32_t count);

 private:
  void big_endian(uint64_t v, int num_bytes);
  void sized(uint64_t size, uint8_t one, uint8_t two, uint8_t four);

  std::string& out_;
};

}  // namespace sluice

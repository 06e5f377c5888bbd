// Reads MessagePack that others sent: every call checks bounds and types. The first that fails
// fails all after it. Views into the text. Any thread.
#pragma once

#include <cstdint>
#include <string_view>

namespace sluice {

class MsgpackReader {
 public:
  explicit MsgpackReader(std::string_view bytes) : rest_(bytes) {}

  bool ok() const { return ok_; }
  bool at_end() const { return rest_.empty(); }

  // True where a nil was next, which is then taken.
  bool nil();
  // Zero where something else is next.
  uint64_t natural();
  int64_t integer();
  std::string_view text();
  // How many values, or pairs, follow: at most as many as there are bytes.
  uint32_t array();
  uint32_t map();
  // Any value. Nesting is bounded.
  void skip(int depth = 0);

 private:
  bool fail();
  uint8_t peek() const { return rest_.empty() ? 0xc1 : static_cast<uint8_t>(rest_[0]); }
  uint64_t big_endian(size_t num_bytes);
  std::string_view take(uint64_t size);
  uint32_t count(uint8_t fixed, uint8_t mask, uint8_t two, uint32_t least);

  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace sluice

#include "base/msgpack.h"

#include <bit>

#include "base/check.h"

namespace sluice {

void MsgpackWriter::big_endian(uint64_t v, int num_bytes) {
  for (int k = num_bytes - 1; k >= 0; --k) out_ += static_cast<char>(v >> (8 * k));
}

// The tag for a size of one, two or four bytes, and the size. `one` 0: there is no such tag.
void MsgpackWriter::sized(uint64_t size, uint8_t one, uint8_t two, uint8_t four) {
  CHECK(size <= UINT32_MAX);
  const int width = one != 0 && size <= UINT8_MAX ? 1 : size <= UINT16_MAX ? 2 : 4;
  out_ += static_cast<char>(width == 1 ? one : width == 2 ? two : four);
  big_endian(size, width);
}

void MsgpackWriter::natural(uint64_t v) {
  if (v < 0x80) {
    out_ += static_cast<char>(v);
  } else if (v <= UINT8_MAX) {
    out_ += '\xcc', big_endian(v, 1);
  } else if (v <= UINT16_MAX) {
    out_ += '\xcd', big_endian(v, 2);
  } else if (v <= UINT32_MAX) {
    out_ += '\xce', big_endian(v, 4);
  } else {
    out_ += '\xcf', big_endian(v, 8);
  }
}

void MsgpackWriter::integer(int64_t v) {
  if (v >= 0) return natural(static_cast<uint64_t>(v));
  const auto bits = static_cast<uint64_t>(v);
  if (v >= -32) {
    out_ += static_cast<char>(v);
  } else if (v >= INT8_MIN) {
    out_ += '\xd0', big_endian(bits, 1);
  } else if (v >= INT16_MIN) {
    out_ += '\xd1', big_endian(bits, 2);
  } else if (v >= INT32_MIN) {
    out_ += '\xd2', big_endian(bits, 4);
  } else {
    out_ += '\xd3', big_endian(bits, 8);
  }
}

void MsgpackWriter::real(double v) {
  out_ += '\xcb';
  big_endian(std::bit_cast<uint64_t>(v), 8);
}

void MsgpackWriter::text(std::string_view v) {
  if (v.size() < 32) {
    out_ += static_cast<char>(0xa0 | v.size());
  } else {
    sized(v.size(), 0xd9, 0xda, 0xdb);
  }
  out_ += v;
}

void MsgpackWriter::bytes(std::string_view v) {
  sized(v.size(), 0xc4, 0xc5, 0xc6);
  out_ += v;
}

void MsgpackWriter::array(uint32_t count) {
  if (count < 16) {
    out_ += static_cast<char>(0x90 | count);
  } else {
    sized(count, 0, 0xdc, 0xdd);
  }
}

void MsgpackWriter::map(uint32_t count) {
  if (count < 16) {
    out_ += static_cast<char>(0x80 | count);
  } else {
    sized(count, 0, 0xde, 0xdf);
  }
}

}  // namespace sluice

#include "base/msgpack_reader.h"

namespace sluice {

namespace {

constexpr int kMostDepth = 32;

}  // namespace

bool MsgpackReader::fail() {
  ok_ = false;
  rest_ = {};
  return false;
}

std::string_view MsgpackReader::take(uint64_t size) {
  if (size > rest_.size()) return fail(), std::string_view();
  const std::string_view out = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return out;
}

uint64_t MsgpackReader::big_endian(size_t num_bytes) {
  uint64_t v = 0;
  for (char c : take(num_bytes)) v = v << 8 | static_cast<uint8_t>(c);
  return v;
}

bool MsgpackReader::nil() {
  if (peek() != 0xc0) return false;
  take(1);
  return true;
}

uint64_t MsgpackReader::natural() {
  const uint8_t tag = peek();
  if (tag < 0x80) return take(1), tag;
  if (tag < 0xcc || tag > 0xcf) return fail(), 0;
  take(1);
  return big_endian(size_t{1} << (tag - 0xcc));
}

int64_t MsgpackReader::integer() {
  const uint8_t tag = peek();
  if (tag >= 0xe0) return take(1), static_cast<int8_t>(tag);
  if (tag < 0xd0 || tag > 0xd3) return static_cast<int64_t>(natural());
  take(1);
  const size_t size = size_t{1} << (tag - 0xd0);
  const int unused = static_cast<int>(64 - 8 * size);
  return static_cast<int64_t>(big_endian(size) << unused) >> unused;
}

std::string_view MsgpackReader::text() {
  const uint8_t tag = peek();
  if (tag >= 0xa0 && tag < 0xc0) return take(1), take(tag & 0x1f);
  if (tag < 0xd9 || tag > 0xdb) return fail(), std::string_view();
  take(1);
  return take(big_endian(size_t{1} << (tag - 0xd9)));
}

uint32_t MsgpackReader::count(uint8_t fixed, uint8_t mask, uint8_t two, uint32_t least) {
  const uint8_t tag = peek();
  uint64_t n = 0;
  if ((tag & ~mask) == fixed) {
    take(1);
    n = tag & mask;
  } else if (tag == two || tag == two + 1) {
    take(1);
    n = big_endian(tag == two ? 2 : 4);
  } else {
    return fail(), 0;
  }
  if (n * least > rest_.size()) return fail(), 0;
  return static_cast<uint32_t>(n);
}

uint32_t MsgpackReader::array() { return count(0x90, 0x0f, 0xdc, 1); }
uint32_t MsgpackReader::map() { return count(0x80, 0x0f, 0xde, 2); }

void MsgpackReader::skip(int depth) {
  const uint8_t tag = peek();
  if (depth > kMostDepth || tag == 0xc1) return static_cast<void>(fail());
  if (tag < 0x80 || tag >= 0xe0 || tag == 0xc0 || tag == 0xc2 || tag == 0xc3) {
    take(1);
  } else if (tag < 0xa0 || (tag >= 0xdc && tag <= 0xdf)) {
    const bool is_map = tag < 0x90 || tag >= 0xde;
    const uint64_t n = is_map ? uint64_t{map()} * 2 : array();
    for (uint64_t k = 0; k < n && ok_; ++k) skip(depth + 1);
  } else if (tag < 0xc0 || (tag >= 0xd9 && tag <= 0xdb)) {
    text();
  } else if (tag >= 0xc4 && tag <= 0xc6) {  // bytes
    take(1);
    take(big_endian(size_t{1} << (tag - 0xc4)));
  } else if (tag >= 0xca && tag <= 0xd3) {  // floats and integers
    take(1);
    take(tag == 0xca ? 4 : tag == 0xcb ? 8 : size_t{1} << ((tag - 0xcc) & 3));
  } else {  // extensions: nobody sends us any
    fail();
  }
}

}  // namespace sluice

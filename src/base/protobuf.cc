#include "base/protobuf.h"

namespace sluice {

namespace {

size_t varint_size(uint64_t value) {
  size_t size = 1;
  while (value >>= 7) ++size;
  return size;
}

}  // namespace

bool ProtoReader::next_varint(uint64_t& value) {
  value = 0;
  for (size_t i = 0; i < 10 && i < rest_.size(); ++i) {
    const auto byte = static_cast<uint8_t>(rest_[i]);
    if (i == 9 && byte > 1) break;  // more than 64 bits
    value |= uint64_t{byte & 0x7fu} << (7 * i);
    if (byte < 0x80) {
      rest_.remove_prefix(i + 1);
      return true;
    }
  }
  if (!rest_.empty()) fail();
  return false;
}

bool ProtoReader::fixed(size_t num_bytes, uint64_t& value) {
  if (rest_.size() < num_bytes) return fail();
  value = 0;
  for (size_t i = 0; i < num_bytes; ++i)
    value |= uint64_t{static_cast<uint8_t>(rest_[i])} << (8 * i);
  rest_.remove_prefix(num_bytes);
  return true;
}

bool ProtoReader::next(ProtoField& field) {
  uint64_t tag = 0, size = 0;
  if (!ok_ || !next_varint(tag)) return false;
  if (tag >> 3 == 0 || tag >> 3 >= uint64_t{1} << 29) return fail();
  field = {};
  field.number = static_cast<uint32_t>(tag >> 3);
  field.type = static_cast<ProtoType>(tag & 7);
  switch (tag & 7) {
    case 0:
      return next_varint(field.value) || fail();
    case 1:
      return fixed(8, field.value);
    case 5:
      return fixed(4, field.value);
    case 2:
      if (!next_varint(size) || size > rest_.size()) return fail();
      field.bytes = rest_.substr(0, size);
      rest_.remove_prefix(size);
      return true;
    default:  // groups, which proto3 does not have
      return fail();
  }
}

void ProtoWriter::raw(uint64_t value) {
  for (; value >= 0x80; value >>= 7) out_ += static_cast<char>(value | 0x80);
  out_ += static_cast<char>(value);
}

void ProtoWriter::fixed(uint64_t value, size_t num_bytes) {
  for (size_t i = 0; i < num_bytes; ++i) out_ += static_cast<char>(value >> (8 * i));
}

void ProtoWriter::varint(uint32_t field, uint64_t value) {
  tag(field, ProtoType::varint);
  raw(value);
}

void ProtoWriter::real(uint32_t field, float value) {
  tag(field, ProtoType::fixed32);
  fixed(std::bit_cast<uint32_t>(value), 4);
}

void ProtoWriter::real64(uint32_t field, double value) {
  tag(field, ProtoType::fixed64);
  fixed(std::bit_cast<uint64_t>(value), 8);
}

void ProtoWriter::bytes(uint32_t field, std::string_view value) {
  tag(field, ProtoType::bytes);
  raw(value.size());
  out_ += value;
}

void ProtoWriter::packed(uint32_t field, std::span<const uint32_t> values) {
  size_t size = 0;
  for (uint32_t v : values) size += varint_size(v);
  tag(field, ProtoType::bytes);
  raw(size);
  for (uint32_t v : values) raw(v);
}

void ProtoWriter::packed(uint32_t field, std::span<const float> values) {
  tag(field, ProtoType::bytes);
  raw(values.size() * 4);
  for (float v : values) fixed(std::bit_cast<uint32_t>(v), 4);
}

}  // namespace sluice

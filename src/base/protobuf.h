// Reads and writes Protocol Buffers' wire format, without schemas: callers know their fields. Any
// thread.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace sluice {

enum class ProtoType : uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

struct ProtoField {
  uint32_t number = 0;
  ProtoType type = ProtoType::varint;
  uint64_t value = 0;      // of the numeric types, as on the wire
  std::string_view bytes;  // a text, a message, or packed numbers

  float as_float() const { return std::bit_cast<float>(static_cast<uint32_t>(value)); }
  double as_double() const { return std::bit_cast<double>(value); }
};

// The fields of a message that others sent, in the order in which they come. Checks bounds.
class ProtoReader {
 public:
  explicit ProtoReader(std::string_view message) : rest_(message) {}

  // False: there is no further field, or what follows is none.
  bool next(ProtoField& field);
  // Of packed numbers: one varint.
  bool next_varint(uint64_t& value);
  bool ok() const { return ok_; }

 private:
  bool fail() { return ok_ = false; }
  bool fixed(size_t num_bytes, uint64_t& value);

  std::string_view rest_;
  bool ok_ = true;
};

// Appends fields to a string. Zeros and empty texts are written: callers leave them out where the
// schema's presence is implicit.
class ProtoWriter {
 public:
  explicit ProtoWriter(std::string& out) : out_(out) {}

  void varint(uint32_t field, uint64_t value);
  void real(uint32_t field, float value);
  void real64(uint32_t field, double value);
  void bytes(uint32_t field, std::string_view value);  // also texts and messages
  void packed(uint32_t field, std::span<const uint32_t> values);
  void packed(uint32_t field, std::span<const float> values);

 private:
  void tag(uint32_t field, ProtoType type) {
    raw(uint64_t{field} << 3 | static_cast<uint64_t>(type));
  }
  void raw(uint64_t value);
  void fixed(uint64_t value, size_t num_bytes);

  std::string& out_;
};

}  // namespace sluice

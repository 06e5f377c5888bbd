#include "tensor/gguf_meta.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace sluice {
namespace {

constexpr uint64_t kMaxArray =
    1 << 24;  // far above any real file: a sparse one may ask for anything
constexpr int kMaxArrayDepth = 4;

// In GGUF's order.
enum class ValueType : uint32_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  string,
  array,
  u64,
  i64,
  f64
};

// Bytes of one value; for strings and arrays, of the shortest.
constexpr uint64_t kValueBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};
constexpr uint64_t value_bytes(ValueType type) { return kValueBytes[static_cast<size_t>(type)]; }

class MetaReader {
 public:
  MetaReader(GgufCursor& in, Meta& meta) : in_(in), meta_(meta) {}

  bool run(uint64_t num_keys);

 private:
  bool read_type(ValueType& out) {
    uint32_t type = 0;
    if (!in_.read(type)) return false;
    out = static_cast<ValueType>(type);
    if (type > static_cast<uint32_t>(ValueType::f64)) {
      return in_.fail(
          strf("metadata %s has value type %u, which GGUF does not define; the file is corrupt",
               quote(in_.context()).c_str(), type));
    }
    return true;
  }

  bool read_value(ValueType type, MetaValue& out);
  bool read_bool(bool& out);
  bool read_array(std::optional<MetaValue>& out);
  bool read_array_head(ValueType& type, uint64_t& num);
  bool skip_arrays(uint64_t num, int depth);
  template <typename T>
  bool read_integers(uint64_t num, MetaValue& out);
  template <typename T>
  bool read_floats(uint64_t num, MetaValue& out);
  bool read_strings(uint64_t num, MetaValue& out);
  bool read_bools(uint64_t num, MetaValue& out);
  bool read_array_values(ValueType type, uint64_t num, MetaValue& out);

  GgufCursor& in_;
  Meta& meta_;
};

bool MetaReader::run(uint64_t num_keys) {
  for (uint64_t i = 0; i < num_keys; ++i) {
    std::string_view key;
    in_.set_context("the metadata keys");
    if (!in_.read_string(key)) return false;
    if (key.empty() || key.size() > kMaxGgufNameBytes) {
      return in_.fail(
          strf("metadata key %llu has %zu bytes (1 to 65535 are allowed); the file is corrupt",
               static_cast<unsigned long long>(i), key.size()));
    }
    if (meta_.has(key)) {
      return in_.fail(
          strf("metadata key %s occurs twice; the file is corrupt", quote(key).c_str()));
    }
    in_.set_context(key);
    ValueType type{};
    if (!read_type(type)) return false;
    std::optional<MetaValue> value;
    if (type == ValueType::array) {
      if (!read_array(value)) return false;
    } else if (!read_value(type, value.emplace())) {
      return false;
    }
    if (value) meta_.set(std::string(key), std::move(*value));
  }
  in_.set_context({});
  return true;
}

bool MetaReader::read_bool(bool& out) {
  uint8_t byte = 0;
  if (!in_.read(byte)) return false;
  if (byte > 1) {
    return in_.fail(strf("metadata %s has a boolean of value %u; the file is corrupt",
                         quote(in_.context()).c_str(), byte));
  }
  out = byte == 1;
  return true;
}

bool MetaReader::read_value(ValueType type, MetaValue& out) {
  auto number = [&]<typename T, typename Wide>(T value, Wide) {
    if (!in_.read(value)) return false;
    out = static_cast<Wide>(value);
    return true;
  };
  switch (type) {
    case ValueType::u8:
      return number(uint8_t{}, uint64_t{});
    case ValueType::u16:
      return number(uint16_t{}, uint64_t{});
    case ValueType::u32:
      return number(uint32_t{}, uint64_t{});
    case ValueType::u64:
      return number(uint64_t{}, uint64_t{});
    case ValueType::i8:
      return number(int8_t{}, int64_t{});
    case ValueType::i16:
      return number(int16_t{}, int64_t{});
    case ValueType::i32:
      return number(int32_t{}, int64_t{});
    case ValueType::i64:
      return number(int64_t{}, int64_t{});
    case ValueType::f32:
      return number(float{}, double{});
    case ValueType::f64:
      return number(double{}, double{});
    case ValueType::boolean: {
      bool b = false;
      if (!read_bool(b)) return false;
      out = b;
      return true;
    }
    case ValueType::string: {
      std::string_view s;
      if (!in_.read_string(s)) return false;
      out = std::string(s);
      return true;
    }
    case ValueType::array:
      break;
  }
  return in_.fail("a value of array type where a scalar belongs");
}

bool MetaReader::read_array_head(ValueType& type, uint64_t& num) {
  if (!read_type(type) || !in_.read(num)) return false;
  if (num > in_.left() / value_bytes(type)) return in_.cut_off("an array");
  if (num > kMaxArray) {
    return in_.fail(strf("metadata %s has an array of %llu elements; at most %llu are supported",
                         quote(in_.context()).c_str(), static_cast<unsigned long long>(num),
                         static_cast<unsigned long long>(kMaxArray)));
  }
  return true;
}

bool MetaReader::read_array(std::optional<MetaValue>& out) {
  ValueType type{};
  uint64_t num = 0;
  if (!read_array_head(type, num)) return false;
  if (type == ValueType::array) return skip_arrays(num, 1);
  return read_array_values(type, num, out.emplace());
}

// Arrays of arrays have no place in MetaValue and no reader; they are stepped over.
bool MetaReader::skip_arrays(uint64_t num, int depth) {
  if (depth > kMaxArrayDepth) {
    return in_.fail(strf("metadata %s nests arrays more than %d deep; the file is corrupt",
                         quote(in_.context()).c_str(), kMaxArrayDepth));
  }
  for (uint64_t i = 0; i < num; ++i) {
    ValueType type{};
    uint64_t inner = 0;
    if (!read_array_head(type, inner)) return false;
    if (type == ValueType::array) {
      if (!skip_arrays(inner, depth + 1)) return false;
    } else if (type == ValueType::string) {
      std::string_view s;
      for (uint64_t j = 0; j < inner; ++j) {
        if (!in_.read_string(s)) return false;
      }
    } else {
      if (!in_.skip(static_cast<size_t>(inner * value_bytes(type)))) return false;
    }
  }
  return true;
}

template <typename T>
bool MetaReader::read_integers(uint64_t num, MetaValue& out) {
  auto& values = out.emplace<std::vector<int64_t>>(static_cast<size_t>(num));
  for (int64_t& v : values) {
    T x{};
    if (!in_.read(x)) return false;
    if (!std::in_range<int64_t>(x)) {
      return in_.fail(
          strf("metadata %s has an array element above 2^63 - 1, which is not supported",
               quote(in_.context()).c_str()));
    }
    v = static_cast<int64_t>(x);
  }
  return true;
}

template <typename T>
bool MetaReader::read_floats(uint64_t num, MetaValue& out) {
  auto& values = out.emplace<std::vector<float>>(static_cast<size_t>(num));
  for (float& v : values) {
    T x{};
    if (!in_.read(x)) return false;
    v = static_cast<float>(x);
  }
  return true;
}

bool MetaReader::read_strings(uint64_t num, MetaValue& out) {
  auto& values = out.emplace<std::vector<std::string>>();
  values.reserve(static_cast<size_t>(num));
  for (uint64_t i = 0; i < num; ++i) {
    std::string_view s;
    if (!in_.read_string(s)) return false;
    values.emplace_back(s);
  }
  return true;
}

bool MetaReader::read_bools(uint64_t num, MetaValue& out) {
  auto& values = out.emplace<std::vector<bool>>(static_cast<size_t>(num));
  for (size_t i = 0; i < values.size(); ++i) {
    bool b = false;
    if (!read_bool(b)) return false;
    values[i] = b;
  }
  return true;
}

bool MetaReader::read_array_values(ValueType type, uint64_t num, MetaValue& out) {
  switch (type) {
    case ValueType::u8:
      return read_integers<uint8_t>(num, out);
    case ValueType::i8:
      return read_integers<int8_t>(num, out);
    case ValueType::u16:
      return read_integers<uint16_t>(num, out);
    case ValueType::i16:
      return read_integers<int16_t>(num, out);
    case ValueType::u32:
      return read_integers<uint32_t>(num, out);
    case ValueType::i32:
      return read_integers<int32_t>(num, out);
    case ValueType::u64:
      return read_integers<uint64_t>(num, out);
    case ValueType::i64:
      return read_integers<int64_t>(num, out);
    case ValueType::f32:
      return read_floats<float>(num, out);
    case ValueType::f64:
      return read_floats<double>(num, out);
    case ValueType::string:
      return read_strings(num, out);
    case ValueType::boolean:
      return read_bools(num, out);
    case ValueType::array:
      break;
  }
  return in_.fail("an array of arrays where scalars belong");
}

}  // namespace

bool read_gguf_meta(GgufCursor& in, uint64_t num_keys, Meta& meta) {
  return MetaReader(in, meta).run(num_keys);
}

}  // namespace sluice

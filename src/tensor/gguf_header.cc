// Parsing of one GGUF header out of bytes that may be hostile. Memory stays within about ten times
// the header's size: counts are bounded by the bytes that are left before anything is reserved.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <new>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "base/str.h"
#include "tensor/formats/all.h"
#include "tensor/gguf.h"

namespace sluice {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read in place");

// Far above any real file; they bound what a sparse file of terabytes can ask for.
constexpr uint64_t kMaxKeys = 1 << 20;
constexpr uint64_t kMaxTensors = 1 << 20;
constexpr uint64_t kMaxArray = 1 << 24;
constexpr uint64_t kMaxKeyBytes = 65535;
constexpr int kMaxDims = 4;
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

// Formats we do not read but can name.
constexpr struct {
  uint32_t type;
  const char* name;
} kForeignTypes[] = {
    {6, "Q5_0"},     {7, "Q5_1"},   {9, "Q8_1"},    {10, "Q2_K"},    {11, "Q3_K"},
    {12, "Q4_K"},    {13, "Q5_K"},  {15, "Q8_K"},   {16, "IQ2_XXS"}, {17, "IQ2_XS"},
    {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"},   {22, "IQ2_S"},
    {23, "IQ4_XS"},  {24, "I8"},    {25, "I16"},    {26, "I32"},     {27, "I64"},
    {28, "F64"},     {29, "IQ1_M"}, {34, "TQ1_0"},  {35, "TQ2_0"},   {39, "MXFP4"},
};

const char* foreign_type_name(uint32_t type) {
  for (const auto& t : kForeignTypes) {
    if (t.type == type) return t.name;
  }
  return "unknown";
}

std::string supported_formats() {
  std::string list;
  for (int f = 0; f < kNumFormats; ++f) {
    if (f) list += ", ";
    list += format_info(static_cast<Format>(f)).name;
  }
  return list;
}

class Parser {
 public:
  explicit Parser(std::span<const std::byte> file) : file_(file) {}

  Result<GgufHeader> run() {
    if (!read_preamble() || !read_metadata() || !read_tensors() || !place_tensors()) {
      return std::move(error_);
    }
    return std::move(header_);
  }

 private:
  size_t left() const { return file_.size() - at_; }

  bool fail(std::string message) {
    error_ = Error{400, std::move(message)};
    return false;
  }
  bool cut_off(const char* what) {
    return fail(strf("corrupt or cut off: %s at byte %zu of %zu%s%s; fetch the file again", what,
                     at_, file_.size(), context_.empty() ? "" : " runs past the end, in ",
                     context_.empty() ? " runs past the end" : quoted(context_).c_str()));
  }

  template <typename T>
  bool read(T& out) {
    if (left() < sizeof(T)) return cut_off("a number");
    std::memcpy(&out, file_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return true;
  }

  bool read_string(std::string_view& out) {
    uint64_t size;
    if (!read(size)) return false;
    if (size > left()) return cut_off("a string");
    out = {reinterpret_cast<const char*>(file_.data()) + at_, static_cast<size_t>(size)};
    at_ += static_cast<size_t>(size);
    return true;
  }

  bool read_type(ValueType& out) {
    uint32_t type;
    if (!read(type)) return false;
    out = static_cast<ValueType>(type);
    if (type > static_cast<uint32_t>(ValueType::f64)) {
      return fail(
          strf("metadata %s has value type %u, which GGUF does not define; the file is corrupt",
               quoted(context_).c_str(), type));
    }
    return true;
  }

  bool read_preamble();
  bool read_metadata();
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
  bool read_alignment();
  bool read_tensors();
  bool read_shape(TensorInfo& tensor, uint64_t& dim0);
  bool read_tensor(TensorInfo& tensor, uint64_t& offset);
  bool place_tensors();
  bool check_overlap();

  std::span<const std::byte> file_;
  size_t at_ = 0;
  std::string_view context_;  // the key or tensor being read, for messages
  uint64_t num_tensors_ = 0, num_keys_ = 0;
  std::vector<uint64_t> relative_;  // tensor offsets from data_begin
  GgufHeader header_;
  Error error_;
};

bool Parser::read_preamble() {
  char magic[4];
  if (file_.size() < sizeof(magic)) return fail("not a GGUF file: shorter than its magic number");
  std::memcpy(magic, file_.data(), sizeof(magic));
  at_ = sizeof(magic);
  if (std::string_view(magic, 4) != "GGUF") {
    return fail(strf("not a GGUF file: it begins with %s, not GGUF; give a .gguf model",
                     quoted({magic, 4}).c_str()));
  }
  if (!read(header_.version)) return false;
  const uint32_t v = header_.version;
  if (v != 0 && (v & 0xffff) == 0) {
    return fail("big-endian GGUF is not supported; convert the model to a little-endian file");
  }
  if (v != 2 && v != 3) {
    return fail(strf("GGUF version %u is not supported (2 and 3 are); convert the model again", v));
  }
  if (!read(num_tensors_) || !read(num_keys_)) return false;
  // The shortest key: length, one byte, type, one byte. The shortest tensor: name, one dimension.
  if (num_keys_ > std::min<uint64_t>(kMaxKeys, left() / 14)) {
    return fail(strf("corrupt or cut off: %llu metadata keys cannot fit in %zu bytes",
                     static_cast<unsigned long long>(num_keys_), left()));
  }
  if (num_tensors_ > std::min<uint64_t>(kMaxTensors, left() / 33)) {
    return fail(strf("corrupt or cut off: %llu tensors cannot fit in %zu bytes",
                     static_cast<unsigned long long>(num_tensors_), left()));
  }
  return true;
}

bool Parser::read_metadata() {
  for (uint64_t i = 0; i < num_keys_; ++i) {
    std::string_view key;
    context_ = "the metadata keys";
    if (!read_string(key)) return false;
    if (key.empty() || key.size() > kMaxKeyBytes) {
      return fail(
          strf("metadata key %llu has %zu bytes (1 to 65535 are allowed); the file is corrupt",
               static_cast<unsigned long long>(i), key.size()));
    }
    if (header_.meta.has(key)) {
      return fail(strf("metadata key %s occurs twice; the file is corrupt", quoted(key).c_str()));
    }
    context_ = key;
    ValueType type;
    if (!read_type(type)) return false;
    std::optional<MetaValue> value;
    if (type == ValueType::array) {
      if (!read_array(value)) return false;
    } else if (!read_value(type, value.emplace())) {
      return false;
    }
    if (value) header_.meta.set(std::string(key), std::move(*value));
  }
  context_ = {};
  return read_alignment();
}

bool Parser::read_bool(bool& out) {
  uint8_t byte;
  if (!read(byte)) return false;
  if (byte > 1) {
    return fail(strf("metadata %s has a boolean of value %u; the file is corrupt",
                     quoted(context_).c_str(), byte));
  }
  out = byte == 1;
  return true;
}

bool Parser::read_value(ValueType type, MetaValue& out) {
  auto number = [&]<typename T, typename Wide>(T value, Wide) {
    if (!read(value)) return false;
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
      bool b;
      if (!read_bool(b)) return false;
      out = b;
      return true;
    }
    case ValueType::string: {
      std::string_view s;
      if (!read_string(s)) return false;
      out = std::string(s);
      return true;
    }
    case ValueType::array:
      break;
  }
  return fail("a value of array type where a scalar belongs");
}

bool Parser::read_array_head(ValueType& type, uint64_t& num) {
  if (!read_type(type) || !read(num)) return false;
  if (num > left() / value_bytes(type)) return cut_off("an array");
  if (num > kMaxArray) {
    return fail(strf("metadata %s has an array of %llu elements; at most %llu are supported",
                     quoted(context_).c_str(), static_cast<unsigned long long>(num),
                     static_cast<unsigned long long>(kMaxArray)));
  }
  return true;
}

bool Parser::read_array(std::optional<MetaValue>& out) {
  ValueType type;
  uint64_t num;
  if (!read_array_head(type, num)) return false;
  if (type == ValueType::array) return skip_arrays(num, 1);
  return read_array_values(type, num, out.emplace());
}

// Arrays of arrays have no place in MetaValue and no reader; they are stepped over.
bool Parser::skip_arrays(uint64_t num, int depth) {
  if (depth > kMaxArrayDepth) {
    return fail(strf("metadata %s nests arrays more than %d deep; the file is corrupt",
                     quoted(context_).c_str(), kMaxArrayDepth));
  }
  for (uint64_t i = 0; i < num; ++i) {
    ValueType type;
    uint64_t inner;
    if (!read_array_head(type, inner)) return false;
    if (type == ValueType::array) {
      if (!skip_arrays(inner, depth + 1)) return false;
    } else if (type == ValueType::string) {
      std::string_view s;
      for (uint64_t j = 0; j < inner; ++j) {
        if (!read_string(s)) return false;
      }
    } else {
      at_ += static_cast<size_t>(inner * value_bytes(type));
    }
  }
  return true;
}

template <typename T>
bool Parser::read_integers(uint64_t num, MetaValue& out) {
  auto& values = out.emplace<std::vector<int64_t>>(static_cast<size_t>(num));
  for (int64_t& v : values) {
    T x{};
    if (!read(x)) return false;
    if (!std::in_range<int64_t>(x)) {
      return fail(strf("metadata %s has an array element above 2^63 - 1, which is not supported",
                       quoted(context_).c_str()));
    }
    v = static_cast<int64_t>(x);
  }
  return true;
}

template <typename T>
bool Parser::read_floats(uint64_t num, MetaValue& out) {
  auto& values = out.emplace<std::vector<float>>(static_cast<size_t>(num));
  for (float& v : values) {
    T x{};
    if (!read(x)) return false;
    v = static_cast<float>(x);
  }
  return true;
}

bool Parser::read_strings(uint64_t num, MetaValue& out) {
  auto& values = out.emplace<std::vector<std::string>>();
  values.reserve(static_cast<size_t>(num));
  for (uint64_t i = 0; i < num; ++i) {
    std::string_view s;
    if (!read_string(s)) return false;
    values.emplace_back(s);
  }
  return true;
}

bool Parser::read_bools(uint64_t num, MetaValue& out) {
  auto& values = out.emplace<std::vector<bool>>(static_cast<size_t>(num));
  for (size_t i = 0; i < values.size(); ++i) {
    bool b;
    if (!read_bool(b)) return false;
    values[i] = b;
  }
  return true;
}

bool Parser::read_array_values(ValueType type, uint64_t num, MetaValue& out) {
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
  return fail("an array of arrays where scalars belong");
}

bool Parser::read_alignment() {
  if (!header_.meta.has("general.alignment")) return true;
  const int64_t a = header_.meta.integer("general.alignment").value_or(0);
  if (a < 8 || a > 1 << 30 || !std::has_single_bit(static_cast<uint64_t>(a))) {
    return fail("general.alignment must be a power of two from 8 up; the file is corrupt");
  }
  header_.alignment = static_cast<uint64_t>(a);
  return true;
}

bool Parser::read_tensors() {
  header_.tensors.resize(static_cast<size_t>(num_tensors_));
  relative_.resize(static_cast<size_t>(num_tensors_));
  for (size_t i = 0; i < header_.tensors.size(); ++i) {
    context_ = "the list of tensors";
    if (!read_tensor(header_.tensors[i], relative_[i])) return false;
  }
  context_ = {};
  std::vector<std::string_view> names;
  names.reserve(header_.tensors.size());
  for (const TensorInfo& t : header_.tensors) names.push_back(t.name);
  std::sort(names.begin(), names.end());
  auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) {
    return fail(strf("tensor %s occurs twice; the file is corrupt", quoted(*twice).c_str()));
  }
  return true;
}

// Leaves rows as the product of all dimensions but the first, which is cols.
bool Parser::read_shape(TensorInfo& tensor, uint64_t& dim0) {
  uint32_t num_dims;
  if (!read(num_dims)) return false;
  if (num_dims < 1 || num_dims > kMaxDims) {
    return fail(strf("tensor %s has %u dimensions (1 to 4 are allowed); the file is corrupt",
                     quoted(tensor.name).c_str(), num_dims));
  }
  tensor.rows = 1;
  for (uint32_t d = 0; d < num_dims; ++d) {
    uint64_t dim;
    if (!read(dim)) return false;
    if (dim == 0 || !std::in_range<int64_t>(dim) ||
        (d > 0 && __builtin_mul_overflow(tensor.rows, static_cast<int64_t>(dim), &tensor.rows))) {
      return fail(strf("tensor %s has an impossible shape; the file is corrupt",
                       quoted(tensor.name).c_str()));
    }
    if (d == 0) dim0 = dim;
  }
  tensor.cols = static_cast<int64_t>(dim0);
  return true;
}

bool Parser::read_tensor(TensorInfo& tensor, uint64_t& offset) {
  std::string_view name;
  if (!read_string(name)) return false;
  if (name.empty() || name.size() > kMaxKeyBytes) {
    return fail(strf("a tensor has a name of %zu bytes; the file is corrupt", name.size()));
  }
  context_ = name;
  tensor.name = std::string(name);
  uint64_t dim0 = 0;
  uint32_t type;
  if (!read_shape(tensor, dim0) || !read(type) || !read(offset)) return false;
  const FormatInfo* format = find_gguf_type(type);
  if (!format) {
    return fail(strf("tensor %s has type %u (%s), which is not supported; use a file of %s",
                     quoted(name).c_str(), type, foreign_type_name(type),
                     supported_formats().c_str()));
  }
  tensor.format = format->format;
  if (tensor.cols % format->block_elems != 0) {
    return fail(
        strf("tensor %s has rows of %lld elements, no multiple of %s's block of %d; the file "
             "is corrupt",
             quoted(name).c_str(), static_cast<long long>(tensor.cols), format->name,
             format->block_elems));
  }
  size_t per_row;
  if (__builtin_mul_overflow(static_cast<size_t>(tensor.cols / format->block_elems),
                             static_cast<size_t>(format->block_bytes), &per_row) ||
      __builtin_mul_overflow(per_row, static_cast<size_t>(tensor.rows), &tensor.bytes)) {
    return fail(
        strf("tensor %s has an impossible size; the file is corrupt", quoted(name).c_str()));
  }
  return true;
}

bool Parser::place_tensors() {
  const size_t mask = static_cast<size_t>(header_.alignment) - 1;
  header_.data_begin = (at_ + mask) & ~mask;  // at_ is at most the file's size: no overflow
  header_.offsets.resize(relative_.size());
  for (size_t i = 0; i < relative_.size(); ++i) {
    const TensorInfo& t = header_.tensors[i];
    if ((relative_[i] & mask) != 0) {
      return fail(strf("tensor %s is not aligned to %llu bytes; the file is corrupt",
                       quoted(t.name).c_str(), static_cast<unsigned long long>(header_.alignment)));
    }
    size_t begin, end;
    if (__builtin_add_overflow(header_.data_begin, relative_[i], &begin) ||
        __builtin_add_overflow(begin, t.bytes, &end) || end > file_.size()) {
      return fail(
          strf("tensor %s (%s) runs past the end of the file of %zu bytes: cut off or "
               "corrupt; fetch it again",
               quoted(t.name).c_str(), human_bytes(t.bytes).c_str(), file_.size()));
    }
    header_.offsets[i] = begin;
  }
  return check_overlap();
}

bool Parser::check_overlap() {
  std::vector<size_t> order(header_.offsets.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return header_.offsets[a] < header_.offsets[b]; });
  for (size_t i = 1; i < order.size(); ++i) {
    const size_t before = order[i - 1];
    if (header_.offsets[before] + header_.tensors[before].bytes > header_.offsets[order[i]]) {
      return fail(strf("tensors %s and %s overlap; the file is corrupt",
                       quoted(header_.tensors[before].name).c_str(),
                       quoted(header_.tensors[order[i]].name).c_str()));
    }
  }
  return true;
}

}  // namespace

Result<GgufHeader> parse_gguf_header(std::span<const std::byte> file) {
  try {
    return Parser(file).run();
  } catch (const std::bad_alloc&) {
    return Error{507, "too little memory for the model file's header"};
  }
}

}  // namespace sluice

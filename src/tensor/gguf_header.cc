// Parsing of one GGUF header out of bytes that may be hostile. Memory stays within about ten times
// the header's size: counts are bounded by the bytes that are left before anything is reserved.
#include <algorithm>
#include <bit>
#include <new>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/str.h"
#include "tensor/formats/all.h"
#include "tensor/gguf.h"
#include "tensor/gguf_cursor.h"
#include "tensor/gguf_meta.h"

namespace sluice {
namespace {

// Far above any real file; they bound what a sparse file of terabytes can ask for.
constexpr uint64_t kMaxKeys = 1 << 20;
constexpr uint64_t kMaxTensors = 1 << 20;
constexpr int kMaxDims = 4;

// Formats we do not read but can name.
constexpr struct {
  uint32_t type = 0;
  const char* name;
} kForeignTypes[] = {
    {9, "Q8_1"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"},
    {21, "IQ3_S"}, {22, "IQ2_S"}, {23, "IQ4_XS"},  {24, "I8"},     {25, "I16"},     {26, "I32"},
    {27, "I64"},   {28, "F64"},   {29, "IQ1_M"},   {34, "TQ1_0"},  {35, "TQ2_0"},   {39, "MXFP4"},
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
    const FormatInfo& info = format_info(static_cast<Format>(f));
    if (info.gguf_type == kNotInGguf) continue;
    if (!list.empty()) list += ", ";
    list += info.name;
  }
  return list;
}

class Parser {
 public:
  explicit Parser(std::span<const std::byte> file) : in_(file) {}

  Result<GgufHeader> run() {
    if (!read_preamble() || !read_gguf_meta(in_, num_keys_, header_.meta) || !read_alignment() ||
        !read_tensors() || !place_tensors()) {
      return in_.error();
    }
    return std::move(header_);
  }

 private:
  bool read_preamble();
  bool read_alignment();
  bool read_tensors();
  bool read_shape(TensorInfo& tensor);
  bool read_tensor(TensorInfo& tensor, uint64_t& offset);
  bool place_tensors();
  bool check_overlap();

  GgufCursor in_;
  uint64_t num_tensors_ = 0, num_keys_ = 0;
  std::vector<uint64_t> relative_;  // tensor offsets from data_begin
  GgufHeader header_;
};

bool Parser::read_preamble() {
  if (in_.left() < 4) return in_.fail("not a GGUF file: shorter than its magic number");
  char magic[4] = {};
  for (char& c : magic) in_.read(c);
  if (std::string_view(magic, 4) != "GGUF") {
    return in_.fail(strf("not a GGUF file: it begins with %s, not GGUF; give a .gguf model",
                         quote({magic, 4}).c_str()));
  }
  if (!in_.read(header_.version)) return false;
  const uint32_t v = header_.version;
  if (v != 0 && (v & 0xffff) == 0) {
    return in_.fail("big-endian GGUF is not supported; convert the model to a little-endian file");
  }
  if (v != 2 && v != 3) {
    return in_.fail(
        strf("GGUF version %u is not supported (2 and 3 are); convert the model again", v));
  }
  if (!in_.read(num_tensors_) || !in_.read(num_keys_)) return false;
  // The shortest key: length, one byte, type, one byte. The shortest tensor: name, one dimension.
  if (num_keys_ > std::min<uint64_t>(kMaxKeys, in_.left() / 14)) {
    return in_.fail(strf("corrupt or cut off: %llu metadata keys cannot fit in %zu bytes",
                         static_cast<unsigned long long>(num_keys_), in_.left()));
  }
  if (num_tensors_ > std::min<uint64_t>(kMaxTensors, in_.left() / 33)) {
    return in_.fail(strf("corrupt or cut off: %llu tensors cannot fit in %zu bytes",
                         static_cast<unsigned long long>(num_tensors_), in_.left()));
  }
  return true;
}

bool Parser::read_alignment() {
  if (!header_.meta.has("general.alignment")) return true;
  const int64_t a = header_.meta.integer("general.alignment").value_or(0);
  if (a < 8 || a > 1 << 30 || !std::has_single_bit(static_cast<uint64_t>(a))) {
    return in_.fail("general.alignment must be a power of two from 8 up; the file is corrupt");
  }
  header_.alignment = static_cast<uint64_t>(a);
  return true;
}

bool Parser::read_tensors() {
  header_.tensors.resize(static_cast<size_t>(num_tensors_));
  relative_.resize(static_cast<size_t>(num_tensors_));
  for (size_t i = 0; i < header_.tensors.size(); ++i) {
    in_.set_context("the list of tensors");
    if (!read_tensor(header_.tensors[i], relative_[i])) return false;
  }
  in_.set_context({});
  std::vector<std::string_view> names;
  names.reserve(header_.tensors.size());
  for (const TensorInfo& t : header_.tensors) names.push_back(t.name);
  std::sort(names.begin(), names.end());
  auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) {
    return in_.fail(strf("tensor %s occurs twice; the file is corrupt", quote(*twice).c_str()));
  }
  return true;
}

// Leaves rows as the product of all dimensions but the first, which is cols.
bool Parser::read_shape(TensorInfo& tensor) {
  uint32_t num_dims = 0;
  if (!in_.read(num_dims)) return false;
  if (num_dims < 1 || num_dims > kMaxDims) {
    return in_.fail(strf("tensor %s has %u dimensions (1 to 4 are allowed); the file is corrupt",
                         quote(tensor.name).c_str(), num_dims));
  }
  tensor.rows = 1;
  for (uint32_t d = 0; d < num_dims; ++d) {
    uint64_t dim = 0;
    if (!in_.read(dim)) return false;
    if (dim == 0 || !std::in_range<int64_t>(dim) ||
        (d > 0 && __builtin_mul_overflow(tensor.rows, static_cast<int64_t>(dim), &tensor.rows))) {
      return in_.fail(strf("tensor %s has an impossible shape; the file is corrupt",
                           quote(tensor.name).c_str()));
    }
    if (d == 0) tensor.cols = static_cast<int64_t>(dim);
  }
  return true;
}

bool Parser::read_tensor(TensorInfo& tensor, uint64_t& offset) {
  std::string_view name;
  if (!in_.read_string(name)) return false;
  if (name.empty() || name.size() > kMaxGgufNameBytes) {
    return in_.fail(strf("a tensor has a name of %zu bytes; the file is corrupt", name.size()));
  }
  in_.set_context(name);
  tensor.name = std::string(name);
  uint32_t type = 0;
  if (!read_shape(tensor) || !in_.read(type) || !in_.read(offset)) return false;
  const FormatInfo* format = find_gguf_type(type);
  if (!format) {
    return in_.fail(strf("tensor %s has type %u (%s), which is not supported; use a file of %s",
                         quote(name).c_str(), type, foreign_type_name(type),
                         supported_formats().c_str()));
  }
  tensor.format = format->format;
  if (tensor.cols % format->block_elems != 0) {
    return in_.fail(
        strf("tensor %s has rows of %lld elements, no multiple of %s's block of %d; the file "
             "is corrupt",
             quote(name).c_str(), static_cast<long long>(tensor.cols), format->name,
             format->block_elems));
  }
  size_t per_row = 0;
  if (__builtin_mul_overflow(static_cast<size_t>(tensor.cols / format->block_elems),
                             static_cast<size_t>(format->block_bytes), &per_row) ||
      __builtin_mul_overflow(per_row, static_cast<size_t>(tensor.rows), &tensor.bytes)) {
    return in_.fail(
        strf("tensor %s has an impossible size; the file is corrupt", quote(name).c_str()));
  }
  return true;
}

bool Parser::place_tensors() {
  const size_t mask = static_cast<size_t>(header_.alignment) - 1;
  header_.data_begin =
      (in_.at() + mask) & ~mask;  // in_.at() is at most the file's size: no overflow
  header_.offsets.resize(relative_.size());
  for (size_t i = 0; i < relative_.size(); ++i) {
    const TensorInfo& t = header_.tensors[i];
    if ((relative_[i] & mask) != 0) {
      return in_.fail(strf("tensor %s is not aligned to %llu bytes; the file is corrupt",
                           quote(t.name).c_str(),
                           static_cast<unsigned long long>(header_.alignment)));
    }
    size_t begin = 0, end = 0;
    if (__builtin_add_overflow(header_.data_begin, relative_[i], &begin) ||
        __builtin_add_overflow(begin, t.bytes, &end) || end > in_.size()) {
      return in_.fail(
          strf("tensor %s (%s) runs past the end of the file of %zu bytes: cut off or "
               "corrupt; fetch it again",
               quote(t.name).c_str(), human_bytes(t.bytes).c_str(), in_.size()));
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
      return in_.fail(strf("tensors %s and %s overlap; the file is corrupt",
                           quote(header_.tensors[before].name).c_str(),
                           quote(header_.tensors[order[i]].name).c_str()));
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

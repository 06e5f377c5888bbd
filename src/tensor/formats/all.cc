#include "tensor/formats/all.h"

#include <array>
#include <cstring>

#include "base/check.h"
#include "tensor/formats/f16.h"
#include "tensor/formats/int4.h"
#include "tensor/formats/iq4_nl.h"
#include "tensor/formats/mxfp4.h"
#include "tensor/formats/q2_k.h"
#include "tensor/formats/q3_k.h"
#include "tensor/formats/q4_0.h"
#include "tensor/formats/q4_1.h"
#include "tensor/formats/q4_k.h"
#include "tensor/formats/q5_0.h"
#include "tensor/formats/q5_1.h"
#include "tensor/formats/q5_k.h"
#include "tensor/formats/q6_k.h"
#include "tensor/formats/q8_0.h"

namespace sluice {
namespace {

void copy_f32(const void* blocks, float* out, int64_t num_elems) {
  std::memcpy(out, blocks, static_cast<size_t>(num_elems) * sizeof(float));
}

void store_f32(const float* in, void* blocks, int64_t num_elems) {
  std::memcpy(blocks, in, static_cast<size_t>(num_elems) * sizeof(float));
}

template <float (*convert)(uint16_t)>
void decode_bits(const void* blocks, float* out, int64_t num_elems) {
  const auto* bits = static_cast<const uint16_t*>(blocks);
  for (int64_t i = 0; i < num_elems; ++i) out[i] = convert(bits[i]);
}

template <uint16_t (*convert)(float)>
void encode_bits(const float* in, void* blocks, int64_t num_elems) {
  auto* bits = static_cast<uint16_t*>(blocks);
  for (int64_t i = 0; i < num_elems; ++i) bits[i] = convert(in[i]);
}

template <typename Block>
void decode_blocks(const void* blocks, float* out, int64_t num_elems) {
  const auto* b = static_cast<const Block*>(blocks);
  for (int64_t i = 0; i < num_elems / Block::kElems; ++i) decode(b[i], out + i * Block::kElems);
}

template <typename Block>
void encode_blocks(const float* in, void* blocks, int64_t num_elems) {
  auto* b = static_cast<Block*>(blocks);
  for (int64_t i = 0; i < num_elems / Block::kElems; ++i) encode(in + i * Block::kElems, b[i]);
}

template <typename Block>
constexpr FormatInfo quantised() {
  return {Block::kFormat,
          Block::kName,
          Block::kGgufType,
          Block::kElems,
          static_cast<int>(sizeof(Block)),
          decode_blocks<Block>,
          encode_blocks<Block>};
}

constexpr std::array<FormatInfo, kNumFormats> kFormats = {{
    {Format::f32, "F32", 0, 1, 4, copy_f32, store_f32},
    {Format::f16, "F16", 1, 1, 2, decode_bits<f16_to_f32>, encode_bits<f32_to_f16>},
    {Format::bf16, "BF16", 30, 1, 2, decode_bits<bf16_to_f32>, encode_bits<f32_to_bf16>},
    quantised<BlockQ8_0>(),
    quantised<BlockQ4_0>(),
    quantised<BlockQ4_1>(),
    quantised<BlockQ6K>(),
    quantised<BlockQ5_0>(),
    quantised<BlockQ5_1>(),
    quantised<BlockQ2K>(),
    quantised<BlockQ3K>(),
    quantised<BlockQ4K>(),
    quantised<BlockQ5K>(),
    quantised<BlockIQ4NL>(),
    quantised<BlockInt4>(),
    quantised<BlockMXFP4>(),
}};

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool same_name(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (lower(a[i]) != lower(b[i])) return false;
  }
  return true;
}

}  // namespace

const FormatInfo& format_info(Format format) {
  const FormatInfo& info = kFormats[static_cast<size_t>(format)];
  DCHECK(info.format == format);
  return info;
}

const FormatInfo* find_format(std::string_view name) {
  for (const FormatInfo& f : kFormats) {
    if (same_name(f.name, name)) return &f;
  }
  return nullptr;
}

const FormatInfo* find_gguf_type(uint32_t gguf_type) {
  for (const FormatInfo& f : kFormats) {
    if (f.gguf_type == gguf_type && gguf_type != kNotInGguf) return &f;
  }
  return nullptr;
}

}  // namespace sluice

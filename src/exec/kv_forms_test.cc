#include "exec/kv_forms.h"

#include <gtest/gtest.h>

#include <vector>

#include "tensor/formats/f16.h"

namespace sluice {
namespace {

constexpr int kHeads = 2, kDim = 8, kSize = 16;
constexpr size_t kHead = kDim * kSize, kBlock = kHeads * kHead;

// Two blocks in f16.
struct HostKv {
  std::vector<uint16_t> k = std::vector<uint16_t>(2 * kBlock), v = k;
  KvLayer layer() { return {k.data(), v.data(), DType::f16, kSize, kHeads, kDim, 0, 0}; }
  uint16_t& key(size_t block, size_t head, size_t dim, size_t position) {
    return k[block * kBlock + head * kHead + dim * kSize + position];
  }
};
std::byte* bytes_of(std::vector<uint16_t>& list) {
  return reinterpret_cast<std::byte*>(list.data());
}

TEST(KvForms, KeysAreTurnedAndOnlyThePositionsAskedForCopied) {
  HostKv host;
  for (size_t h = 0; h < kHeads; ++h) {
    for (size_t d = 0; d < kDim; ++d) {
      for (size_t p = 0; p < kSize; ++p) {
        host.key(1, h, d, p) = f32_to_f16(static_cast<float>(h * 128 + d * 16 + p));
        host.v[kBlock + h * kHead + p * kDim + d] = f32_to_f16(-static_cast<float>(d * 16 + p));
      }
    }
  }
  std::vector<uint16_t> k(kBlock, 0xFFFF), v(kBlock, 0xFFFF);
  const KvForms forms(host.layer(), DType::bf16);
  forms.to_device(1, {0, 5}, bytes_of(k), bytes_of(v));
  for (size_t h = 0; h < kHeads; ++h) {
    for (size_t p = 0; p < kSize; ++p) {
      for (size_t d = 0; d < kDim; ++d) {
        const size_t at = h * kHead + p * kDim + d;
        if (p >= 5) {
          EXPECT_EQ(k[at], 0xFFFF);
          EXPECT_EQ(v[at], 0xFFFF);
          continue;
        }
        EXPECT_EQ(bf16_to_f32(k[at]), static_cast<float>(h * 128 + d * 16 + p));
        EXPECT_EQ(bf16_to_f32(v[at]), -static_cast<float>(d * 16 + p));
      }
    }
  }
  forms.to_host(0, {2, 5}, bytes_of(k), bytes_of(v));
  for (size_t p = 0; p < kSize; ++p) {
    const uint16_t want = p >= 2 && p < 5 ? host.key(1, 1, 3, p) : 0;
    EXPECT_EQ(host.key(0, 1, 3, p), want) << p;
  }
}

TEST(KvForms, LargeNumbersSaturate) {
  HostKv host;
  std::vector<uint16_t> k(kBlock, f32_to_bf16(1e30f)), v(kBlock, f32_to_bf16(-1e30f));
  KvForms(host.layer(), DType::bf16).to_host(0, {0, kSize}, bytes_of(k), bytes_of(v));
  EXPECT_EQ(f16_to_f32(host.k[0]), 65504.0f);
  EXPECT_EQ(f16_to_f32(host.v[0]), -65504.0f);
}

}  // namespace
}  // namespace sluice

#include "backend/cpu/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "backend/cpu/features.h"

namespace sluice {
namespace {

using Fn = void (*)(const float*, int64_t, int8_t*, float*, int32_t*);

std::vector<Fn> versions() {
  std::vector<Fn> all{quantize_row};
#if defined(__x86_64__)
  if (cpu_features().has(kCpuAvx2)) all.push_back(cpu::quantize_row_avx2);
  if (cpu_features().has(kCpuAvx512)) all.push_back(cpu::quantize_row_avx512);
#elif defined(__aarch64__)
  if (cpu_features().has(kCpuNeonDot)) all.push_back(cpu::quantize_row_neon);
#endif
  return all;
}

struct Quantized {
  std::vector<int8_t> q;
  std::vector<float> scale;
  std::vector<int32_t> sum;
};

Quantized quantize(Fn fn, const std::vector<float>& x) {
  Quantized r;
  r.q.resize(x.size(), 99);
  r.scale.resize(x.size() / 32, -1);
  r.sum.resize(x.size() / 32, -1);
  fn(x.data(), static_cast<int64_t>(x.size()), r.q.data(), r.scale.data(), r.sum.data());
  return r;
}

std::vector<float> varied(size_t n) {
  std::mt19937 rng(4);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) {
    x[i] = normal(rng) * std::pow(10.0f, static_cast<float>(i / 32 % 40) - 20);
  }
  return x;
}

TEST(Quantize, RoundsToNearestWithinHalfAStep) {
  const std::vector<float> x = varied(32 * 200);
  for (Fn fn : versions()) {
    const Quantized r = quantize(fn, x);
    for (size_t b = 0; b < r.scale.size(); ++b) {
      float absmax = 0;
      int32_t sum = 0;
      for (size_t i = b * 32; i < b * 32 + 32; ++i) {
        absmax = std::fmax(absmax, std::fabs(x[i]));
        sum += r.q[i];
        ASSERT_GE(r.q[i], -127);
        ASSERT_LE(std::fabs(double{x[i]} - double{r.scale[b]} * r.q[i]), 0.50001 * r.scale[b]);
      }
      ASSERT_EQ(r.scale[b], absmax / 127);
      ASSERT_EQ(r.sum[b], sum);
    }
  }
}

TEST(Quantize, HalvesGoToEven) {
  std::vector<float> x(32, 0.0f);
  x[0] = 127;
  x[1] = 0.5f, x[2] = 1.5f, x[3] = -0.5f, x[4] = -1.5f, x[5] = 2.5f, x[31] = -127;
  for (Fn fn : versions()) {
    const Quantized r = quantize(fn, x);
    EXPECT_EQ(r.q[1], 0);
    EXPECT_EQ(r.q[2], 2);
    EXPECT_EQ(r.q[3], 0);
    EXPECT_EQ(r.q[4], -2);
    EXPECT_EQ(r.q[5], 2);
    EXPECT_EQ(r.q[31], -127);
  }
}

TEST(Quantize, AllVersionsGiveTheSameBits) {
  std::vector<float> x = varied(32 * 500);
  x[40] = std::numeric_limits<float>::infinity();
  x[70] = std::numeric_limits<float>::quiet_NaN();
  for (size_t i = 96; i < 128; ++i) x[i] = 1e-39f;
  for (size_t i = 128; i < 160; ++i) x[i] = i % 2 ? 3e38f : -3e38f;
  const Quantized expect = quantize(cpu::quantize_row_scalar, x);
  EXPECT_TRUE(std::isnan(expect.scale[1]) && std::isnan(expect.scale[2]));
  EXPECT_EQ(expect.scale[3], 0);
  EXPECT_EQ(expect.q[128], -127);
  for (Fn fn : versions()) {
    const Quantized r = quantize(fn, x);
    EXPECT_EQ(r.q, expect.q);
    EXPECT_EQ(r.sum, expect.sum);
    EXPECT_EQ(std::memcmp(r.scale.data(), expect.scale.data(), r.scale.size() * 4), 0);
  }
}

using SupersFn = void (*)(const float*, int64_t, int8_t*, float*, int16_t*);

std::vector<SupersFn> supers_versions() {
  std::vector<SupersFn> all{quantize_supers};
#if defined(__x86_64__)
  if (cpu_features().has(kCpuAvx2)) all.push_back(cpu::quantize_supers_avx2);
  if (cpu_features().has(kCpuAvx512)) all.push_back(cpu::quantize_supers_avx512);
#elif defined(__aarch64__)
  if (cpu_features().has(kCpuNeonDot)) all.push_back(cpu::quantize_supers_neon);
#endif
  return all;
}

// Blocks of 256 are rows of that length, with the sums of every 16.
TEST(Quantize, SupersHaveAScaleEach) {
  std::vector<float> x(256 * 40);
  std::mt19937 rng(5);
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = normal(rng) * std::pow(10.0f, static_cast<float>(i / 256) - 20);
  }
  x[300] = std::numeric_limits<float>::infinity();
  for (size_t i = 512; i < 768; ++i) x[i] = 1e-39f;
  for (size_t i = 768; i < 1024; ++i) x[i] = 3e38f;
  for (SupersFn fn : supers_versions()) {
    std::vector<int8_t> q(x.size(), 99);
    std::vector<float> scale(x.size() / 256, -1);
    std::vector<int16_t> sum(x.size() / 16, -1);
    fn(x.data(), static_cast<int64_t>(x.size()), q.data(), scale.data(), sum.data());
    for (size_t b = 0; b < scale.size(); ++b) {
      const Quantized want = quantize(
          cpu::quantize_whole_row_scalar,
          {x.begin() + static_cast<long>(256 * b), x.begin() + static_cast<long>(256 * b + 256)});
      ASSERT_EQ(std::memcmp(&scale[b], want.scale.data(), 4), 0) << b;
      ASSERT_EQ(std::memcmp(&q[256 * b], want.q.data(), 256), 0) << b;
    }
    for (size_t i = 0; i < sum.size(); ++i) {
      int32_t of = 0;
      for (size_t k = 0; k < 16; ++k) of += q[16 * i + k];
      ASSERT_EQ(sum[i], of) << i;
    }
  }
}

std::vector<Fn> whole_row_versions() {
  std::vector<Fn> all{quantize_whole_row};
#if defined(__x86_64__)
  if (cpu_features().has(kCpuAvx2)) all.push_back(cpu::quantize_whole_row_avx2);
  if (cpu_features().has(kCpuAvx512)) all.push_back(cpu::quantize_whole_row_avx512);
#elif defined(__aarch64__)
  if (cpu_features().has(kCpuNeonDot)) all.push_back(cpu::quantize_whole_row_neon);
#endif
  return all;
}

TEST(Quantize, WholeRowsHaveOneScale) {
  std::mt19937 rng(9);
  std::normal_distribution<float> normal;
  for (size_t cols : {32, 96, 160, 4864}) {
    for (float bad : {0.0f, 3e38f, std::numeric_limits<float>::infinity(),
                      std::numeric_limits<float>::quiet_NaN(), 1e-35f}) {
      std::vector<float> x(cols);
      for (float& v : x) v = bad == 1e-35f ? bad : normal(rng);
      if (bad != 0) x[cols - 3] = bad;
      const Quantized want = quantize(cpu::quantize_whole_row_scalar, x);
      float absmax = 0;
      int32_t sum = 0;
      for (float v : x) absmax = std::fmax(absmax, std::fabs(v));
      for (int8_t q : want.q) sum += q;
      EXPECT_EQ(want.sum[0], sum);
      if (bad == 0) {
        EXPECT_EQ(want.scale[0], absmax / 127);
        for (size_t i = 0; i < cols; ++i) {
          ASSERT_NEAR(x[i], want.scale[0] * want.q[i], 0.50001 * want.scale[0]);
        }
      }
      EXPECT_EQ(std::isnan(want.scale[0]), std::isnan(bad) || std::isinf(bad));
      EXPECT_EQ(want.scale[0] == 0, bad == 1e-35f);
      for (Fn fn : whole_row_versions()) {
        const Quantized got = quantize(fn, x);
        EXPECT_EQ(got.q, want.q);
        EXPECT_EQ(got.sum[0], want.sum[0]);
        EXPECT_EQ(std::memcmp(got.scale.data(), want.scale.data(), 4), 0);
      }
    }
  }
}

}  // namespace
}  // namespace sluice

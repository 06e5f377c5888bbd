#include "backend/cpu/vector_math.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "tensor/formats/f16.h"

namespace sluice {
namespace {

// Every table this CPU can run.
std::vector<const VectorKernels*> tables() {
  std::vector<const VectorKernels*> all{&kVectorScalar};
#if defined(__x86_64__)
  if (cpu_features().has(kCpuAvx2)) all.push_back(&kVectorAvx2);
  if (cpu_features().has(kCpuAvx512)) all.push_back(&kVectorAvx512);
  if (cpu_features().has(kCpuAvx512 | kCpuAvx512Vnni)) all.push_back(&kVectorAvx512Vnni);
#elif defined(__aarch64__)
  if (cpu_features().has(kCpuNeonDot)) all.push_back(&kVectorNeon);
#endif
  return all;
}

std::vector<float> random_floats(int n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = normal(rng);
  return x;
}

double ulp_error(float got, double want) {
  auto f = static_cast<float>(want);
  double ulp = std::nextafter(f, INFINITY) - static_cast<double>(f);
  return std::fabs(got - want) / ulp;
}

TEST(VectorMath, ExpIsWithinTwoUlp) {
  for (const VectorKernels* k : tables()) {
    std::vector<float> x, y;
    for (float v = -87.29F; v < 88.69F; v += 0.00173F) x.push_back(v);
    y.resize(x.size());
    k->exp(x.data(), static_cast<int64_t>(x.size()), y.data());
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      worst = std::max(worst, ulp_error(y[i], std::exp(static_cast<double>(x[i]))));
    }
    EXPECT_LT(worst, 2.0) << k->isa;
  }
}

TEST(VectorMath, ExpAtTheEnds) {
  for (const VectorKernels* k : tables()) {
    float x[] = {-INFINITY, -1e30F, -88, -0.0F, 0, 89, 1e30F, INFINITY, NAN}, y[9];
    k->exp(x, 9, y);
    for (int i = 0; i < 3; ++i)
      EXPECT_EQ(std::bit_cast<uint32_t>(y[i]), 0U) << k->isa << " " << x[i];
    EXPECT_EQ(y[3], 1.0F);
    EXPECT_EQ(y[4], 1.0F);
    for (int i = 5; i < 8; ++i) EXPECT_EQ(y[i], INFINITY) << k->isa << " " << x[i];
    EXPECT_TRUE(std::isnan(y[8])) << k->isa;
  }
}

TEST(VectorMath, TanhIsWithinTwoUlpAndOdd) {
  for (const VectorKernels* k : tables()) {
    std::vector<float> x;
    for (float v = -12; v < 12; v += 0.00037F) x.push_back(v);
    for (float v = 1e-30F; v < 0.1F; v *= 1.0137F) x.push_back(v);
    std::vector<float> y(x.size()), minus = x, z(x.size());
    for (float& v : minus) v = -v;
    k->tanh(x.data(), static_cast<int64_t>(x.size()), y.data());
    k->tanh(minus.data(), static_cast<int64_t>(x.size()), z.data());
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      double want = std::tanh(static_cast<double>(x[i]));
      worst = std::max(worst, ulp_error(std::fabs(y[i]), std::fabs(want)));
      ASSERT_EQ(y[i], -z[i]) << k->isa << " " << x[i];
    }
    EXPECT_LT(worst, 2.0) << k->isa;
  }
}

TEST(VectorMath, TanhAtTheEnds) {
  for (const VectorKernels* k : tables()) {
    float x[] = {-INFINITY, -1e30F, 0, 1e30F, INFINITY, NAN}, y[6];
    k->tanh(x, 6, y);
    float want[] = {-1, -1, 0, 1, 1};
    for (int i = 0; i < 5; ++i) EXPECT_EQ(y[i], want[i]) << k->isa << " " << x[i];
    EXPECT_TRUE(std::isnan(y[5])) << k->isa;
  }
}

TEST(VectorMath, HalfRoundsAndSaturates) {
  for (const VectorKernels* k : tables()) {
    for (int n : {1, 15, 16, 17, 333}) {
      std::vector<float> x = random_floats(n, 3);
      x[0] = INFINITY;
      if (n > 4) x[1] = -1e6F, x[2] = 65519, x[3] = 1e-7F, x[4] = NAN;
      std::vector<uint16_t> y(static_cast<size_t>(n) + 1, 0xabcd);
      k->to_half(x.data(), n, y.data());
      for (int i = 0; i < n; ++i) {
        auto at = static_cast<size_t>(i);
        float want = x[at] > 65504 ? 65504 : x[at] < -65504 ? -65504 : x[at];
        EXPECT_EQ(y[at], f32_to_f16(want)) << k->isa << " " << x[at];
      }
      EXPECT_EQ(y.back(), 0xabcd);
    }
  }
}

// A row's elements land in the same lanes in every vector ISA, so the results are equal bit by bit.
TEST(VectorMath, VectorIsasAgree) {
  std::vector<const VectorKernels*> all = tables();
  for (int n : {1, 7, 16, 63, 64, 65, 100, 576, 1001}) {
    auto size = static_cast<size_t>(n);
    std::vector<float> x = random_floats(n, 1), w = random_floats(n, 2), first;
    for (size_t t = 1; t < all.size(); ++t) {
      std::vector<float> y(7 * size), sum = x;
      LayerNormSpec norm{w.data(), w.data(), 1e-5F};
      float* out = y.data();
      all[t]->rms_norm(x.data(), w.data(), n, 1e-5F, out);
      all[t]->add_rms_norm(sum.data(), w.data(), w.data(), n, 1e-5F, out += n);
      all[t]->activate(Activation::silu, x.data(), w.data(), n, out += n);
      all[t]->activate(Activation::gelu_tanh, x.data(), nullptr, n, out += n);
      all[t]->layer_norm(x.data(), norm, n, out += n);
      all[t]->add_layer_norm(sum.data(), w.data(), norm, n, out += n);
      all[t]->tanh(x.data(), n, out += n);
      if (t == 1) first = y;
      for (size_t i = 0; i < y.size(); ++i) {
        ASSERT_EQ(std::bit_cast<uint32_t>(y[i]), std::bit_cast<uint32_t>(first[i]))
            << all[t]->isa << " n " << n << " element " << i;
      }
    }
  }
}

// Codes that one ISA wrote and any reads.
TEST(VectorMath, VectorIsasAgreeOnAttentionAndCodes) {
  std::vector<const VectorKernels*> all = tables();
  for (KvType type : {KvType(DType::f16), KvType(DType::i8, 8), KvType(DType::i8, 32)}) {
    constexpr int kHeads = 3, kDim = 96, kContext = 150;
    KvLayer kv{nullptr, nullptr, type.type, 16, 1, kDim, 0, type.group};
    std::vector<std::byte> k(10 * kv.block_bytes()), v(k.size());
    std::vector<float> x = random_floats(10 * kDim * 16, 3),
                       q = random_floats(4 * kHeads * kDim, 4);
    std::vector<int32_t> table(10);
    std::vector<float> first;
    for (size_t t = 1; t < all.size(); ++t) {
      for (int b = 0; b < 10; ++b) {
        table[static_cast<size_t>(b)] = b;
        const float* from = x.data() + b * kDim * 16;
        for (auto* side : {&k, &v}) {
          std::byte* to = side->data() + static_cast<size_t>(b) * kv.block_bytes();
          auto* scales = reinterpret_cast<uint16_t*>(to + kDim * 16);
          if (type.group > 0) {
            all[t]->to_codes(from, kDim * 16, type.group, reinterpret_cast<int8_t*>(to), scales);
          } else {
            all[t]->to_half(from, kDim * 16, reinterpret_cast<uint16_t*>(to));
          }
        }
      }
      kv.k = k.data();
      kv.v = v.data();
      for (int queries : {1, 4}) {
        std::vector<float> out(static_cast<size_t>(queries * kHeads * kDim)), memory(200000);
        AttendJob job;
        job.q = q.data();
        job.q_stride = job.out_stride = kHeads * kDim;
        job.num_queries = queries;
        job.num_heads = kHeads;
        job.pos = kContext - queries;
        job.scale = 0.05F;
        job.kv = kv;
        job.head_bytes = static_cast<int64_t>(kv.head_bytes());
        job.table.table = table.data();
        job.end = kContext;
        job.out = out.data();
        float* m = memory.data();
        all[t]->attend(job, {m, m + 40000, m + 80000, m + 120000, m + 160000});
        if (t == 1 && queries == 1) first.clear();
        if (t == 1) first.insert(first.end(), out.begin(), out.end());
        size_t at = queries == 1 ? 0 : kHeads * kDim;
        for (size_t i = 0; i < out.size(); ++i) {
          ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(first[at + i]))
              << all[t]->isa << " group " << type.group << " element " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace sluice

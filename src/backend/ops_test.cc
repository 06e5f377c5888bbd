// Every op of the CPU backend against the oracle, on odd sizes and NaN-filled outputs.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "backend/cpu/cpu_backend.h"
#include "backend/paged_batch.h"
#include "backend/ref/ref_backend.h"
#include "tensor/formats/all.h"
#include "tensor/formats/f16.h"

namespace sluice {
namespace {

void expect_near(Matrix& got, Matrix& want, double relative, const char* what) {
  for (int64_t r = 0; r < want.rows(); ++r) {
    for (int64_t c = 0; c < want.cols(); ++c) {
      double w = want.row(r)[c];
      ASSERT_NEAR(got.row(r)[c], w, relative * (1 + std::fabs(w))) << what << " " << r << " " << c;
    }
  }
}

// Rows of `a` equal the first of `b` bit by bit.
void expect_same_rows(Matrix& a, Matrix& b, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) {
    ASSERT_EQ(std::memcmp(a.row(r), b.row(r), static_cast<size_t>(a.cols()) * 4), 0) << "row " << r;
  }
}

struct Quantized {
  Quantized(int64_t rows, int64_t cols)
      : codes(static_cast<size_t>(rows * cols), 99),
        scale(codes.size() / kActBlock, NAN),
        sum(codes.size() / kActBlock, -1),
        view{codes.data(), scale.data(), sum.data(), rows, cols} {}
  std::vector<int8_t> codes;
  std::vector<float> scale;
  std::vector<int32_t> sum;
  QuantView view;
};

// Within rounding of the f32 form, and the sums are those of the codes.
void expect_quantized(const Quantized& q, Matrix& f) {
  for (size_t i = 0; i < q.codes.size(); ++i) {
    int64_t r = static_cast<int64_t>(i) / q.view.cols, c = static_cast<int64_t>(i) % q.view.cols;
    float scale = q.scale[i / kActBlock];
    ASSERT_NEAR(f.row(r)[c], scale * static_cast<float>(q.codes[i]), scale * 0.501F + 1e-30F);
  }
  for (size_t b = 0; b < q.sum.size(); ++b) {
    int32_t sum = 0;
    for (size_t i = 0; i < kActBlock; ++i) sum += q.codes[b * kActBlock + i];
    ASSERT_EQ(q.sum[b], sum);
  }
}

struct SuperQuantized {
  SuperQuantized(int64_t rows, int64_t cols)
      : codes(static_cast<size_t>(rows * cols), 99),
        scale(codes.size() / kActSuper, NAN),
        sum(codes.size() / kActSum, -1),
        view{codes.data(), scale.data(), sum.data(), rows, cols} {}
  std::vector<int8_t> codes;
  std::vector<float> scale;
  std::vector<int16_t> sum;
  SuperQuantView view;
};

void expect_quantized(const SuperQuantized& q, Matrix& f) {
  for (size_t i = 0; i < q.codes.size(); ++i) {
    int64_t r = static_cast<int64_t>(i) / q.view.cols, c = static_cast<int64_t>(i) % q.view.cols;
    float scale = q.scale[i / kActSuper];
    ASSERT_NEAR(f.row(r)[c], scale * static_cast<float>(q.codes[i]), scale * 0.501F + 1e-30F);
  }
  for (size_t b = 0; b < q.sum.size(); ++b) {
    int32_t sum = 0;
    for (size_t i = 0; i < kActSum; ++i) sum += q.codes[b * kActSum + i];
    ASSERT_EQ(q.sum[b], sum);
  }
}

struct RowQuantized {
  RowQuantized(int64_t rows, int64_t cols)
      : codes(static_cast<size_t>(rows * cols), 99),
        scale(static_cast<size_t>(rows), NAN),
        sum(static_cast<size_t>(rows), -1),
        view{codes.data(), scale.data(), sum.data(), rows, cols} {}
  std::vector<int8_t> codes;
  std::vector<float> scale;
  std::vector<int32_t> sum;
  RowQuantView view;
};

// One scale for each row: that of its largest element.
void expect_quantized(const RowQuantized& q, Matrix& f) {
  for (int64_t r = 0; r < q.view.rows; ++r) {
    const float scale = q.scale[static_cast<size_t>(r)];
    float absmax = 0;
    int32_t sum = 0;
    for (int64_t c = 0; c < q.view.cols; ++c) {
      const int8_t code = q.codes[static_cast<size_t>(r * q.view.cols + c)];
      ASSERT_NEAR(f.row(r)[c], scale * static_cast<float>(code), scale * 0.501F + 1e-30F);
      absmax = std::fmax(absmax, std::fabs(f.row(r)[c]));
      sum += code;
    }
    ASSERT_NEAR(scale, absmax / 127, absmax * 1e-7F);
    ASSERT_EQ(q.sum[static_cast<size_t>(r)], sum);
  }
}

class CpuOps : public testing::TestWithParam<int> {
 protected:
  std::unique_ptr<Backend> cpu_ = make_cpu_backend({GetParam(), false});
  std::unique_ptr<Backend> ref_ = make_ref_backend();
};
INSTANTIATE_TEST_SUITE_P(Threads, CpuOps, testing::Values(1, 3));

TEST_P(CpuOps, RmsNorm) {
  for (int64_t cols : {1, 15, 64, 100, 577, 2048}) {
    for (int64_t rows : {1, 2, 33}) {
      Matrix x = Matrix::random(rows, cols, 1), w = Matrix::random(1, cols, 2);
      Matrix got(rows, cols, 5), want(rows, cols);
      cpu_->rms_norm(got.act(), x, w.row(0), 1e-5F);
      ref_->rms_norm(want.act(), x, w.row(0), 1e-5F);
      expect_near(got, want, 2e-6, "rms_norm");
      EXPECT_TRUE(std::isnan(got.row(0)[cols])) << "wrote beyond the row";
      Matrix one(1, cols);
      cpu_->rms_norm(one.act(), x, w.row(0), 1e-5F);
      expect_same_rows(one, got, 1);
    }
  }
}

TEST_P(CpuOps, RmsNormOfChosenRows) {
  Matrix x = Matrix::random(9, 96, 1), w = Matrix::random(1, 96, 2);
  Matrix got(3, 96), want(3, 96);
  int32_t rows[] = {0, 4, 8};
  cpu_->rms_norm(got.act(), x, w.row(0), 1e-5F, rows);
  ref_->rms_norm(want.act(), x, w.row(0), 1e-5F, rows);
  expect_near(got, want, 2e-6, "rows");
}

TEST_P(CpuOps, RmsNormQuantises) {
  Matrix x = Matrix::random(40, 576, 1), w = Matrix::random(1, 576, 2), f(40, 576);
  Quantized both(40, 576), alone(40, 576);
  cpu_->rms_norm({f, both.view}, x, w.row(0), 1e-5F);
  expect_quantized(both, f);
  cpu_->rms_norm({{}, alone.view}, x, w.row(0), 1e-5F);
  EXPECT_EQ(both.codes, alone.codes);
  EXPECT_EQ(both.scale, alone.scale);
  RowQuantized all(40, 576), only(40, 576), want(40, 576);
  cpu_->rms_norm({f, both.view, all.view}, x, w.row(0), 1e-5F);
  expect_quantized(both, f);
  expect_quantized(all, f);
  cpu_->rms_norm({{}, {}, only.view}, x, w.row(0), 1e-5F);
  EXPECT_EQ(all.codes, only.codes);
  EXPECT_EQ(all.scale, only.scale);
  ref_->rms_norm({{}, {}, want.view}, x, w.row(0), 1e-5F);
  expect_quantized(want, f);
}

TEST_P(CpuOps, AddRmsNorm) {
  for (int64_t cols : {7, 64, 200, 896}) {
    Matrix x = Matrix::random(50, cols, 1), x2 = x, d = Matrix::random(50, cols, 2);
    Matrix w = Matrix::random(1, cols, 3), got(50, cols), want(50, cols);
    cpu_->add_rms_norm(got.act(), x, d, w.row(0), 1e-6F);
    ref_->add_rms_norm(want.act(), x2, d, w.row(0), 1e-6F);
    expect_near(got, want, 2e-6, "norm");
    expect_same_rows(x, x2, 50);
  }
}

TEST_P(CpuOps, Add) {
  Matrix x = Matrix::random(70, 333, 1), x2 = x, d = Matrix::random(70, 333, 2);
  cpu_->add(x, d);
  ref_->add(x2, d);
  expect_same_rows(x, x2, 70);
}

TEST_P(CpuOps, RmsNormInPlace) {
  Matrix x = Matrix::random(40, 333, 1), w = Matrix::random(1, 333, 2), want(40, 333);
  cpu_->rms_norm(want.act(), x, w.row(0), 1e-5F);
  cpu_->rms_norm(x.act(), x, w.row(0), 1e-5F);
  expect_same_rows(x, want, 40);
}

TEST_P(CpuOps, LayerNorm) {
  for (int64_t cols : {1, 15, 64, 100, 577, 2048}) {
    for (int64_t rows : {1, 2, 33}) {
      Matrix x = Matrix::random(rows, cols, 1), w = Matrix::random(2, cols, 2);
      for (int64_t c = 0; c < cols; ++c) x.row(0)[c] += 3;  // far from zero mean
      LayerNormSpec norm{w.row(0), w.row(1), 1e-5F};
      Matrix got(rows, cols, 5), want(rows, cols);
      cpu_->layer_norm(got.act(), x, norm);
      ref_->layer_norm(want.act(), x, norm);
      expect_near(got, want, 4e-6, "layer_norm");
      EXPECT_TRUE(std::isnan(got.row(0)[cols])) << "wrote beyond the row";
      Matrix one(1, cols);
      cpu_->layer_norm(one.act(), x, norm);
      expect_same_rows(one, got, 1);
    }
  }
}

TEST_P(CpuOps, LayerNormOfChosenRowsQuantises) {
  Matrix x = Matrix::random(9, 96, 1), w = Matrix::random(2, 96, 2);
  LayerNormSpec norm{w.row(0), w.row(1), 1e-5F};
  Matrix got(3, 96), want(3, 96);
  int32_t rows[] = {0, 4, 8};
  Quantized q(3, 96);
  cpu_->layer_norm({got, q.view}, x, norm, rows);
  ref_->layer_norm(want.act(), x, norm, rows);
  expect_near(got, want, 4e-6, "rows");
  expect_quantized(q, got);
}

TEST_P(CpuOps, AddLayerNorm) {
  for (int64_t cols : {7, 64, 200, 896}) {
    Matrix x = Matrix::random(50, cols, 1), x2 = x, d = Matrix::random(50, cols, 2);
    Matrix w = Matrix::random(2, cols, 3), got(50, cols), want(50, cols);
    LayerNormSpec norm{w.row(0), w.row(1), 1e-6F};
    cpu_->add_layer_norm(got.act(), x, d, norm);
    ref_->add_layer_norm(want.act(), x2, d, norm);
    expect_near(got, want, 4e-6, "norm");
    expect_same_rows(x, x2, 50);
  }
}

TEST_P(CpuOps, Scale) {
  Matrix x = Matrix::random(70, 333, 1), x2 = x;
  cpu_->scale(x, 7.3F);
  ref_->scale(x2, 7.3F);
  expect_same_rows(x, x2, 70);
}

TEST_P(CpuOps, Softcap) {
  for (int64_t cols : {1, 15, 333, 9001}) {
    for (int64_t rows : {1, 7}) {
      Matrix x = Matrix::random(rows, cols, 1, 20), x2 = x;
      cpu_->softcap(x, 30);
      ref_->softcap(x2, 30);
      expect_near(x, x2, 1e-6, "softcap");
      EXPECT_TRUE(std::isnan(x.row(0)[cols])) << "wrote beyond the row";
    }
  }
}

TEST_P(CpuOps, Activations) {
  for (Activation a : {Activation::silu, Activation::gelu_tanh}) {
    for (int64_t f : {1, 31, 32, 96, 1536}) {
      for (int64_t rows : {1, 40}) {
        SCOPED_TRACE(testing::Message() << "activation " << static_cast<int>(a) << " f " << f);
        Matrix x = Matrix::random(rows, 2 * f, 1, 4), got(rows, f, 2), want(rows, f);
        x.row(0)[0] = -120;
        cpu_->activate_gated(got.act(), x, a);
        ref_->activate_gated(want.act(), x, a);
        expect_near(got, want, 2e-6, "gated");
        Tensor plain = Tensor(x).columns(0, f);
        Matrix got_plain(rows, f, 2), want_plain(rows, f);
        cpu_->activate(got_plain.act(), plain, a);
        ref_->activate(want_plain.act(), plain, a);
        expect_near(got_plain, want_plain, 2e-6, "plain");
        EXPECT_TRUE(std::isnan(got_plain.row(0)[f])) << "wrote beyond the row";
        if (f % kActBlock != 0) continue;
        Quantized q(rows, f), q_plain(rows, f);
        cpu_->activate_gated({{}, q.view}, x, a);
        expect_quantized(q, want);
        RowQuantized row(rows, f);
        cpu_->activate_gated({{}, {}, row.view}, x, a);
        expect_quantized(row, want);
        cpu_->activate({{}, q_plain.view}, plain, a);
        expect_quantized(q_plain, want_plain);
        if (f % kActSuper != 0) continue;
        SuperQuantized super(rows, f), super_ref(rows, f);
        cpu_->activate_gated({{}, {}, {}, {}, super.view}, x, a);
        expect_quantized(super, want);
        ref_->activate_gated({{}, {}, {}, {}, super_ref.view}, x, a);
        expect_quantized(super_ref, want);
      }
    }
  }
}

// An output in each form by itself.
struct EachForm {
  EachForm(int64_t rows, int64_t cols)
      : f(rows, cols), q(rows, cols), row(rows, cols), super(rows, cols) {}
  std::vector<Act> acts() {
    return {f.act(), {{}, q.view}, {{}, {}, row.view}, {{}, {}, {}, {}, super.view}};
  }
  Matrix f;
  Quantized q;
  RowQuantized row;
  SuperQuantized super;
};

void expect_same_bits(EachForm& a, EachForm& b) {
  expect_same_rows(a.f, b.f, a.f.rows());
  EXPECT_TRUE(a.q.codes == b.q.codes && a.q.scale == b.q.scale && a.q.sum == b.q.sum);
  EXPECT_TRUE(a.row.codes == b.row.codes && a.row.scale == b.row.scale && a.row.sum == b.row.sum);
  EXPECT_TRUE(a.super.codes == b.super.codes && a.super.scale == b.super.scale &&
              a.super.sum == b.super.sum);
}

std::vector<std::byte> random_rows(Format format, int64_t rows, int64_t cols, uint32_t seed) {
  Matrix values = Matrix::random(rows, cols, seed, 0.1F);
  const size_t bytes = row_bytes(format, cols);
  std::vector<std::byte> encoded(bytes * static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) {
    format_info(format).encode(values.row(r), &encoded[bytes * static_cast<size_t>(r)], cols);
  }
  return encoded;
}

// matmul_gated against the two ops that it stands for, whether it computes both at once or not.
TEST_P(CpuOps, GatedProducts) {
  using F = Format;
  constexpr int64_t kF = 768, kHidden = 256;
  const std::pair<Format, Format> formats[] = {
      {F::f32, F::f32},   {F::f16, F::f16},   {F::bf16, F::bf16}, {F::q8_0, F::q8_0},
      {F::q4_0, F::q4_0}, {F::q4_k, F::q4_k}, {F::q6_k, F::q6_k}, {F::q4_k, F::q6_k}};
  for (const auto& [gate_format, up_format] : formats) {
    const auto gate = random_rows(gate_format, kF, kHidden, 1);
    const auto up = random_rows(up_format, kF, kHidden, 2);
    const TensorInfo gate_info{"gate", gate_format, kF, kHidden, gate.size()};
    const TensorInfo up_info{"up", up_format, kF, kHidden, up.size()};
    const WeightSegment segments[] = {{&gate_info, gate}, {&up_info, up}};
    const Weight w = cpu_->load(segments, {});
    for (int64_t m : {1, 7, 63, 64, 65, 130}) {
      SCOPED_TRACE(testing::Message() << format_info(gate_format).name << " M " << m);
      Matrix hidden = Matrix::random(m, kHidden, 3), x_floats(m, kHidden), inner(m, 2 * kF);
      const std::vector<float> ones(kHidden, 1.0F);
      Quantized x_blocks(m, kHidden);
      SuperQuantized x_supers(m, kHidden);
      const Act x{x_floats, x_blocks.view, {}, {}, x_supers.view, {}};
      cpu_->rms_norm(x, hidden, ones.data(), 1e-5F, nullptr);
      EachForm apart(m, kF), together(m, kF);
      for (size_t i = 0; i < apart.acts().size(); ++i) {
        const Activation a =
            (m + static_cast<int64_t>(i)) % 2 ? Activation::silu : Activation::gelu_tanh;
        cpu_->matmul(inner, x, w);
        cpu_->activate_gated(apart.acts()[i], inner, a);
        cpu_->matmul_gated(together.acts()[i], inner, x, w, a);
      }
      expect_same_bits(together, apart);
    }
  }
}

TEST_P(CpuOps, ActivationsAtTheEnds) {
  for (Activation a : {Activation::silu, Activation::gelu_tanh}) {
    float ends[] = {-1e30F, -200, -20, -0.0F, 0, 20, 200, 1e30F};
    float want[] = {0, 0, 0, 0, 0, 20, 200, 1e30F};
    Tensor x{ends, DType::f32, 1, 8, 8};
    Matrix got(1, 8);
    cpu_->activate(got.act(), x, a);
    for (int i = 0; i < 8; ++i) ASSERT_NEAR(got.row(0)[i], want[i], 1e-6F + 1e-7F * want[i]) << i;
  }
}

TEST_P(CpuOps, RopeTable) {
  RopeSpec rope;
  rope.dims = 64;
  rope.attention_factor = 1.25F;
  for (int i = 0; i < 32; ++i)
    rope.inv_freq.push_back(std::pow(10000.0F, -static_cast<float>(i) / 32));
  std::vector<int32_t> positions(300);
  for (int i = 0; i < 300; ++i) positions[static_cast<size_t>(i)] = i * i;
  std::vector<float> got(300 * 64, NAN), want(300 * 64, NAN);
  cpu_->rope_table(got.data(), rope, positions);
  ref_->rope_table(want.data(), rope, positions);
  EXPECT_EQ(got, want);
  EXPECT_EQ(got[0], 1.25F);
  EXPECT_EQ(got[32], 0.0F);
}

struct QkvCase {
  int heads, kv_heads, head_dim, rope_dims;
  bool interleaved, norms;
  KvType type;
  int block_size;
};

TEST_P(CpuOps, FinishQkv) {
  const QkvCase cases[] = {{4, 2, 64, 64, false, false, DType::f16, 16},
                           {4, 2, 64, 64, true, true, DType::f16, 8},
                           {6, 1, 80, 32, false, true, DType::f32, 32},
                           {2, 2, 128, 96, true, false, DType::f32, 128},
                           {3, 3, 72, 0, false, false, DType::f16, 16},
                           {3, 3, 72, 0, false, false, {DType::i8, 8}, 16},
                           {4, 2, 64, 64, true, true, {DType::i8, 32}, 8},
                           {4, 2, 128, 0, false, false, {DType::i8, 64}, 32}};
  for (const QkvCase& c : cases) {
    CacheShape shape{c.heads, c.kv_heads, c.head_dim, 0, c.type.type, c.block_size, 3, 60};
    shape.kv_group = c.type.group;
    PagedCache got_cache(shape), want_cache(shape);
    PagedBatch batch(got_cache, {{1, 59, 1}, {2, 0, 60}, {0, 7, 40}});
    RopeSpec rope;
    rope.dims = c.rope_dims;
    rope.interleaved = c.interleaved;
    for (int i = 0; i < c.rope_dims / 2; ++i)
      rope.inv_freq.push_back(1.0F / static_cast<float>(i + 1));
    std::vector<float> cos_sin(101 * static_cast<size_t>(c.rope_dims) + 1);
    ref_->rope_table(cos_sin.data(), rope, batch.positions);
    Matrix norms = Matrix::random(2, c.head_dim, 9);
    QkvSpec spec{shape.attention(), &rope, cos_sin.data(), nullptr, nullptr, 1e-6F};
    if (c.norms) spec.q_norm = norms.row(0), spec.k_norm = norms.row(1);
    Matrix got = Matrix::random(101, shape.qkv_cols(), 4), want = got;
    // v reaches the cache as it is: beyond f16's range it saturates.
    float* v = got.row(5) + (c.heads + c.kv_heads) * c.head_dim;
    v[0] = want.row(5)[v - got.row(5)] = 1e20F;
    v[1] = want.row(5)[v + 1 - got.row(5)] = -INFINITY;
    cpu_->finish_qkv(got, spec, batch.view, got_cache.layer());
    ref_->finish_qkv(want, spec, batch.view, want_cache.layer());
    for (int64_t r = 0; r < 101; ++r) {
      for (int64_t i = 0; i < shape.out_cols(); ++i) {
        ASSERT_NEAR(got.row(r)[i], want.row(r)[i], 4e-6) << "row " << r << " column " << i;
      }
    }
    EXPECT_EQ(got_cache.v(), want_cache.v());
    if (!c.norms && c.rope_dims == 0) {
      EXPECT_EQ(got_cache.k(), want_cache.k());
    }
    // Keys through what reads them: the oracle's attention over either cache.
    PagedBatch read(got_cache, {{2, 50, 10}});
    Matrix a(10, shape.out_cols()), b(10, shape.out_cols());
    Tensor q = Tensor(want).columns(0, shape.out_cols());
    ref_->attention(a.act(), q, spec.attention, read.view, got_cache.layer());
    ref_->attention(b.act(), q, spec.attention, read.view, want_cache.layer());
    if (c.type.type == DType::f32) expect_near(a, b, 1e-5, "keys");
    if (c.type.type == DType::f16) expect_near(a, b, 4e-3, "keys");  // an ulp of f16 apart
    if (c.type.type == DType::i8) expect_near(a, b, 4e-2, "keys");   // or a code
  }
}

// A code is within half a scale of what was written, and the scale that of the largest element.
TEST_P(CpuOps, CodesOfTheCacheAreNearWhatWasWritten) {
  for (int group : {8, 32, 64}) {
    CacheShape shape{1, 1, 64, 0, DType::i8, 16, 1, 16};
    shape.kv_group = group;
    PagedCache cache(shape);
    PagedBatch batch(cache, {{0, 0, 4}});
    Matrix qkv = Matrix::random(4, shape.qkv_cols(), 4);
    std::fill_n(qkv.row(1) + 64, 64, 0.0F);                    // k
    for (int i = 0; i < 64; ++i) qkv.row(2)[64 + i] *= 1e-7F;  // below f16's least
    for (int i = 0; i < 64; ++i) qkv.row(3)[64 + i] = i % 3 == 0 ? 1e9F : -2e9F;  // above its most
    QkvSpec spec;
    spec.attention = shape.attention();
    cpu_->finish_qkv(qkv, spec, batch.view, cache.layer());
    const uint8_t* k = cache.k().data() + cache.tables()[0] * cache.layer().block_bytes();
    for (int pos = 0; pos < 4; ++pos) {
      for (int d = 0; d < 64; ++d) {
        uint16_t half;
        std::memcpy(&half, k + 64 * 16 + (d / group * 16 + pos) * 2, 2);
        float scale = f16_to_f32(half), x = qkv.row(pos)[64 + d];
        auto code = static_cast<int8_t>(k[(d / 4 * 16 + pos) * 4 + d % 4]);
        float value = scale * static_cast<float>(code);
        if (pos == 3) {
          ASSERT_EQ(value, std::copysign(127 * 65504.0F, x));
        } else {
          ASSERT_NEAR(value, x, 0.57F * scale) << "group " << group << " dimension " << d;
          ASSERT_LE(scale, std::max(4.0F / 127, 0x1p-24F));
        }
      }
    }
  }
}

TEST_P(CpuOps, NotANumberStaysSoAsACode) {
  CacheShape shape{1, 1, 64, 0, DType::i8, 16, 1, 16};
  shape.kv_group = 32;
  PagedCache cache(shape);
  PagedBatch batch(cache, {{0, 0, 1}});
  Matrix qkv = Matrix::random(1, shape.qkv_cols(), 4), out(1, 64);
  qkv.row(0)[2 * 64 + 40] = NAN;  // v
  QkvSpec spec;
  spec.attention = shape.attention();
  cpu_->finish_qkv(qkv, spec, batch.view, cache.layer());
  cpu_->attention(out.act(), Tensor(qkv).columns(0, 64), spec.attention, batch.view, cache.layer());
  for (int d = 0; d < 64; ++d) EXPECT_EQ(std::isnan(out.row(0)[d]), d >= 32) << d;
}

TEST_P(CpuOps, CopyBlocks) {
  std::vector<uint16_t> k(5 * 2 * 64 * 16), v(k.size());
  for (size_t i = 0; i < k.size(); ++i)
    k[i] = static_cast<uint16_t>(i), v[i] = static_cast<uint16_t>(3 * i);
  std::vector<uint16_t> k2 = k, v2 = v;
  KvLayer a{k.data(), v.data(), DType::f16, 16, 2, 64},
      b{k2.data(), v2.data(), DType::f16, 16, 2, 64};
  BlockCopy copies[] = {{1, 3}, {3, 4}, {0, 1}};
  cpu_->copy_blocks({&a, 1}, copies);
  ref_->copy_blocks({&b, 1}, copies);
  EXPECT_EQ(k, k2);
  EXPECT_EQ(v, v2);
  EXPECT_EQ(k[4 * 2 * 64 * 16], static_cast<uint16_t>(2 * 64 * 16));
  // Codes and scales: 2 * 16 * (64 + 2 * 2) bytes a block.
  KvLayer c{k.data(), v.data(), DType::i8, 16, 2, 64, 0, 32},
      d{k2.data(), v2.data(), DType::i8, 16, 2, 64, 0, 32};
  cpu_->copy_blocks({&c, 1}, copies);
  ref_->copy_blocks({&d, 1}, copies);
  EXPECT_EQ(k, k2);
  EXPECT_EQ(v, v2);
  EXPECT_TRUE(std::equal(k.begin() + 3 * 1088, k.begin() + 4 * 1088, k.begin() + 4 * 1088));
}

TEST_P(CpuOps, ParallelVisitsEachIndexOnce) {
  std::vector<int> seen(1000);
  cpu_->parallel(
      1000, [](void* ctx, int i) { ++static_cast<int*>(ctx)[i]; }, seen.data());
  EXPECT_EQ(seen, std::vector<int>(1000, 1));
}

TEST_P(CpuOps, MatmulAndEmbed) {
  Matrix w = Matrix::random(40, 96, 1), w2 = Matrix::random(24, 96, 2);
  std::vector<float> data(40 * 96), data2(24 * 96);
  for (int64_t r = 0; r < 40; ++r)
    std::memcpy(&data[static_cast<size_t>(r * 96)], w.row(r), 96 * 4);
  for (int64_t r = 0; r < 24; ++r)
    std::memcpy(&data2[static_cast<size_t>(r * 96)], w2.row(r), 96 * 4);
  TensorInfo one{"one", Format::f32, 40, 96, data.size() * 4},
      two{"two", Format::f32, 24, 96, data2.size() * 4};
  WeightSegment segments[] = {{&one, std::as_bytes(std::span(data))},
                              {&two, std::as_bytes(std::span(data2))}};
  std::vector<float> bias(64);
  for (size_t i = 0; i < 64; ++i) bias[i] = static_cast<float>(i);
  Weight wc = cpu_->load(segments, bias), wr = ref_->load(segments, bias);
  EXPECT_EQ(wc.rows, 64);
  EXPECT_EQ(wc.cols, 96);
  Matrix x = Matrix::random(7, 96, 3), got(7, 64), want(7, 64);
  cpu_->matmul(got, x.act(), wc);
  ref_->matmul(want, x.act(), wr);
  expect_near(got, want, 1e-5, "matmul");
  Matrix e(3, 96);
  int32_t tokens[] = {63, 0, 39};
  cpu_->embed(e, wc, tokens);
  for (int i = 0; i < 96; ++i) {
    ASSERT_EQ(e.row(0)[i], w2.row(23)[i]);
    ASSERT_EQ(e.row(1)[i], w.row(0)[i]);
    ASSERT_EQ(e.row(2)[i], w.row(39)[i]);
  }
}

TEST(CpuMemory, IsZeroedAndAligned) {
  auto cpu = make_cpu_backend({1, false});
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{5000}, size_t{3} << 20}) {
    Buffer b = cpu->allocate(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data()) % (size_t{2} << 20), 0U);
    EXPECT_EQ(b.bytes(), bytes);
    auto* p = static_cast<unsigned char*>(b.data());
    for (size_t i = 0; i < bytes; i += 97) ASSERT_EQ(p[i], 0);
    if (bytes > 0) p[bytes - 1] = 1;
  }
  EXPECT_THROW(cpu->allocate(~size_t{0}), std::bad_alloc);
  EXPECT_THROW(cpu->allocate(size_t{1} << 60), std::bad_alloc);
}

}  // namespace
}  // namespace sluice

// Every op of the CUDA backend against the naive reference: random inputs, outputs that start as
// NaN, odd sizes, all types. Skipped without a GPU.
#include <numeric>

#include "backend/cpu/quantize.h"
#include "backend/ref/ref_backend.h"
#include "load/random_checkpoint.h"
#include "load/random_fill.h"
#include "tensor/formats/all.h"
#include "tensor/formats/q8_0.h"
#include "cuda_device.h"

namespace sluice {
namespace {

struct OpsTest : testing::TestWithParam<DType> {
  void SetUp() override {
    device = test_device(GetParam());
    if (!device) GTEST_SKIP() << "no GPU";
  }
  DType type() const { return GetParam(); }
  void check_stored(const Format (&formats)[3]);
  void check_split_rows(Device& stored, Format format, int64_t cols);
  std::unique_ptr<Device> device;
  std::unique_ptr<Backend> ref = make_ref_backend();
};

struct Sizes {
  int64_t rows, cols;
};
constexpr Sizes kSizes[] = {{1, 4},    {1, 896},   {3, 64},    {5, 100},   {2, 37},
                            {7, 3584}, {33, 2048}, {4, 14336}, {300, 512}, {2, 16386}};

std::vector<float> row_of(Matrix& m) { return {m.row(0), m.row(0) + m.cols()}; }

TEST_P(OpsTest, Norms) {
  for (auto [rows, cols] : kSizes) {
    for (bool layer : {false, true}) {
      for (bool add : {false, true}) {
        SCOPED_TRACE(testing::Message()
                     << rows << "x" << cols << " layer " << layer << " add " << add);
        Matrix x = random_matrix(rows, cols, 1, DType::f32, 3);
        Matrix delta = random_matrix(rows, cols, 2, type());
        Matrix w = random_matrix(1, cols, 3, DType::f32), b = random_matrix(1, cols, 4, DType::f32);
        std::vector<float> weight = row_of(w), bias = row_of(b);
        OnDevice dx(*device, x, DType::f32), dd(*device, delta, type());
        OnDevice out(*device, rows, cols, type());
        ArrayOnDevice<float> dw(*device, weight), db(*device, bias);
        Matrix want(rows, cols);
        LayerNormSpec on_ref{weight.data(), bias.data(), 1e-5f};
        LayerNormSpec on_device{dw.data(), db.data(), 1e-5f};
        if (layer && add) {
          ref->add_layer_norm(want.act(), x, delta, on_ref);
          device->add_layer_norm(out.act(), dx, dd, on_device);
        } else if (layer) {
          ref->layer_norm(want.act(), x, on_ref);
          device->layer_norm(out.act(), dx, on_device);
        } else if (add) {
          ref->add_rms_norm(want.act(), x, delta, weight.data(), 1e-5f);
          device->add_rms_norm(out.act(), dx, dd, dw.data(), 1e-5f);
        } else {
          ref->rms_norm(want.act(), x, weight.data(), 1e-5f);
          device->rms_norm(out.act(), dx, dw.data(), 1e-5f);
        }
        Matrix got = out.get(), sum = dx.get();
        EXPECT_LT(relative_norm(got, want), tolerance(type()));
        EXPECT_LT(relative_norm(sum, x), 1e-6);
      }
    }
  }
}

TEST_P(OpsTest, NormOfChosenRowsAndInPlace) {
  Matrix x = random_matrix(9, 192, 5, DType::f32);
  Matrix w = random_matrix(1, 192, 6, DType::f32);
  std::vector<float> weight = row_of(w);
  std::vector<int32_t> rows{8, 0, 3, 3};
  OnDevice dx(*device, x, DType::f32), out(*device, 4, 192, type());
  ArrayOnDevice<float> dw(*device, weight);
  ArrayOnDevice<int32_t> dr(*device, rows);
  Matrix want(4, 192);
  ref->rms_norm(want.act(), x, weight.data(), 1e-6f, rows.data());
  device->rms_norm(out.act(), dx, dw.data(), 1e-6f, dr.data());
  Matrix got = out.get();
  EXPECT_LT(relative_norm(got, want), tolerance(type()));

  Matrix y = random_matrix(9, 192, 7, type());
  OnDevice dy(*device, y, type());
  ref->rms_norm(y.act(), y, weight.data(), 1e-6f);
  device->rms_norm(dy.act(), dy, dw.data(), 1e-6f);
  got = dy.get();
  EXPECT_LT(relative_norm(got, y), tolerance(type()));
}

TEST_P(OpsTest, AddScaleSoftcapActivate) {
  for (auto [rows, cols] : kSizes) {
    SCOPED_TRACE(testing::Message() << rows << "x" << cols);
    Matrix x = random_matrix(rows, cols, 8, DType::f32, 4);
    Matrix delta = random_matrix(rows, cols, 9, type());
    OnDevice dx(*device, x, DType::f32), dd(*device, delta, type());
    ref->add(x, delta);
    device->add(dx, dd);
    ref->scale(x, 0.37f);
    device->scale(dx, 0.37f);
    ref->softcap(x, 5);
    device->softcap(dx, 5);
    Matrix got = dx.get();
    EXPECT_LT(relative_norm(got, x), 2e-6);
    for (Activation a : {Activation::silu, Activation::gelu_tanh}) {
      Matrix in = random_matrix(rows, 2 * cols, 10, type(), 3), want(rows, cols);
      OnDevice din(*device, in, type()), out(*device, rows, cols, type());
      ref->activate_gated(want.act(), in, a);
      device->activate_gated(out.act(), din, a);
      got = out.get();
      EXPECT_LT(relative_norm(got, want), tolerance(type()));
      Matrix one = random_matrix(rows, cols, 11, type(), 3);
      OnDevice done(*device, one, type()), out_one(*device, rows, cols, type());
      ref->activate(want.act(), one, a);
      device->activate(out_one.act(), done, a);
      got = out_one.get();
      EXPECT_LT(relative_norm(got, want), tolerance(type()));
    }
  }
}

// A weight of two tensors in `format`, the same on both backends.
struct TwoTensors {
  TwoTensors(Format f, int64_t rows, int64_t cols) {
    for (int i = 0; i < 2; ++i) {
      info[i] = {"w", f, rows + i, cols, row_bytes(f, cols) * static_cast<size_t>(rows + i)};
      data[i].resize(info[i].bytes);
      Matrix m = Matrix::random(rows + i, cols, static_cast<uint32_t>(20 + i), 0.3f);
      for (int64_t r = 0; r < rows + i; ++r) {
        format_info(f).encode(m.row(r),
                              data[i].data() + row_bytes(f, cols) * static_cast<size_t>(r), cols);
      }
      segments.push_back({&info[i], data[i]});
    }
  }
  TensorInfo info[2];
  std::vector<std::byte> data[2];
  std::vector<WeightSegment> segments;
};

TEST_P(OpsTest, MatmulOfEveryFormat) {
  for (int f = 0; f < kNumFormats; ++f) {
    auto format = static_cast<Format>(f);
    TwoTensors w(format, 37, 512);
    std::vector<float> bias(75);
    std::iota(bias.begin(), bias.end(), -30.0f);
    for (float& b : bias) b = rounded(b * 0.125f, type());
    Matrix decoded(75, 512);
    for (int64_t c = 0; c < 75; ++c) {
      int t = c < 37 ? 0 : 1;
      const std::byte* row =
          w.data[t].data() + row_bytes(format, 512) * static_cast<size_t>(t ? c - 37 : c);
      format_info(format).decode(row, decoded.row(c), 512);
      for (int k = 0; k < 512; ++k) decoded.row(c)[k] = rounded(decoded.row(c)[k], type());
    }
    for (bool with_bias : {false, true}) {
      Weight on_device = device->load(w.segments, with_bias ? bias : std::vector<float>{});
      for (int64_t n : {1, 3, 9, 17, 33, 130}) {
        for (bool f32_out : {false, true}) {
          SCOPED_TRACE(testing::Message() << format_info(format).name << " n " << n << " f32 out "
                                          << f32_out << " bias " << with_bias);
          Matrix x = random_matrix(n, 512, 30, type()), want(n, 75);
          OnDevice dx(*device, x, type());
          OnDevice out(*device, n, 75, f32_out ? DType::f32 : type(), 5);
          for (int64_t r = 0; r < n; ++r) {
            for (int64_t c = 0; c < 75; ++c) {
              double sum = with_bias ? bias[static_cast<size_t>(c)] : 0;
              for (int k = 0; k < 512; ++k)
                sum += static_cast<double>(x.row(r)[k]) * decoded.row(c)[k];
              want.row(r)[c] = static_cast<float>(sum);
            }
          }
          device->matmul(out, dx.act(), on_device);
          Matrix got = out.get();
          EXPECT_LT(relative_norm(got, want), f32_out ? 1e-5 : tolerance(type()));
        }
      }
    }
  }
}

// Few rows and many, a piece of the output for each tensor, and in deterministic mode the same bits
// for any number of rows.
void OpsTest::check_stored(const Format (&formats)[3]) {
  constexpr int64_t kRows[] = {48, 37, 70}, kCols = 768, kAll = 48 + 37 + 70;
  TensorInfo info[3];
  std::vector<std::byte> data[3];
  std::vector<WeightSegment> segments;
  Matrix decoded(kAll, kCols);
  int64_t first = 0;
  for (int i = 0; i < 3; ++i) {
    const FormatInfo& f = format_info(formats[i]);
    const size_t row = row_bytes(formats[i], kCols);
    info[i] = {"blk.0.w", formats[i], kRows[i], kCols, row * static_cast<size_t>(kRows[i])};
    data[i].resize(info[i].bytes);
    Matrix m = Matrix::random(kRows[i], kCols, static_cast<uint32_t>(50 + i), 0.3f);
    for (int64_t r = 0; r < kRows[i]; ++r) {
      std::byte* at = data[i].data() + row * static_cast<size_t>(r);
      f.encode(m.row(r), at, kCols);
      f.decode(at, decoded.row(first + r), kCols);
    }
    first += kRows[i];
    segments.push_back({&info[i], data[i]});
  }
  std::vector<float> bias(kAll);
  std::iota(bias.begin(), bias.end(), -30.0f);
  for (float& b : bias) b = rounded(b * 0.125f, type());
  Matrix x = random_matrix(200, kCols, 53, type()), want(200, kAll);
  for (int64_t r = 0; r < x.rows(); ++r) {
    for (int64_t c = 0; c < kAll; ++c) {
      double sum = bias[static_cast<size_t>(c)];
      for (int64_t k = 0; k < kCols; ++k)
        sum += static_cast<double>(x.row(r)[k]) * decoded.row(c)[k];
      want.row(r)[c] = static_cast<float>(sum);
    }
  }
  for (bool deterministic : {false, true}) {
    auto stored = test_device(type(), deterministic, true);
    Weight w = stored->load(segments, bias);
    const auto few = static_cast<size_t>(split_bytes(kMaxStreamed, kCols));
    EXPECT_EQ(stored->scratch_bytes(),
              deterministic ? few : std::max(few, static_cast<size_t>(kAll * kCols) * 2));
    OnDevice dx(*stored, x, type());
    Matrix all(0, 0);
    for (int64_t n : {200, 1, 8, 16, 33, 64, 65, 130}) {
      SCOPED_TRACE(testing::Message() << "n " << n << " deterministic " << deterministic);
      OnDevice out(*stored, n, kAll, DType::f32, 5);
      Act some = dx.act();
      some.f.rows = n;
      stored->matmul(out, some, w);
      Matrix got = out.get();
      first = 0;
      for (int i = 0; i < 3; ++i) {
        Matrix part(n, kRows[i]), right(n, kRows[i]);
        for (int64_t r = 0; r < n; ++r) {
          std::copy_n(got.row(r) + first, kRows[i], part.row(r));
          std::copy_n(want.row(r) + first, kRows[i], right.row(r));
        }
        first += kRows[i];
        // Weights decoded for many rows are rounded; of Q4_1, x is not split.
        const double few_off = formats[i] == Format::q4_1 ? 2e-5 : 2e-4;
        EXPECT_LT(relative_norm(part, right),
                  n > 64 && !deterministic ? tolerance(type()) : few_off)
            << format_info(formats[i]).name;
      }
      if (n == 200) {
        all = std::move(got);
      } else if (deterministic) {
        for (int64_t r = 0; r < n; ++r)
          EXPECT_EQ(std::memcmp(got.row(r), all.row(r), kAll * sizeof(float)), 0) << "row " << r;
      }
    }
  }
}

TEST_P(OpsTest, MatmulOfStoredWeights) {
  if (type() == DType::f32) GTEST_SKIP() << "stored weights go with half types";
  check_stored({Format::q4_k, Format::q4_k, Format::q6_k});
  check_stored({Format::q4_k, Format::q8_0, Format::q4_1});
  check_stored({Format::q4_1, Format::q4_1, Format::q4_1});
}

// Ops that make x split its rows as products do that find them unsplit, to the bit.
void OpsTest::check_split_rows(Device& stored, Format format, int64_t cols) {
  constexpr int64_t kMost = kMaxStreamed;
  const DType inner_type = type() == DType::f16 ? DType::f32 : type();
  TwoTensors two(format, 20, cols), other(Format::q8_0, 20, cols);
  // One format, and parts in turns that may read x in different forms.
  const WeightSegment mixed[] = {two.segments[0], other.segments[1], two.segments[1]};
  const Weight weights[] = {stored.load(two.segments, {}), stored.load(mixed, {})};
  Matrix x = random_matrix(kMost, cols, 60, DType::f32, 3);
  Matrix delta = random_matrix(kMost, cols, 61, type());
  Matrix both = random_matrix(kMost, 2 * cols, 62, inner_type, 3);
  Matrix norm = random_matrix(1, cols, 63, DType::f32);
  OnDevice dx(stored, x, DType::f32), dd(stored, delta, type()), inner(stored, both, inner_type);
  std::vector<float> weight = row_of(norm);
  ArrayOnDevice<float> dw(stored, weight);
  for (int64_t n : {1, 8, 9, 16, 64}) {
    const auto rows = [n](Tensor t) { return t.rows = n, t; };
    for (int op = 0; op < 4; ++op) {
      SCOPED_TRACE(testing::Message()
                   << format_info(format).name << " " << n << "x" << cols << " op " << op);
      OnDevice out(stored, n, cols, type());
      const Act act = out.act_with_split(format == Format::q4_k);
      if (op == 0) stored.rms_norm(act, rows(dx), dw.data(), 1e-5f);
      if (op == 1) stored.add_rms_norm(act, rows(dx), rows(dd), dw.data(), 1e-5f);
      if (op == 2) stored.activate_gated(act, rows(inner), Activation::silu);
      if (op == 3) stored.activate(act, rows(inner).columns(0, cols), Activation::silu);
      for (const Weight& w : weights) {
        OnDevice split(stored, n, w.rows, DType::f32), unsplit(stored, n, w.rows, DType::f32);
        stored.matmul(split, act, w);
        stored.matmul(unsplit, out.act(), w);
        Matrix got = split.get(), want = unsplit.get();
        const size_t bytes = static_cast<size_t>(w.rows) * sizeof(float);
        for (int64_t r = 0; r < n; ++r)
          EXPECT_EQ(std::memcmp(got.row(r), want.row(r), bytes), 0)
              << w.rows << " outputs, row " << r;
        EXPECT_TRUE(std::isfinite(want.row(n - 1)[w.rows - 1]));
      }
    }
  }
}

TEST_P(OpsTest, SplitRowsOfNormsAndActivations) {
  if (type() == DType::f32) GTEST_SKIP() << "stored weights go with half types";
  for (bool deterministic : {false, true}) {
    SCOPED_TRACE(testing::Message() << "deterministic " << deterministic);
    auto stored = test_device(type(), deterministic, true);
    // One and four fours of columns per thread; 4608 and 896 are split by a kernel of their own.
    for (int64_t cols : {512, 3584, 4608, 5120, 18944})
      check_split_rows(*stored, Format::q4_k, cols);
    for (int64_t cols : {512, 896}) check_split_rows(*stored, Format::q8_0, cols);
  }
}

// A product reads the rows that are split already, not x.
TEST_P(OpsTest, ProductsReadSplitRows) {
  if (type() == DType::f32) GTEST_SKIP() << "stored weights go with half types";
  TwoTensors two(Format::q4_k, 20, 512);
  auto stored = test_device(type(), false, true);
  Weight w = stored->load(two.segments, {});
  EXPECT_EQ(w.act, kActF32 | kActSplitK);
  Matrix x = random_matrix(2, 512, 64, type());
  OnDevice dx(*stored, x, type()), out(*stored, 2, 41, DType::f32);
  stored->matmul(out, dx.act_with_split(true), w);  // nothing filled them
  Matrix got = out.get();
  EXPECT_TRUE(std::isnan(got.row(0)[0]));
  EXPECT_TRUE(std::isnan(got.row(1)[40]));
}

TEST_P(OpsTest, MatmulOfOddWidths) {
  for (int64_t cols : {8, 24, 40, 72, 200, 1000, 4864, 33}) {
    Matrix w = random_matrix(19, cols, 31, type());
    std::vector<float> flat;
    for (int64_t r = 0; r < 19; ++r) flat.insert(flat.end(), w.row(r), w.row(r) + cols);
    TensorInfo info{"w", Format::f32, 19, cols, flat.size() * 4};
    std::vector<WeightSegment> segments{{&info, std::as_bytes(std::span<const float>(flat))}};
    Weight on_ref = ref->load(segments, {}), on_device = device->load(segments, {});
    for (int64_t n : {1, 8, 11, 20, 40, 64, 70}) {
      SCOPED_TRACE(testing::Message() << cols << " columns, n " << n);
      Matrix x = random_matrix(n, cols, 32, type()), want(n, 19);
      OnDevice dx(*device, x, type()), out(*device, n, 19, type(), 13);
      ref->matmul(want, x.act(), on_ref);
      device->matmul(out, dx.act(), on_device);
      Matrix got = out.get();
      EXPECT_LT(relative_norm(got, want), tolerance(type()));
    }
  }
}

// e4m3: round to nearest even with three bits behind the point, at most 448.
float to_e4m3(float v) {
  if (v == 0) return 0;
  int e = std::max(std::ilogb(v), -6);
  float unit = std::ldexp(1.0f, e - 3);
  return std::clamp(std::nearbyint(v / unit) * unit, -448.0f, 448.0f);
}

// Scales rows so that the largest is 448, rounds, scales back.
void round_rows(Matrix& m) {
  for (int64_t r = 0; r < m.rows(); ++r) {
    float most = 0;
    for (int64_t c = 0; c < m.cols(); ++c) most = std::max(most, std::fabs(m.row(r)[c]));
    float unit = most / 448, inverse = 1 / unit;
    for (int64_t c = 0; c < m.cols(); ++c) m.row(r)[c] = to_e4m3(m.row(r)[c] * inverse) * unit;
  }
}

// Null where the GPU does not take them.
std::unique_ptr<Device> fp8_device(DType type, bool deterministic = false) {
  CudaOptions options;
  options.activations = type;
  options.fp8_weights = true;
  options.deterministic = deterministic;
  options.tune = false;
  auto device = open_cuda(options);
  if (!device) {
    EXPECT_NE(device.error().message.find("fp8 need a Hopper GPU"), std::string::npos)
        << device.error().message;
    return nullptr;
  }
  (*device)->attach();
  return std::move(*device);
}

std::unique_ptr<Device> int8_device(DType type, bool deterministic = false) {
  CudaOptions options;
  options.activations = type;
  options.int8.kind = WeightQuant::w8a8;
  options.deterministic = deterministic;
  options.tune = false;
  auto device = std::move(open_cuda(options).value());
  device->attach();
  return device;
}

// A layer's matrix.
Weight load_matrix(Device& device, Matrix& w, std::vector<float> bias = {}) {
  std::vector<float> flat;
  for (int64_t r = 0; r < w.rows(); ++r) flat.insert(flat.end(), w.row(r), w.row(r) + w.cols());
  TensorInfo info{"blk.0.w", Format::f32, w.rows(), w.cols(), flat.size() * 4};
  std::vector<WeightSegment> segments{{&info, std::as_bytes(std::span<const float>(flat))}};
  return device.load(segments, std::move(bias));
}

TEST_P(OpsTest, Fp8Weights) {
  if (type() == DType::f32) GTEST_SKIP() << "f8 goes with half types";
  auto fp8 = fp8_device(type());
  if (!fp8) GTEST_SKIP() << "weights in fp8 need another GPU";
  constexpr int64_t kRows = 208, kCols = 1552;
  Matrix w = random_matrix(kRows, kCols, 60, type(), 0.2f);
  std::vector<float> bias(kRows);
  for (size_t i = 0; i < bias.size(); ++i) bias[i] = rounded(static_cast<float>(i) * 0.01f, type());
  Weight on_device = load_matrix(*fp8, w, bias);
  EXPECT_LT(on_device.bytes, static_cast<size_t>(kRows * kCols * 2));
  round_rows(w);
  for (int64_t n : {1, 5, 8, 12, 16, 30, 32, 33, 64, 65, 200}) {
    SCOPED_TRACE(n);
    Matrix x = random_matrix(n, kCols, 61, type()), want(n, kRows);
    OnDevice dx(*fp8, x, type()), out(*fp8, n, kRows, type());
    fp8->matmul(out, dx.act(), on_device);
    if (n > 8) round_rows(x);  // f8 by f8
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t c = 0; c < kRows; ++c) {
        double sum = bias[static_cast<size_t>(c)];
        for (int64_t k = 0; k < kCols; ++k) sum += static_cast<double>(x.row(r)[k]) * w.row(c)[k];
        want.row(r)[c] = static_cast<float>(sum);
      }
    }
    Matrix got = out.get();
    EXPECT_LT(relative_norm(got, want), 2 * tolerance(type()));
  }
}

// The codes that norms and activations leave in f8 are those that a product makes of an input
// without any.
TEST_P(OpsTest, Fp8InputsFromTheOpsThatMakeThem) {
  if (type() == DType::f32) GTEST_SKIP() << "f8 goes with half types";
  auto fp8 = fp8_device(type(), true);  // whose products of few rows read no others
  if (!fp8) GTEST_SKIP() << "weights in fp8 need another GPU";
  for (int64_t cols : {64, 3584, 8192, 18944}) {
    Matrix w = random_matrix(32, cols, 62, type(), 0.2f);
    Weight on_device = load_matrix(*fp8, w);
    Matrix norm = random_matrix(1, cols, 63, DType::f32);
    ArrayOnDevice<float> dn(*fp8, row_of(norm));
    for (int64_t n : {1, 8, 9, 40}) {
      SCOPED_TRACE(testing::Message() << cols << " columns, n " << n);
      Matrix x = random_matrix(n, cols, 64, DType::f32, 3),
             gates = random_matrix(n, 2 * cols, 65, type(), 2);
      OnDevice dx(*fp8, x, DType::f32), dg(*fp8, gates, type());
      OnDevice act(*fp8, n, cols, type(), 0), copy(*fp8, n, cols, type(), 0);  // rows side by side
      OnDevice fused(*fp8, n, 32, type()), apart(*fp8, n, 32, type());
      for (bool gated : {false, true}) {
        auto make = [&](const Act& out) {
          gated ? fp8->activate_gated(out, dg, Activation::silu)
                : fp8->rms_norm(out, dx, dn.data(), 1e-5f);
        };
        make(copy.act());
        make(act.act_with_f8());
        act.poison();  // its codes alone are read
        fp8->matmul(fused, act.act_with_f8(), on_device);
        fp8->matmul(apart, copy.act(), on_device);
        EXPECT_EQ(fused.get().data(), apart.get().data());
      }
    }
  }
}

// The same of attention over decodes, whose output must be what a backend without codes gives.
void compare_decode_codes(Device& device, Device& coded, DType codes, DType type) {
  struct Heads {
    int q, kv, dim;
  };
  for (auto [heads, kv_heads, dim] : {Heads{28, 4, 128}, Heads{14, 2, 64}, Heads{32, 8, 128},
                                      Heads{20, 1, 64}, Heads{4, 2, 96}}) {
    CacheShape shape;
    shape.num_heads = heads, shape.num_kv_heads = kv_heads, shape.head_dim = dim;
    shape.num_slots = 70, shape.max_positions = 700, shape.type = DType::f32;
    PagedCache cache(shape);
    std::vector<int32_t> tables(cache.tables(), cache.tables() + 70 * cache.table_stride());
    ArrayOnDevice<int32_t> dt(coded, tables);
    std::vector<uint16_t> values(cache.k().size() / 4);
    std::mt19937 rng(71);
    for (uint16_t& v : values) {
      float x = std::normal_distribution<float>()(rng);
      v = type == DType::f16 ? f32_to_f16(x) : f32_to_bf16(x);
    }
    ArrayOnDevice<uint16_t> dk(coded, values), dv(coded, values);
    KvLayer kv = cache.layer();
    kv.k = dk.data(), kv.v = dv.data(), kv.type = type;
    AttentionSpec attention = shape.attention();
    int64_t cols = shape.out_cols();
    Matrix w = random_matrix(32, cols, 72, type, 0.2f);
    Weight weight = load_matrix(coded, w);
    for (int n : {3, 9, 17, 40, 70}) {
      if (codes == DType::f8 && n <= kMaxRowsWithoutF8) continue;
      SCOPED_TRACE(testing::Message()
                   << heads << "/" << kv_heads << " heads of " << dim << ", n " << n);
      std::vector<PagedBatch::Part> parts;
      // About as long as each other: of very different ones, attention without codes splits the
      // long.
      for (int i = 0; i < n; ++i) parts.push_back({i, 576 + i * 37 % 64, 1});
      PagedBatch batch(cache, parts);
      Matrix q = random_matrix(n, cols, 73, type);
      OnDevice act(coded, n, cols, type, 0), copy(coded, n, cols, type, 0);
      OnDevice fused(coded, n, 32, type), apart(coded, n, 32, type);
      OnDevice plain(device, n, cols, type, 0);
      auto attend = [&](Device& on, OnDevice& out, const Act& to) {
        OnDevice dq(on, q, type);
        ArrayOnDevice<int32_t> dpos(on, batch.positions), dslot(on, batch.row_slot);
        BatchView view = batch.view;
        view.positions = dpos.data(), view.row_slot = dslot.data(), view.tables = dt.data();
        on.reserve_attention(attention, n, 700);
        on.attention(to, dq, attention, view, kv);
        out.get();  // before what it reads is gone
      };
      attend(device, plain, plain.act());
      attend(coded, copy, copy.act());
      attend(coded, act, act.act_with_f8(codes));
      EXPECT_EQ(act.get().data(), plain.get().data());
      act.poison();  // its codes alone are read
      coded.matmul(fused, act.act_with_f8(codes), weight);
      coded.matmul(apart, copy.act(), weight);
      EXPECT_EQ(fused.get().data(), apart.get().data());
    }
  }
}

TEST_P(OpsTest, InputsIn8BitsFromDecodeAttention) {
  if (type() == DType::f32) GTEST_SKIP() << "attention of half types makes them";
  if (auto fp8 = fp8_device(type())) compare_decode_codes(*device, *fp8, DType::f8, type());
  compare_decode_codes(*device, *int8_device(type()), DType::i8, type());
}

// Rows as the CPU's quantize_whole_row() makes them.
struct Int8Rows {
  explicit Int8Rows(Matrix& m) : codes(static_cast<size_t>(m.rows() * m.cols())) {
    for (int64_t r = 0; r < m.rows(); ++r) {
      float scale = 0;
      int32_t sum = 0;
      quantize_whole_row(m.row(r), m.cols(), codes.data() + r * m.cols(), &scale, &sum);
      scales.push_back(scale);
    }
  }
  std::vector<int8_t> codes;
  std::vector<float> scales;
};

// y as the GPU's kernels have it: exact sums, then one expression.
Matrix int8_product(Int8Rows& x, Int8Rows& w, const std::vector<float>& bias, int64_t cols) {
  Matrix out(static_cast<int64_t>(x.scales.size()), static_cast<int64_t>(w.scales.size()));
  for (int64_t t = 0; t < out.rows(); ++t) {
    for (int64_t r = 0; r < out.cols(); ++r) {
      int32_t sum = 0;
      for (int64_t k = 0; k < cols; ++k)
        sum +=
            x.codes[static_cast<size_t>(t * cols + k)] * w.codes[static_cast<size_t>(r * cols + k)];
      const auto row = static_cast<size_t>(r);
      out.row(t)[r] = std::fma(static_cast<float>(sum) * x.scales[static_cast<size_t>(t)],
                               w.scales[row], bias.empty() ? 0 : bias[row]);
    }
  }
  return out;
}

// To the bit: rows of zeros and rows with one huge element among them, every number of rows.
TEST_P(OpsTest, Int8WeightsAndActivationsAreExact) {
  constexpr int64_t kRows = 205, kCols = 1568;
  Matrix w = random_matrix(kRows, kCols, 80, type(), 0.2f);
  std::fill_n(w.row(3), kCols, 0.0f);
  w.row(7)[100] = rounded(900, type());
  std::vector<float> bias(kRows);
  for (size_t i = 0; i < bias.size(); ++i) bias[i] = rounded(static_cast<float>(i) * 0.01f, type());
  Int8Rows w8(w);
  for (bool deterministic : {false, true}) {
    auto int8 = int8_device(type(), deterministic);
    Weight on_device = load_matrix(*int8, w, bias);
    EXPECT_EQ(on_device.bytes, static_cast<size_t>(kRows * (kCols + 4)));
    for (int64_t n : {1, 2, 5, 8, 9, 16, 17, 31, 32, 33, 40, 64, 65, 129, 200}) {
      SCOPED_TRACE(testing::Message() << "n " << n << " deterministic " << deterministic);
      Matrix x = random_matrix(n, kCols, 81, type());
      std::fill_n(x.row(n - 1), kCols, 0.0f);
      x.row(n / 2)[5] = rounded(-30000, type());
      Int8Rows x8(x);
      Matrix want = int8_product(x8, w8, bias, kCols);
      OnDevice dx(*int8, x, type()), out(*int8, n, kRows, type());
      int8->matmul(out, dx.act(), on_device);
      Matrix got = out.get();
      for (int64_t t = 0; t < n; ++t) {
        for (int64_t r = 0; r < kRows; ++r)
          ASSERT_EQ(got.row(t)[r], rounded(want.row(t)[r], type())) << "row " << t << ", " << r;
      }
    }
  }
}

// A file's rows of one scale keep it and their codes, -128 among them.
TEST_P(OpsTest, Int8RowsOfAFileStayAsTheyAre) {
  constexpr int64_t kRows = 40, kCols = 96, kBlocks = kCols / 32;
  std::mt19937 rng(82);
  std::vector<BlockQ8_0> blocks(kRows * kBlocks);
  Matrix values(kRows, kCols);
  for (int64_t i = 0; i < kRows * kBlocks; ++i) {
    BlockQ8_0& b = blocks[static_cast<size_t>(i)];
    const int64_t row = i / kBlocks;
    b.d = f32_to_f16(0.001f * static_cast<float>(row + 1 + (row % 2 == 0 ? 0 : i % kBlocks)));
    for (int8_t& q : b.qs) q = static_cast<int8_t>(static_cast<int>(rng() >> 24) - 128);
    b.qs[0] = -128;
    decode(b, values.row(row) + i % kBlocks * 32);
  }
  Int8Rows w8(values);
  for (int64_t row = 0; row < kRows; row += 2) {  // those of one scale
    w8.scales[static_cast<size_t>(row)] = f16_to_f32(blocks[static_cast<size_t>(row * kBlocks)].d);
    for (int64_t c = 0; c < kCols; ++c)
      w8.codes[static_cast<size_t>(row * kCols + c)] =
          blocks[static_cast<size_t>(row * kBlocks + c / 32)].qs[c % 32];
  }
  auto int8 = int8_device(type());
  TensorInfo info{"blk.0.w", Format::q8_0, kRows, kCols, blocks.size() * sizeof(BlockQ8_0)};
  std::vector<WeightSegment> segments{{&info, std::as_bytes(std::span<const BlockQ8_0>(blocks))}};
  Weight weight = int8->load(segments, {});
  Matrix x = random_matrix(9, kCols, 83, type());
  Int8Rows x8(x);
  Matrix want = int8_product(x8, w8, {}, kCols);
  OnDevice dx(*int8, x, type()), out(*int8, 9, kRows, DType::f32);
  int8->matmul(out, dx.act(), weight);
  EXPECT_EQ(out.get().data(), want.data());
}

// An infinity or a NaN in a row shows in all of it, and in no other.
TEST_P(OpsTest, Int8ShowsWhatIsNotFinite) {
  auto int8 = int8_device(type());
  Matrix w = random_matrix(48, 64, 84, type(), 0.2f), x = random_matrix(12, 64, 85, type());
  Weight weight = load_matrix(*int8, w);
  x.row(2)[9] = NAN;
  x.row(5)[63] = INFINITY;
  OnDevice dx(*int8, x, type()), out(*int8, 12, 48, DType::f32);
  int8->matmul(out, dx.act(), weight);
  Matrix got = out.get();
  for (int64_t t = 0; t < 12; ++t) {
    for (int64_t r = 0; r < 48; ++r)
      EXPECT_EQ(std::isnan(got.row(t)[r]), t == 2 || t == 5) << "row " << t << ", " << r;
  }
}

// The codes that norms and activations leave in int8 are those that a product makes of an input
// without any.
TEST_P(OpsTest, Int8InputsFromTheOpsThatMakeThem) {
  auto int8 = int8_device(type());
  for (int64_t cols : {64, 3584, 8192, 18944}) {
    Matrix w = random_matrix(32, cols, 86, type(), 0.2f);
    Weight on_device = load_matrix(*int8, w);
    Matrix norm = random_matrix(1, cols, 87, DType::f32);
    ArrayOnDevice<float> dn(*int8, row_of(norm));
    for (int64_t n : {1, 9, 70}) {
      SCOPED_TRACE(testing::Message() << cols << " columns, n " << n);
      Matrix x = random_matrix(n, cols, 88, DType::f32, 3),
             gates = random_matrix(n, 2 * cols, 89, type(), 2);
      OnDevice dx(*int8, x, DType::f32), dg(*int8, gates, type());
      OnDevice act(*int8, n, cols, type(), 0), copy(*int8, n, cols, type(), 0);
      OnDevice fused(*int8, n, 32, type()), apart(*int8, n, 32, type());
      for (bool gated : {false, true}) {
        auto make = [&](const Act& out) {
          gated ? int8->activate_gated(out, dg, Activation::silu)
                : int8->rms_norm(out, dx, dn.data(), 1e-5f);
        };
        make(copy.act());
        Act coded = act.act_with_f8(DType::i8);
        act.poison();
        coded.f8.alone = n != 9;
        make(coded);
        // Longer rows are made in two kernels, with the activations between them.
        if (cols <= 8192) {
          EXPECT_EQ(std::isnan(act.get().row(0)[0]), coded.f8.alone);
        }
        act.poison();  // its codes alone are read
        int8->matmul(fused, coded, on_device);
        int8->matmul(apart, copy.act(), on_device);
        EXPECT_EQ(fused.get().data(), apart.get().data());
      }
    }
  }
}

TEST_P(OpsTest, EmbeddingAndRandomWeightsAreThoseOfTheHost) {
  for (Format f : {Format::f32, Format::f16, Format::bf16}) {
    TensorInfo info{"t", f, 50, 101, row_bytes(f, 101) * 50};
    RandomMatrix m{f, 1234567, 101};
    std::vector<std::byte> host(info.bytes);
    int64_t unit = random_unit_elems(f);
    fill_random(m, host.data(), 50 * 101, 0, (50 * 101 + unit - 1) / unit);
    RandomSource source{m.key, m.cols};
    std::vector<WeightSegment> made{{&info, {}, &source}}, given{{&info, host}};
    ASSERT_TRUE(device->makes_random(f));
    Weight a = device->load(made, {}), b = device->load(given, {}), c = ref->load(given, {});
    std::vector<int32_t> tokens{0, 49, 7, 7, 31};
    ArrayOnDevice<int32_t> dt(*device, tokens);
    OnDevice from_made(*device, 5, 101, DType::f32), from_given(*device, 5, 101, DType::f32);
    Matrix want(5, 101);
    device->embed(from_made, a, {dt.data(), 5});
    device->embed(from_given, b, {dt.data(), 5});
    ref->embed(want, c, tokens);
    Matrix x = from_made.get(), y = from_given.get();
    EXPECT_EQ(x.data(), y.data());
    EXPECT_LT(relative_norm(x, want), tolerance(type()));
  }
}

TEST_P(OpsTest, RopeTable) {
  RopeSpec rope;
  rope.dims = 64;
  rope.attention_factor = 1.2f;
  for (int i = 0; i < 32; ++i) rope.inv_freq.push_back(std::pow(10000.0f, -i / 32.0f));
  std::vector<int32_t> positions{0, 1, 77, 4095, 131071};
  ArrayOnDevice<int32_t> dp(*device, positions);
  Matrix want(5, 64);
  OnDevice out(*device, 5, 64, DType::f32, 0);
  ref->rope_table(want.row(0), rope, positions);
  device->rope_table(static_cast<Tensor>(out).f32(), rope, {dp.data(), 5});
  Matrix got = out.get();
  EXPECT_LT(relative_norm(got, want), 1e-5);
}

struct QkvCase {
  int heads, kv_heads, head_dim, dims, block_size, window;
  float softcap;
  bool interleaved, norms;
};
constexpr QkvCase kQkvCases[] = {
    {4, 2, 64, 64, 16, 0, 0, false, false},    {6, 2, 16, 16, 8, 0, 0, true, false},
    {14, 2, 64, 64, 16, 0, 0, false, true},    {28, 4, 128, 128, 16, 0, 0, false, false},
    {4, 4, 80, 32, 32, 0, 0, false, false},    {4, 2, 96, 96, 16, 40, 0, false, false},
    {4, 2, 256, 256, 16, 0, 30, false, false}, {5, 1, 48, 0, 16, 17, 20, false, false},
};

// finish_qkv and attention together: q, k and v in, attention out, in the layout that is the
// backend's own. Two steps: prompts of several lengths, then decodes beside a chunk.
// group > 0: K and V as codes, on both.
void qkv_and_attention(Device* device, Backend* ref, DType type, bool exact, int group = 0) {
  for (const QkvCase& c : kQkvCases) {
    if (group > 0 && c.head_dim % group != 0) continue;
    SCOPED_TRACE(testing::Message()
                 << c.heads << "/" << c.kv_heads << " heads of " << c.head_dim << ", block "
                 << c.block_size << ", window " << c.window << ", group " << group);
    CacheShape shape;
    shape.num_heads = c.heads, shape.num_kv_heads = c.kv_heads, shape.head_dim = c.head_dim;
    shape.window = c.window, shape.softcap = c.softcap;
    shape.block_size = c.block_size, shape.num_slots = 4, shape.max_positions = 700;
    shape.type = group > 0 ? DType::i8 : DType::f32;
    shape.kv_group = group;
    PagedCache cache(shape);
    KvLayer on_ref = cache.layer(), on_device = on_ref;
    Buffer k = device->allocate(cache.k().size()), v = device->allocate(cache.v().size());
    on_device.k = k.data(), on_device.v = v.data();
    if (group == 0) on_device.type = type;
    std::vector<int32_t> tables(cache.tables(), cache.tables() + 4 * cache.table_stride());
    ArrayOnDevice<int32_t> dt(*device, tables);
    AttentionSpec attention = shape.attention();
    device->reserve_attention(attention, 64, shape.max_positions);

    RopeSpec rope;
    rope.dims = c.dims;
    rope.interleaved = c.interleaved;
    for (int i = 0; i < c.dims / 2; ++i)
      rope.inv_freq.push_back(
          std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(c.dims)));
    Matrix qn = random_matrix(1, c.head_dim, 41, DType::f32),
           kn = random_matrix(1, c.head_dim, 42, DType::f32);
    std::vector<float> q_norm = row_of(qn), k_norm = row_of(kn);
    ArrayOnDevice<float> dqn(*device, q_norm), dkn(*device, k_norm);

    std::vector<std::vector<PagedBatch::Part>> steps{
        {{0, 0, 300}, {1, 0, 1}, {2, 0, 77}},
        {{0, 300, 1}, {1, 1, 1}, {2, 77, 130}, {3, 0, 5}},
        {{0, 301, 1}, {3, 5, 1}, {1, 2, 1}}};
    uint32_t seed = 50;
    for (const auto& parts : steps) {
      PagedBatch batch(cache, parts);
      int64_t n = batch.view.num_tokens;
      Matrix qkv = random_matrix(n, shape.qkv_cols(), seed++, exact ? DType::f32 : type);
      OnDevice dqkv(*device, qkv, exact ? DType::f32 : type);
      ArrayOnDevice<int32_t> dpos(*device, batch.positions), dslot(*device, batch.row_slot);
      ArrayOnDevice<SliceView> dslices(*device, batch.slices);
      BatchView on_gpu = batch.view;
      on_gpu.positions = dpos.data(), on_gpu.row_slot = dslot.data();
      on_gpu.tables = dt.data(), on_gpu.device_slices = dslices.data();
      Matrix cos_sin(n, std::max(c.dims, 1));
      OnDevice dcs(*device, n, std::max(c.dims, 1), DType::f32, 0);
      if (c.dims > 0) {
        ref->rope_table(cos_sin.row(0), rope, batch.positions);
        device->rope_table(static_cast<Tensor>(dcs).f32(), rope,
                           {dpos.data(), static_cast<size_t>(n)});
      }
      QkvSpec on_host{attention,
                      c.dims > 0 ? &rope : nullptr,
                      cos_sin.row(0),
                      c.norms ? q_norm.data() : nullptr,
                      c.norms ? k_norm.data() : nullptr,
                      1e-6f};
      QkvSpec spec = on_host;
      spec.cos_sin = static_cast<Tensor>(dcs).f32();
      if (c.norms) spec.q_norm = dqn.data(), spec.k_norm = dkn.data();
      int64_t q_cols = shape.out_cols();
      OnDevice dq(*device, n, q_cols, type);
      Tensor q = static_cast<Tensor>(dqkv).columns(0, q_cols);
      if (exact) spec.q = q = dq;
      ref->finish_qkv(qkv, on_host, batch.view, on_ref);
      device->finish_qkv(dqkv, spec, on_gpu, on_device);
      Matrix want(n, q_cols);
      OnDevice out(*device, n, q_cols, type);
      ref->attention(want.act(), static_cast<Tensor>(qkv).columns(0, q_cols), attention, batch.view,
                     on_ref);
      device->attention(out.act(), q, attention, on_gpu, on_device);
      Matrix got = out.get();
      // A value nearly between two codes may become one here and the other there.
      EXPECT_LT(relative_norm(got, want), group > 0 ? 0.01 : 3 * tolerance(type));
    }
  }
}
// q, k and v as the product's f32 sums, q to a place of its own in the activations' type; or all of
// them in that type, q in place.
TEST_P(OpsTest, QkvAndAttention) { qkv_and_attention(device.get(), ref.get(), type(), false); }
TEST_P(OpsTest, QkvAndAttentionFromSums) {
  qkv_and_attention(device.get(), ref.get(), type(), true);
}

TEST_P(OpsTest, QkvAndAttentionOfCodes) {
  if (type() == DType::f32) GTEST_SKIP() << "codes go with half types";
  // The reference takes its time.
  for (int group : type() == DType::f16 ? std::vector{8, 64} : std::vector{32})
    qkv_and_attention(device.get(), ref.get(), type(), true, group);
}

// A cache in codes on the host and on the device, each with its own layout.
struct CodesCase {
  Device& device;
  PagedCache cache;
  KvLayer on_ref, on_device;
  Buffer k, v;

  CodesCase(Device& d, const CacheShape& shape)
      : device(d), cache(shape), on_ref(cache.layer()), on_device(on_ref) {
    k = d.allocate(cache.k().size()), v = d.allocate(cache.v().size());
    on_device.k = k.data(), on_device.v = v.data();
  }
  // Rows of qkv [n, q, k, v], of which q is not of interest, as positions 0 to n.
  void write(Backend& ref, Matrix& qkv) {
    const auto n = static_cast<int>(qkv.rows());
    PagedBatch batch(cache, {{0, 0, n}});
    OnDevice dqkv(device, qkv, DType::f32), dq(device, n, on_ref.head_dim, DType::f16);
    std::vector<int32_t> tables(cache.tables(), cache.tables() + cache.table_stride());
    ArrayOnDevice<int32_t> dt(device, tables), dpos(device, batch.positions),
        dslot(device, batch.row_slot);
    BatchView on_gpu = batch.view;
    on_gpu.positions = dpos.data(), on_gpu.row_slot = dslot.data(), on_gpu.tables = dt.data();
    QkvSpec spec;
    spec.attention = {1, on_ref.num_kv_heads, on_ref.head_dim};
    ref.finish_qkv(qkv, spec, batch.view, on_ref);
    spec.q = dq;
    device.finish_qkv(dqkv, spec, on_gpu, on_device);
    dq.get();  // waits
  }
  std::vector<uint8_t> download(bool value) {
    Buffer pinned = device.pinned(cache.k().size());
    device.download(pinned.data(), value ? v.data() : k.data(), cache.k().size());
    device.mark(0);
    device.wait(0);
    const auto* bytes = static_cast<const uint8_t*>(pinned.data());
    return {bytes, bytes + cache.k().size()};
  }
  size_t part(int head, int pos) const {
    const auto block = static_cast<size_t>(cache.tables()[pos / on_ref.block_size]);
    return (block * static_cast<size_t>(on_ref.num_kv_heads) + static_cast<size_t>(head)) *
           on_ref.head_bytes();
  }
  float scale(const std::vector<uint8_t>& side, int head, int pos, int d) const {
    const int at = on_ref.head_dim * on_ref.block_size +
                   2 * (d / on_ref.group * on_ref.block_size + pos % on_ref.block_size);
    uint16_t half;
    std::memcpy(&half, side.data() + part(head, pos) + at, 2);
    return f16_to_f32(half);
  }
  int code(const std::vector<uint8_t>& side, int head, int pos, int d) const {
    const int at = pos % on_ref.block_size * on_ref.head_dim + d;
    return side[part(head, pos) + static_cast<size_t>(at)] - 128;
  }
  int ref_code(bool value, int head, int pos, int d) const {
    const int in = pos % on_ref.block_size;
    const int at = value ? (in / 4 * on_ref.head_dim + d) * 4 + in % 4
                         : (d / 4 * on_ref.block_size + in) * 4 + d % 4;
    const std::vector<uint8_t>& side = value ? cache.v() : cache.k();
    return static_cast<int8_t>(side[part(head, pos) + static_cast<size_t>(at)]);
  }
};

// From f32, without rotation: codes and scales are the reference's to the bit. What is beyond f16
// saturates, and what is not a number stays so.
TEST_P(OpsTest, CodesOfTheCacheAreTheReferences) {
  if (type() != DType::f16) GTEST_SKIP() << "once is enough";
  for (int group : {8, 32, 64}) {
    CacheShape shape;
    shape.num_heads = 1, shape.num_kv_heads = 3, shape.head_dim = 64, shape.block_size = 8;
    shape.type = DType::i8, shape.kv_group = group, shape.max_positions = 40;
    CodesCase c(*device, shape);
    Matrix qkv = random_matrix(33, shape.qkv_cols(), 61, DType::f32, 3);
    std::fill_n(qkv.row(1) + 64, 64, 0.0F);
    for (int i = 0; i < 64; ++i) qkv.row(2)[64 + i] *= 1e-7F;  // below f16's least
    for (int i = 0; i < 64; ++i) qkv.row(3)[64 + i] *= 4000;   // near its most
    for (int i = 0; i < 64; ++i) qkv.row(4)[64 + i] = i % 3 == 0 ? 1e9F : -2e9F;
    qkv.row(5)[64 + 9] = -INFINITY;
    qkv.row(6)[64 + 40] = NAN;
    c.write(*ref, qkv);
    const std::vector<uint8_t> sides[2] = {c.download(false), c.download(true)};
    for (int pos = 0; pos < 33; ++pos) {
      for (int i = 0; i < 2 * 3 * 64; ++i) {
        const bool value = i >= 3 * 64;
        const int head = i / 64 % 3, d = i % 64;
        SCOPED_TRACE(testing::Message() << "group " << group << " position " << pos << " head "
                                        << head << " dimension " << d << (value ? " v" : " k"));
        const float scale = c.scale(sides[value], head, pos, d);
        const int code = c.code(sides[value], head, pos, d);
        const bool first = !value && head == 0;
        if (first && pos == 4) {
          ASSERT_EQ(scale, 515.5F);
          ASSERT_EQ(code, d % 3 == 0 ? 127 : -127);
        } else if (first && pos == 5 && d / group == 9 / group) {
          ASSERT_EQ(scale, 515.5F);
          ASSERT_TRUE(d != 9 || code == -127);
        } else if (first && pos == 6 && d / group == 40 / group) {
          ASSERT_TRUE(std::isnan(scale));
          ASSERT_EQ(code, 0);
        } else {
          ASSERT_EQ(scale, c.scale(value ? c.cache.v() : c.cache.k(), head, pos, d));
          ASSERT_EQ(code, c.ref_code(value, head, pos, d));
        }
      }
    }
  }
}

TEST_P(OpsTest, CopiesBlocks) {
  for (int group : {0, 8}) {
    KvLayer plane;
    plane.type = group > 0 ? DType::i8 : type(), plane.group = group;
    plane.block_size = 8, plane.num_kv_heads = 3, plane.head_dim = 24;
    EXPECT_EQ(plane.block_bytes(), 8U * 3 * (group > 0 ? 30 : 24 * dtype_bytes(type())));
    size_t block = plane.block_bytes(), num = 300;
    std::vector<uint8_t> k(block * num), v(block * num);
    for (size_t i = 0; i < k.size(); ++i)
      k[i] = static_cast<uint8_t>(i * 7 >> 3), v[i] = static_cast<uint8_t>(i * 13 >> 4);
    ArrayOnDevice<uint8_t> dk(*device, k), dv(*device, v);
    plane.k = dk.data(), plane.v = dv.data();
    std::vector<BlockCopy> copies;
    for (int i = 0; i < 140; ++i) {
      copies.push_back({i + 1, 299 - i});
      for (auto* side : {&k, &v}) {
        std::memcpy(side->data() + static_cast<size_t>(299 - i) * block,
                    side->data() + static_cast<size_t>(i + 1) * block, block);
      }
    }
    device->copy_blocks({&plane, 1}, copies);
    Buffer pinned = device->pinned(k.size());
    for (auto* side : {&k, &v}) {
      device->download(pinned.data(), side == &k ? plane.k : plane.v, k.size());
      device->mark(0);
      device->wait(0);
      EXPECT_EQ(std::memcmp(pinned.data(), side->data(), k.size()), 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Types, OpsTest, testing::Values(DType::f32, DType::f16, DType::bf16), [](const auto& p) {
      return p.param == DType::f32 ? "f32" : p.param == DType::f16 ? "f16" : "bf16";
    });

}  // namespace
}  // namespace sluice

// Weights that a GPU keeps as their file stores them: packing and decoding to the bit, the product
// for few rows against sums in double, the bits of a row among up to 63 others, NaN and infinity in
// a row of x. Odd sizes, outputs that start as NaN, memory behind them that must stay as it is.
//   cuda_packed_test [--small | --time [FORMAT]]   --time: microseconds of the shapes of Qwen2.5-7B
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/launch.cuh"
#include "backend/cuda/packed.cuh"
#include "backend/cuda/target.cuh"
#include "base/random.h"
#include "cuda_fixture.cuh"
#include "tensor/formats/all.h"

namespace sluice::cuda {
namespace {

int checks = 0, failures = 0, unsplit_checks = 0;

constexpr Format kPackedFormats[] = {Format::q8_0, Format::q4_0, Format::q4_k,  Format::q6_k,
                                     Format::q4_1, Format::q5_k, Format::iq4_nl};

template <typename... Args>
void expect(bool right, const char* format, Args... args) {
  ++checks;
  if (right) return;
  if (++failures > 20) return;
  std::printf("FAIL ");
  std::printf(format, args...);
  std::printf("\n");
}

template <typename T>
float rounded(float v) {
  return static_cast<float>(T(v));
}

std::vector<float> random_floats(int64_t num, unsigned seed, float size) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, size);
  std::vector<float> v(static_cast<size_t>(num));
  for (float& f : v) f = normal(rng);
  return v;
}

// A weight in its file's bytes, decoded, and packed on the GPU.
struct Packed {
  Packed(Format f, int64_t num_rows, int64_t num_cols)
      : format(f), rows(num_rows), cols(num_cols), shape(f, rows, cols), memory(shape.bytes()) {
    const FormatInfo& info = format_info(f);
    raw.resize(row_bytes(f, cols) * static_cast<size_t>(rows));
    values = random_floats(rows * cols, 3, 0.7f);
    info.encode(values.data(), raw.data(), rows * cols);
    info.decode(raw.data(), values.data(), rows * cols);
    Array<std::byte> device_raw(raw.size());
    device_raw.put(raw.data(), raw.size());
    part = {f, memory.data(), rows, cols};
    // In two steps, as a large weight arrives.
    const int64_t first = rows > 32 ? 32 : rows;
    pack(part, 0, first, device_raw.data(), nullptr);
    if (first < rows)
      pack(part, first, rows - first,
           device_raw.data() + row_bytes(f, cols) * static_cast<size_t>(first), nullptr);
    check(cudaDeviceSynchronize(), "pack");
  }
  const char* name() const { return format_info(format).name; }

  Format format;
  int64_t rows, cols;
  PackedShape shape;
  std::vector<std::byte> raw;
  std::vector<float> values;
  Array<uint8_t> memory;
  PackedPart part;
};

void check_packing(const Packed& w) {
  std::vector<uint8_t> want(w.shape.bytes());
  with_packed_block(w.format, [&](auto block) {
    using Block = decltype(block);
    const PackedSource<Block> from{reinterpret_cast<const Block*>(w.raw.data()), w.rows, w.cols};
    for (int64_t r = 0; r < w.shape.row_tiles; ++r)
      for (int64_t t = 0; t < w.shape.tiles; ++t)
        for (int lane = 0; lane < kPackedLanes; ++lane)
          pack_tile(want.data(), w.shape, from, r, r, t, lane);
  });
  expect(want == w.memory.get(), "%s %ld x %ld: packed otherwise than on the host", w.name(),
         static_cast<long>(w.rows), static_cast<long>(w.cols));
}

template <typename T>
void check_decoding(const Packed& w, DType type) {
  for (int64_t first : {int64_t{0}, w.rows / 3}) {
    const int64_t num = w.rows - first - (first > 0 ? 1 : 0);
    if (num <= 0) continue;
    Array<T> out(static_cast<size_t>((num + 1) * w.cols));
    decode_packed(out.data(), type, w.part, first, num, nullptr);
    check(cudaDeviceSynchronize(), "decode");
    const std::vector<T> got = out.get();
    int wrong = 0;
    for (int64_t i = 0; i < num * w.cols; ++i) {
      const float want = rounded<T>(w.values[static_cast<size_t>(first * w.cols + i)]);
      wrong += static_cast<float>(got[static_cast<size_t>(i)]) != want;
    }
    const auto* behind = reinterpret_cast<const uint8_t*>(got.data() + num * w.cols);
    bool kept = true;
    for (size_t i = 0; i < static_cast<size_t>(w.cols) * 2; ++i) kept = kept && behind[i] == 0xee;
    expect(wrong == 0 && kept, "%s %ld x %ld: %d decoded wrong from row %ld, behind kept %d",
           w.name(), static_cast<long>(w.rows), static_cast<long>(w.cols), wrong,
           static_cast<long>(first), kept);
  }
}

void check_lookup(const Packed& w) {
  std::vector<int32_t> tokens{static_cast<int32_t>(w.rows - 1), 0,
                              static_cast<int32_t>(w.rows / 2)};
  Array<int32_t> device_tokens(tokens.size());
  device_tokens.put(tokens.data(), tokens.size());
  Array<float> out(tokens.size() * static_cast<size_t>(w.cols));
  embed_packed({out.data(), DType::f32, 3, w.cols, w.cols}, w.part, device_tokens.data(), nullptr);
  check(cudaDeviceSynchronize(), "embed");
  const std::vector<float> got = out.get();
  int wrong = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const int64_t row = tokens[static_cast<size_t>(at / w.cols)];
    wrong += got[i] != w.values[static_cast<size_t>(row * w.cols + at % w.cols)];
  }
  expect(wrong == 0, "%s: %d wrong in embedding", w.name(), wrong);
}

void multiply(FewRows kind,
              const Tensor& to,
              const Tensor& from,
              const PackedPart& w,
              const float* bias,
              void* memory,
              cudaStream_t stream,
              RowTiles tiles = RowTiles::best) {
  if (kind == FewRows::streamed) return streamed(to, from, w, bias, stream);
  if (kind == FewRows::halves)
    return half_product(to, halve_rows(memory, from, stream), w, bias, stream, tiles);
  integer_product(to, split_rows(memory, from, stream), w, bias, stream, tiles);
}

template <typename T>
class Products {
 public:
  Products(const Packed& w, DType type, int most, FewRows kind)
      : w_(w),
        type_(type),
        kind_(kind),
        most_(most),
        stride_(w.cols + 8),
        x_(random_floats(most * stride_, 4, 1)),
        bias_(random_floats(w.rows, 5, 1)),
        x_device_(x_.size()) {
    std::vector<T> x;
    for (float& v : x_) x.push_back(T(v)), v = rounded<T>(v);
    x_device_.put(x.data(), x.size());
  }

  // Rows [first, first + n) of x. The output's rows are three longer than the weight has.
  std::vector<float> run(
      int first, int n, bool f32_out, bool bias, RowTiles tiles = RowTiles::best) {
    const int64_t out_stride = w_.rows + 3;
    Array<float> out(static_cast<size_t>(n * out_stride));
    check(cudaMemset(out.data(), 0xff, static_cast<size_t>(n * out_stride) * sizeof(float)), "nan");
    Array<float> device_bias(bias_.size());
    device_bias.put(bias_.data(), bias_.size());
    const Tensor to{out.data(), f32_out ? DType::f32 : type_, n, w_.rows, out_stride};
    const Tensor from{x_device_.data() + first * stride_, type_, n, w_.cols, stride_};
    const float* bias_data = bias ? device_bias.data() : nullptr;
    Array<uint8_t> memory(static_cast<size_t>(split_bytes(n, w_.cols)));
    multiply(kind_, to, from, w_.part, bias_data, memory.data(), nullptr, tiles);
    check(cudaDeviceSynchronize(), "product");
    const std::vector<float> got = out.get();
    std::vector<float> values;
    for (int64_t t = 0; t < n; ++t) {
      for (int64_t r = 0; r < out_stride; ++r) {
        const auto at = static_cast<size_t>(t * out_stride + r);
        const float v =
            f32_out ? got[at] : static_cast<float>(reinterpret_cast<const T*>(got.data())[at]);
        if (r < w_.rows) {
          values.push_back(v);
        } else if (!std::isnan(v)) {
          expect(false, "%s: wrote past a row", w_.name());
        }
      }
    }
    return values;
  }

  void check_values(int n, bool f32_out, bool bias) {
    const std::vector<float> got = run(0, n, f32_out, bias);
    double difference = 0, size = 0;
    for (int t = 0; t < n; ++t) {
      for (int64_t r = 0; r < w_.rows; ++r) {
        double want = bias ? bias_[static_cast<size_t>(r)] : 0;
        for (int64_t c = 0; c < w_.cols; ++c) {
          const double part = static_cast<double>(x_[static_cast<size_t>(t * stride_ + c)]) *
                              w_.values[static_cast<size_t>(r * w_.cols + c)];
          want += part, size += part * part;  // a sum may be next to nothing by chance
        }
        const double d = got[static_cast<size_t>(t * w_.rows + r)] - want;
        difference += d * d, size += want * want;
      }
    }
    const double off = std::sqrt(difference / size);
    const double most = !f32_out                     ? (type_ == DType::f16 ? 1e-3 : 6e-3)
                        : kind_ == FewRows::streamed ? 1e-4
                                                     : 2e-4;
    expect(off < most, "%s n %d, %ld x %ld, kind %d, f16 %d, f32 out %d, bias %d: off by %g",
           w_.name(), n, static_cast<long>(w_.rows), static_cast<long>(w_.cols),
           static_cast<int>(kind_), type_ == DType::f16, f32_out, bias, off);
  }

  // With one element of the last row so, all outputs of that row are NaN or infinite, others are
  // as before.
  void check_not_finite(int n, float element) {
    const std::vector<float> before = run(0, n, true, true);
    const int64_t at = (n - 1) * stride_ + w_.cols - 1;
    const T was(x_[static_cast<size_t>(at)]), put(element);
    check(cudaMemcpy(x_device_.data() + at, &put, sizeof put, cudaMemcpyHostToDevice), "x");
    const std::vector<float> got = run(0, n, true, true);
    check(cudaMemcpy(x_device_.data() + at, &was, sizeof was, cudaMemcpyHostToDevice), "x");
    const auto others = static_cast<size_t>((n - 1) * w_.rows);
    int finite = 0;
    for (size_t i = others; i < got.size(); ++i) finite += std::isfinite(got[i]);
    expect(finite == 0, "%s n %d, kind %d: %d of %ld outputs of %g are finite", w_.name(), n,
           static_cast<int>(kind_), finite, static_cast<long>(w_.rows), element);
    expect(std::memcmp(got.data(), before.data(), others * sizeof(float)) == 0,
           "%s n %d, kind %d: %g in one row changed another", w_.name(), n, static_cast<int>(kind_),
           element);
  }

  // Each number of rows against all of them at once.
  void check_bits() {
    const std::vector<float> all = run(0, most_, true, true);
    for (int n = 1; n <= most_; ++n) {
      for (int first : {0, most_ - n}) {
        const std::vector<float> some = run(first, n, true, true);
        expect(std::memcmp(some.data(), all.data() + first * w_.rows, some.size() * 4) == 0,
               "%s bits: %d rows from %d of %ld x %ld, kind %d, f16 %d", w_.name(), n, first,
               static_cast<long>(w_.rows), static_cast<long>(w_.cols), static_cast<int>(kind_),
               type_ == DType::f16);
      }
    }
  }

  // Blocks that split x themselves against a kernel that does it before.
  void check_unsplit() {
    for (int n : {1, 2, 3, 4}) {
      const Tensor from{x_device_.data(), type_, n, w_.cols, stride_};
      if (!takes_unsplit(from)) continue;
      Array<float> out(static_cast<size_t>(n * w_.rows));
      integer_product({out.data(), DType::f32, n, w_.rows, w_.rows}, from, w_.part, nullptr,
                      nullptr);
      check(cudaDeviceSynchronize(), "product");
      const std::vector<float> want = run(0, n, true, false);
      expect(out.get() == want, "%s bits: %d rows of %ld x %ld split by blocks, f16 %d", w_.name(),
             n, static_cast<long>(w_.rows), static_cast<long>(w_.cols), type_ == DType::f16);
      ++unsplit_checks;
    }
  }

  // One row of tiles at a time against two, one with x kept, and the way that is taken.
  void check_tiles() {
    for (int n : {1, 5, 8, 9, 16, 17, 33, 64}) {
      const std::vector<float> one = run(0, n, true, true, RowTiles::one);
      for (RowTiles tiles : {RowTiles::two, RowTiles::kept, RowTiles::best}) {
        const std::vector<float> other = run(0, n, true, true, tiles);
        expect(std::memcmp(other.data(), one.data(), one.size() * 4) == 0,
               "%s bits: one row of tiles against way %d, %d rows of %ld x %ld, kind %d, f16 %d",
               w_.name(), static_cast<int>(tiles), n, static_cast<long>(w_.rows),
               static_cast<long>(w_.cols), static_cast<int>(kind_), type_ == DType::f16);
      }
    }
  }

 private:
  const Packed& w_;
  DType type_;
  FewRows kind_;
  int most_;
  int64_t stride_;
  std::vector<float> x_, bias_;
  Array<T> x_device_;
};

template <typename T>
void check_products(const Packed& w, DType type, bool small) {
  for (FewRows kind : {FewRows::streamed, FewRows::halves, FewRows::integers}) {
    if (kind == FewRows::halves && !has_half_product(w.format)) continue;
    if (kind == FewRows::integers && !has_integer_product(w.format)) continue;
    Products<T> p(w, type, kMaxStreamed, kind);
    for (int n : {1, 3, 8, 9, 16, 17, 32, 40, 63, 64}) p.check_values(n, n % 2 == 1, n % 3 == 0);
    p.check_values(8, true, true);
    p.check_values(40, true, false);
    p.check_values(64, true, false);
    for (int n : {1, 8, 9, 17}) {
      p.check_not_finite(n, std::numeric_limits<float>::quiet_NaN());
      p.check_not_finite(n, -std::numeric_limits<float>::infinity());
    }
    if (kind != FewRows::streamed) p.check_tiles();
    if (kind == FewRows::integers) p.check_unsplit();
    if (!small) p.check_bits();
  }
}

// Warps that compute several blocks of columns, of one or of several rows of tiles.
void check_long_products(const Packed& w) {
  for (FewRows kind : {FewRows::halves, FewRows::integers}) {
    if (kind == FewRows::halves && !has_half_product(w.format)) continue;
    if (kind == FewRows::integers && !has_integer_product(w.format)) continue;
    Products<__nv_bfloat16> p(w, DType::bf16, kMaxStreamed, kind);
    for (int n : {2, 6, 17}) p.check_values(n, true, true);
    p.check_tiles();
    if (kind != FewRows::integers) continue;
    const int before = unsplit_checks;
    p.check_unsplit();
    expect(unsplit_checks > before, "%s: no product of %ld columns took x unsplit", w.name(),
           static_cast<long>(w.cols));
  }
}

void run_cases(bool small) {
  for (Format f : kPackedFormats) {
    const int64_t block = format_info(f).block_elems;
    for (auto [rows, cols] : {std::pair<int64_t, int64_t>{100, block == 256 ? 512 : 96},
                              {1, block},
                              {257, block == 256 ? 1792 : 1120}}) {
      const Packed w(f, rows, cols);
      check_packing(w);
      check_decoding<__half>(w, DType::f16);
      check_decoding<__nv_bfloat16>(w, DType::bf16);
      check_lookup(w);
      check_products<__nv_bfloat16>(w, DType::bf16, small);
      check_products<__half>(w, DType::f16, small);
    }
  }
  for (Format f : kPackedFormats) {
    // Two blocks of 256 columns for most warps, one for the last.
    check_long_products(Packed(f, 43, 9 * kSplitCols));
  }
  if (small) return;
  // More rows of tiles than all blocks compute at once, of two rows of tiles each; an odd number.
  const int64_t row_tiles = 8 * target().num_sms + 3;
  for (Format f : {Format::q8_0, Format::q4_0, Format::q4_k})
    check_long_products(Packed(f, row_tiles * kPackedRows - 5, 2 * kSplitCols));
}

// Bits that are halves below one in every pair of bytes.
__global__ void fill_kernel(uint32_t* to, size_t words) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < words;
       i += size_t{gridDim.x} * blockDim.x)
    to[i] = static_cast<uint32_t>(mix_bits(i)) & 0x3bff3bffu;
}

struct TimedShape {
  const char* name;
  int64_t rows, cols;
};

constexpr int kMostTimed = 32;  // rows of x

// Weights of one shape, more than the cache holds, and memory for x.
class ShapeTimes {
 public:
  ShapeTimes(Format f, const TimedShape& s, cudaStream_t stream)
      : format_(f),
        shape_(s),
        stream_(stream),
        bytes_(PackedShape(f, s.rows, s.cols).bytes()),
        num_(std::max(2, static_cast<int>(200e6 / static_cast<double>(bytes_)))),
        weights_(bytes_ * static_cast<size_t>(num_)),
        x_(static_cast<size_t>(kMostTimed * s.cols)),
        out_(static_cast<size_t>(kMostTimed * s.rows)),
        split_(static_cast<size_t>(split_bytes(kMostTimed, s.cols))) {
    fill(weights_.data(), bytes_ * static_cast<size_t>(num_));
    fill(x_.data(), static_cast<size_t>(kMostTimed * s.cols) * 2);
    check(cudaDeviceSynchronize(), "fill");
  }
  void print() {
    std::printf("%-6s %-8s%5.1f MB", format_info(format_).name, shape_.name,
                static_cast<double>(bytes_) / 1e6);
    for (int n : {1, 2, 4, 8, 16, kMostTimed}) {
      const FewRows kind = few_rows(format_, n, false);
      const Tensor x{x_.data(), DType::bf16, n, shape_.cols, shape_.cols};
      if (kind == FewRows::streamed) {
        std::printf(" | %d: %.1f", n, time(n, kind, true));
      } else {
        std::printf(" | %d: %.1f %.1f", n, time(n, kind, true),
                    time(n, kind, false, RowTiles::one));
        if (n > 4) std::printf(" %.1f", time(n, kind, false, RowTiles::two));
        if (n == 16 && kind == FewRows::halves)
          std::printf(" kept %.1f", time(n, kind, false, RowTiles::kept));
        if (takes_unsplit(x) && n < 4) std::printf(" unsplit %.1f", time_unsplit(x));
      }
    }
    std::printf("\n");
    std::fflush(stdout);
  }

 private:
  static void fill(void* memory, size_t bytes) {
    fill_kernel<<<1024, 256>>>(static_cast<uint32_t*>(memory), bytes / 4);
  }
  float time_unsplit(const Tensor& x) {
    return time_graph(stream_, num_, [&](int i) {
      integer_product({out_.data(), DType::bf16, x.rows, shape_.rows, shape_.rows}, x, weight(i),
                      nullptr, stream_);
    });
  }
  PackedPart weight(int i) const {
    return {format_, weights_.data() + bytes_ * static_cast<size_t>(i), shape_.rows, shape_.cols};
  }
  // splits: x is split before each product, as it is by ops that do not do it themselves.
  float time(int n, FewRows kind, bool splits, RowTiles tiles = RowTiles::best) {
    const Tensor to{out_.data(), DType::bf16, n, shape_.rows, shape_.rows};
    const Tensor from{x_.data(), DType::bf16, n, shape_.cols, shape_.cols};
    const SplitRows ready(split_.data(), n, shape_.cols);
    fill_split({ready, kind}, from, stream_);
    return time_graph(stream_, num_, [&](int i) {
      const PackedPart p = weight(i);
      if (splits) return multiply(kind, to, from, p, nullptr, split_.data(), stream_, tiles);
      if (kind == FewRows::halves) return half_product(to, ready, p, nullptr, stream_, tiles);
      integer_product(to, ready, p, nullptr, stream_, tiles);
    });
  }

  Format format_;
  TimedShape shape_;
  cudaStream_t stream_;
  size_t bytes_;
  int num_;
  Array<uint8_t> weights_;
  Array<__nv_bfloat16> x_, out_;
  Array<uint8_t> split_;
};

// Of all formats, or of one.
int time_shapes(const std::string& name) {
  const FormatInfo* only = find_format(name);
  if (!name.empty() && !(only && is_packed(only->format))) {
    std::printf("no stored format '%s'\n", name.c_str());
    return 2;
  }
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "stream");
  std::printf(
      "microseconds by rows of x: with x split before; the product alone by one row of tiles at a "
      "time; from 8 rows on, by two, where there is a kernel. unsplit: blocks split x. kept: x in "
      "shared memory, where it fits\n");
  for (Format f : kPackedFormats) {
    if (only && only->format != f) continue;
    for (const TimedShape& s :
         {TimedShape{"qkv", 4608, 3584}, TimedShape{"o", 3584, 3584},
          TimedShape{"gate_up", 37888, 3584}, TimedShape{"down", 3584, 18944}})
      ShapeTimes(f, s, stream).print();
  }
  cudaStreamDestroy(stream);
  return 0;
}

}  // namespace
}  // namespace sluice::cuda

int main(int argc, char** argv) {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    std::printf("no GPU\n");
    return 0;
  }
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "--time") return sluice::cuda::time_shapes(argc > 2 ? argv[2] : "");
  sluice::cuda::run_cases(mode == "--small");
  std::printf("%d checks, %d failures\n", sluice::cuda::checks, sluice::cuda::failures);
  return sluice::cuda::failures ? 1 : 0;
}

// All matrix products of a decode step of Qwen2.5-0.5B's shape by the number of rows M, which take
// turns in random order, so that a neighbour's spell falls on all of them: is there a staircase?
//
//   staircase_bench FORMAT [SECONDS] [FIRST LAST]      default 40 s, 1 33; two threads
//
// FORMAT: w8a8, or one of files, like q8_0, q4_0 (output matrix q8_0), f16. SLUICE_ISA chooses
// kernels.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/matmul/matmul.h"
#include "tensor/formats/all.h"

namespace sluice {
namespace {

constexpr int64_t kHidden = 896, kInner = 4864, kQkv = 1152, kVocab = 151936;
constexpr int kLayers = 24;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Step {
 public:
  Step(Format format, WeightQuant quant) : quant_{quant, {}} {
    for (int i = 0; i < kLayers; ++i) {
      add(format, kQkv, kHidden);
      add(format, kHidden, kHidden);
      add(format, 2 * kInner, kHidden);
      add(format, kHidden, kInner);
    }
    add(format == Format::q4_0 ? Format::q8_0 : format, kVocab, kHidden);
  }

  // Seconds of one step of m rows.
  double run(int64_t m) {
    reserve(m);
    const double begin = now();
    for (const PackedWeight& w : weights_) {
      Act a;
      a.f = {x_.data(), DType::f32, m, w.cols, w.cols};
      a.q = {q_.data(), scale_.data(), sum_.data(), m, w.cols};
      a.r = {q_.data(), scale_.data(), sum_.data(), m, w.cols};
      matmul(pool_, Tensor{out_.data(), DType::f32, m, w.rows, w.rows}, a, w, scratch_);
    }
    return now() - begin;
  }

 private:
  void add(Format format, int64_t rows, int64_t cols) {
    const size_t row = row_bytes(format, cols);
    std::vector<float> values(static_cast<size_t>(cols));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = 0.01f * static_cast<float>(i * 7919 % 101) - 0.5f;
    }
    std::vector<std::byte> bytes(row * static_cast<size_t>(rows));
    format_info(format).encode(values.data(), bytes.data(), cols);
    for (size_t at = row; at < bytes.size(); at += row) {
      std::memcpy(bytes.data() + at, bytes.data(), row);
    }
    const TensorInfo info{"blk.0.ffn_up.weight", format, rows, cols, bytes.size()};
    const WeightSegment segment{&info, bytes};
    weights_.push_back(pack_weight(pool_, {&segment, 1}, {}, {.arena = &arena_, .quant = &quant_}));
  }

  void reserve(int64_t m) {
    const auto size = static_cast<size_t>(m * kInner);
    if (x_.size() >= size) return;
    x_.assign(size, 0.3f);
    q_.assign(size, 3);
    scale_.assign(size / 32, 0.01f);
    sum_.assign(size / 32, 96);
    out_.assign(static_cast<size_t>(m * kVocab), 0);
  }

  LoadQuant quant_;
  ThreadPool pool_{2, true};
  WeightArena arena_;
  std::vector<PackedWeight> weights_;
  MatmulScratch scratch_;
  std::vector<float> x_, scale_, out_;
  std::vector<int8_t> q_;
  std::vector<int32_t> sum_;
};

int run(const std::string& name, double seconds, int64_t first, int64_t last) {
  const bool at_load = name == "w8a8";
  const FormatInfo* format = find_format(at_load ? "q8_0" : name);
  if (!format || kHidden % format->block_elems != 0 || first < 1 || last < first) {
    std::fprintf(stderr, "staircase_bench w8a8|q8_0|q4_0|f16|... [SECONDS] [FIRST LAST]\n");
    return 1;
  }
  Step step(format->format, at_load ? WeightQuant::w8a8 : WeightQuant::none);
  std::vector<int64_t> order;
  for (int64_t m = first; m <= last; ++m) order.push_back(m);
  std::vector<std::vector<double>> times(order.size());
  std::mt19937 rng(1);
  step.run(last);
  for (const double end = now() + seconds; now() < end;) {
    std::shuffle(order.begin(), order.end(), rng);
    for (int64_t m : order) times[static_cast<size_t>(m - first)].push_back(step.run(m));
  }
  std::printf("%s, %zu rounds\n   M    ms, first decile / median   t(M) / t(M + 1)\n", name.c_str(),
              times[0].size());
  for (auto& t : times) std::sort(t.begin(), t.end());
  for (size_t i = 0; i < times.size(); ++i) {
    const size_t n = times[i].size();
    std::printf("%4zu   %8.2f / %8.2f", static_cast<size_t>(first) + i, times[i][n / 10] * 1e3,
                times[i][n / 2] * 1e3);
    if (i + 1 < times.size()) {
      std::printf("          %.3f / %.3f", times[i][n / 10] / times[i + 1][n / 10],
                  times[i][n / 2] / times[i + 1][n / 2]);
    }
    std::printf("\n");
  }
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  return sluice::run(argc > 1 ? argv[1] : "", argc > 2 ? std::atof(argv[2]) : 40,
                     argc > 4 ? std::atol(argv[3]) : 1, argc > 4 ? std::atol(argv[4]) : 33);
}

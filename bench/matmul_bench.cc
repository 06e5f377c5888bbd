// The CPU matmul at the shapes of Qwen2.5-0.5B. Weights rotate through more memory than caches
// hold, so M = 1 shows memory speed. GB/s counts packed weight bytes, Gop/s two per multiply-add.
// read/* measures the machine's read bandwidth the same way, for comparison in the same run.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/features.h"
#include "backend/cpu/matmul.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/quantize.h"
#include "tensor/formats/all.h"

namespace sluice {
namespace {

// Copies of a weight are made until they pass this; SLUICE_BENCH_MB overrides (a large last-level
// cache that is shared with other machines need not be exceeded to see memory speed).
size_t rotation_bytes() {
  const char* mb = std::getenv("SLUICE_BENCH_MB");
  return (mb ? std::strtoul(mb, nullptr, 10) : 600) << 20;
}

int bench_threads() {
  const char* n = std::getenv("SLUICE_BENCH_THREADS");
  return n ? std::atoi(n) : 0;
}

ThreadPool& pool() {
  static ThreadPool p(bench_threads());
  return p;
}

struct Shape {
  const char* name;
  int64_t rows, cols;
};
constexpr Shape kShapes[] = {{"qkv", 896 + 2 * 128, 896},
                             {"gate_up", 2 * 4864, 896},
                             {"down", 896, 4864},
                             {"lm_head", 151936, 896}};

struct Weights {
  std::string key;
  std::vector<PackedWeight> copies;
  std::vector<std::vector<std::byte>> sources;
};

// Random quants with plausible scales: speed does not depend on the values.
std::vector<std::byte> random_bytes(Format format, int64_t rows, int64_t cols) {
  std::mt19937 rng(1);
  std::vector<float> row(static_cast<size_t>(cols));
  std::normal_distribution<float> normal;
  for (float& v : row) v = normal(rng);
  const size_t bytes = row_bytes(format, cols);
  std::vector<std::byte> one(bytes);
  format_info(format).encode(row.data(), one.data(), cols);
  std::vector<std::byte> all(bytes * static_cast<size_t>(rows));
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
    std::memcpy(all.data() + r * bytes, one.data(), bytes);
  }
  return all;
}

// A format of files, or what is made of f16 at load.
struct Kind {
  const char* name;
  Format format;
  WeightQuant quant = WeightQuant::none;
};

const Weights& weights(const Kind& kind, const Shape& shape, int64_t cols) {
  static Weights w;
  const Format format = kind.format;
  const std::string key = std::string(kind.name) + "/" + shape.name;
  if (w.key == key) return w;
  w = {};
  w.key = key;
  const TensorInfo info{"w", format, shape.rows, cols,
                        row_bytes(format, cols) * static_cast<size_t>(shape.rows)};
  const LoadQuant quant{kind.quant, {}};
  for (size_t total = 0; total < rotation_bytes();) {
    w.sources.push_back(random_bytes(format, shape.rows, cols));
    const WeightSegment segment{&info, w.sources.back()};
    w.copies.push_back(pack_weight(pool(), {&segment, 1}, {}, {.quant = &quant}));
    if (!w.copies.back().keeps_source) w.sources.pop_back();
    total += w.copies.back().bytes;
  }
  return w;
}

void bench_matmul(benchmark::State& state, const Kind& kind, const Shape& shape, int64_t m) {
  // K formats need whole blocks of 256.
  const int64_t unit = format_info(kind.format).block_elems;
  const int64_t cols = (shape.cols + unit - 1) / unit * unit;
  const Weights& w = weights(kind, shape, cols);
  std::mt19937 rng(2);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(m * cols));
  for (float& v : x) v = normal(rng);
  std::vector<int8_t> q(x.size());
  std::vector<float> scale(x.size() / 32), out(static_cast<size_t>(m * shape.rows));
  std::vector<int32_t> sum(x.size() / 32);
  quantize_row(x.data(), m * cols, q.data(), scale.data(), sum.data());
  std::vector<int8_t> row_q(x.size());
  std::vector<float> row_scale(static_cast<size_t>(m));
  std::vector<int32_t> row_sum(static_cast<size_t>(m));
  for (int64_t r = 0; r < m; ++r) {
    quantize_whole_row(x.data() + r * cols, cols, row_q.data() + r * cols,
                       &row_scale[static_cast<size_t>(r)], &row_sum[static_cast<size_t>(r)]);
  }
  Act act{{x.data(), DType::f32, m, cols, cols},
          {q.data(), scale.data(), sum.data(), m, cols},
          {row_q.data(), row_scale.data(), row_sum.data(), m, cols}};
  const Tensor y{out.data(), DType::f32, m, shape.rows, shape.rows};
  size_t next = 0;
  for (auto _ : state) {
    matmul(pool(), y, act, w.copies[next]);
    next = (next + 1) % w.copies.size();
    benchmark::ClobberMemory();
  }
  const auto n = static_cast<double>(state.iterations());
  state.counters["GB/s"] = benchmark::Counter(n * static_cast<double>(w.copies[0].bytes) / 1e9,
                                              benchmark::Counter::kIsRate);
  state.counters["Gop/s"] =
      benchmark::Counter(n * 2e-9 * static_cast<double>(shape.rows) * static_cast<double>(cols * m),
                         benchmark::Counter::kIsRate);
}

// Every thread sums its share of the rotation in four streams.
void bench_read(benchmark::State& state) {
  static const Buffer memory = [] {
    Buffer b = allocate_pages(rotation_bytes());
    std::memset(b.data(), 1, b.bytes());
    return b;
  }();
  const size_t share = memory.bytes() / 8 / static_cast<size_t>(pool().size()) / 32 * 32;
  for (auto _ : state) {
    pool().run([&](int worker) {
      const auto* p =
          static_cast<const uint64_t*>(memory.data()) + share * static_cast<size_t>(worker);
      uint64_t s[4][8] = {};
      for (size_t i = 0; i < share / 4; i += 8) {
        for (size_t stream = 0; stream < 4; ++stream) {
          for (size_t j = 0; j < 8; ++j) s[stream][j] += p[stream * (share / 4) + i + j];
        }
      }
      benchmark::DoNotOptimize(s);
    });
  }
  state.counters["GB/s"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * 8e-9 *
                             static_cast<double>(share * static_cast<size_t>(pool().size())),
                         benchmark::Counter::kIsRate);
}

void register_all() {
  benchmark::RegisterBenchmark("read", bench_read)->UseRealTime();
  std::vector<Kind> kinds;
  for (Format f :
       {Format::q8_0, Format::q4_0, Format::q4_1, Format::q5_0, Format::q5_1, Format::iq4_nl,
        Format::q4_k, Format::q5_k, Format::q6_k, Format::f16, Format::bf16, Format::f32}) {
    kinds.push_back({format_info(f).name, f});
  }
  kinds.push_back({"w8a8", Format::f16, WeightQuant::w8a8});
  for (const Kind& kind : kinds) {
    for (const Shape& shape : kShapes) {
      for (int64_t m : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 512}) {
        if (shape.rows > 100000 && m > 64) continue;  // logits of a whole prompt are never wanted
        const std::string name =
            std::string(kind.name) + "/" + shape.name + "/M:" + std::to_string(m);
        benchmark::RegisterBenchmark(name.c_str(), [=, &shape](benchmark::State& s) {
          bench_matmul(s, kind, shape, m);
        })->UseRealTime();
      }
    }
  }
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  sluice::register_all();
  benchmark::Initialize(&argc, argv);
  benchmark::AddCustomContext("isa", sluice::isa_name(sluice::cpu_features()));
  benchmark::AddCustomContext("threads", std::to_string(sluice::pool().size()));
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}

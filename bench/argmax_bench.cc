// Greedy decoding's last product: the logits and then the largest of each row, or only the latter.
// Q8_0, best of 40, all cores.
//   argmax_bench [VOCAB HIDDEN]      default 49152 576 (SmolLM2-135M) and 151936 896 (Qwen2.5-0.5B)
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "tensor/formats/all.h"

namespace sluice {
namespace {

double now_us() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct Rows {
  Tensor logits;
  std::vector<Best> best;
};

void measure(Backend& backend, int64_t vocab, int64_t hidden) {
  constexpr int kRounds = 40;
  TensorInfo info{"w", Format::q8_0, vocab, hidden,
                  row_bytes(Format::q8_0, hidden) * static_cast<size_t>(vocab)};
  std::mt19937 rng(1);
  std::vector<std::byte> bytes(info.bytes);
  for (std::byte& b : bytes) b = static_cast<std::byte>(rng() & 0x3f);
  const WeightSegment segment{&info, bytes};
  const Weight w = backend.load({&segment, 1}, {});
  for (int64_t m : {1, 4, 16, 32}) {
    std::vector<int8_t> codes(static_cast<size_t>(m * hidden));
    for (int8_t& c : codes) c = static_cast<int8_t>(static_cast<int>(rng() % 200) - 100);
    std::vector<float> scales(codes.size() / 32, 0.01f), out(static_cast<size_t>(m * vocab));
    std::vector<int32_t> sums(scales.size());
    Act x;
    x.q = {codes.data(), scales.data(), sums.data(), m, hidden};
    Rows rows{{out.data(), DType::f32, m, vocab, vocab}, std::vector<Best>(static_cast<size_t>(m))};
    double apart = 1e18, fused = 1e18;
    for (int round = 0; round < kRounds; ++round) {
      const double begin = now_us();
      backend.matmul(rows.logits, x, w);
      backend.parallel(
          static_cast<int>(m),
          [](void* p, int i) {
            auto* r = static_cast<Rows*>(p);
            r->best[static_cast<size_t>(i)] = better({}, r->logits.row(i), r->logits.cols);
          },
          &rows);
      const double middle = now_us();
      backend.matmul_best(rows.logits, x, w, rows.best);
      apart = std::min(apart, middle - begin);
      fused = std::min(fused, now_us() - middle);
    }
    std::printf("%ld x %ld, %2ld rows: %6.0f us apart, %6.0f us fused (%.2f)\n",
                static_cast<long>(vocab), static_cast<long>(hidden), static_cast<long>(m), apart,
                fused, fused / apart);
  }
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  auto backend = sluice::make_cpu_backend({});
  backend->attach();
  if (argc == 3) {
    sluice::measure(*backend, std::atol(argv[1]), std::atol(argv[2]) / 32 * 32);
    return 0;
  }
  sluice::measure(*backend, 49152, 576);
  sluice::measure(*backend, 151936, 896);
}

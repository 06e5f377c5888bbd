// Sampling and prepare on the device: microseconds by batch, beside reading the logits once.
#include <array>
#include <cstdio>

#include "backend/cuda/prepare.cuh"
#include "backend/cuda/sampling.cuh"
#include "cuda_fixture.cuh"
#include "exec/row_spec.h"

namespace sluice {
namespace {

// Logits of 512 rows, so that large batches read memory and small ones the cache that a matmul has
// just filled.
void bench(int vocab) {
  constexpr int kRows = 512, kSlots = 256, kLaunches = 20;
  auto v = static_cast<size_t>(vocab);
  Random r(1);
  std::vector<float> host(kRows * v);
  for (float& x : host) x = 2.5f * r.normal();
  for (size_t i = 0; i < kRows; i += 1) {
    for (int k = 0; k < 30; ++k)
      host[i * v + static_cast<size_t>(r.below(vocab))] = r.uniform(10, 18);
  }
  Array<float> logits(host.size()), flat(host.size());
  logits.put(host.data(), host.size());
  for (float& x : host) x = 1.5f * r.normal();
  flat.put(host.data(), host.size());
  Array<OutputRow> outputs(kRows);
  Array<SampleResult> results(kRows);
  Array<TopEntry> top(kRows * kMaxTopLogprobs);
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "stream");
  struct Case {
    const char* name;
    SamplingSpec spec;
    bool flat = false;
  };
  std::vector<Case> cases(10);
  cases[0].name = "greedy";
  cases[0].spec.temperature = 0;
  cases[1].name = "greedy, penalties";
  cases[1].spec.temperature = 0;
  cases[1].spec.presence_penalty = 0.5f;
  cases[2].name = "greedy, logprobs 0";
  cases[2].spec.temperature = 0;
  cases[2].spec.num_logprobs = 0;
  cases[3].name = "greedy, logprobs 20";
  cases[3].spec.temperature = 0;
  cases[3].spec.num_logprobs = 20;
  cases[4].name = "t 0.8";
  cases[5].name = "t 0.8, k 50";
  cases[5].spec.top_k = 50;
  cases[6].name = "t 0.8, k 50, p 0.95";
  cases[6].spec.top_k = 50;
  cases[6].spec.top_p = 0.95f;
  cases[7].name = "t 0.8, p 0.95";
  cases[7].spec.top_p = 0.95f;
  cases[8].name = "t 0.8, p 0.95, flat";
  cases[8].spec.top_p = 0.95f;
  cases[8].flat = true;
  cases[9].name = "t 0.8, min-p 0.05";
  cases[9].spec.min_p = 0.05f;
  for (size_t i = 4; i < cases.size(); ++i) cases[i].spec.temperature = 0.8f;

  cuda::Sampler sampler;
  sampler.reserve(kSlots, vocab);
  std::printf("vocab %d, microseconds; floor: the logits once at 4.2 TB/s\n%-22s", vocab, "");
  const std::array batches = {1, 8, 32, 64, 128, 256};
  for (int n : batches) std::printf(" %9d", n);
  std::printf("\n%-22s", "floor");
  for (int n : batches) std::printf(" %9.1f", 4e6 * n * vocab / 4.2e12);
  std::printf("\n");
  for (const Case& c : cases) {
    PacketBuilder packet;
    std::vector<OutputRow> out;
    for (int i = 0; i < kSlots; ++i) {
      packet.specs.push_back(make_row_spec(c.spec, {i, 0, {}, 0}, packet.words));
      out.push_back({i, i, 100 + i, -1, c.spec.num_logprobs});
    }
    Packet p = packet.upload();
    sampler.open_rows(p, stream);
    check(cudaStreamSynchronize(stream), "open");
    outputs.put(out.data(), out.size());
    std::printf("%-22s", c.name);
    for (int n : batches) {
      float us = time_graph(stream, kLaunches, [&](int i) {
        int first = i * n % (kRows - n + 1);
        if (n >= 32) first = i % (kRows / n) * n;
        SampleStep step{(c.flat ? flat : logits).data() + static_cast<size_t>(first) * v,
                        n,
                        vocab,
                        outputs.data(),
                        results.data(),
                        c.spec.num_logprobs > 0 ? top.data() : nullptr};
        sampler.sample(step, stream);
      });
      std::printf(" %9.1f", us);
      std::fflush(stdout);
    }
    std::printf("\n");
  }
  cudaStreamDestroy(stream);
}

void bench_prepare() {
  constexpr int kSlots = 256, kStride = 512, kMaxTokens = 8192;
  Array<int32_t> last(kSlots), tables((kSlots + 1) * kStride), tokens(kMaxTokens),
      positions(kMaxTokens), row_slot(kMaxTokens), out_rows(kMaxTokens);
  Array<SliceView> slices(kMaxTokens);
  Array<OutputRow> outputs(kMaxTokens);
  StepArrays arrays{tokens.data(),   positions.data(), row_slot.data(), slices.data(),
                    out_rows.data(), outputs.data(),   tables.data(),   kSlots};
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "stream");
  for (int count : {1, 32}) {
    PacketBuilder b;
    for (int i = 0; i < kSlots; ++i) {
      b.slices.push_back({i * count, count, 100, i, static_cast<uint32_t>(b.words.size()), 0});
      b.words.resize(b.words.size() + static_cast<size_t>(count));
      b.outputs.push_back({i * count + count - 1, i, 100 + count, -1, -1});
      if (i % (16 / std::min(count, 16)) == 0) b.edits.push_back({i * kStride, i, 0});
    }
    Packet p = b.upload();
    float us = time_graph(stream, 20, [&](int) {
      cuda::prepare(p, arrays, kSlots * count, kSlots * count, last.data(), stream);
    });
    std::printf("prepare, %d slices of %d: %.1f us\n", kSlots, count, us);
  }
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace sluice

int main() {
  sluice::bench(151936);
  sluice::bench_prepare();
}

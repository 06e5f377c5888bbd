// Sampling on the device: the state of every row, and from logits to tokens. The same tokens, ranks
// and lists as exec/sampler for the same logits, spec, history and key, bit for bit. Owned by the
// CUDA backend; its calls queue work on a stream and may be captured (sample only: open_rows takes
// its sizes from the packet).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "backend/device.h"

namespace sluice::cuda {

// What sampling remembers of one row.
struct SamplingRow {
  RowSpec spec;                 // num_generated counts on
  int32_t tail[kMaxBadLength];  // the last tokens of the output; token n is at n % kMaxBadLength
};

// Where the blocks of a greedy row meet; zero between steps.
struct GreedyRow {
  uint64_t best;
  uint32_t done, zero;
};

// Device memory of `slots` rows.
struct SamplingRows {
  SamplingRow* rows = nullptr;    // [slots]
  GreedyRow* greedy = nullptr;    // [slots]
  int32_t* last_token = nullptr;  // [slots]
  int32_t* lists = nullptr;       // [slots, kRowWords]
  uint32_t* listed = nullptr;   // [slots, mask_stride] bit t%32 of word t/32: a list names token t
  uint32_t* allowed = nullptr;  // [slots, mask_stride]
  uint16_t* counts = nullptr;   // [slots, count_stride] occurrences in the output; top bit: prompt
  int slots = 0, vocab = 0;
  int64_t mask_stride = 0, count_stride = 0;

  // Within a row's lists.
  static constexpr int kBiasIds = 0;
  static constexpr int kBiasValues = kBiasIds + kMaxLogitBias;
  static constexpr int kBanned = kBiasValues + kMaxLogitBias;
  static constexpr int kBad = kBanned + kMaxBanned;  // last tokens, ends, earlier tokens
  static constexpr int kRowWords = kBad + 2 * kMaxBadTokens;
};

class Sampler {
 public:
  // Occurrences beyond this many count as this many.
  static constexpr int kMaxCount = 0x7fff;

  Sampler() = default;
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;
  ~Sampler();

  // Once. Throws std::bad_alloc.
  void reserve(int slots, int vocab, int lanes = 1);
  static size_t bytes(int slots, int vocab, int lanes = 1);

  void open_rows(const Packet& packet, cudaStream_t stream);
  // Two launches, three for many rows, their shape from step.num and vocab alone. Every slot is
  // sampled at most once.
  // Steps that may run at once have different lanes.
  void sample(const SampleStep& step, cudaStream_t stream, int lane = 0);
  // [slots] what each row sampled last
  const int32_t* last_tokens() const { return view_.last_token; }

 private:
  void configure();

  void* memory_ = nullptr;
  float* scratch_ = nullptr;  // where a block samples alone: [lanes, blocks] rows
  int lanes_ = 0, num_sms_ = 0, max_clusters_ = 0;
  SamplingRows view_;
};

}  // namespace sluice::cuda

#include "backend/cuda/sampling.cuh"

#include <algorithm>

#include "backend/cuda/check.cuh"
#include "backend/cuda/sampling_greedy.cuh"
#include "backend/cuda/sampling_token.cuh"
#include "backend/cuda/target.cuh"
#include "base/check.h"

namespace sluice::cuda {

namespace {

// Rows that draw or are scored, shared out among all clusters (or blocks alone). `memory` is the
// block's for its slice of a row.
template <int kBlocks>
__device__ inline void sample_rows(const SampleArgs& args, SampleShared& shared, float* memory) {
  Block<kBlocks> b(shared);
  auto clusters = static_cast<int>(gridDim.x) / kBlocks;
  auto mine = static_cast<int>(blockIdx.x) / kBlocks;
  for (int first = 0; first < args.step.num; first += kSampleThreads) {
    bool wanted = false;
    if (first + b.thread < args.step.num) {
      OutputRow out = args.step.outputs[first + b.thread];
      wanted = out.slot >= 0 && !only_greedy(args, out);
      if (wanted && args.which != SampledRows::all)
        wanted = may_adjust(args, out) == (args.which == SampledRows::adjusted);
    }
    uint64_t total;
    auto at = static_cast<int>(b.sum_before(wanted ? 1 : 0, total));
    if (wanted && at % clusters == mine) b.s.rows[at / clusters] = static_cast<uint16_t>(b.thread);
    __syncthreads();
    for (int i = mine; i < static_cast<int>(total); i += clusters) {
      RowSampling<kBlocks>(args, b, memory, first + b.s.rows[i / clusters]).run();
    }
    __syncthreads();
  }
  // No block leaves while the first may read its memory.
  if (b.met) Block<kBlocks>::sync_cluster();
  b.meet();
}

// A cluster for each row, of as many as the device holds at once.
__global__ void SLUICE_CLUSTER_DIMS(kCluster) __launch_bounds__(kSampleThreads, 2)
    sample_kernel(const __grid_constant__ SampleArgs args) {
#if SLUICE_HAS_CLUSTERS
  extern __shared__ __align__(16) unsigned char shared[];
  sample_rows<kCluster>(args, *reinterpret_cast<SampleShared*>(shared),
                        reinterpret_cast<float*>(shared + sizeof(SampleShared)));
#else
  __trap();
#endif
}

// A block for each row: where there are no clusters, where their shared memory does not hold a row,
// and of many rows for those that need no memory. These are read from the L2 or beyond again and
// again, but eight times as many rows are under way as in clusters.
__global__ void __launch_bounds__(kSampleThreads, 2)
    sample_alone_kernel(const __grid_constant__ SampleArgs args) {
  SampleShared& shared = alone_shared();
  float* memory =
      args.scratch ? args.scratch + static_cast<int64_t>(blockIdx.x) * args.chunk : nullptr;
  sample_rows<1>(args, shared, memory);
}

constexpr int kOpenThreads = 512;

__device__ void set_bit(uint32_t* bits, int32_t id, int vocab) {
  if (id >= 0 && id < vocab) atomicOr(&bits[id / 32], 1u << (id % 32));
}

__device__ void count_token(uint16_t* counts, int32_t id, int vocab, bool prompt) {
  if (id < 0 || id >= vocab) return;
  uint16_t* at = counts + id;
  uint16_t was = *at, old;
  do {
    old = was;
    uint16_t next = old;
    if (prompt) {
      next |= kInPrompt;
    } else if ((old & ~kInPrompt) < Sampler::kMaxCount) {
      ++next;
    }
    if (next == old) return;
    was = atomicCAS(at, old, next);
  } while (was != old);
}

// A block for each spec.
__global__ void __launch_bounds__(kOpenThreads) open_kernel(const Packet packet, SamplingRows all) {
  const auto* specs = reinterpret_cast<const RowSpec*>(packet.data + packet.specs_at);
  const RowSpec spec = specs[blockIdx.x];
  int slot = spec.slot, t = static_cast<int>(threadIdx.x);
  bool again = false;
  for (auto i = blockIdx.x + 1 + threadIdx.x; i < packet.num_specs; i += kOpenThreads) {
    again = again || specs[i].slot == slot;
  }
  if (__syncthreads_or(again) != 0) return;

  const auto* words =
      reinterpret_cast<const int32_t*>(packet.data + packet.words_at) + spec.lists_at;
  int32_t* lists = all.lists + static_cast<int64_t>(slot) * SamplingRows::kRowWords;
  uint32_t* listed = all.listed + slot * all.mask_stride;
  uint32_t* allowed = all.allowed + slot * all.mask_stride;
  uint16_t* counts = all.counts + slot * all.count_stride;
  bool penalised =
      spec.repetition_penalty != 1 || spec.frequency_penalty != 0 || spec.presence_penalty != 0;
  if (t == 0) all.rows[slot].spec = spec;
  for (int64_t i = t; i < all.mask_stride; i += kOpenThreads) listed[i] = allowed[i] = 0;
  if (penalised) {
    auto* four = reinterpret_cast<ushort4*>(counts);
    for (int64_t i = t; i < all.count_stride / 4; i += kOpenThreads) four[i] = {0, 0, 0, 0};
  }
  __syncthreads();

  auto copy = [&](int to, int num) {
    for (int i = t; i < num; i += kOpenThreads) lists[to + i] = words[i];
    words += num;
  };
  auto mark = [&](uint32_t* bits, int num) {
    for (int i = t; i < num; i += kOpenThreads) set_bit(bits, words[i], all.vocab);
  };
  mark(listed, spec.num_bias);
  copy(SamplingRows::kBiasIds, spec.num_bias);
  copy(SamplingRows::kBiasValues, spec.num_bias);
  mark(listed, spec.num_banned);
  copy(SamplingRows::kBanned, spec.num_banned);
  mark(allowed, spec.num_allowed);
  words += spec.num_allowed;
  mark(listed, spec.num_bad);
  copy(SamplingRows::kBad, 2 * spec.num_bad + spec.num_bad_earlier);
  for (int i = t; i < spec.num_prompt; i += kOpenThreads) {
    count_token(counts, words[i], all.vocab, true);
  }
  words += spec.num_prompt;
  if (penalised) {
    for (int i = t; i < spec.num_output; i += kOpenThreads) {
      count_token(counts, words[i], all.vocab, false);
    }
  }
  if (t < kMaxBadLength && t < spec.num_output) {
    auto at = static_cast<unsigned>(spec.num_generated - 1 - t);
    all.rows[slot].tail[at % kMaxBadLength] = words[spec.num_output - 1 - t];
  }
}

int chunk_of(int vocab, int blocks) {
  int groups = (vocab + 3) / 4;
  return 4 * ((groups + blocks - 1) / blocks);
}

constexpr int kMaxParts = 64;   // of a greedy row
constexpr int kManyRows = 160;  // from here on a block alone has a row that needs no memory
static_assert(sizeof(SampleShared) <= 48 * 1024);

// A kilobyte less than the most: kernels have some of their own.
size_t max_shared() { return target().shared - 1024; }

size_t shared_bytes(int vocab) {
  return sizeof(SampleShared) + static_cast<size_t>(chunk_of(vocab, kCluster)) * sizeof(float);
}

// Whether a cluster of blocks has a row, else one block alone.
bool by_cluster(int vocab) { return target().clusters && shared_bytes(vocab) <= max_shared(); }

// Blocks that sample alone, each with scratch for a row.
int alone_blocks(int slots) { return std::min(slots, target().num_sms); }

// Parts of the memory, each aligned for what it holds.
struct Layout {
  size_t rows, greedy, last_token, lists, listed, allowed, counts, scratch, end;
  int64_t mask_stride, count_stride;

  Layout(int slots, int vocab, int lanes) {
    auto n = static_cast<size_t>(slots);
    mask_stride = (vocab + 31) / 32;
    count_stride = (vocab + 7) / 8 * 8;
    size_t at = 0;
    auto take = [&](size_t bytes) {
      size_t begin = at;
      at += (bytes + 255) / 256 * 256;
      return begin;
    };
    rows = take(n * sizeof(SamplingRow));
    greedy = take(n * sizeof(GreedyRow));
    last_token = take(n * sizeof(int32_t));
    lists = take(n * SamplingRows::kRowWords * sizeof(int32_t));
    listed = take(n * static_cast<size_t>(mask_stride) * sizeof(uint32_t));
    allowed = take(n * static_cast<size_t>(mask_stride) * sizeof(uint32_t));
    counts = take(n * static_cast<size_t>(count_stride) * sizeof(uint16_t));
    auto blocks = static_cast<size_t>(by_cluster(vocab) ? 0 : lanes * alone_blocks(slots));
    scratch = take(blocks * static_cast<size_t>(chunk_of(vocab, 1)) * sizeof(float));
    end = at;
  }
};

}  // namespace

Sampler::~Sampler() {
  if (memory_ != nullptr) cudaFree(memory_);
}

size_t Sampler::bytes(int slots, int vocab, int lanes) { return Layout(slots, vocab, lanes).end; }

void Sampler::reserve(int slots, int vocab, int lanes) {
  CHECK(memory_ == nullptr && slots > 0 && vocab > 0 && lanes > 0);
  Layout at(slots, vocab, lanes);
  check(cudaMalloc(&memory_, at.end), "sampling state");
  check(cudaMemset(memory_, 0, at.end), "sampling state");
  check(cudaDeviceSynchronize(), "sampling state");  // other streams do not wait for this one
  auto part = [&](auto*& to, size_t offset) {
    to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(static_cast<std::byte*>(memory_) +
                                                                 offset);
  };
  part(view_.rows, at.rows);
  part(view_.greedy, at.greedy);
  part(view_.last_token, at.last_token);
  part(view_.lists, at.lists);
  part(view_.listed, at.listed);
  part(view_.allowed, at.allowed);
  part(view_.counts, at.counts);
  if (!by_cluster(vocab)) part(scratch_, at.scratch);
  lanes_ = lanes;
  view_.slots = slots;
  view_.vocab = vocab;
  view_.mask_stride = at.mask_stride;
  view_.count_stride = at.count_stride;
  configure();
}

// What the device holds at once of each kernel.
void Sampler::configure() {
  num_sms_ = target().num_sms;
  if (scratch_ != nullptr) return;
  check(cudaFuncSetAttribute(sample_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(max_shared())),
        "shared memory of sampling");
  check(cudaFuncSetAttribute(sample_kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared),
        "shared memory of sampling");
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kCluster);
  config.blockDim = dim3(kSampleThreads);
  config.dynamicSmemBytes = shared_bytes(view_.vocab);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = kCluster;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  config.attrs = &cluster;
  config.numAttrs = 1;
  check(cudaOccupancyMaxActiveClusters(&max_clusters_, sample_kernel, &config), "clusters");
  max_clusters_ = std::max(max_clusters_, 1);
}

void Sampler::open_rows(const Packet& packet, cudaStream_t stream) {
  if (packet.num_specs == 0) return;
  open_kernel<<<packet.num_specs, kOpenThreads, 0, stream>>>(packet, view_);
  check_launch("open_rows");
}

void Sampler::sample(const SampleStep& step, cudaStream_t stream, int lane) {
  CHECK(step.vocab == view_.vocab && lane >= 0 && lane < lanes_);
  if (step.num == 0) return;
  bool vectored = step.vocab % 4 == 0 && reinterpret_cast<uintptr_t>(step.logits) % 16 == 0;
  SampleArgs args{view_, step, chunk_of(step.vocab, scratch_ ? 1 : kCluster), vectored, nullptr};
  if (scratch_) args.scratch = scratch_ + int64_t{lane} * alone_blocks(view_.slots) * args.chunk;
  auto num = static_cast<unsigned>(step.num);
  int parts = std::min(kGreedyBlocks * num_sms_ / step.num, (step.vocab + 1023) / 1024);
  dim3 grid(static_cast<unsigned>(std::clamp(parts, 1, kMaxParts)), num);
  greedy_kernel<<<grid, kGreedyThreads, 0, stream>>>(args);
  check_launch("greedy");

  if (scratch_ != nullptr) {
    unsigned blocks = std::min(num, static_cast<unsigned>(alone_blocks(view_.slots)));
    sample_alone_kernel<<<blocks, kSampleThreads, 0, stream>>>(args);
    return check_launch("sample");
  }
  if (vectored && step.num >= kManyRows) {
    SampleArgs plain = args;
    plain.which = SampledRows::plain;
    plain.chunk = chunk_of(step.vocab, 1);
    unsigned blocks = std::min(num, static_cast<unsigned>(2 * num_sms_));
    sample_alone_kernel<<<blocks, kSampleThreads, 0, stream>>>(plain);
    check_launch("sample");
    args.which = SampledRows::adjusted;
  }
  unsigned clusters = std::min(num, static_cast<unsigned>(max_clusters_));
  sample_kernel<<<clusters * kCluster, kSampleThreads, shared_bytes(step.vocab), stream>>>(args);
  check_launch("sample");
}

}  // namespace sluice::cuda

#include "backend/cuda/weights.cuh"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "backend/cuda/launch.cuh"
#include "base/random.h"
#include "tensor/formats/all.h"
#include "tensor/formats/int4.h"
#include "tensor/formats/iq4_nl.h"
#include "tensor/formats/mxfp4.h"
#include "tensor/formats/q2_k.h"
#include "tensor/formats/q3_k.h"
#include "tensor/formats/q4_0.h"
#include "tensor/formats/q4_1.h"
#include "tensor/formats/q4_k.h"
#include "tensor/formats/q5_0.h"
#include "tensor/formats/q5_1.h"
#include "tensor/formats/q5_k.h"
#include "tensor/formats/q6_k.h"
#include "tensor/formats/q8_0.h"

namespace sluice::cuda {

namespace {

template <typename O, typename Block>
__global__ void decode_kernel(O* out, const Block* blocks, int64_t num) {
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= num) return;
  float values[Block::kElems];
  decode(blocks[i], values);
  for (int k = 0; k < Block::kElems; ++k) out[i * Block::kElems + k] = from_float<O>(values[k]);
}

template <typename O, typename T>
__global__ void cast_kernel(O* out, const T* in, int64_t num) {
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < num) out[i] = from_float<O>(to_float(in[i]));
}

// What load/random_fill.cc makes of a plain format: four elements from each word, each
// one of 4,096 evenly spaced levels, rounded to the file's format first.
constexpr int kRandomLevels = 4096;
constexpr uint64_t kRandomStep = 0x9e3779b97f4a7c15u;  // from word to word

template <typename O, typename T>
__global__ void random_kernel(O* out, int64_t num, uint64_t key, double a) {
  int64_t word = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (word * 4 >= num) return;
  uint64_t bits = mix_bits(key + static_cast<uint64_t>(word) * kRandomStep);
  for (int i = 0; i < 4 && word * 4 + i < num; ++i) {
    auto level = static_cast<int>(bits >> (16 * i) & (kRandomLevels - 1));
    auto value = static_cast<float>(a * ((2 * level + 1) / double{kRandomLevels} - 1));
    out[word * 4 + i] = from_float<O>(to_float(from_float<T>(value)));
  }
}

unsigned blocks_for(int64_t threads) { return static_cast<unsigned>((threads + 255) / 256); }

template <typename O, typename Block>
void decode_blocks(void* out, const void* raw, int64_t elems, cudaStream_t stream) {
  int64_t num = elems / Block::kElems;
  decode_kernel<O, Block><<<blocks_for(num), 256, 0, stream>>>(static_cast<O*>(out),
                                                               static_cast<const Block*>(raw), num);
  check_launch("decode");
}

template <typename O, typename T>
void cast(void* out, const void* raw, int64_t elems, cudaStream_t stream) {
  cast_kernel<O, T><<<blocks_for(elems), 256, 0, stream>>>(static_cast<O*>(out),
                                                           static_cast<const T*>(raw), elems);
  check_launch("cast");
}

template <typename O>
void decode_as(void* out, Format format, const void* raw, int64_t elems, cudaStream_t stream) {
  switch (format) {
    case Format::f32:
      return cast<O, float>(out, raw, elems, stream);
    case Format::f16:
      return cast<O, __half>(out, raw, elems, stream);
    case Format::bf16:
      return cast<O, __nv_bfloat16>(out, raw, elems, stream);
    case Format::q8_0:
      return decode_blocks<O, BlockQ8_0>(out, raw, elems, stream);
    case Format::q4_0:
      return decode_blocks<O, BlockQ4_0>(out, raw, elems, stream);
    case Format::q4_1:
      return decode_blocks<O, BlockQ4_1>(out, raw, elems, stream);
    case Format::q6_k:
      return decode_blocks<O, BlockQ6K>(out, raw, elems, stream);
    case Format::q5_0:
      return decode_blocks<O, BlockQ5_0>(out, raw, elems, stream);
    case Format::q5_1:
      return decode_blocks<O, BlockQ5_1>(out, raw, elems, stream);
    case Format::q2_k:
      return decode_blocks<O, BlockQ2K>(out, raw, elems, stream);
    case Format::q3_k:
      return decode_blocks<O, BlockQ3K>(out, raw, elems, stream);
    case Format::q4_k:
      return decode_blocks<O, BlockQ4K>(out, raw, elems, stream);
    case Format::q5_k:
      return decode_blocks<O, BlockQ5K>(out, raw, elems, stream);
    case Format::iq4_nl:
      return decode_blocks<O, BlockIQ4NL>(out, raw, elems, stream);
    case Format::int4:
      return decode_blocks<O, BlockInt4>(out, raw, elems, stream);
    case Format::mxfp4:
      return decode_blocks<O, BlockMXFP4>(out, raw, elems, stream);
  }
}

// Elements [first, first + num) of the tensor, `first` a multiple of four.
template <typename O>
void make_random(
    void* out, const WeightSegment& s, int64_t first, int64_t num, cudaStream_t stream) {
  double a = std::sqrt(3.0 / static_cast<double>(s.random->cols));
  unsigned blocks = blocks_for((num + 3) / 4);
  auto* to = static_cast<O*>(out);
  uint64_t key = s.random->key + static_cast<uint64_t>(first / 4) * kRandomStep;
  if (s.tensor->format == Format::f32) {
    random_kernel<O, float><<<blocks, 256, 0, stream>>>(to, num, key, a);
  } else if (s.tensor->format == Format::f16) {
    random_kernel<O, __half><<<blocks, 256, 0, stream>>>(to, num, key, a);
  } else {
    random_kernel<O, __nv_bfloat16><<<blocks, 256, 0, stream>>>(to, num, key, a);
  }
  check_launch("random weights");
}

// One thread copies some 8 GB/s out of the page cache, and faults in pages more slowly.
void copy_parallel(std::byte* to, const std::byte* from, size_t bytes) {
  constexpr size_t kPiece = 4 << 20;
  size_t pieces = (bytes + kPiece - 1) / kPiece;
  size_t num = std::min<size_t>({pieces, std::thread::hardware_concurrency(), 8});
  if (num <= 1) {
    std::memcpy(to, from, bytes);
    return;
  }
  std::vector<std::jthread> threads;
  for (size_t t = 0; t < num; ++t) {
    size_t begin = pieces * t / num * kPiece,
           end = std::min(bytes, pieces * (t + 1) / num * kPiece);
    threads.emplace_back([=] { std::memcpy(to + begin, from + begin, end - begin); });
  }
}

bool same(DType type, Format format) {
  return (type == DType::f32 && format == Format::f32) ||
         (type == DType::f16 && format == Format::f16) ||
         (type == DType::bf16 && format == Format::bf16);
}

}  // namespace

Uploader::Uploader(cudaStream_t stream) : stream_(stream) {
  for (int i = 0; i < kNumStages; ++i) {
    check(cudaMallocHost(reinterpret_cast<void**>(&pinned_[i]), kStageBytes), "pinned memory");
    check(cudaEventCreateWithFlags(&free_[i], cudaEventDisableTiming), "event");
  }
  check(cudaMalloc(reinterpret_cast<void**>(&raw_), kStageBytes), "staging memory");
}

Uploader::~Uploader() {
  cudaStreamSynchronize(stream_);
  for (int i = 0; i < kNumStages; ++i) {
    cudaFreeHost(pinned_[i]);
    cudaEventDestroy(free_[i]);
  }
  cudaFree(raw_);
}

void Uploader::copy(void* to, const void* from, size_t bytes) {
  auto* source = static_cast<const std::byte*>(from);
  for (size_t at = 0; at < bytes; at += kStageBytes) {
    size_t some = std::min(kStageBytes, bytes - at);
    check(cudaEventSynchronize(free_[next_]), "upload");
    copy_parallel(pinned_[next_], source + at, some);
    check(cudaMemcpyAsync(static_cast<std::byte*>(to) + at, pinned_[next_], some,
                          cudaMemcpyHostToDevice, stream_),
          "upload");
    check(cudaEventRecord(free_[next_], stream_), "upload");
    next_ = (next_ + 1) % kNumStages;
  }
}

void Uploader::convert(void* to, DType type, const WeightSegment& s) {
  convert_rows(to, type, s, 0, s.tensor->rows);
}

void Uploader::convert_rows(
    void* to, DType type, const WeightSegment& s, int64_t first_row, int64_t rows) {
  const int64_t cols = s.tensor->cols;
  if (s.random) {
    return with_type(type, [&](auto t) {
      make_random<decltype(t)>(to, s, first_row * cols, rows * cols, stream_);
    });
  }
  Format format = s.tensor->format;
  std::span<const std::byte> data = s.data;
  if (rows < s.tensor->rows) {
    const size_t row = row_bytes(format, cols);
    data = data.subspan(static_cast<size_t>(first_row) * row, static_cast<size_t>(rows) * row);
  }
  if (same(type, format)) return copy(to, data.data(), data.size());
  const FormatInfo& info = format_info(format);
  auto block = static_cast<size_t>(info.block_bytes);
  size_t step = kStageBytes / block * block;
  for (size_t at = 0; at < data.size(); at += step) {
    size_t some = std::min(step, data.size() - at);
    copy(raw_, data.data() + at, some);
    auto first = static_cast<int64_t>(at / block) * info.block_elems;
    auto elems = static_cast<int64_t>(some / block) * info.block_elems;
    auto* out = static_cast<std::byte*>(to) + static_cast<size_t>(first) * dtype_bytes(type);
    with_type(type, [&](auto t) { decode_as<decltype(t)>(out, format, raw_, elems, stream_); });
  }
}

void Uploader::pack(const PackedPart& to, int64_t first, const WeightSegment& s) {
  const size_t row = row_bytes(to.format, to.cols);
  const auto rows = static_cast<size_t>(s.tensor->rows);
  const size_t step = kStageBytes / row / kPackedRows * kPackedRows;
  if (step == 0) throw std::runtime_error("CUDA: " + s.tensor->name + " has rows too long");
  for (size_t at = 0; at < rows; at += step) {
    const size_t some = std::min(step, rows - at);
    copy(raw_, s.data.data() + at * row, some * row);
    cuda::pack(to, first + static_cast<int64_t>(at), static_cast<int64_t>(some), raw_, stream_);
  }
}

}  // namespace sluice::cuda

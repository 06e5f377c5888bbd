#include "backend/cuda/prepare.cuh"

#include <algorithm>

#include "backend/cuda/check.cuh"

namespace sluice::cuda {

namespace {

constexpr int kThreads = 256;

template <typename T>
__device__ const T* in_packet(const Packet& packet, uint32_t at) {
  return reinterpret_cast<const T*>(packet.data + at);
}

// One block, in tiles: within a tile an edit stands back when a later one names the same place.
__device__ void edit_tables(const Packet& packet, int32_t* tables) {
  __shared__ int64_t places[kThreads];
  const auto* edits = in_packet<PacketEdit>(packet, packet.edits_at);
  auto num = static_cast<int>(packet.num_edits);
  auto t = static_cast<int>(threadIdx.x);
  for (int first = 0; first < num; first += kThreads) {
    int tile = min(kThreads, num - first);
    PacketEdit edit{};
    if (t < tile) {
      edit = edits[first + t];
      places[t] = edit.at;
    }
    __syncthreads();
    bool stands = t < tile;
    for (int i = t + 1; i < tile; ++i) stands = stands && places[i] != edit.at;
    if (stands) tables[edit.at] = edit.block;
    __syncthreads();
  }
}

// Slices are in the order of their rows, and a decode step's slice i is row i.
__device__ int slice_of(const PacketSlice* slices, int num, int row) {
  int hi = min(row, num - 1);
  if (slices[hi].row <= row) return hi;
  int lo = 0;  // slices[lo].row <= row < slices[hi].row
  while (hi - lo > 1) {
    int mid = (lo + hi) / 2;
    (slices[mid].row <= row ? lo : hi) = mid;
  }
  return lo;
}

__device__ void fill_row(const Packet& packet,
                         const StepArrays& arrays,
                         int row,
                         const int32_t* last_tokens) {
  const auto* slices = in_packet<PacketSlice>(packet, packet.slices_at);
  int index = slice_of(slices, static_cast<int>(packet.num_slices), row);
  PacketSlice s = slices[index];
  int k = row - s.row;
  arrays.tokens[row] = s.chained != 0 ? last_tokens[s.slot]
                                      : in_packet<int32_t>(packet, packet.words_at)[s.token_at + k];
  arrays.positions[row] = s.pos + k;
  arrays.row_slot[row] = s.slot;
  if (k == 0) arrays.slices[index] = {s.row, s.count, s.pos, s.slot};
}

__device__ void fill_groups(const Packet& packet,
                            const StepArrays& arrays,
                            const PrefixSizes& sizes) {
  const auto* members = in_packet<int32_t>(packet, packet.members_at);
  for (auto i = threadIdx.x; i < packet.num_members; i += kThreads)
    arrays.prefix_members[i] = members[i];
  if (threadIdx.x == 0)
    plan_prefixes(*arrays.prefixes, in_packet<PrefixGroup>(packet, packet.groups_at),
                  static_cast<int>(packet.num_groups), sizes);
}

// Block 0 edits; the threads of the others have a row and an output each.
__global__ void __launch_bounds__(kThreads) prepare_kernel(const Packet packet,
                                                           const StepArrays arrays,
                                                           int num_tokens,
                                                           int padded,
                                                           const int32_t* last_tokens,
                                                           const PrefixSizes sizes) {
  if (blockIdx.x == 0) {
    edit_tables(packet, arrays.tables);
    if (packet.num_groups > 0) fill_groups(packet, arrays, sizes);
    return;
  }
  int i = static_cast<int>((blockIdx.x - 1) * kThreads + threadIdx.x);
  if (i < num_tokens) {
    fill_row(packet, arrays, i, last_tokens);
  } else if (i < padded) {
    arrays.tokens[i] = 0;
    arrays.positions[i] = 0;
    arrays.row_slot[i] = arrays.pad_slot;
    arrays.slices[static_cast<int>(packet.num_slices) + i - num_tokens] = {i, 1, 0,
                                                                           arrays.pad_slot};
  }
  if (packet.num_groups > 0 && i < max(num_tokens, padded)) {
    arrays.prefix_places[i] = i < static_cast<int>(packet.num_places)
                                  ? in_packet<int32_t>(packet, packet.places_at)[i]
                                  : -1;
  }
  auto num_outputs = static_cast<int>(packet.num_outputs);
  if (i < num_outputs) {
    OutputRow o = in_packet<OutputRow>(packet, packet.outputs_at)[i];
    arrays.outputs[i] = o;
    arrays.out_rows[i] = o.row;
  } else if (i < padded) {
    arrays.outputs[i] = {i, -1, 0, -1, -1, -1};
    arrays.out_rows[i] = i;
  }
}

// One thread that looks until the value is there: works on every device and under any driver.
__global__ void wait_kernel(const uint64_t* flag, uint64_t value) {
  uint64_t now = 0;
  do {
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(now) : "l"(flag) : "memory");
  } while (now < value);
}

}  // namespace

void wait_for(const uint64_t* flag, uint64_t value, cudaStream_t stream) {
  wait_kernel<<<1, 1, 0, stream>>>(flag, value);
  check_launch("wait");
}

void prepare(const Packet& packet,
             const StepArrays& arrays,
             int num_tokens,
             int padded,
             const int32_t* last_tokens,
             const PrefixSizes& sizes,
             cudaStream_t stream) {
  int rows = std::max({num_tokens, padded, static_cast<int>(packet.num_outputs)});
  if (rows == 0 && packet.num_edits == 0) return;
  int blocks = 1 + (rows + kThreads - 1) / kThreads;
  prepare_kernel<<<blocks, kThreads, 0, stream>>>(packet, arrays, num_tokens, padded, last_tokens,
                                                  sizes);
  check_launch("prepare");
}

}  // namespace sluice::cuda

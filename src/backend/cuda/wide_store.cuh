// How a tile's sums get from the registers of wide_persistent.cu's warpgroups to `out`: scaled, and
// by tensor map from shared memory, while the next tile is multiplied.
#pragma once

#include <cstdint>

#include "backend/cuda/boxed.cuh"
#include "backend/cuda/hopper.cuh"

namespace sluice::cuda {

inline constexpr int kPersistentHalf = 64;  // weight rows of a warpgroup
// Sums in 32 bits: the pitch of their rows in bytes, padded against bank conflicts.
inline constexpr int kSumPitch = (kPersistentHalf + 4) * 4;

// Shared memory behind the ring, for each warpgroup: boxes of kRows rows of x by 64 weight rows in
// 16 bits, kBoxes of them on their way to `out` at a time; in f32 a box's memory has two of half as
// many rows by 32 weight rows; or kSumRows rows of sums.
template <int kTiles>
struct StoreRoom {
  static constexpr int kRows = kTiles >= 16 ? kTiles * 2 : kTiles * 8;
  static constexpr int kBoxes = kTiles == 16 ? 4 : kTiles > 16 ? 2 : 1;
  static constexpr int kBoxBytes = kRows * kRowBytes;
  static constexpr int kBytes = kTiles >= 16 ? kBoxes * kBoxBytes : 8 * 1024;
  static constexpr int kSumRows = kTiles == 24 ? 24 : kTiles >= 16 ? 32 : 16;
  static_assert(kBoxes * kBoxBytes <= kBytes && kSumRows * kSumPitch <= kBytes);
  static_assert(kBoxBytes / 2 % 1024 == 0);  // where the swizzle begins
};

// A tile's first weight row and first row of x, and in how many parts it was cut.
struct PersistentPlace {
  int row, x, parts;
};

// The threads of one of the two warpgroups.
__device__ inline void sync_half(int half) {
  asm volatile("bar.sync %0, 128;" ::"r"(1 + half) : "memory");
}

// T: of the operands; those of 8 bits have a scale for each row of x.
template <typename T>
__device__ inline float scaled(const BoxedArgs& a, SumOf<T> sum, int x, const RowTerms& terms) {
  auto y = static_cast<float>(sum);
  if constexpr (sizeof(T) == 1) y *= a.x_scale[min(x, a.n - 1)];
  return fmaf(y, terms.scale, terms.bias);
}

// Four matrices of 8 x 8, transposed: lane l has the address of row l % 8 of matrix l / 8.
__device__ inline void stmatrix_trans(uint32_t address, const uint32_t (&r)[4]) {
#if SLUICE_HAS_WGMMA
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
#endif
}

__device__ inline void store_shared(uint32_t address, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory");
}

// Two matrices, whose rows lanes 0 to 15 have the addresses of.
__device__ inline void stmatrix_trans(uint32_t address, const uint32_t (&r)[2]) {
#if SLUICE_HAS_WGMMA
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};" ::"r"(address),
               "r"(r[0]), "r"(r[1])
               : "memory");
#endif
}

// Terms of the two weight rows of which a thread has sums.
struct TwoTerms {
  RowTerms upper, lower;
  __device__ TwoTerms(const BoxedArgs& a, int first_row)
      : upper(a, first_row + row_of_thread()), lower(a, first_row + row_of_thread() + 8) {}
  __device__ static int row_of_thread() {
    const auto thread = static_cast<int>(threadIdx.x) % 128;
    return thread / 32 * 16 + thread % 32 / 4;
  }
};

// A warpgroup's tile to out, kNow tiles of x (of kTiles) at a time, by way of a box's memory. Room:
// StoreRoom of the kernel; a tile that was cut has fewer tiles of x than that is for.
// put(first, at): tiles from `first` on into the memory that begins at `at`. send(x, at): that
// memory to rows of out from x on.
template <typename Room, bool kWhole, int kTiles, int kNow, typename Put, typename Send>
__device__ __forceinline__ void store_in_turns(
    const BoxedArgs& a, const PersistentPlace& place, int half, const Put& put, const Send& send) {
  static_assert(kTiles % kNow == 0);
  const bool leads = threadIdx.x % 128 == 0;
  const int first_row = place.row + half * kPersistentHalf;
#pragma unroll
  for (int first = 0; first < kTiles; first += kNow) {
    const int at = first / kNow % Room::kBoxes * Room::kBoxBytes;
    if (leads) wait_until_read<kWhole ? Room::kBoxes - 1 : 0>();
    sync_half(half);
    put(first, at);
    publish_writes();
    sync_half(half);
    const int x = place.x + first * 8;
    if (leads) {
      if (x < a.n && first_row < a.rows) send(x, at);
      commit_stores();  // of nothing as well, so that each box's memory has one to wait for
    }
  }
}

// In 16 bits, by boxes that begin at `column` of out. Room: at `memory`.
// put(t, at): tiles t and t + 1 of x into a box, whose tiles of kBytes each begin at `at`.
template <typename Room, bool kWhole, int kTiles, int kBytes, typename Put>
__device__ __forceinline__ void store_in_boxes(const BoxedArgs& a,
                                               const CUtensorMap& out,
                                               int column,
                                               uint32_t memory,
                                               const PersistentPlace& place,
                                               int half,
                                               const Put& put) {
  constexpr int kNow = Room::kRows / 8;
  static_assert(kNow % 2 == 0);
  store_in_turns<Room, kWhole, kTiles, kNow>(
      a, place, half,
      [&](int first, int at) {
#pragma unroll
        for (int t = 0; t < kNow; t += 2) put(first + t, at + t * kBytes);
      },
      [&](int x, int at) { store_box(out, column, x, memory + at); });
}

// Sums, scaled.
template <typename T, typename Out, typename Room, bool kWhole, int kTiles>
__device__ inline void store_boxes(const BoxedArgs& a,
                                   const CUtensorMap& out,
                                   const SumOf<T> (&sum)[kTiles][4],
                                   const TwoTerms& terms,
                                   uint32_t memory,
                                   const PersistentPlace& place,
                                   int half) {
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // Rows of 128 bytes with the swizzle of the tensor map.
  const uint32_t to =
      memory + (lane / 16 * 8 + lane % 8) * kRowBytes + ((warp * 2 + lane / 8 % 2) ^ lane % 8) * 16;
  store_in_boxes<Room, kWhole, kTiles, 8 * kRowBytes>(
      a, out, place.row + half * kPersistentHalf, memory, place, half, [&](int t, int at) {
        uint32_t r[4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const SumOf<T>(&d)[4] = sum[t + i];
          const int x = place.x + (t + i) * 8 + lane % 4 * 2;
          r[i * 2] = two_of<Out>(scaled<T>(a, d[0], x, terms.upper),
                                 scaled<T>(a, d[1], x + 1, terms.upper));
          r[i * 2 + 1] = two_of<Out>(scaled<T>(a, d[2], x, terms.lower),
                                     scaled<T>(a, d[3], x + 1, terms.lower));
        }
        stmatrix_trans(to + at, r);
      });
}

// Sums in f32, of operands in 16 bits: two boxes of 32 columns.
template <typename T, typename Room, bool kWhole, int kTiles>
__device__ inline void store_floats(const BoxedArgs& a,
                                    const CUtensorMap& out,
                                    const float (&sum)[kTiles][4],
                                    const TwoTerms& terms,
                                    uint32_t memory,
                                    const PersistentPlace& place,
                                    int half) {
  constexpr int kNow = Room::kRows / 16;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int column = place.row + half * kPersistentHalf;
  // Rows of 128 bytes with the swizzle of the tensor map: four lanes have a row of x and the next,
  // eight have 32 bytes of a row each, which fall on different banks.
  const uint32_t box = memory + warp / 2 * (Room::kBoxBytes / 2) + lane / 4 % 4 * 4;
  auto place_of = [&](int row, int lower) {  // of eight rows, the upper or lower weight row
    const int chunk = warp % 2 * 4 + lane / 16 + lower * 2;
    return row * kRowBytes + (chunk ^ row) * 16;
  };
  const int row = lane % 4 * 2;
  const uint32_t to[4] = {box + place_of(row, 0), box + place_of(row + 1, 0),
                          box + place_of(row, 1), box + place_of(row + 1, 1)};
  store_in_turns<Room, kWhole, kTiles, kNow>(
      a, place, half,
      [&](int first, int at) {
#pragma unroll
        for (int t = 0; t < kNow; ++t) {
          const float(&d)[4] = sum[first + t];
          const int x = place.x + (first + t) * 8 + row;
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            store_shared(to[j] + at + t * 8 * kRowBytes,
                         scaled<T>(a, d[j], x + j % 2, j < 2 ? terms.upper : terms.lower));
          }
        }
      },
      [&](int x, int at) {
        store_box(out, column, x, memory + at);
        if (column + 32 < a.rows) store_box(out, column + 32, x, memory + at + Room::kBoxBytes / 2);
      });
}

// Gates times ups: 32 columns of each row of x.
template <typename T, typename Room, bool kWhole, int kTiles>
__device__ inline void store_gated(const BoxedArgs& a,
                                   const CUtensorMap& out,
                                   const float (&sum)[kTiles][4],
                                   uint32_t memory,
                                   const PersistentPlace& place,
                                   int half) {
  constexpr int kRow = kRowBytes / 2;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // Rows of 64 bytes with the swizzle of the tensor map.
  const uint32_t to = memory + lane % 16 * kRow + static_cast<uint32_t>(warp ^ lane % 8 / 2) * 16;
  store_in_boxes<Room, kWhole, kTiles, 8 * kRow>(
      a, out, (place.row + half * kPersistentHalf) / 2, memory, place, half, [&](int t, int at) {
        uint32_t r[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float(&d)[4] = sum[t + i];
          r[i] = two_of<T>(gated<T>(a, d[0], d[2]), gated<T>(a, d[1], d[3]));
        }
        stmatrix_trans(to + at, r);
      });
}

// store_boxes() for every type and place of out: a warp stores a row.
template <typename T, typename Room, int kTiles>
__device__ inline void store_any(const BoxedArgs& a,
                                 bool in_pairs,
                                 const SumOf<T> (&sum)[kTiles][4],
                                 uint8_t* memory,
                                 const PersistentPlace& place,
                                 int half) {
  constexpr int kPitch = kSumPitch / 4, kRows = Room::kSumRows;
  static_assert(kTiles * 8 % kRows == 0);
  auto* sums = reinterpret_cast<SumOf<T>*>(memory);
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = place.row + half * kPersistentHalf + lane * 2;
  const RowTerms left(a, row), right(a, row + 1);
#pragma unroll
  for (int first = 0; first < kTiles; first += kRows / 8) {
    sync_half(half);  // what was there has been read
#pragma unroll
    for (int t = 0; t < kRows / 8; ++t) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        sums[(t * 8 + lane % 4 * 2 + j % 2) * kPitch + warp * 16 + lane / 4 + j / 2 * 8] =
            sum[first + t][j];
    }
    sync_half(half);
#pragma unroll
    for (int i = 0; i < kRows / 4; ++i) {
      const int t = warp + i * 4, x = place.x + first * 8 + t;
      if (x >= a.n || row >= a.rows) continue;
      const SumOf<T>* two = sums + t * kPitch + lane * 2;
      store_two(a, in_pairs, x * a.out_stride + row, row, scaled<T>(a, two[0], x, left),
                scaled<T>(a, two[1], x, right));
    }
    __syncwarp();
  }
}

}  // namespace sluice::cuda

// How a block of wide_persistent.cu or wide_shares.cu is laid out in shared memory, and the thread
// that copies its boxes. Device code.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/box_shares.h"
#include "backend/cuda/boxed.cuh"
#include "backend/cuda/cluster.cuh"
#include "backend/cuda/hopper.cuh"
#include "backend/cuda/wide_store.cuh"

namespace sluice::cuda {

inline constexpr int kTileThreads = 384;  // a warpgroup that copies, two that multiply

// Whether tiles of this width can be cut.
template <int kTiles>
inline constexpr bool kCuts = kTiles >= 16;
// A tile's sums over the ranges so far. Registers hold those of kKept tiles of x beside the sums of
// a range; those of the others (kSpills: there are any) are in shared memory, each thread's own.
template <int kTiles, bool kSpills>
struct Totals {
  static constexpr int kKept = kSpills ? 12 : kTiles;
  static constexpr int kBytes = (kTiles - kKept) * 4 * 128 * 4;  // of a warpgroup
};

template <int kTiles, bool kSpills>
struct PersistentRing {
  using Room = StoreRoom<kTiles>;
  using Sums = Totals<kTiles, kSpills>;
  // A tile is stored when its totals have been read, so that they share their place.
  static constexpr int kHalfBytes = std::max(Room::kBytes, Sums::kBytes);
  static constexpr int kWidth = kTiles * 8;
  static constexpr int kQuarter = kCuts<kTiles> ? kWidth / 4 : kWidth;  // rows of x, of a part
  static constexpr int kWeights = kTileRows * kRowBytes;
  static constexpr int kStage = kWeights + kWidth * kRowBytes;
  static constexpr int kStages = (224 * 1024 - 2 * kHalfBytes) / kStage;
  static constexpr int kRoomAt = kStages * kStage;
  static constexpr int kBytes = kRoomAt + 2 * kHalfBytes + 1024;  // and room to align
};

struct TileArgs {
  BoxedArgs a;
  int splits;              // ranges of columns
  int row_tiles, x_tiles;  // a pair of blocks has two tiles of weight rows, counted once
  int in_group;            // TilePlace
  int store_at_once;       // neighbours of a row of out: 8 or 2 of 16 bits, 4 of f32, or 1
};
struct PersistentArgs : TileArgs {
  int whole, parts;  // tiles that are not cut come first; parts of each other one
  int items;         // tiles and parts of tiles
};

// How a tile is stored: stored_at_once(), where there is code for these types.
inline int tile_stored_at_once(const BoxedArgs& a, DType weight) {
  const int stored = stored_at_once(a);
  const bool floats = a.out_type == DType::f32, bytes = dtype_bytes(weight) == 1;
  if (floats && bytes) return 1;
  return floats || bytes || a.out_type == weight ? stored : std::min(stored, 2);
}
// The map of out. Any will do, such as `other`, if sums are not stored by one.
template <typename R>
CUtensorMap out_map(const TileArgs& s, const CUtensorMap& other) {
  const BoxedArgs& a = s.a;
  if (s.store_at_once < 4) return other;
  return tensor_map({a.out, a.out_type, a.n, a.out_cols(), a.out_stride},
                    a.out_type == DType::f32 ? R::Room::kRows / 2 : R::Room::kRows,
                    a.gated ? kRowBytes / 2 : kRowBytes);
}

// The place of block `rank` among the `blocks` that share x.
__device__ inline PersistentPlace place_of(
    const PersistentArgs& s, int item, int width, int blocks, int rank) {
  const int beyond = item - s.whole;
  const bool cut = beyond >= 0;
  const TilePlace tile(cut ? s.whole + beyond / s.parts : item, s.row_tiles, s.x_tiles, s.in_group);
  const int x = tile.x * width + (cut ? beyond % s.parts * (width / s.parts) : 0);
  return {(tile.row * blocks + rank) * kTileRows, x, cut ? s.parts : 1};
}

// The ring of boxes in shared memory, and its barriers.
struct RingPlace {
  uint32_t ring, full, empty;
};
// That of a block, its barriers ready. R: PersistentRing; memory: of R::kBytes.
template <typename R, int kBlocks>
__device__ inline RingPlace make_ring(uint8_t* memory, uint64_t (&barriers)[2 * R::kStages]) {
  const auto start = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  const auto full = static_cast<uint32_t>(__cvta_generic_to_shared(barriers));
  const RingPlace at{(start + 1023) & ~1023u, full, full + R::kStages * 8};
  init_ring_barriers(at.full, at.empty, R::kStages, 8 * kBlocks);
  return at;
}
// The memory behind the ring from which a warpgroup stores. half: 0 or 1.
template <typename R>
__device__ inline uint8_t* room_of(uint8_t* memory, const RingPlace& at, int half) {
  const auto start = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  return memory + (at.ring - start) + R::kRoomAt + half * R::kHalfBytes;
}

// The thread that copies. It is what a block waits for where boxes are small: per box it has no
// more to do than to wait, and to start two copies. A stage is free when it is in all of kBlocks.
template <typename T, int kTiles, int kBlocks, bool kSpills>
struct Copier {
  using R = PersistentRing<kTiles, kSpills>;
  static constexpr int kBox = kRowBytes / static_cast<int>(sizeof(T));  // columns
  const TileArgs& s;
  const CUtensorMap &weights, &x, &x_quarters;
  RingPlace at;
  int rank;  // in its pair

  __device__ uint32_t stage(int i) const { return at.ring + i % R::kStages * R::kStage; }
  __device__ uint32_t barrier(int i) const { return at.full + i % R::kStages * 8; }
  __device__ void wait_for_stage(int i) const {
    if (i >= R::kStages) barrier_wait(at.empty + i % R::kStages * 8, i / R::kStages - 1);
  }
  template <Reuse kReuse>
  __device__ void copy_weights(int i, int row, int box, uint32_t bytes) const {
    barrier_expect(barrier(i), bytes);
    copy_weight_box<kReuse>(stage(i), weights, s.a.gated, box * kBox, row, barrier(i));
  }
  __device__ void copy_inputs(int i, int row, int box) const {
    const uint32_t to = stage(i) + R::kWeights;
    if constexpr (kBlocks == 1) {
      copy_box<Reuse::normal>(to, x, box * kBox, row, barrier(i));
    } else {
      const int mine = rank * (R::kWidth / 2);
      copy_box_to_both<Reuse::normal>(to + mine * kRowBytes, x, box * kBox, row + mine, barrier(i));
    }
  }
  // Quarter `k` of a stage's x.
  __device__ void copy_quarter(int i, int row, int box, int k) const {
    const uint32_t to = stage(i) + R::kWeights + k * R::kQuarter * kRowBytes;
    if constexpr (kBlocks == 1) {
      copy_box<Reuse::normal>(to, x_quarters, box * kBox, row + k * R::kQuarter, barrier(i));
    } else if (k == rank) {
      copy_box_to_both<Reuse::normal>(to, x_quarters, box * kBox, row + k * R::kQuarter,
                                      barrier(i));
    }
  }
  // Boxes of a tile from `box` on; `i` counts those of all tiles.
  template <Reuse kReuse>
  __device__ void copy_tile(const PersistentPlace& place, int box, int boxes, int& i) const {
    for (; box < boxes; ++box, ++i) {
      wait_for_stage(i);
      copy_weights<kReuse>(i, place.row, box, R::kStage);
      copy_inputs(i, place.x, box);
    }
  }
  // A part: one quarter of x's rows, or two.
  __device__ void copy_part(const PersistentPlace& place, int box, int boxes, int& i) const {
    constexpr uint32_t kQuarter = R::kQuarter * kRowBytes;
    const bool two = place.parts == 2;
    for (; box < boxes; ++box, ++i) {
      wait_for_stage(i);
      copy_weights<Reuse::normal>(i, place.row, box, R::kWeights + (two ? 2 : 1) * kQuarter);
      copy_quarter(i, place.x, box, 0);
      if (two) copy_quarter(i, place.x, box, 1);
    }
  }
  // The boxes of a share.
  __device__ void run(const BoxShare& share) const {
    prefetch_map(x);
    int i = 0;
    for (int k = 0; k < share.runs(); ++k) {
      const BoxShare::Run run = share.run(k);
      const PersistentPlace place{run.tile * kTileRows, 0, 1};
      int box = run.box;
      if (k == 0) {  // weights are on their way before x is there
        const int ahead = min(run.end - box, R::kStages);
        for (int j = 0; j < ahead; ++j) copy_weights<Reuse::once>(j, place.row, box + j, R::kStage);
        wait_for_inputs();
        for (; i < ahead; ++i, ++box) copy_inputs(i, place.x, box);
      }
      copy_tile<Reuse::once>(place, box, run.end, i);
    }
  }
  // Weights are on their way before x is there, unless the first tile is a part.
  __device__ void run(const PersistentArgs& all, int first, int step, int boxes) const {
    prefetch_map(x);
    int i = 0;
    const PersistentPlace first_place = place_of(all, first, R::kWidth, kBlocks, rank);
    if (first_place.parts == 1) {
      const int ahead = min(boxes, R::kStages);
      for (int k = 0; k < ahead; ++k) copy_weights<Reuse::normal>(k, first_place.row, k, R::kStage);
      wait_for_inputs();
      for (; i < ahead; ++i) copy_inputs(i, first_place.x, i);
    } else {
      wait_for_inputs();
    }
    int box = i;
    for (int item = first; item < all.items; item += step, box = 0) {
      const PersistentPlace place = place_of(all, item, R::kWidth, kBlocks, rank);
      if (place.parts > 1) {
        copy_part(place, box, boxes, i);
      } else if (s.x_tiles == 1) {
        copy_tile<Reuse::once>(place, box, boxes, i);
      } else {
        copy_tile<Reuse::normal>(place, box, boxes, i);
      }
    }
  }
};

}  // namespace sluice::cuda

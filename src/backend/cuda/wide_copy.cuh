// How a block of wide_persistent.cu is laid out in shared memory, which boxes it gets, and the
// thread that copies them. Device code.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/cuda/boxed.cuh"
#include "backend/cuda/cluster.cuh"
#include "backend/cuda/handover.cuh"
#include "backend/cuda/hopper.cuh"
#include "backend/cuda/wide_store.cuh"

namespace sluice::cuda {

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

struct PersistentArgs {
  BoxedArgs a;
  int splits;              // ranges of columns
  int row_tiles, x_tiles;  // a pair of blocks has two tiles of weight rows, counted once
  int in_group;            // TilePlace
  int whole, parts;        // tiles that are not cut come first; parts of each other one
  int items;               // tiles and parts of tiles
  int store_at_once;       // neighbours of a row of out: 8 or 2 of 16 bits, 4 of f32, or 1
  Handover handover;       // blocks have shares, if there is any
};

// Whether kernels of this width can have shares.
template <typename T, int kTiles>
inline constexpr bool kShares = sizeof(T) == 2 && kTiles <= 8;

// A block's share of the boxes of all tiles, tile by tile: at least those of a tile, so that a tile
// is in one share or in two.
struct Share {
  int boxes;                // of a tile
  int tile, box;            // where it begins
  int last_tile, last_box;  // where it ends: before this box
  __device__ Share(int tiles, int boxes_of_tile, int block, int blocks) : boxes(boxes_of_tile) {
    const int all = tiles * boxes;
    const auto begin = static_cast<int>(int64_t{all} * block / blocks);
    const auto end = static_cast<int>(int64_t{all} * (block + 1) / blocks);
    tile = begin / boxes, box = begin % boxes;
    last_tile = end / boxes, last_box = end % boxes;
  }

  // Boxes of a tile that are added up in one go.
  struct Run {
    int tile, box, end;
    bool gives, takes;  // the tile is the next block's; the block before has begun it
  };
  __device__ int runs() const { return last_tile - tile + (last_box > 0); }
  // The part that the next block needs comes first. The part that needs the block before comes
  // last.
  __device__ Run run(int i) const {
    if (last_box > 0 && i-- == 0) return {last_tile, 0, last_box, true, false};
    const int whole = tile + (box > 0) + i;
    if (whole < last_tile) return {whole, 0, boxes, false, false};
    return {tile, box, boxes, false, true};
  }
};

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

// The thread that copies. It is what a block waits for where boxes are small: per box it has no
// more to do than to wait, and to start two copies. A stage is free when it is in all of kBlocks.
template <typename T, int kTiles, int kBlocks, bool kSpills>
struct Copier {
  using R = PersistentRing<kTiles, kSpills>;
  static constexpr int kBox = kRowBytes / static_cast<int>(sizeof(T));  // columns
  const PersistentArgs& s;
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
  __device__ void run(const Share& share) const {
    prefetch_map(x);
    const Share::Run first = share.run(0);
    const int ahead = min(first.end - first.box, R::kStages);
    for (int k = 0; k < ahead; ++k)
      copy_weights<Reuse::once>(k, first.tile * kTileRows, first.box + k, R::kStage);
    wait_for_inputs();
    int i = 0;
    for (; i < ahead; ++i) copy_inputs(i, 0, first.box + i);
    for (int k = 0; k < share.runs(); ++k) {
      const Share::Run run = share.run(k);
      for (int box = run.box + (k == 0 ? ahead : 0); box < run.end; ++box, ++i) {
        wait_for_stage(i);
        copy_weights<Reuse::once>(i, run.tile * kTileRows, box, R::kStage);
        copy_inputs(i, 0, box);
      }
    }
  }
  // Weights are on their way before x is there, unless the first tile is a part.
  __device__ void run(int first, int step, int boxes) const {
    prefetch_map(x);
    int i = 0;
    const PersistentPlace first_place = place_of(s, first, R::kWidth, kBlocks, rank);
    if (first_place.parts == 1) {
      const int ahead = min(boxes, R::kStages);
      for (int k = 0; k < ahead; ++k) copy_weights<Reuse::normal>(k, first_place.row, k, R::kStage);
      wait_for_inputs();
      for (; i < ahead; ++i) copy_inputs(i, first_place.x, i);
    } else {
      wait_for_inputs();
    }
    int box = i;
    for (int item = first; item < s.items; item += step, box = 0) {
      const PersistentPlace place = place_of(s, item, R::kWidth, kBlocks, rank);
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

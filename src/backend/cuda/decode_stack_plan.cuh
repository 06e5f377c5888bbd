// How the blocks of decode_stack.cu share a layer: rows of each weight, and where their copies are
// in shared memory. Plain values, made on the host for a shape and a number of rows.
#pragma once

#include <algorithm>

#include "backend/cuda/decode_stack.cuh"

namespace sluice::cuda {

inline constexpr int kStackWarps = 8;        // that compute
inline constexpr int kStackSplits = 16;      // most parts of a sequence's attention
inline constexpr int kStackUnitCols = 1024;  // columns of a copy
inline constexpr int kStackSumPitch = 20;    // floats of a row of x in a tile's sums: no conflicts
inline constexpr int kStackSmall = 13 * 1024;  // of Small, in shared memory
inline constexpr int kStackSharedMost = 227 * 1024;

enum StackProductKind : int { kStackQkv, kStackO, kStackGateUp, kStackDown };

// A product's rows are shared out by `grain`; a block takes its rows in tiles of up to 16, or of 8
// columns of gate and up each. A unit is one tile's share of up to kStackUnitCols columns.
struct StackProduct {
  int rows = 0, cols = 0;  // gate and up: rows of one of them
  int grain = 1;
  int tile = 16;   // rows of a tile
  int tiles = 0;   // of a block, at most
  int chunks = 0;  // units of a tile
  int first_unit = 0;
  int pitch = 0;  // bytes from row to row
  int group = 0;  // tiles that are summed up at a time
};

struct StackPlan {
  int n = 0, layers = 0, blocks = 0;
  StackProduct product[4];
  int norm_unit[2] = {0, 0}, head_unit = 0;
  int num_units = 0;
  uint32_t unit_at[kMaxStackUnits];  // in the ring
  // The last unit whose place a unit takes: of the layer before, unless it is an earlier one.
  int16_t unit_waits[kMaxStackUnits];
  // Attention: a sequence is shared out by up to `splits` blocks, once it has more than `span`
  // positions; a block holds `kv_cap` of them at a time.
  int splits = 1, span = 0, kv_cap = 0;
  // In shared memory.
  int ring = 0, kv_at = 0, in_at = 0, sums_at = 0, sums_bytes = 0, bias_at = 0, small_at = 0;
  int bytes = 0;
  int bias_rows = 0;  // of a layer, at most
  // The relay, in words from a layer's begin.
  int out_at[4] = {}, out_cols[4] = {};  // of each product
  int qkv_at = 0, attended_at = 0, x_mid_at = 0, activated_at = 0, x_at = 0, parts_at = 0;
  int64_t layer_words = 0;
};

constexpr int stack_begin(const StackProduct& p, int block, int blocks) {
  return p.rows / p.grain * block / blocks * p.grain;
}

// False: it does not fit.
bool plan_stack(const StackShape& shape, int rows, int layers, int blocks, StackPlan* plan);

}  // namespace sluice::cuda

#include "backend/cuda/decode_stack_plan.cuh"

namespace sluice::cuda {

namespace {

int round_up(int v, int to) { return (v + to - 1) / to * to; }

StackProduct share(int rows, int cols, int tile, int grain, int blocks, int n) {
  StackProduct p;
  p.rows = rows, p.cols = cols, p.grain = grain;
  const int most = ((rows / grain + blocks - 1) / blocks) * grain;
  p.tile = tile > 0 ? tile : most <= 8 ? 8 : 16;
  p.tiles = (most + p.tile - 1) / p.tile;
  p.chunks = (cols + kStackUnitCols - 1) / kStackUnitCols;
  p.pitch = round_up(std::min(cols, kStackUnitCols) * 2, 128) + 64;
  p.group = std::clamp(16 / n, 1, p.tiles);
  return p;
}

int sums_bytes(const StackProduct& p, int n) {
  return p.group * kStackWarps * n * kStackSumPitch * static_cast<int>(sizeof(float));
}

// Places units one behind the other in the ring, from its begin again where the next does not fit.
bool place_units(StackPlan& plan, const StackShape& shape) {
  int size[kMaxStackUnits];
  int num = 0;
  auto add = [&](int bytes) {
    if (num < kMaxStackUnits) size[num] = round_up(bytes, 128);
    ++num;
  };
  auto add_product = [&](int which, bool gated) {
    StackProduct& p = plan.product[which];
    p.first_unit = num;
    for (int i = 0; i < p.tiles * p.chunks; ++i) add(p.pitch * (gated ? 16 : p.tile));
  };
  auto add_norm = [&](int which) {
    plan.norm_unit[which] = num;
    add(shape.hidden * static_cast<int>(sizeof(float)));
  };
  add_norm(0);
  add_product(kStackQkv, false);
  plan.head_unit = num;
  if (shape.head_norms) add(2 * shape.head_dim * static_cast<int>(sizeof(float)));
  add_product(kStackO, false);
  add_norm(1);
  add_product(kStackGateUp, true);
  add_product(kStackDown, false);
  if (num > kMaxStackUnits) return false;
  plan.num_units = num;
  int at = 0, most = 0;
  for (int u = 0; u < num; ++u) {
    most = std::max(most, size[u]);
    if (at + size[u] > plan.ring) at = 0;
    plan.unit_at[u] = static_cast<uint32_t>(at);
    at += size[u];
  }
  if (2 * most > plan.ring) return false;
  for (int u = 0; u < num; ++u) {
    auto overlaps = [&](int v) {
      const int a = static_cast<int>(plan.unit_at[u]), b = static_cast<int>(plan.unit_at[v]);
      return a < b + size[v] && b < a + size[u];
    };
    int v = u;
    do v = v == 0 ? num - 1 : v - 1;
    while (v != u && !overlaps(v));
    plan.unit_waits[u] = static_cast<int16_t>(v);
  }
  return true;
}

}  // namespace

bool plan_stack(const StackShape& shape, int rows, int layers, int blocks, StackPlan* out) {
  StackPlan& plan = *out;
  plan = {};
  const int n = rows, pairs = n * shape.kv_heads;
  plan.n = n, plan.layers = layers, plan.blocks = blocks;
  plan.product[kStackQkv] = share(shape.qkv_dim(), shape.hidden, 16, 1, blocks, n);
  plan.product[kStackO] = share(shape.hidden, shape.q_dim(), 0, 1, blocks, n);
  plan.product[kStackGateUp] = share(shape.ffn, shape.hidden, 8, 2, blocks, n);
  plan.product[kStackDown] = share(shape.hidden, shape.ffn, 0, 1, blocks, n);

  // A block merges the parts of one head at most.
  if (n * shape.heads <= blocks) plan.splits = std::clamp(blocks / pairs, 1, kStackSplits);
  plan.kv_cap = n > 2 ? (shape.head_dim <= 64 ? 128 : 64) : (shape.head_dim <= 64 ? 224 : 112);
  plan.span = plan.kv_cap;
  const int kv_bytes = plan.kv_cap * shape.head_dim * 2 * 2;
  for (const StackProduct& p : plan.product)
    plan.sums_bytes = std::max(plan.sums_bytes, sums_bytes(p, n));
  if (shape.biases) plan.bias_rows = plan.product[kStackQkv].tiles * 16;
  const int bias_bytes = round_up(layers * plan.bias_rows * 4, 128);
  // Inputs of a product: rows begin 64 bytes apart in the banks.
  const int in_bytes = n * (std::max({shape.hidden, shape.q_dim(), shape.ffn}) * 2 + 64);
  plan.ring =
      (kStackSharedMost - kv_bytes - in_bytes - 2 * plan.sums_bytes - bias_bytes - kStackSmall) /
      128 * 128;
  plan.kv_at = plan.ring;
  plan.in_at = plan.kv_at + kv_bytes;
  plan.sums_at = plan.in_at + in_bytes;
  plan.bias_at = plan.sums_at + 2 * plan.sums_bytes;
  plan.small_at = plan.bias_at + bias_bytes;
  plan.bytes = plan.small_at + kStackSmall;

  int words = 0;
  auto put = [&](int64_t count) {
    const int at = words;
    words += round_up(static_cast<int>(count), 32);
    return at;
  };
  plan.qkv_at = put(static_cast<int64_t>(n) * shape.qkv_dim());
  plan.attended_at = put(static_cast<int64_t>(n) * shape.q_dim() / 2);
  plan.x_mid_at = put(static_cast<int64_t>(n) * shape.hidden);
  plan.activated_at = put(static_cast<int64_t>(n) * shape.ffn / 2);
  plan.x_at = put(static_cast<int64_t>(n) * shape.hidden);
  const int group = shape.heads / shape.kv_heads;
  plan.parts_at =
      put(plan.splits > 1 ? static_cast<int64_t>(pairs) * plan.splits * group * (shape.head_dim + 2)
                          : 0);
  const int at[4] = {plan.qkv_at, plan.x_mid_at, plan.activated_at, plan.x_at};
  const int cols[4] = {shape.qkv_dim(), shape.hidden, shape.ffn, shape.hidden};
  std::copy(at, at + 4, plan.out_at);
  std::copy(cols, cols + 4, plan.out_cols);
  plan.layer_words = words;
  return plan.ring > 0 && place_units(plan, shape);
}

}  // namespace sluice::cuda

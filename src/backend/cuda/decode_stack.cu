#include "backend/cuda/decode_stack.cuh"

#include <stdexcept>

#include "backend/cuda/decode_stack_attention.cuh"
#include "backend/cuda/decode_stack_copy.cuh"
#include "backend/cuda/decode_stack_product.cuh"

namespace sluice::cuda {

namespace {

template <typename T, int D>
__device__ inline void compute(Block& b, bool own, int shares) {
  const StackArgs& a = b.a;
  const StackPlan& plan = a.plan;
  const Merge merge =
      plan.splits > 1 ? merge_of(a, plan.blocks - 1 - static_cast<int>(blockIdx.x)) : Merge{};
  const uint32_t* in = reinterpret_cast<const uint32_t*>(a.x);
  int in_stride = static_cast<int>(a.x_stride);
#pragma unroll 1
  for (int i = 0; i < 4 * plan.layers; ++i) {
    const int l = i / 4, product = i % 4;
    uint32_t* relay = a.relay + l * plan.layer_words;
    if (b.thread == 0) *reinterpret_cast<volatile int*>(&b.small.progress) = i;
    receive<T>(b, in, in_stride, b.small.job[product].cols, product, l);
    const bool last = i + 1 == 4 * plan.layers;
    uint32_t* out = last ? reinterpret_cast<uint32_t*>(a.x) : relay + plan.out_at[product];
    const int stride = last ? static_cast<int>(a.x_stride) : plan.out_cols[product];
    multiply_all<T>(b, product, l, out, stride);
    in = out, in_stride = product == kStackGateUp ? stride / 2 : stride;
    if (product == kStackQkv) {
      attention_of<T, D>(b, l, own, shares, merge, relay);
      in = relay + plan.attended_at, in_stride = a.shape.q_dim() / 2;
    }
  }
}

// Copies into shared memory all that is the same in every layer.
__device__ inline void begin_step(const Block& b, bool own, int shares) {
  const StackArgs& a = b.a;
  const StackPlan& plan = a.plan;
  Small& small = b.small;
  const auto block = static_cast<int>(blockIdx.x);
  if (own) {
    Share s{};
    if (block < shares) s = share_of(a, block);
    if (b.thread == 0) small.share = s;
    if (s.splits > 0) {
      load_turn(b, s.row);
      find_ids(b, s, s.first);
    }
  }
  const int begin = small.job[kStackDown].begin, end = small.job[kStackDown].end;
  for (int row = b.thread / 32; row < plan.n; row += kStackThreads / 32) {
    if (begin + b.lane < end) small.residual[row][b.lane] = a.x[row * a.x_stride + begin + b.lane];
  }
  const int first = small.job[kStackQkv].begin, rows = small.job[kStackQkv].end - first;
  for (int l = b.warp; b.warp < kStackWarps && l < plan.layers && plan.bias_rows > 0;
       l += kStackWarps) {
    for (int r = b.lane; r < rows; r += 32)
      b.bias[l * plan.bias_rows + r] = a.layer[l].qkv_bias[first + r];
  }
}

template <typename T, int D>
__global__ void __launch_bounds__(kStackThreads, 1)
    stack_kernel(const __grid_constant__ StackArgs args) {
#if SLUICE_HAS_CLUSTERS
  extern __shared__ __align__(128) uint8_t stack_memory[];
  const auto thread = static_cast<int>(threadIdx.x);
  Small& small = *reinterpret_cast<Small*>(stack_memory + args.plan.small_at);
  Block b{args,
          stack_memory,
          smem_address(stack_memory),
          small,
          thread,
          thread / 32,
          thread % 32,
          thread % 32 / 4,
          thread % 4,
          reinterpret_cast<float*>(stack_memory + args.plan.bias_at)};
  for (int i = thread; i < args.plan.num_units; i += kStackThreads) {
    barrier_init(b.full(i), 1);
    barrier_init(b.empty(i), kStackWarps);
    small.unit_at[i] = args.plan.unit_at[i];
  }
  if (thread == 0) {
    small.progress = 0;
    barrier_init(smem_address(&small.kv_full), 32);
    barrier_init(smem_address(&small.kv_empty), kStackWarps);
  }
  publish_barriers();
  if (thread < 4) {
    const StackProduct& p = args.plan.product[thread];
    const auto block = static_cast<int>(blockIdx.x);
    small.job[thread] = {stack_begin(p, block, args.plan.blocks),
                         stack_begin(p, block + 1, args.plan.blocks),
                         p.tiles,
                         p.chunks,
                         p.first_unit,
                         p.pitch,
                         p.cols,
                         p.group,
                         p.tile};
  }
  // Rows of q that no head has.
  for (int i = thread; i < static_cast<int>(sizeof(small.q) / 4); i += kStackThreads)
    reinterpret_cast<uint32_t*>(small.q)[i] = 0;
  __syncthreads();
  if (b.warp == kStackWarps) {
    // Weights do not depend on kernels before.
    asm volatile("bar.arrive 2, %0;" ::"n"(kStackThreads) : "memory");
    copy_weights(b);
    return;
  }
  if (b.warp == kStackWarps + 2) {
    asm volatile("bar.arrive 2, %0;" ::"n"(kStackThreads) : "memory");
    fetch_weights(b);
    return;
  }
  wait_for_inputs();
  const int shares = args.plan.n * args.shape.kv_heads * args.plan.splits;
  const bool own = shares <= args.plan.blocks;
  begin_step(b, own, shares);
  asm volatile("bar.sync 2, %0;" ::"n"(kStackThreads) : "memory");
  if (b.warp == kStackWarps + 1) {
    if (own) copy_kv<D>(b);
    return;
  }
  compute<T, D>(b, own, shares);
#endif
}

template <typename T, int D>
void launch_stack(const StackArgs& args, cudaStream_t stream) {
  allow_shared<stack_kernel<T, D>>(kStackSharedMost, "stack");
  launch("stack", stack_kernel<T, D>, static_cast<unsigned>(args.plan.blocks), kStackThreads,
         static_cast<size_t>(args.plan.bytes), stream, args);
}

}  // namespace

bool has_stack() { return target().clusters && target().shared >= kStackSharedMost; }

bool can_stack(const StackShape& s, int rows, int layers) {
  StackPlan plan;
  return has_stack() && rows <= kMaxStackRows && layers <= kMaxStackLayers &&
         (s.type == DType::bf16 || s.type == DType::f16) && s.hidden % 32 == 0 && s.ffn % 32 == 0 &&
         s.q_dim() % 32 == 0 && s.hidden <= 2048 && s.q_dim() <= 2048 && s.ffn <= 9216 &&
         (s.head_dim == 64 || s.head_dim == 128) && s.heads % s.kv_heads == 0 &&
         s.heads / s.kv_heads <= 8 && s.rope_dims <= s.head_dim &&
         plan_stack(s, rows, layers, target().num_sms, &plan);
}

size_t stack_relay_bytes(const StackShape& shape, int rows, int layers) {
  StackPlan plan;
  if (!plan_stack(shape, rows, layers, target().num_sms, &plan)) return 0;
  return static_cast<size_t>(plan.layer_words) * 4 * static_cast<size_t>(layers);
}

void run_stack(const StackShape& shape,
               const StackStep& step,
               std::span<const StackLayer> layers,
               cudaStream_t stream) {
  StackArgs args{};
  const int n = step.batch.num_tokens, num = static_cast<int>(layers.size());
  if (!plan_stack(shape, n, num, target().num_sms, &args.plan))
    throw std::runtime_error("CUDA: no plan for these layers");
  args.shape = shape;
  args.x = step.x.f32(), args.x_stride = step.x.stride;
  args.cos_sin = step.cos_sin;
  args.positions = step.batch.positions, args.row_slot = step.batch.row_slot;
  args.tables = step.batch.tables, args.table_stride = step.batch.table_stride;
  args.first_block = step.batch.first_block;
  while (1 << args.block_shift < shape.block_size) ++args.block_shift;
  args.group = shape.heads / shape.kv_heads;
  args.per_hidden = 1 / static_cast<float>(shape.hidden);
  args.table_at = step.table_at;
  args.relay = static_cast<uint32_t*>(step.relay);
  std::copy(layers.begin(), layers.end(), args.layer);
  check(cudaMemsetAsync(step.relay, 0xff,
                        static_cast<size_t>(args.plan.layer_words) * 4 * layers.size(), stream),
        "memset");
  with_type(shape.type, [&](auto t) {
    using T = decltype(t);
    if constexpr (sizeof(T) == 2) {
      if (shape.head_dim == 64) return launch_stack<T, 64>(args, stream);
      launch_stack<T, 128>(args, stream);
    }
  });
}

}  // namespace sluice::cuda

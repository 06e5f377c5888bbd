// Packed weights: made at load, decoded for many rows, and looked up as an embedding.
#include "backend/cuda/launch.cuh"
#include "backend/cuda/packed.cuh"
#include "backend/cuda/packed_tile.cuh"

namespace sluice::cuda {

namespace {

constexpr int kPackWarps = 8;

template <typename Block>
__global__ void pack_kernel(uint8_t* to,
                            const __grid_constant__ PackedShape shape,
                            const __grid_constant__ PackedSource<Block> from,
                            int64_t first_tile) {
  const int64_t tile = int64_t{blockIdx.x} * kPackWarps + threadIdx.x / 32;
  if (tile >= shape.tiles) return;
  pack_tile(to, shape, from, first_tile + blockIdx.y, blockIdx.y, tile,
            static_cast<int>(threadIdx.x) % 32);
}

struct RowRange {
  int first, end;
};

// A warp per tile. The values are those of the format's decode(), rounded once. It does not let the
// next kernel start: kernels of ours read weights before they wait.
template <typename T, Format F>
__global__ void decode_packed_kernel(T* out, const __grid_constant__ Planes w, RowRange rows) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int tile = static_cast<int>(blockIdx.x) * kPackWarps + warp;
  const int row_tile = rows.first / kPackedRows + static_cast<int>(blockIdx.y);
  if (tile >= w.tiles) return;
  LaneTile<F> t;
  t.load(w.row<F>(row_tile), tile, lane);
  wait_for_inputs();  // earlier readers of `out`
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    uint32_t a[4];
    t.template integers<T>(j, a);
    const int col = tile * kPackedCols + 16 * j + lane % 4 * 4;
    if (col >= w.cols) break;
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const int row = row_tile * kPackedRows + lane / 4 + 8 * upper;
      if (row < rows.first || row >= rows.end) continue;
      const ScaleAndMin s = t.scale(upper, 16 * j / LaneTile<F>::f.group);
      const float2 low = Pairs<T>::floats(a[upper]), high = Pairs<T>::floats(a[2 + upper]);
      auto value = [&](float q) { return from_float<T>(fmaf(s.scale, q, -s.min)); };
      Pack<T, 4> four{value(low.x), value(low.y), value(high.x), value(high.y)};
      *reinterpret_cast<Pack<T, 4>*>(out + int64_t{row - rows.first} * w.cols + col) = four;
    }
  }
}

template <typename O, Format F>
__global__ void embed_packed_kernel(O* out,
                                    int64_t stride,
                                    const uint8_t* table,
                                    const __grid_constant__ PackedShape shape,
                                    const int32_t* tokens) {
  wait_for_inputs();
  let_next_start();
  const int64_t row = tokens[blockIdx.x];
  O* to = out + blockIdx.x * stride;
  for (int c = static_cast<int>(threadIdx.x); c < shape.cols; c += static_cast<int>(blockDim.x))
    to[c] = from_float<O>(packed_value<F>(table, shape, row, c));
}

template <typename T>
void decode_as(void* out, const PackedPart& w, const RowRange& rows, cudaStream_t stream) {
  const Planes planes(w);
  const int first = rows.first / kPackedRows, end = ceil_div(rows.end, kPackedRows);
  const dim3 grid(static_cast<unsigned>(ceil_div(planes.tiles, kPackWarps)),
                  static_cast<unsigned>(end - first));
  with_packed_block(w.format, [&](auto block) {
    constexpr Format kFormat = decltype(block)::kFormat;
    launch("decode", decode_packed_kernel<T, kFormat>, grid, kPackWarps * 32, 0, stream,
           static_cast<T*>(out), planes, rows);
  });
}

}  // namespace

void pack(const PackedPart& to, int64_t first, int64_t rows, const void* raw, cudaStream_t stream) {
  const PackedShape shape(to.format, to.rows, to.cols);
  const dim3 grid(static_cast<unsigned>(ceil_div(shape.tiles, kPackWarps)),
                  static_cast<unsigned>(ceil_div(rows, kPackedRows)));
  with_packed_block(to.format, [&](auto block) {
    using Block = decltype(block);
    const PackedSource<Block> from{static_cast<const Block*>(raw), rows, to.cols};
    pack_kernel<Block>
        <<<grid, kPackWarps * 32, 0, stream>>>(to.data, shape, from, first / kPackedRows);
  });
  check_launch("pack");
}

void decode_packed(
    void* out, DType type, const PackedPart& w, int64_t first, int64_t num, cudaStream_t stream) {
  const RowRange rows{static_cast<int>(first), static_cast<int>(first + num)};
  if (type == DType::f16) return decode_as<__half>(out, w, rows, stream);
  decode_as<__nv_bfloat16>(out, w, rows, stream);
}

void embed_packed(Tensor out, const PackedPart& table, const int32_t* tokens, cudaStream_t stream) {
  const PackedShape shape(table.format, table.rows, table.cols);
  with_type(out.type, [&](auto o) {
    using O = decltype(o);
    with_packed_block(table.format, [&](auto block) {
      constexpr Format kFormat = decltype(block)::kFormat;
      launch("embed", embed_packed_kernel<O, kFormat>, static_cast<unsigned>(out.rows), 256, 0,
             stream, static_cast<O*>(out.data), out.stride, static_cast<const uint8_t*>(table.data),
             shape, tokens);
    });
  });
}

}  // namespace sluice::cuda

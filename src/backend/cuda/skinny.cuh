// Our own products y [n, rows] = x [n, cols] · wᵀ + bias.
// Three kernels are for few rows of x, where reading w is all that takes time; the first weights
// are on their way before a kernel waits for x. skinny() is for up to
// 8 rows, whose blocks have 16 weight rows and share out the columns among warps (weights may be in
// f8, x stays as it is), narrow() for up to 64, whose blocks have 128 weight rows and may split the
// columns over a cluster of blocks, and tall() for up to 32 that fit into shared memory, with one
// block per multiprocessor (both: x of the weights' type). wide() takes any number of rows.
// narrow() in order and wide() give a row of x the same bits whatever n is: they add up each of
// `splits` ranges of columns in ascending order, then the ranges' sums in ascending order.
// Weights in i8 take x in i8 from skinny_int8(), tall(), narrow() and wide(). Sums are integers and
// their scaling is one expression, so that a row has the same bits from all of them.
#pragma once

#include <cuda_runtime.h>

#include <optional>

#include "backend/cuda/gemm_weight.cuh"
#include "backend/cuda/handover.cuh"

namespace sluice::cuda {

inline constexpr int kMaxSkinny = 8, kMaxNarrow = 64, kMaxTall = 32;
static_assert(kMaxSkinny == kMaxRowsWithoutF8);
// Whether x may come with codes or without (CodesView::of_many).
inline bool has_few_codes(const GemmWeight& w, int64_t rows) {
  return w.type == DType::f8 && w.scale && rows <= kMaxRowsWithoutF8;
}
inline constexpr int kNarrowSplits[] = {1, 2, 3, 4, 8};

// Whether it takes the product: half types, widths that are multiples of eight (of 16 in f8).
bool can_skinny(const Tensor& x, const GemmWeight& w);
void skinny(Tensor out, Tensor x, const GemmWeight& w, cudaStream_t stream);
// Both in i8, of any n and on every GPU; meant for few rows. x_scale: [n].
bool can_skinny_int8(const Tensor& x, const GemmWeight& w);
void skinny_int8(
    Tensor out, Tensor x, const float* x_scale, const GemmWeight& w, cudaStream_t stream);
// Likewise: any type but f32, rows and addresses that are multiples of 16 bytes.
bool can_narrow(const Tensor& x, const GemmWeight& w);
// x_scale: [n], where both are in f8 or i8. Not in order, blocks begin at different columns.
void narrow(Tensor out,
            Tensor x,
            const float* x_scale,
            const GemmWeight& w,
            int splits,
            bool in_order,
            cudaStream_t stream);

// Whether narrow() and wide() put out gates times ups here (GemmWeight::gate): in 16 bits, at
// addresses that are multiples of 16, of few rows in bf16.
inline bool fits_gate(const Tensor& out, const GemmWeight& w) {
  return Gate::takes(w.type, out.rows) && dtype_bytes(w.type) == 2 && out.type == w.type &&
         !w.bias && w.rows % 16 == 0 && out.stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(out.data) % 16 == 0;
}

// Likewise; any n. Those of 8 bits have scales.
bool can_wide(const Tensor& x, const GemmWeight& w);
// How wide() cuts ranges of columns where there are few tiles: blocks of a cluster, ranges of each,
// and rows of x of a block: 32, 64, 128, or with one range and not in f8 256. A cluster of 1: a
// block has all ranges of a tile. Apart: blocks are no cluster, and leave their sums in global
// memory for the last of them, which adds them up; one range each, 64 rows or more. Even: by
// wide_shares.cuh, with a cluster of 1.
struct Spread {
  int cluster = 1, ranges = 1, width = 128;
  bool apart = false, even = false;
};
void wide(Tensor out,
          Tensor x,
          const float* x_scale,
          const GemmWeight& w,
          int splits,
          int num_sms,
          cudaStream_t stream,
          std::optional<Spread> spread = {},
          Handover handover = {});
// Clusters of so many blocks that are there at a time: a cluster does not cross the boundaries of
// groups of multiprocessors, so that some stay without a block.
int clusters_at_once(int blocks);
// As is probably fastest, by the number of rows too, and what wide() does where it is not told: it
// changes no bit. Without a handover nothing is apart or even.
Spread wide_spread(
    const GemmWeight& w, int64_t n, int splits, int num_sms, const Handover& handover);

bool can_tall(const Tensor& x, const GemmWeight& w);
void tall(Tensor out,
          Tensor x,
          const float* x_scale,
          const GemmWeight& w,
          int num_sms,
          cudaStream_t stream);

}  // namespace sluice::cuda

#include "backend/cpu/elementwise.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/quantize.h"
#include "base/check.h"

namespace sluice {

namespace {

// x [head_dim]; cos_sin [dims]. Products rounded, then added: the same in every ISA.
void rotate(float* x, const RopeSpec& rope, const float* cos_sin) {
  int half = rope.dims / 2;
  const float *c = cos_sin, *s = cos_sin + half;
  if (rope.interleaved) {
    for (int i = 0; i < half; ++i) {
      float a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = a * c[i] - b * s[i];
      x[2 * i + 1] = a * s[i] + b * c[i];
    }
    return;
  }
  for (int i = 0; i < half; ++i) {
    float a = x[i], b = x[half + i];
    x[i] = a * c[i] - b * s[i];
    x[half + i] = a * s[i] + b * c[i];
  }
}

float finite(float x) {
  constexpr float kTop = std::numeric_limits<float>::max();
  return x > kTop ? kTop : x < -kTop ? -kTop : x;
}

// One head's K or V in a block, and the position to write there; see KvLayer for the layout.
struct HeadPlace {
  std::byte *k, *v;
  int64_t offset;
};

// k, v [head_dim]
void store_head_f32(const float* k, const float* v, const KvLayer& kv, const HeadPlace& to) {
  float* kp = reinterpret_cast<float*>(to.k) + to.offset;
  float* vp = reinterpret_cast<float*>(to.v) + to.offset * kv.head_dim;
  for (int d = 0; d < kv.head_dim; ++d) {
    kp[d * kv.block_size] = finite(k[d]);
    vp[d] = finite(v[d]);
  }
}

void store_head_f16(const VectorKernels& kernels,
                    const float* k,
                    const float* v,
                    const KvLayer& kv,
                    const HeadPlace& to) {
  uint16_t half[kMaxHeadDim];
  kernels.to_half(k, kv.head_dim, half);
  uint16_t* kp = reinterpret_cast<uint16_t*>(to.k) + to.offset;
  for (int d = 0; d < kv.head_dim; ++d) kp[d * kv.block_size] = half[d];
  kernels.to_half(v, kv.head_dim, reinterpret_cast<uint16_t*>(to.v) + to.offset * kv.head_dim);
}

void store_head_i8(const VectorKernels& kernels,
                   const float* k,
                   const float* v,
                   const KvLayer& kv,
                   const HeadPlace& to) {
  int num_groups = kv.head_dim / kv.group;
  int64_t elements = int64_t{kv.head_dim} * kv.block_size;
  int8_t codes[kMaxHeadDim];
  uint16_t scales[kMaxHeadDim / 8];
  kernels.to_codes(k, kv.head_dim, kv.group, codes, scales);
  auto* kp = reinterpret_cast<int8_t*>(to.k) + 4 * to.offset;
  auto* k_scales = reinterpret_cast<uint16_t*>(to.k + elements) + to.offset;
  for (int d = 0; d < kv.head_dim; d += 4) std::memcpy(kp + d * kv.block_size, codes + d, 4);
  for (int g = 0; g < num_groups; ++g) k_scales[g * kv.block_size] = scales[g];
  kernels.to_codes(v, kv.head_dim, kv.group, codes, scales);
  auto* vp = reinterpret_cast<int8_t*>(to.v) + to.offset / 4 * 4 * kv.head_dim + to.offset % 4;
  auto* v_scales = reinterpret_cast<uint16_t*>(to.v + elements) + to.offset;
  for (int d = 0; d < kv.head_dim; ++d) vp[4 * d] = codes[d];
  for (int g = 0; g < num_groups; ++g) v_scales[g * kv.block_size] = scales[g];
}

}  // namespace

template <typename Fill>
void CpuElementwise::fill_rows(const Act& out, int64_t cols, double ns, Fill fill) {
  CHECK(!out.q.q || (out.q.cols == cols && cols % kActBlock == 0));
  CHECK(!out.r.q || (out.r.cols == cols && cols % kActBlock == 0));
  CHECK(!out.s.q || (out.s.cols == cols && cols % kActSuper == 0));
  for_ranges(pool_, out.rows(), ns, [&](int64_t begin, int64_t end, int worker) {
    float* own = nullptr;
    if (!out.f.data) {
      std::vector<float>& mine = rows_[static_cast<size_t>(worker)];
      if (static_cast<int64_t>(mine.size()) < cols) mine.resize(static_cast<size_t>(cols));
      own = mine.data();
    }
    for (int64_t r = begin; r < end; ++r) {
      float* y = own ? own : out.f.row(r);
      fill(r, y);
      if (out.r.q) quantize_whole_row(y, cols, out.r.q + r * cols, out.r.scale + r, out.r.sum + r);
      quantize_blocks(out, r, 0, y, cols);
    }
  });
}

void CpuElementwise::rope_table(float* cos_sin,
                                const RopeSpec& rope,
                                std::span<const int32_t> positions) {
  int half = rope.dims / 2;
  auto n = static_cast<int64_t>(positions.size());
  for_ranges(pool_, n, half * 40.0, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      float* row = cos_sin + r * rope.dims;
      auto pos = static_cast<float>(positions[static_cast<size_t>(r)]);
      for (int i = 0; i < half; ++i) {
        // The angle is a float32 product, as the models were trained with.
        double angle = pos * rope.inv_freq[static_cast<size_t>(i)];
        row[i] = static_cast<float>(std::cos(angle)) * rope.attention_factor;
        row[half + i] = static_cast<float>(std::sin(angle)) * rope.attention_factor;
      }
    }
  });
}

void CpuElementwise::rms_norm(
    const Act& out, Tensor x, const float* weight, float eps, const int32_t* rows) {
  fill_rows(out, x.cols, 0.12 * static_cast<double>(x.cols), [&](int64_t r, float* y) {
    kernels_.rms_norm(x.row(rows ? rows[r] : r), weight, x.cols, eps, y);
  });
}

void CpuElementwise::add_rms_norm(
    const Act& out, Tensor x, Tensor delta, const float* weight, float eps) {
  fill_rows(out, x.cols, 0.15 * static_cast<double>(x.cols), [&](int64_t r, float* y) {
    kernels_.add_rms_norm(x.row(r), delta.row(r), weight, x.cols, eps, y);
  });
}

void CpuElementwise::layer_norm(const Act& out,
                                Tensor x,
                                const LayerNormSpec& norm,
                                const int32_t* rows) {
  fill_rows(out, x.cols, 0.18 * static_cast<double>(x.cols), [&](int64_t r, float* y) {
    kernels_.layer_norm(x.row(rows ? rows[r] : r), norm, x.cols, y);
  });
}

void CpuElementwise::add_layer_norm(const Act& out,
                                    Tensor x,
                                    Tensor delta,
                                    const LayerNormSpec& norm) {
  fill_rows(out, x.cols, 0.2 * static_cast<double>(x.cols), [&](int64_t r, float* y) {
    kernels_.add_layer_norm(x.row(r), delta.row(r), norm, x.cols, y);
  });
}

void CpuElementwise::add(Tensor x, Tensor delta) {
  double ns = 0.08 * static_cast<double>(x.cols);
  for_ranges(pool_, x.rows, ns, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) kernels_.add(x.row(r), delta.row(r), x.cols);
  });
}

void CpuElementwise::scale(Tensor x, float factor) {
  double ns = 0.06 * static_cast<double>(x.cols);
  for_ranges(pool_, x.rows, ns, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) kernels_.scale(x.row(r), factor, x.cols);
  });
}

// Logits: few rows, each as long as the vocabulary, so rows are cut too.
void CpuElementwise::softcap(Tensor x, float cap) {
  constexpr int64_t kPiece = 4096;
  int64_t pieces = (x.cols + kPiece - 1) / kPiece;
  for_ranges(pool_, x.rows * pieces, 0.5 * kPiece, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t at = i % pieces * kPiece;
      kernels_.softcap(x.row(i / pieces) + at, cap, std::min(kPiece, x.cols - at));
    }
  });
}

void CpuElementwise::activate(const Act& out, Tensor x, Activation activation) {
  fill_rows(out, x.cols, 0.3 * static_cast<double>(x.cols), [&](int64_t r, float* y) {
    kernels_.activate(activation, x.row(r), nullptr, x.cols, y);
  });
}

void CpuElementwise::activate_gated(const Act& out, Tensor gate_up, Activation activation) {
  int64_t f = gate_up.cols / 2;
  fill_rows(out, f, 0.3 * static_cast<double>(f), [&](int64_t r, float* y) {
    kernels_.activate(activation, gate_up.row(r), gate_up.row(r) + f, f, y);
  });
}

void CpuElementwise::finish_row(
    float* row, int64_t r, const QkvSpec& spec, const BatchView& batch, KvLayer kv) {
  const AttentionSpec& a = spec.attention;
  int dim = a.head_dim;
  for (int h = 0; h < a.num_heads + a.num_kv_heads; ++h) {
    float* x = row + h * dim;
    const float* weight = h < a.num_heads ? spec.q_norm : spec.k_norm;
    if (weight) kernels_.rms_norm(x, weight, dim, spec.eps, x);
    if (spec.rope && spec.cos_sin) rotate(x, *spec.rope, spec.cos_sin + r * spec.rope->dims);
  }
  const float* k = row + a.num_heads * dim;
  const float* v = k + a.num_kv_heads * dim;
  const SlotTable table(batch, kv, batch.row_slot[r]);
  int64_t pos = batch.positions[r], offset = pos % kv.block_size;
  int64_t first = table[pos / kv.block_size] * kv.num_kv_heads;
  size_t head_bytes = kv.head_bytes();
  for (int h = 0; h < a.num_kv_heads; ++h, k += dim, v += dim) {
    auto plane = static_cast<size_t>(first + h) * head_bytes;
    HeadPlace to{static_cast<std::byte*>(kv.k) + plane, static_cast<std::byte*>(kv.v) + plane,
                 offset};
    if (kv.type == DType::f32) {
      store_head_f32(k, v, kv, to);
    } else if (kv.type == DType::i8) {
      store_head_i8(kernels_, k, v, kv, to);
    } else {
      store_head_f16(kernels_, k, v, kv, to);
    }
  }
}

void CpuElementwise::finish_qkv(Tensor qkv,
                                const QkvSpec& spec,
                                const BatchView& batch,
                                KvLayer kv) {
  CHECK(kv.head_dim == spec.attention.head_dim && kv.head_dim <= kMaxHeadDim);
  CHECK(!spec.q.data || spec.q.data == qkv.data);  // activations are f32: q stays
  CHECK(kv.type == DType::f16 || kv.type == DType::f32 || kv.type == DType::i8);
  CHECK(kv.type != DType::i8 ||
        (kv.head_dim % kv.group == 0 && (kv.group == 8 || kv.group == 32 || kv.group == 64)));
  double ns = 0.8 * static_cast<double>(qkv.cols);
  for_ranges(pool_, batch.num_tokens, ns, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) finish_row(qkv.row(r), r, spec, batch, kv);
  });
}

void CpuElementwise::copy_blocks(std::span<const KvLayer> layers,
                                 std::span<const BlockCopy> copies) {
  if (layers.empty() || copies.empty()) return;
  // Layers are independent; the copies of one layer happen in order.
  for_ranges(pool_, 2 * static_cast<int64_t>(layers.size()),
             1000.0 * static_cast<double>(copies.size()), [&](int64_t begin, int64_t end, int) {
               for (int64_t i = begin; i < end; ++i) {
                 const KvLayer& kv = layers[static_cast<size_t>(i / 2)];
                 auto* p = static_cast<std::byte*>(i % 2 == 0 ? kv.k : kv.v);
                 size_t bytes = kv.block_bytes();
                 for (const BlockCopy& c : copies) {
                   std::memmove(p + static_cast<size_t>(c.to) * bytes,
                                p + static_cast<size_t>(c.from) * bytes, bytes);
                 }
               }
             });
}

}  // namespace sluice

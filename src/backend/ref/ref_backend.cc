#include "backend/ref/ref_backend.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numbers>
#include <numeric>

#include "base/check.h"
#include "tensor/formats/all.h"

namespace sluice {

namespace {

struct RefSegment {
  Format format;
  int64_t rows;
  std::vector<std::byte> data;
};

struct RefWeight final : WeightData {
  std::vector<RefSegment> segments;

  // out [cols]
  void decode_row(int64_t row, int64_t cols, float* out) const {
    for (const RefSegment& s : segments) {
      if (row < s.rows) {
        const std::byte* src = s.data.data() + static_cast<size_t>(row) * row_bytes(s.format, cols);
        return format_info(s.format).decode(src, out, cols);
      }
      row -= s.rows;
    }
    CHECK(!"row inside the weight");
  }
};

const RefWeight& ref_weight(const Weight& w) { return static_cast<const RefWeight&>(*w.data); }

// Eight partial sums, so that bringing up a model on this backend is a matter of seconds.
double dot(const float* a, const float* b, int64_t n) {
  double lane[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int j = 0; j < 8; ++j) lane[j] += static_cast<double>(a[i + j]) * b[i + j];
  }
  for (; i < n; ++i) lane[0] += static_cast<double>(a[i]) * b[i];
  double sum = 0;
  for (double l : lane) sum += l;
  return sum;
}

// One block: value = scale * q.
void quantize(const float* x, int64_t n, int8_t* q, float* scale, int32_t* sum) {
  float absmax = 0;
  for (int64_t i = 0; i < n; ++i) absmax = std::max(absmax, std::fabs(x[i]));
  *scale = absmax / 127.0F;
  *sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    double v = *scale > 0 ? std::nearbyint(static_cast<double>(x[i]) / *scale) : 0;
    q[i] = static_cast<int8_t>(std::clamp(v, -127.0, 127.0));
    *sum += q[i];
  }
}

void store(const Act& out, int64_t row, const std::vector<float>& values) {
  const float* x = values.data();
  if (out.f.data) std::copy(values.begin(), values.end(), out.f.row(row));
  if (out.q.q) {
    int64_t blocks = out.q.cols / kActBlock;
    for (int64_t b = 0; b < blocks; ++b) {
      int64_t at = row * blocks + b;
      quantize(x + b * kActBlock, kActBlock, out.q.q + at * kActBlock, out.q.scale + at,
               out.q.sum + at);
    }
  }
  if (out.s.q) {
    int64_t blocks = out.s.cols / kActSuper, sums = kActSuper / kActSum;
    for (int64_t b = 0; b < blocks; ++b) {
      int64_t at = row * blocks + b;
      int8_t* q = out.s.q + at * kActSuper;
      int32_t whole;
      quantize(x + b * kActSuper, kActSuper, q, out.s.scale + at, &whole);
      for (int64_t i = 0; i < sums; ++i) {
        int32_t sum = std::accumulate(q + i * kActSum, q + (i + 1) * kActSum, 0);
        out.s.sum[at * sums + i] = static_cast<int16_t>(sum);
      }
    }
  }
  if (out.r.q)
    quantize(x, out.r.cols, out.r.q + row * out.r.cols, out.r.scale + row, out.r.sum + row);
}

void norm(const float* x, const float* weight, int64_t n, float eps, float* out) {
  double inv = 1 / std::sqrt(dot(x, x, n) / static_cast<double>(n) + eps);
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(x[i] * inv * weight[i]);
}

void norm_with_mean(const float* x, const LayerNormSpec& norm, int64_t n, float* out) {
  double mean = 0, variance = 0;
  for (int64_t i = 0; i < n; ++i) mean += x[i];
  mean /= static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i) variance += (x[i] - mean) * (x[i] - mean);
  double inv = 1 / std::sqrt(variance / static_cast<double>(n) + norm.eps);
  for (int64_t i = 0; i < n; ++i)
    out[i] = static_cast<float>((x[i] - mean) * inv * norm.weight[i] + norm.bias[i]);
}

double activated(double x, Activation activation) {
  if (activation == Activation::silu) return x / (1 + std::exp(-x));
  double inner = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1 + std::tanh(inner));
}

// x [head_dim]; cos_sin [dims]
void rotate(float* x, const RopeSpec& rope, const float* cos_sin) {
  int half = rope.dims / 2;
  for (int i = 0; i < half; ++i) {
    float& a = x[rope.interleaved ? 2 * i : i];
    float& b = x[rope.interleaved ? 2 * i + 1 : i + half];
    double c = cos_sin[i], s = cos_sin[half + i], x0 = a, x1 = b;
    a = static_cast<float>(x0 * c - x1 * s);
    b = static_cast<float>(x0 * s + x1 * c);
  }
}

// One position in the cache.
struct KvAddress {
  const KvLayer& kv;
  int64_t block;   // id
  int64_t offset;  // in the block

  std::byte* plane(void* side, int head) const {
    return static_cast<std::byte*>(side) +
           static_cast<size_t>(block * kv.num_kv_heads + head) * kv.head_bytes();
  }
  // Elements of a head are [dimensions, positions], V's transposed. Codes are in fours:
  // [dimensions / 4, positions, 4], V's [positions / 4, dimensions, 4].
  int64_t at(bool value, int64_t d) const {
    if (kv.type != DType::i8) return value ? offset * kv.head_dim + d : d * kv.block_size + offset;
    if (value) return (offset / 4 * kv.head_dim + d) * 4 + offset % 4;
    return (d / 4 * kv.block_size + offset) * 4 + d % 4;
  }
  uint16_t* scale(std::byte* plane, int d) const {
    auto* scales = reinterpret_cast<uint16_t*>(plane + int64_t{kv.head_dim} * kv.block_size);
    return scales + d / kv.group * kv.block_size + offset;
  }
};

KvAddress kv_address(const KvLayer& kv, const BatchView& batch, int64_t slot, int64_t pos) {
  return {kv, SlotTable(batch, kv, slot)[pos / kv.block_size], pos % kv.block_size};
}

float decode_half(const uint16_t* h) {
  float x;
  format_info(Format::f16).decode(h, &x, 1);
  return x;
}

void encode_half(float x, uint16_t* h) {
  if (std::fabs(x) > 65504.0F) x = std::copysign(65504.0F, x);
  format_info(Format::f16).encode(&x, h, 1);
}

// Dimension d of a head's K, or V.
float load_kv(const KvAddress& address, bool value, int head, int d) {
  const KvLayer& kv = address.kv;
  std::byte* plane = address.plane(value ? kv.v : kv.k, head);
  int64_t at = address.at(value, d);
  if (kv.type == DType::f32) return reinterpret_cast<const float*>(plane)[at];
  if (kv.type == DType::f16) return decode_half(reinterpret_cast<const uint16_t*>(plane) + at);
  return decode_half(address.scale(plane, d)) * static_cast<float>(static_cast<int8_t>(plane[at]));
}

// x [head_dim] into the cache as codes: KvType says how they are made.
void store_codes(const KvAddress& address, bool value, std::byte* plane, const float* x) {
  const KvLayer& kv = address.kv;
  for (int first = 0; first < kv.head_dim; first += kv.group) {
    float absmax = 0;
    bool number = true;
    for (int d = first; d < first + kv.group; ++d) {
      absmax = std::max(absmax, std::fabs(x[d]));
      number = number && !std::isnan(x[d]);
    }
    uint16_t* half = address.scale(plane, first);
    encode_half(number ? std::max(absmax / 127.0F, 0x1p-24F) : NAN, half);
    float scale = decode_half(half);
    for (int d = first; d < first + kv.group; ++d) {
      float q = number ? std::clamp(std::nearbyint(x[d] / scale), -127.0F, 127.0F) : 0;
      plane[address.at(value, d)] = static_cast<std::byte>(static_cast<int>(q));
    }
  }
}

// x [head_dim]
void store_kv(const KvAddress& address, bool value, int head, const float* x) {
  const KvLayer& kv = address.kv;
  std::byte* plane = address.plane(value ? kv.v : kv.k, head);
  if (kv.type == DType::i8) return store_codes(address, value, plane, x);
  for (int d = 0; d < kv.head_dim; ++d) {
    int64_t at = address.at(value, d);
    if (kv.type == DType::f16) {
      encode_half(x[d], reinterpret_cast<uint16_t*>(plane) + at);
    } else {
      reinterpret_cast<float*>(plane)[at] =
          std::isinf(x[d]) ? std::copysign(3.40282347e38F, x[d]) : x[d];
    }
  }
}

// The positions [begin, end) of a slot's sequence that a query sees.
struct Visible {
  int64_t slot, begin, end;
};

// q, out [head_dim]
void attend(const float* q,
            float* out,
            const AttentionSpec& spec,
            int kv_head,
            const KvLayer& kv,
            const BatchView& batch,
            const Visible& seen) {
  const auto [slot, begin, end] = seen;
  std::vector<double> p(static_cast<size_t>(end - begin));
  double top = -INFINITY;
  for (int64_t pos = begin; pos < end; ++pos) {
    KvAddress at = kv_address(kv, batch, slot, pos);
    double s = 0;
    for (int d = 0; d < kv.head_dim; ++d) {
      s += static_cast<double>(q[d]) * load_kv(at, false, kv_head, d);
    }
    s *= spec.scale;
    if (spec.softcap > 0) s = spec.softcap * std::tanh(s / spec.softcap);
    p[static_cast<size_t>(pos - begin)] = s;
    top = std::max(top, s);
  }
  double sum = 0;
  for (double& x : p) sum += x = std::exp(x - top);
  std::vector<double> o(static_cast<size_t>(kv.head_dim));
  for (int64_t pos = begin; pos < end; ++pos) {
    KvAddress at = kv_address(kv, batch, slot, pos);
    for (int d = 0; d < kv.head_dim; ++d) {
      o[static_cast<size_t>(d)] +=
          p[static_cast<size_t>(pos - begin)] * load_kv(at, true, kv_head, d);
    }
  }
  for (int d = 0; d < kv.head_dim; ++d)
    out[d] = static_cast<float>(o[static_cast<size_t>(d)] / sum);
}

}  // namespace

Buffer RefBackend::allocate(size_t bytes) {
  void* p = std::calloc(std::max<size_t>(bytes, 1), 1);
  if (!p) throw std::bad_alloc();
  return {p, bytes, [](void* data, size_t) { std::free(data); }};
}

Weight RefBackend::load(std::span<const WeightSegment> segments, std::vector<float> bias) {
  auto data = std::make_unique<RefWeight>();
  Weight w;
  w.cols = segments[0].tensor->cols;
  for (const WeightSegment& s : segments) {
    const TensorInfo& t = *s.tensor;
    CHECK(t.cols == w.cols);
    CHECK(s.data.size() == static_cast<size_t>(t.rows) * row_bytes(t.format, t.cols));
    w.rows += t.rows;
    w.bytes += s.data.size();
    data->segments.push_back({t.format, t.rows, {s.data.begin(), s.data.end()}});
  }
  CHECK(bias.empty() || static_cast<int64_t>(bias.size()) == w.rows);
  w.act = kActF32;
  w.bias = std::move(bias);
  w.data = std::move(data);
  return w;
}

void RefBackend::embed(Tensor out, const Weight& table, std::span<const int32_t> tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    ref_weight(table).decode_row(tokens[i], table.cols, out.row(static_cast<int64_t>(i)));
  }
}

// The angle is a float32 product, as the models were trained with.
void RefBackend::rope_table(float* cos_sin,
                            const RopeSpec& rope,
                            std::span<const int32_t> positions) {
  int half = rope.dims / 2;
  for (int32_t pos : positions) {
    for (int i = 0; i < half; ++i) {
      double angle = static_cast<float>(pos) * rope.inv_freq[static_cast<size_t>(i)];
      cos_sin[i] = static_cast<float>(std::cos(angle)) * rope.attention_factor;
      cos_sin[half + i] = static_cast<float>(std::sin(angle)) * rope.attention_factor;
    }
    cos_sin += rope.dims;
  }
}

void RefBackend::rms_norm(
    const Act& out, Tensor x, const float* weight, float eps, const int32_t* rows) {
  std::vector<float> y(static_cast<size_t>(x.cols));
  for (int64_t r = 0; r < out.rows(); ++r) {
    norm(x.row(rows ? rows[r] : r), weight, x.cols, eps, y.data());
    store(out, r, y);
  }
}

void RefBackend::add_rms_norm(
    const Act& out, Tensor x, Tensor delta, const float* weight, float eps) {
  add(x, delta);
  rms_norm(out, x, weight, eps);
}

void RefBackend::layer_norm(const Act& out,
                            Tensor x,
                            const LayerNormSpec& norm,
                            const int32_t* rows) {
  std::vector<float> y(static_cast<size_t>(x.cols));
  for (int64_t r = 0; r < out.rows(); ++r) {
    norm_with_mean(x.row(rows ? rows[r] : r), norm, x.cols, y.data());
    store(out, r, y);
  }
}

void RefBackend::add_layer_norm(const Act& out, Tensor x, Tensor delta, const LayerNormSpec& norm) {
  add(x, delta);
  layer_norm(out, x, norm);
}

void RefBackend::add(Tensor x, Tensor delta) {
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t i = 0; i < x.cols; ++i) x.row(r)[i] += delta.row(r)[i];
  }
}

void RefBackend::scale(Tensor x, float factor) {
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t i = 0; i < x.cols; ++i) x.row(r)[i] *= factor;
  }
}

void RefBackend::softcap(Tensor x, float cap) {
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t i = 0; i < x.cols; ++i) {
      x.row(r)[i] = static_cast<float>(cap * std::tanh(static_cast<double>(x.row(r)[i]) / cap));
    }
  }
}

void RefBackend::matmul(Tensor out, const Act& x, const Weight& w) {
  CHECK(x.f.cols == w.cols && out.cols == w.rows);
  std::vector<float> row(static_cast<size_t>(w.cols));
  for (int64_t j = 0; j < w.rows; ++j) {
    ref_weight(w).decode_row(j, w.cols, row.data());
    double bias = w.bias.empty() ? 0 : w.bias[static_cast<size_t>(j)];
    for (int64_t i = 0; i < out.rows; ++i) {
      out.row(i)[j] = static_cast<float>(dot(x.f.row(i), row.data(), w.cols) + bias);
    }
  }
}

void RefBackend::finish_qkv(Tensor qkv, const QkvSpec& spec, const BatchView& batch, KvLayer kv) {
  const AttentionSpec& a = spec.attention;
  int dim = a.head_dim;
  for (int64_t r = 0; r < batch.num_tokens; ++r) {
    float* row = qkv.row(r);
    for (int h = 0; h < a.num_heads + a.num_kv_heads; ++h) {
      float* x = row + h * dim;
      const float* weight = h < a.num_heads ? spec.q_norm : spec.k_norm;
      if (weight) norm(x, weight, dim, spec.eps, x);
      if (spec.rope && spec.cos_sin) rotate(x, *spec.rope, spec.cos_sin + r * spec.rope->dims);
    }
    if (spec.q.data && spec.q.data != qkv.data) std::copy_n(row, a.num_heads * dim, spec.q.row(r));
    const float* k = row + a.num_heads * dim;
    const float* v = k + a.num_kv_heads * dim;
    KvAddress at = kv_address(kv, batch, batch.row_slot[r], batch.positions[r]);
    for (int h = 0; h < a.num_kv_heads; ++h) {
      store_kv(at, false, h, k + h * dim);
      store_kv(at, true, h, v + h * dim);
    }
  }
}

void RefBackend::attention(
    const Act& out, Tensor q, const AttentionSpec& spec, const BatchView& batch, KvLayer kv) {
  int group = spec.num_heads / spec.num_kv_heads;
  std::vector<float> y(static_cast<size_t>(spec.num_heads * spec.head_dim));
  for (const SliceView& s : batch.slices) {
    for (int i = 0; i < s.count; ++i) {
      int64_t pos = s.pos + i;
      int64_t begin = spec.window > 0 ? std::max<int64_t>(0, pos - spec.window + 1) : 0;
      for (int h = 0; h < spec.num_heads; ++h) {
        attend(q.row(s.row + i) + h * spec.head_dim, y.data() + h * spec.head_dim, spec, h / group,
               kv, batch, {s.slot, begin, pos + 1});
      }
      store(out, s.row + i, y);
    }
  }
}

void RefBackend::activate(const Act& out, Tensor x, Activation activation) {
  std::vector<float> y(static_cast<size_t>(x.cols));
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t i = 0; i < x.cols; ++i)
      y[static_cast<size_t>(i)] = static_cast<float>(activated(x.row(r)[i], activation));
    store(out, r, y);
  }
}

void RefBackend::activate_gated(const Act& out, Tensor gate_up, Activation activation) {
  int64_t f = gate_up.cols / 2;
  std::vector<float> y(static_cast<size_t>(f));
  for (int64_t r = 0; r < gate_up.rows; ++r) {
    const float* gate = gate_up.row(r);
    for (int64_t i = 0; i < f; ++i)
      y[static_cast<size_t>(i)] = static_cast<float>(activated(gate[i], activation) * gate[f + i]);
    store(out, r, y);
  }
}

void RefBackend::copy_blocks(std::span<const KvLayer> layers, std::span<const BlockCopy> copies) {
  for (const KvLayer& kv : layers) {
    size_t bytes = kv.block_bytes();
    for (const BlockCopy& c : copies) {
      for (void* base : {kv.k, kv.v}) {
        auto* p = static_cast<std::byte*>(base);
        std::memmove(p + static_cast<size_t>(c.to) * bytes, p + static_cast<size_t>(c.from) * bytes,
                     bytes);
      }
    }
  }
}

void RefBackend::parallel(int n, void (*f)(void* ctx, int index), void* ctx) {
  for (int i = 0; i < n; ++i) f(ctx, i);
}

std::unique_ptr<Backend> make_ref_backend() { return std::make_unique<RefBackend>(); }

}  // namespace sluice

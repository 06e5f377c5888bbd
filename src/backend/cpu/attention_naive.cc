#include "backend/cpu/attention_naive.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tensor/formats/f16.h"

namespace sluice {

namespace {

// One head's K and V of positions [begin, end) as f32.
struct HeadKv {
  int64_t begin, end;
  std::vector<float> keys;    // [head_dim, positions]
  std::vector<float> values;  // [positions, head_dim]
  int64_t num() const { return end - begin; }
};

// Element (dimension d, position `at` of the block) of K, or V: the layouts of KvLayer.
float element(const KvLayer& kv, const std::byte* plane, bool value, int64_t at, int64_t d) {
  if (kv.type != DType::i8) {
    const int64_t i = value ? at * kv.head_dim + d : d * kv.block_size + at;
    if (kv.type == DType::f32) return reinterpret_cast<const float*>(plane)[i];
    return f16_to_f32(reinterpret_cast<const uint16_t*>(plane)[i]);
  }
  const int64_t i =
      value ? (at / 4 * kv.head_dim + d) * 4 + at % 4 : (d / 4 * kv.block_size + at) * 4 + d % 4;
  const auto* scales =
      reinterpret_cast<const uint16_t*>(plane + int64_t{kv.head_dim} * kv.block_size);
  return f16_to_f32(scales[d / kv.group * kv.block_size + at]) *
         static_cast<float>(static_cast<int8_t>(plane[i]));
}

HeadKv gather(const KvLayer& kv, const SlotTable& table, int head, int64_t begin, int64_t end) {
  HeadKv out{begin, end, {}, {}};
  const int64_t num = out.num(), dim = kv.head_dim;
  out.keys.resize(static_cast<size_t>(num * dim));
  out.values.resize(static_cast<size_t>(num * dim));
  for (int64_t p = 0; p < num; ++p) {
    const int64_t pos = begin + p, at = pos % kv.block_size;
    const size_t plane =
        static_cast<size_t>(table[pos / kv.block_size] * kv.num_kv_heads + head) * kv.head_bytes();
    const auto* k = static_cast<const std::byte*>(kv.k) + plane;
    const auto* v = static_cast<const std::byte*>(kv.v) + plane;
    for (int64_t d = 0; d < dim; ++d) {
      out.keys[static_cast<size_t>(d * num + p)] = element(kv, k, false, at, d);
      out.values[static_cast<size_t>(p * dim + d)] = element(kv, v, true, at, d);
    }
  }
  return out;
}

// scores [positions]: of a query at `pos`, as weights that sum up to 1.
void softmax(float* scores, const HeadKv& kv, int64_t pos, const AttentionSpec& spec) {
  const int64_t first = spec.window > 0 ? pos - spec.window + 1 : 0;
  float top = -INFINITY;
  for (int64_t p = 0; p < kv.num(); ++p) {
    float s = scores[p] * spec.scale;
    if (spec.softcap > 0) s = spec.softcap * std::tanh(s / spec.softcap);
    const int64_t at = kv.begin + p;
    scores[p] = at >= first && at <= pos ? s : -INFINITY;
    top = std::max(top, scores[p]);
  }
  float sum = 0;
  for (int64_t p = 0; p < kv.num(); ++p) sum += scores[p] = std::exp(scores[p] - top);
  for (int64_t p = 0; p < kv.num(); ++p) scores[p] /= sum;
}

void attend_head(Tensor out,
                 Tensor q,
                 const AttentionSpec& spec,
                 const SliceView& slice,
                 const HeadKv& kv,
                 int head) {
  const int64_t num = kv.num(), dim = spec.head_dim;
  // Scores of all positions at once, for so many queries that memory stays bounded.
  constexpr int kQueries = 64;
  std::vector<float> scores(static_cast<size_t>(std::min(slice.count, kQueries) * num));
  for (int first = 0; first < slice.count; first += kQueries) {
    const int count = std::min(kQueries, slice.count - first);
    std::fill(scores.begin(), scores.end(), 0.0F);
    for (int i = 0; i < count; ++i) {
      const float* query = q.row(slice.row + first + i) + head * dim;
      float* row = scores.data() + i * num;
      for (int64_t d = 0; d < dim; ++d) {
        const float* key = kv.keys.data() + d * num;
        const float x = query[d];
        for (int64_t p = 0; p < num; ++p) row[p] += x * key[p];
      }
    }
    for (int i = 0; i < count; ++i)
      softmax(scores.data() + i * num, kv, slice.pos + first + i, spec);
    for (int i = 0; i < count; ++i) {
      float* y = out.row(slice.row + first + i) + head * dim;
      std::fill_n(y, dim, 0.0F);
      for (int64_t p = 0; p < num; ++p) {
        const float w = scores[static_cast<size_t>(i * num + p)];
        if (w == 0) continue;  // what it does not see may be anything
        const float* value = kv.values.data() + p * dim;
        for (int64_t d = 0; d < dim; ++d) y[d] += w * value[d];
      }
    }
  }
}

}  // namespace

void attend_naive(ThreadPool& pool,
                  Tensor out,
                  Tensor q,
                  const AttentionSpec& spec,
                  const BatchView& batch,
                  const KvLayer& kv) {
  const int group = spec.num_heads / spec.num_kv_heads;
  const auto num = static_cast<int64_t>(batch.slices.size()) * spec.num_heads;
  pool.for_each(num, [&](int64_t i, int) {
    const SliceView& slice = batch.slices[static_cast<size_t>(i / spec.num_heads)];
    const int head = static_cast<int>(i % spec.num_heads);
    const int64_t first = spec.window > 0 ? std::max(0, slice.pos - spec.window + 1) : 0;
    const HeadKv head_kv = gather(kv, SlotTable(batch, kv, slice.slot), head / group, first,
                                  int64_t{slice.pos} + slice.count);
    attend_head(out, q, spec, slice, head_kv, head);
  });
}

}  // namespace sluice

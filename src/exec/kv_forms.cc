#include "exec/kv_forms.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "tensor/formats/f16.h"

namespace sluice {

namespace {

constexpr float kMostF16 = 65504;

struct F32 {
  using Bits = float;
  static float load(float v) { return v; }
  static float store(float v) { return v; }
};
struct F16 {
  using Bits = uint16_t;
  static float load(uint16_t v) { return f16_to_f32(v); }
  static uint16_t store(float v) { return f32_to_f16(std::clamp(v, -kMostF16, kMostF16)); }
};
struct Bf16 {
  using Bits = uint16_t;
  static float load(uint16_t v) { return bf16_to_f32(v); }
  static uint16_t store(float v) { return f32_to_bf16(v); }
};

// Elements of one head: strides from one position and one dimension to the next.
template <typename From, typename To>
struct Head {
  const typename From::Bits* from;
  typename To::Bits* to;
  int64_t from_position, from_dim, to_position, to_dim;

  void copy(KvForms::Positions p, int head_dim) const {
    for (int64_t i = p.first; i < p.end; ++i) {
      for (int64_t d = 0; d < head_dim; ++d)
        to[i * to_position + d * to_dim] =
            To::store(From::load(from[i * from_position + d * from_dim]));
    }
  }
};

// f(host's type, device's type)
template <typename F>
void with_types(DType host, DType device, const F& f) {
  const auto with_device = [&](auto h) {
    if (device == DType::f32) return f(h, F32());
    if (device == DType::f16) return f(h, F16());
    CHECK(device == DType::bf16);
    f(h, Bf16());
  };
  if (host == DType::f32) return with_device(F32());
  CHECK(host == DType::f16);
  with_device(F16());
}

}  // namespace

void KvForms::to_device(int32_t block, Positions p, std::byte* k, std::byte* v) const {
  if (p.first >= p.end) return;
  const int64_t dim = host_.head_dim, size = host_.block_size, head = dim * size;
  with_types(host_.type, device_, [&](auto host, auto device) {
    using From = decltype(host);
    using To = decltype(device);
    const int64_t first = int64_t{block} * host_.num_kv_heads * head;
    const auto* hk = static_cast<const typename From::Bits*>(host_.k) + first;
    const auto* hv = static_cast<const typename From::Bits*>(host_.v) + first;
    auto* dk = reinterpret_cast<typename To::Bits*>(k);
    auto* dv = reinterpret_cast<typename To::Bits*>(v);
    for (int64_t h = 0; h < host_.num_kv_heads; ++h) {
      Head<From, To>{hk + h * head, dk + h * head, 1, size, dim, 1}.copy(p, host_.head_dim);
      Head<From, To>{hv + h * head, dv + h * head, dim, 1, dim, 1}.copy(p, host_.head_dim);
    }
  });
}

void KvForms::to_host(int32_t block, Positions p, const std::byte* k, const std::byte* v) const {
  if (p.first >= p.end) return;
  const int64_t dim = host_.head_dim, size = host_.block_size, head = dim * size;
  with_types(host_.type, device_, [&](auto host, auto device) {
    using To = decltype(host);
    using From = decltype(device);
    const int64_t first = int64_t{block} * host_.num_kv_heads * head;
    auto* hk = static_cast<typename To::Bits*>(host_.k) + first;
    auto* hv = static_cast<typename To::Bits*>(host_.v) + first;
    const auto* dk = reinterpret_cast<const typename From::Bits*>(k);
    const auto* dv = reinterpret_cast<const typename From::Bits*>(v);
    for (int64_t h = 0; h < host_.num_kv_heads; ++h) {
      Head<From, To>{dk + h * head, hk + h * head, dim, 1, 1, size}.copy(p, host_.head_dim);
      Head<From, To>{dv + h * head, hv + h * head, dim, 1, dim, 1}.copy(p, host_.head_dim);
    }
  });
}

}  // namespace sluice

#include "runtime/fit.h"

#include <algorithm>
#include <optional>
#include <span>

#include "backend/cuda_packed.h"
#include "base/str.h"

namespace sluice {

namespace {

constexpr int kUsefulContext = 512;  // less is no advice

enum class KvBytes : uint8_t { as_is, int8, f8 };

// A change to the options; absent fields stay.
struct Change {
  std::optional<Quantize> quantize;
  KvBytes kv = KvBytes::as_is;
  bool stored = false;  // a file's quantised weights as they are
};

// By what is lost: nothing with weights as stored, not much with the cache in int8, more in f8,
// then weights in 8 bits, then in 4. f8 directly follows int8 with the same weights.
const Change kOnCpu[] = {{},
                         {{}, KvBytes::int8},
                         {Quantize::w8a8},
                         {Quantize::w8a8, KvBytes::int8},
                         {Quantize::w4},
                         {Quantize::w4, KvBytes::int8}};
const Change kOnGpu[] = {{},
                         {{}, KvBytes::as_is, true},
                         {{}, KvBytes::int8},
                         {{}, KvBytes::f8},
                         {{}, KvBytes::int8, true},
                         {{}, KvBytes::f8, true},
                         {Quantize::fp8},
                         {Quantize::fp8, KvBytes::int8},
                         {Quantize::fp8, KvBytes::f8}};

bool has_packed(const Checkpoint& checkpoint) {
  return std::ranges::any_of(checkpoint.tensors(),
                             [](const TensorInfo& t) { return is_packed(t.format); });
}

// The longest context that fits, at most what was asked for; 0: none worth having.
int longest_context(const Checkpoint& checkpoint,
                    const ModelShape& shape,
                    const EngineOptions& options,
                    const DeviceMemory* device,
                    MemoryEstimate& estimate) {
  int most = options.ctx.value_or(shape.max_len);
  int fits = 0;
  for (int step = most; step > 0; step /= 2) {
    int tried = std::min(most, fits + step);
    EngineOptions o = options;
    o.ctx = tried;
    Result<MemoryEstimate> l = estimate_memory(checkpoint, shape, o, device);
    if (!l || !l->shortage.empty()) continue;
    fits = tried;
    estimate = *l;
    if (fits == most) break;
  }
  return fits >= std::min(kUsefulContext, most) ? fits : 0;
}

}  // namespace

KvType int8_kv_type(int head_dim) { return {DType::i8, head_dim % 32 == 0 ? 32 : 8}; }

std::vector<FitAdvice> what_would_fit(const Checkpoint& checkpoint,
                                      const ModelShape& shape,
                                      const EngineOptions& options,
                                      const DeviceMemory* device,
                                      FitAdvice* least) {
  std::vector<FitAdvice> advice;
  const int asked = options.ctx.value_or(shape.max_len);
  bool int8_fits = false;  // with the weights of the last change that had int8
  std::span<const Change> changes = device ? std::span<const Change>(kOnGpu) : kOnCpu;
  for (const Change& c : changes) {
    // What the user has chosen is not chosen again, but for the context and the pool's size.
    if (c.quantize && options.quantize != Quantize::none) continue;
    if (c.stored && (options.gpu_weights || options.quantize != Quantize::none ||
                     options.dtype == DType::f32 || !has_packed(checkpoint)))
      continue;
    const bool bytes = c.kv != KvBytes::as_is;
    if (bytes && options.kv_type && options.kv_type->type != DType::f16) continue;
    EngineOptions o = options;
    o.kv_bytes.reset();
    o.kv_blocks.reset();
    std::string text;
    if (c.stored) {
      o.gpu_weights = GpuWeights::stored;
      text += " --gpu-weights stored";
    }
    if (c.quantize) {
      o.quantize = *c.quantize;
      text += strf(" --quantize %s", name_of(kQuantizes, *c.quantize));
    }
    if (bytes) {
      o.kv_type = c.kv == KvBytes::f8 ? KvType(DType::f8) : int8_kv_type(shape.head_dim);
      text += strf(" --kv %s", name_of(kKvTypes, o.kv_type));
    }
    FitAdvice a;
    int ctx = longest_context(checkpoint, shape, o, device, a.estimate);
    // A little more context is not worth what f8 loses to int8; all that was asked for is.
    if (c.kv == KvBytes::int8) int8_fits = ctx > 0;
    if (c.kv == KvBytes::f8 && int8_fits && ctx < asked) continue;
    if (ctx > 0) {
      if (ctx != asked) text += strf(" --ctx %d", ctx);
      if (options.kv_bytes || options.kv_blocks)
        text += strf(" --kv-memory %zuM", (a.estimate.ledger.kv >> 20) + 1);
      if (text.empty()) continue;
      a.options = text.substr(1);
      advice.push_back(std::move(a));
      if (ctx == asked) break;  // more would lose more, for nothing
      continue;
    }
    o.ctx = std::min(kUsefulContext, shape.max_len);
    EngineOptions small = o;
    Result<MemoryEstimate> l = estimate_memory(checkpoint, shape, small, device);
    if (least && l && (least->estimate.total() == 0 || l->total() < least->estimate.total()))
      *least = {text.empty() ? "" : text.substr(1), *l};
  }
  return advice;
}

}  // namespace sluice

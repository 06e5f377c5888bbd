#include "runtime/fit.h"

#include <algorithm>
#include <span>

#include "base/str.h"

namespace sluice {

namespace {

constexpr int kUsefulContext = 512;  // less is no advice

// A change to the options; empty fields stay.
struct Change {
  const char* quantize;
  const char* kv;
};

// By what is lost: nothing much with the cache in 8 bits, then weights in 8, then in 4.
constexpr Change kOnCpu[] = {{"", ""},         {"", "int8"}, {"w8a8", ""},
                             {"w8a8", "int8"}, {"w4", ""},   {"w4", "int8"}};
constexpr Change kOnGpu[] = {{"", ""}, {"", "f8"}, {"fp8", ""}, {"fp8", "f8"}};

// The longest context that fits, at most what was asked for; 0: none worth having.
int longest_context(const Checkpoint& checkpoint,
                    const ModelShape& shape,
                    const EngineOptions& options,
                    const DeviceMemory* device,
                    MemoryEstimate& estimate) {
  int most = options.ctx > 0 ? options.ctx : shape.max_len;
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

std::vector<FitAdvice> what_would_fit(const Checkpoint& checkpoint,
                                      const ModelShape& shape,
                                      const EngineOptions& options,
                                      const DeviceMemory* device,
                                      FitAdvice* least) {
  std::vector<FitAdvice> advice;
  const int asked = options.ctx > 0 ? options.ctx : shape.max_len;
  std::span<const Change> changes = device ? std::span<const Change>(kOnGpu) : kOnCpu;
  for (const Change& c : changes) {
    // What the user has chosen is not chosen again, but for the context and the pool's size.
    if (*c.quantize && options.quantize != "none") continue;
    if (*c.kv && options.kv_type != "auto" && options.kv_type != "f16") continue;
    EngineOptions o = options;
    o.kv_bytes = 0;
    o.kv_blocks = 0;
    std::string text;
    if (*c.quantize) {
      o.quantize = c.quantize;
      text += strf(" --quantize %s", c.quantize);
    }
    if (*c.kv) {
      o.kv_type = c.kv;
      text += strf(" --kv %s", c.kv);
    }
    FitAdvice a;
    int ctx = longest_context(checkpoint, shape, o, device, a.estimate);
    if (ctx > 0) {
      if (ctx != asked) text += strf(" --ctx %d", ctx);
      if (options.kv_bytes > 0 || options.kv_blocks > 0)
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

#include "tools/plan/cpu_kernels.h"

#include <algorithm>
#include <cstdio>

#include "base/build_id.h"
#include "base/check.h"
#include "tools/bench_limits.h"
#include "tools/terminal.h"

namespace sluice {

namespace {

constexpr std::string_view kTokenEmbedding = "token_embd.weight", kLogitsMatrix = "output.weight";
constexpr std::string_view kPositionTable = "position_embd.weight";

// Tensors whose product is part of another's (model/weights.h).
bool is_beside(std::string_view name) {
  constexpr std::string_view kBeside[] = {".attn_k.weight", ".attn_v.weight", ".ffn_gate.weight"};
  return std::ranges::any_of(kBeside, [&](std::string_view end) { return name.ends_with(end); });
}

uint8_t acts_of(std::span<const KernelUse> uses) {
  uint8_t acts = 0;
  for (const KernelUse& u : uses) acts |= u.kernel->act_needs;
  return acts;
}

const KernelRate* find_rate(const CpuLimits& limits, std::string_view kernel, int threads) {
  const auto at = std::ranges::find_if(limits.kernels, [&](const KernelRate& r) {
    return r.kernel == kernel && r.threads == threads;
  });
  return at == limits.kernels.end() ? nullptr : &*at;
}

}  // namespace

std::vector<KernelUse> kernels_of(const Checkpoint& file, const LoadQuant& quant) {
  const bool untied = std::ranges::any_of(
      file.tensors(), [](const TensorInfo& t) { return t.name == kLogitsMatrix; });
  std::vector<KernelUse> out;
  for (const TensorInfo& t : file.tensors()) {
    if (t.rows <= 1 || t.name == kPositionTable || (untied && t.name == kTokenEmbedding)) continue;
    const MatmulRow* kernel = &choose_matmul(t, quant.of(t));
    auto at = std::ranges::find(out, kernel, &KernelUse::kernel);
    if (at == out.end()) at = out.insert(out.end(), {.kernel = kernel});
    const bool logits = t.name == (untied ? kLogitsMatrix : kTokenEmbedding);
    (logits ? at->logits : at->body) += static_cast<double>(t.rows) * static_cast<double>(t.cols);
    at->calls += !logits && !is_beside(t.name);
  }
  return out;
}

bool complete_rates(CpuLimits& limits,
                    std::span<const KernelUse> uses,
                    const ModelShape& shape,
                    int threads,
                    const std::function<void(const std::string& kernel)>& say) {
  bool added = false;
  const auto need = [&](const std::string& kernel, const std::function<KernelRate()>& measure) {
    if (!find_rate(limits, kernel, threads)) {
      say(kernel);
      limits.kernels.push_back(measure());
      added = true;
    }
    return *find_rate(limits, kernel, threads);
  };
  for (const KernelUse& u : uses) {
    const MatmulRow& row = *u.kernel;
    const KernelRate product = need(row.name, [&] { return measure_product(row, threads); });
    need(product_call_name(row), [&] { return measure_product_call(row, threads, product); });
  }
  const KernelRate decode =
      need(decode_attention_name(shape), [&] { return measure_decode_attention(shape, threads); });
  need(decode_row_name(shape), [&] { return measure_decode_row(shape, threads, decode); });
  need(prompt_attention_name(shape), [&] { return measure_prompt_attention(shape, threads); });
  const uint8_t acts = acts_of(uses);
  need(row_ops_name(shape, acts), [&] { return measure_row_ops(shape, acts, threads); });
  return added;
}

CpuKernels kernels_with_rates(const CpuLimits& limits,
                              std::span<const KernelUse> uses,
                              const ModelShape& shape,
                              int threads) {
  const auto rate = [&](const std::string& kernel) {
    const KernelRate* found = find_rate(limits, kernel, threads);
    CHECK(found);
    return *found;
  };
  CpuKernels out;
  for (const KernelUse& u : uses)
    out.products.push_back({rate(u.kernel->name), u.body, u.logits,
                            rate(product_call_name(*u.kernel)), static_cast<double>(u.calls)});
  out.decode = rate(decode_attention_name(shape));
  out.decode_row = rate(decode_row_name(shape));
  out.prompt = rate(prompt_attention_name(shape));
  out.row_ops = rate(row_ops_name(shape, acts_of(uses)));
  return out;
}

CpuKernels this_cpu(const Checkpoint& file,
                    const ModelShape& shape,
                    const LoadQuant& quant,
                    int threads,
                    bool quiet) {
  const std::vector<KernelUse> uses = kernels_of(file, quant);
  CpuLimits limits = kept_limits(quiet);
  StatusLine status(!quiet);
  bool told = quiet;
  const bool added = complete_rates(limits, uses, shape, threads, [&](const std::string& kernel) {
    if (!told) std::fprintf(stderr, "sluice: measures kernels of this CPU, once\n");
    told = true;
    status.show(kernel, true);
  });
  limits.build = build_id();
  const std::string path = limits_path(limits.id);
  if (added && !path.empty()) {
    if (auto ok = save_limits(path, limits); !ok)
      std::fprintf(stderr, "sluice: %s\n", ok.error().message.c_str());
  }
  return kernels_with_rates(limits, uses, shape, threads);
}

}  // namespace sluice

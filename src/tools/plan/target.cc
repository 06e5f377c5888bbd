#include "tools/plan/target.h"

#include <algorithm>

#include "base/str.h"
#include "load/open.h"
#include "runtime/placement.h"
#include "tools/locate_model.h"
#include "tools/plan/cost_file.h"
#include "tools/plan/cpu_kernels.h"

namespace sluice {

namespace {

// Of the bytes that K and V in 8 bits save on a GPU, so much shows in the time to read them: 256
// rows of 1,024 positions take 9.44 instead of 10.7 ms (docs/performance.md, "K and V in 8 bits").
constexpr double kSavedReadsSeen = 0.5;

// How near derived steps are held to our own on an H200 (plan_test.cc), with 16-bit and with other
// weights, or from rates of kernels on a CPU (docs/plan.md).
constexpr double kDerivedError16 = 0.15, kDerivedErrorOther = 0.30;

// Weights that take less of their size in 16 bits are quantised, not those of a 16-bit file.
constexpr double kStoredShare = 0.9;

}  // namespace

std::vector<GivenOption> setting_options(const PlanSettings& s, bool gpu) {
  std::vector<GivenOption> out;
  if (s.preset) out.push_back({"--preset", {*s.preset}});
  if (s.budget) out.push_back({"--budget", {std::to_string(*s.budget)}});
  if (s.beside) out.push_back({gpu ? "--mixed-budget" : "--chunk", {std::to_string(*s.beside)}});
  if (s.max_seqs) out.push_back({"--max-seqs", {std::to_string(*s.max_seqs)}});
  if (s.kv) out.push_back({"--kv", {name_of(kKvTypes, s.kv)}});
  return out;
}

Result<PlanTarget> PlanTarget::open(const EngineOptions& engine, const PlanDeviceOptions& on) {
  PlanTarget t;
  t.engine_ = engine;
  t.engine_.quiet = true;
  Result<std::string> path = locate_model(engine.model, engine.quiet);
  if (!path) return path.error();
  Result<std::unique_ptr<Checkpoint>> file =
      open_model(*path, random_format(engine), engine.random_seed);
  if (!file) return file.error();
  t.file_ = std::move(*file);
  Result<ModelShape> shape = read_shape(*t.file_);
  if (!shape) return shape.error();
  t.shape_ = *shape;
  t.device_ = on.device.empty() ? "cpu" : on.device;
  const SolDevice* row = find_sol_device(t.device_);
  if (!row && t.device_ != "cpu")
    return Error{400, strf("no device %s: it may be cpu, %s", quote(t.device_).c_str(),
                           sol_device_names().c_str())};
  t.gpu_ = row != nullptr;
  if (row) {
    t.device_ = row->name;
    t.memory_ = row->memory * kUsableMemory;
    t.price_ = row->price, t.link_ = row->link;
  }
  if (!on.cost.empty()) {
    if (auto ok = t.use_cost_file(on.cost, !on.device.empty()); !ok) return ok.error();
  }
  if (on.price > 0) t.price_ = on.price;
  t.engine_.device.kind = t.gpu_ ? DeviceChoice::Kind::cuda : DeviceChoice::Kind::cpu;
  if (on.cost.empty()) {
    if (auto ok = t.use_limits(engine.quiet); !ok) return ok.error();
  }
  return t;
}

Result<void> PlanTarget::use_cost_file(const std::string& path, bool asked) {
  Result<CostFile> f = load_cost(path);
  if (!f) return f.error();
  if (auto ok = check_cost_shape(*f, path, engine_.model, shape_); !ok) return ok.error();
  const CostUse use{.model = engine_.model,
                    .format = cost_format(engine_.model, random_format(engine_)),
                    .gpu = asked ? gpu_ : f->is_gpu(),
                    .gpu_name = gpu_ ? device_ : "",
                    .threads = num_threads(engine_),
                    .types = weight_types(engine_)};
  if (auto ok = check_cost_use(*f, path, use); !ok) return ok.error();
  cost_ = f->cost;
  kv_token_ = f->kv_token;
  measured_ = true;
  cost_error_ = f->error_p50;
  source_ =
      strf("measured: %d steps on %s; half of them within %.1f %%, nine in ten within %.1f %%",
           f->num_steps, f->machine.c_str(), f->error_p50 * 100, f->error_p90 * 100);
  if (device_ == "cpu" && f->is_gpu()) {
    device_ = f->device;
    gpu_ = true;
    memory_ = f->memory;
  }
  return {};
}

Result<void> PlanTarget::use_limits(bool quiet) {
  Result<PlanSetup> as_is = setup({});
  if (!as_is) return as_is.error();
  kv_token_ = static_cast<double>(as_is->ledger.kv_per_token);
  if (!gpu_) return use_cpu_kernels(quiet);
  const bool bits8 = engine_.quantize != Quantize::none && engine_.quantize != Quantize::w4;
  // A GPU computes in 16 bits whatever the file has, unless asked for fp8 or w8a8.
  const double bits = bits8 ? 8 : 16;
  SolModel m = sol_model(*file_, shape_, bits);
  m.step *= static_cast<double>(as_is->ledger.weights) / m.weights;
  m.weights = static_cast<double>(as_is->ledger.weights);
  m.kv_token = kv_read_bytes(kv_token_);
  const SolDevice& d = *find_sol_device(device_);
  const bool stored = engine_.gpu_weights == GpuWeights::stored &&
                      m.weights < kStoredShare * sol_model(*file_, shape_, bits).weights;
  const WeightUse use = stored ? WeightUse::stored : bits8 ? WeightUse::bits8 : WeightUse::plain;
  cost_ = derive_cost(m, d, kGpuReached, use);
  cost_error_ = use == WeightUse::plain ? kDerivedError16 : kDerivedErrorOther;
  source_ =
      strf("derived from limits, %.0f GB/s and %.1f TFLOP/s: `sluice plan calibrate` measures",
           d.bandwidth / 1e9, d.peak / 1e12);
  return {};
}

Result<void> PlanTarget::use_cpu_kernels(bool quiet) {
  Result<LoadQuant> quant = weight_quant(engine_, *file_);
  if (!quant) return quant.error();
  const CpuKernels kernels = this_cpu(*file_, shape_, *quant, num_threads(engine_), quiet);
  cost_ = derive_cpu_cost(shape_, kernels);
  // Measured with K and V in 16 bits.
  cost_.context *= kv_token_ / static_cast<double>(shape_.kv_bytes_per_token(KvType(DType::f16)));
  cost_error_ = kDerivedErrorOther;
  source_ =
      strf("derived from %zu rates of kernels with %d threads: `sluice plan calibrate` measures",
           2 * kernels.products.size() + 4, num_threads(engine_));
  return {};
}

double PlanTarget::kv_read_bytes(double kv_token) const {
  const auto plain = static_cast<double>(shape_.kv_bytes_per_token(KvType(DType::f16)));
  if (!gpu_ || kv_token >= plain) return kv_token;
  return plain - (plain - kv_token) * kSavedReadsSeen;
}

Result<PlanSetup> PlanTarget::setup(const PlanSettings& s) const {
  EngineOptions e = engine_;
  if (s.preset) {
    if (auto ok = apply_preset(*s.preset, e.scheduler); !ok) return ok.error();
  }
  if (!e.step_sizes) e.step_sizes.emplace();
  if (s.budget) e.step_sizes->budget = s.budget;
  if (s.beside) (gpu_ ? e.step_sizes->mixed_budget : e.step_sizes->chunk) = s.beside;
  if (s.max_seqs) e.scheduler.max_seqs = *s.max_seqs;
  if (s.kv) e.kv_type = s.kv;
  if (auto ok = gpu_ ? choose_gpu(e, shape_) : choose_device(e, shape_); !ok) return ok.error();
  std::optional<DeviceMemory> gpu;
  if (gpu_)
    gpu = DeviceMemory{static_cast<size_t>(memory_) * static_cast<size_t>(s.ways),
                       gpu_type(e, *file_)};
  Result<Ledger> ledger = plan_memory(*file_, shape_, e, gpu ? &*gpu : nullptr);
  if (!ledger) return ledger.error();
  PlanSetup out{{e.scheduler, cost_}, *ledger};
  if (kv_token_ > 0)
    out.sim.cost.context *=
        kv_read_bytes(static_cast<double>(ledger->kv_per_token)) / kv_read_bytes(kv_token_);
  if (s.ways > 1) out.sim.cost = parallel_cost(out.sim.cost, shape_, s.ways, link_);
  return out;
}

}  // namespace sluice

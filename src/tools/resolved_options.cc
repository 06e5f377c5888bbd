#include "tools/resolved_options.h"

#include <algorithm>

#include "base/json.h"
#include "base/str.h"
#include "core/policy.h"
#include "hub/hub_name.h"
#include "net/http.h"
#include "runtime/ledger.h"
#include "runtime/placement.h"
#include "runtime/sampling_defaults.h"
#include "tools/bench_serve/plan.h"

namespace sluice {

namespace {

std::string served_name(std::string model) {
  if (model.starts_with("random:")) return model;
  if (is_hub_name(model)) return model.substr(3);
  while (model.ends_with('/')) model.pop_back();  // a directory
  size_t slash = model.find_last_of('/');
  std::string name = slash == std::string::npos ? model : model.substr(slash + 1);
  if (name.ends_with(".gguf")) name.resize(name.size() - 5);
  return name.empty() ? "model" : name;
}

// Flags have the names of the API's fields, with dashes.
void add_sampling(const EngineOptions& o, ResolvedValues& values) {
  for (const auto& field : sampling_json(SamplingSpec())) {
    std::string name = field.key();
    std::replace(name.begin(), name.end(), '_', '-');
    values[name] = o.generation_config == GenerationConfig::model ? "(the model's)"
                                                                  : plain_json(field.value());
  }
}

}  // namespace

ResolvedValues resolved_values(const EngineOptions& given) {
  EngineOptions o = given;
  o.device = resolve_device(o.device);
  resolve_step_sizes(o, nullptr);
  const SchedulerConfig& s = o.scheduler;
  const bool gpu = o.device.is_gpu();
  const bool by_model = gpu && !o.gpu_layers && o.step_sizes && o.step_sizes->serves &&
                        !o.step_sizes->chunk && !s.slo.any();
  // On the CPU no head size refuses the default.
  const std::optional<KvType> kv = kv_type_of(EngineOptions(), 0, nullptr).value();
  ResolvedValues values = {
      {"device", o.device.name()},
      {"threads", std::to_string(num_threads(o))},
      {"ctx", "(the model's, if it fits)"},
      {"kv-memory", o.kv_blocks ? "(by --kv-blocks)"
                    : gpu       ? "(what is free)"
                                : "(up to half of what is free)"},
      {"kv-blocks", "(by --kv-memory)"},
      {"swap-memory", s.preempt == Preempt::swap ? "(half of the KV cache's)" : "(none)"},
      {"prefix-host", "0"},
      {"prefix-disk", "0"},
      {"prefix-disk-dir", "(the user's cache)"},
      {"kv", gpu ? "(that of activations)" : name_of(kKvTypes, kv)},
      {"dtype", "(the file's)"},
      {"gpu-layers", gpu ? "(all)" : "0"},
      {"gpu-memory", gpu ? "(what is free)" : "(on a GPU)"},
      {"gpu-weights", gpu ? "16bit" : "(on a GPU)"},
      {"budget", std::to_string(s.budget)},
      {"chunk", std::to_string(s.chunk)},
      {"mixed-budget", by_model ? "(by the model's size)" : std::to_string(s.mixed_budget)},
      {"slo", slo_target_name(s.slo)},
      {"short-share", strf("%g", static_cast<double>(s.short_share))},
      {"batching", name_of(kBatchings, s.batching)},
      {"prefill", name_of(kPrefills, s.prefill)},
      {"mix", name_of(kMixes, s.mix)},
      {"order", name_of(kOrders, s.order)},
      {"admission", name_of(kAdmissions, s.admission)},
      {"predict-output", predictor_name(s.predictor)},
      {"max-tokens", "(by the chat template)"},
  };
  if (o.gpu_layers && gpu) values["pipeline"] = "sync (overlap where all layers fit)";
  add_sampling(o, values);
  return values;
}

ResolvedValues resolved_values(const ServeOptions& o) {
  ResolvedValues values = resolved_values(o.engine);
  const int64_t queue = queue_limit(o);
  values["served-model-name"] = served_names(o).front();
  if (o.transfer.role != KvRole::none) values["prefix-host"] = "1G";
  values["log-requests"] = o.log_requests ? "true" : "false";
  values["max-queue"] = queue > 0 ? std::to_string(queue) : "(no limit on loopback)";
  values["ttft-limit"] = "(none)";
  values["max-connections-per-ip"] =
      strf("%zu (loopback: no limit)", HttpLimits().connections_per_ip);
  return values;
}

ResolvedValues resolved_values(const PerplexityOptions& o) {
  ResolvedValues values = resolved_values(o.engine);
  values["ctx"] = std::to_string(kPerplexityWindow);
  values["windows"] = "(all)";
  return values;
}

ResolvedValues resolved_values(const BenchServeOptions& o) {
  const bool open_loop = !o.rate.empty() || !o.trace.empty();
  return {
      {"model", "(the server's first)"},
      {"concurrency", open_loop ? "(no limit)" : "1"},
      {"max-connections", open_loop ? std::to_string(kOpenLoopConnections) : "(the concurrency)"},
      {"requests", !o.trace.empty()  ? "(the trace's)"
                   : o.duration      ? "(for --duration)"
                   : !o.rate.empty() ? std::to_string(kOpenLoopRequests)
                                     : strf("(%d x concurrency)", kRequestsPerConnection)},
      {"duration", "(no limit)"},
      {"distinct", "(all)"},
      {"seed", "(a new one)"},
  };
}

ResolvedValues resolved_values() {
  return {{"threads", std::to_string(num_threads({}))}, {"output-type", "(by --type)"}};
}

int64_t queue_limit(const ServeOptions& o) {
  if (o.max_queue) return *o.max_queue;
  return is_loopback(o.host) ? 0 : o.admission.total.sequences;
}

std::vector<std::string> served_names(const ServeOptions& o) {
  if (!o.served_names.empty()) return o.served_names;
  return {served_name(o.engine.model)};
}

}  // namespace sluice

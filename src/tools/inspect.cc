// sluice inspect: what is in a model file and what it needs, from its headers alone; of a model
// that does not fit, or cannot run, also what is known.
#include <cstdio>
#include <map>
#include <optional>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "base/json.h"
#include "base/str.h"
#include "load/open.h"
#include "model/model.h"
#include "runtime/fit.h"
#include "runtime/ledger.h"
#include "runtime/placement.h"
#include "runtime/sampling_defaults.h"
#include "tensor/formats/all.h"
#include "tools/commands.h"
#include "tools/locate_model.h"
#include "tools/serve_limits.h"

namespace sluice {

namespace {

struct FormatShare {
  size_t bytes = 0, num = 0;
};

std::string sequences_of(const Ledger& l) {
  return strf("%d sequence%s of %d tokens", l.full_sequences, l.full_sequences == 1 ? "" : "s",
              l.ctx);
}

std::string meta_line(const MetaValue& v) {
  struct Show {
    std::string operator()(bool b) const { return b ? "true" : "false"; }
    std::string operator()(int64_t i) const { return strf("%lld", static_cast<long long>(i)); }
    std::string operator()(uint64_t i) const {
      return strf("%llu", static_cast<unsigned long long>(i));
    }
    std::string operator()(double d) const { return strf("%g", d); }
    std::string operator()(const std::string& s) const { return quote(s, 60); }
    std::string operator()(const std::vector<std::string>& v) const {
      return strf("[%zu strings]", v.size());
    }
    std::string operator()(const std::vector<bool>& v) const {
      return strf("[%zu booleans]", v.size());
    }
    std::string operator()(const std::vector<float>& v) const {
      return strf("[%zu numbers]", v.size());
    }
    std::string operator()(const std::vector<int64_t>& v) const {
      return strf("[%zu integers]", v.size());
    }
  };
  return std::visit(Show{}, v);
}

// What a model needs and has here.
struct Needs {
  MemoryEstimate memory;
  ServerMemory server;
  bool on_gpu = false;
  std::optional<MemoryEstimate> with_auto;  // on a GPU: what --gpu-layers auto comes to
  std::vector<FitAdvice> advice;            // where it does not fit
  FitAdvice least;                          // the smallest, where no advice helps
};

json::object ledger_json(const MemoryEstimate& e) {
  const Ledger& l = e.ledger;
  json::object j{{"weights", l.weights},
                 {"kv", l.kv},
                 {"workspace", l.workspace},
                 {"program", l.program},
                 {"total", e.total()},
                 {"available", l.available},
                 {"kv_per_token", l.kv_per_token},
                 {"kv_per_long_token", l.kv_per_long_token},
                 {"window", l.window},
                 {"ctx", l.ctx},
                 {"full_sequences", l.full_sequences}};
  if (const HostLedger& h = l.host; h.layers > 0)
    j["host"] =
        json::object{{"layers", h.layers},       {"weights", h.weights},    {"kv", h.kv},
                     {"workspace", h.workspace}, {"streamed", h.streamed},  {"program", h.program},
                     {"total", h.total()},       {"available", h.available}};
  return j;
}

// What clients of a server can make it take beside the ledger; null: no limit.
json::object server_json(const ServerMemory& m) {
  const auto or_null = [](const std::optional<size_t>& v) {
    return v ? json::value(*v) : json::value(nullptr);
  };
  return json::object{{"requests", m.requests},
                      {"unread", m.unread},
                      {"streams", m.streams},
                      {"outbox", m.outbox},
                      {"constraints", m.constraints},
                      {"responses", m.responses},
                      {"turns", m.turns},
                      {"answers", or_null(m.answers)},
                      {"prompts", or_null(m.prompts)}};
}

// `m` and `needs` null: the model cannot run, and this is what is known.
void print_json(const InspectOptions& o,
                const Checkpoint& file,
                const ModelShape* m,
                const Needs* needs,
                const SamplingDefaults& sampling) {
  json::object tensors, meta;
  for (const TensorInfo& t : file.tensors()) {
    tensors[t.name] = json::object{{"format", format_info(t.format).name},
                                   {"rows", t.rows},
                                   {"cols", t.cols},
                                   {"bytes", t.bytes}};
  }
  for (const auto& [key, value] : file.meta().all()) meta[key] = meta_line(value);
  json::object j{{"model", o.engine.model},
                 {"has_vocabulary", has_vocabulary(file)},
                 {"has_chat_template", file.meta().has("tokenizer.chat_template")}};
  if (m) {
    j["architecture"] = m->arch;
    j["layers"] = m->num_layers;
    j["hidden"] = m->hidden;
    j["heads"] = m->num_heads;
    j["kv_heads"] = m->num_kv_heads;
    j["head_dim"] = m->head_dim;
    j["vocab"] = m->vocab;
    j["context"] = m->max_len;
  }
  if (needs) {
    j["ledger"] = ledger_json(needs->memory);
    j["server_at_most"] = server_json(needs->server);
    j["fits"] = needs->memory.shortage.empty();
    if (const auto& a = needs->with_auto)
      j["gpu_layers_auto"] = json::object{{"gpu_layers", m->num_layers - a->ledger.host.layers},
                                          {"fits", a->shortage.empty()},
                                          {"ledger", ledger_json(*a)}};
    if (!needs->memory.shortage.empty()) {
      json::array advice;
      for (const FitAdvice& a : needs->advice)
        advice.push_back(json::object{{"options", a.options}, {"ledger", ledger_json(a.estimate)}});
      j["shortage"] = needs->memory.shortage;
      j["would_fit"] = std::move(advice);
    }
  }
  j["sampling_defaults"] = sampling_json(sampling.spec);
  j["metadata"] = std::move(meta);
  j["tensors"] = std::move(tensors);
  std::printf("%s\n", plain_json(j).c_str());
}

void row(const char* name, const std::string& value) {
  std::printf("%-16s %s\n", name, value.c_str());
}

// The part of the CPU beside a GPU's.
void print_host(const HostLedger& h) {
  if (h.layers == 0) return;
  row("on the CPU", strf("%d layers: weights %s, kv cache %s, workspace %s, program %s, %s to "
                         "stream prompts; %s free",
                         h.layers, human_bytes(h.weights).c_str(), human_bytes(h.kv).c_str(),
                         human_bytes(h.workspace).c_str(), human_bytes(h.program).c_str(),
                         human_bytes(h.streamed).c_str(), human_bytes(h.available).c_str()));
}

void print_auto(const MemoryEstimate& e, int num_layers) {
  const Ledger& l = e.ledger;
  const std::string text =
      strf("auto would choose %d of %d", num_layers - l.host.layers, num_layers);
  row("--gpu-layers",
      text + (e.shortage.empty()
                  ? strf(": %s of the GPU and %s of the CPU's memory for %s",
                         human_bytes(e.total()).c_str(), human_bytes(l.host.total()).c_str(),
                         sequences_of(l).c_str())
                  : ": " + e.shortage));
}

void print_needs(const Needs& needs, int num_layers) {
  const Ledger& l = needs.memory.ledger;
  const bool fits = needs.memory.shortage.empty();
  row("weights", human_bytes(l.weights));
  std::string beyond;
  if (l.window > 0) {
    beyond =
        strf(", %s beyond the window of %d", human_bytes(l.kv_per_long_token).c_str(), l.window);
  }
  std::string kv = human_bytes(l.kv_per_token) + " per token" + beyond;
  if (fits) kv += "; " + human_bytes(l.kv) + " for " + sequences_of(l);
  row("kv cache", kv);
  row("workspace", human_bytes(l.workspace));
  row("program", human_bytes(l.program) +
                     (needs.on_gpu ? " of context and graphs" : " with the vocabulary's tables"));
  row("in all",
      human_bytes(needs.memory.total()) + (fits ? " when the cache is full" : " at least"));
  const ServerMemory& s = needs.server;
  row("server at most",
      strf("%s of whole answers, %s unread, %s of streams to resume, %s of constraints, "
           "%s of stored responses, %s per connection",
           s.answers ? human_bytes(*s.answers).c_str() : "any size", human_bytes(s.unread).c_str(),
           human_bytes(s.streams).c_str(), human_bytes(s.constraints).c_str(),
           human_bytes(s.responses).c_str(),
           human_bytes(HttpLimits().most_request_bytes()).c_str()));
  row("free memory", human_bytes(l.available) + (needs.on_gpu ? " of the GPU" : ""));
  print_host(l.host);
  if (needs.with_auto) print_auto(*needs.with_auto, num_layers);
  if (fits) return;
  row("does not fit", needs.memory.shortage);
  for (const FitAdvice& a : needs.advice)
    row("would fit", a.options + ": " + human_bytes(a.estimate.total()) + " with " +
                         sequences_of(a.estimate.ledger));
  if (needs.advice.empty() && needs.least.estimate.total() > 0)
    row("would fit",
        strf("nowhere with less than %s free%s%s",
             human_bytes(needs.least.estimate.total()).c_str(),
             needs.least.options.empty() ? "" : ", and then with ", needs.least.options.c_str()));
}

void print_text(const InspectOptions& o,
                const Checkpoint& file,
                const ModelShape* m,
                const Needs* needs,
                const SamplingDefaults& sampling) {
  std::map<std::string, FormatShare> formats;
  for (const TensorInfo& t : file.tensors()) {
    FormatShare& f = formats[format_info(t.format).name];
    f.bytes += t.bytes;
    ++f.num;
  }
  row("model", o.engine.model);
  if (const std::string* name = file.meta().string("general.name")) row("name", quote(*name));
  if (m) {
    row("architecture",
        strf("%s, %d layers, hidden %d, %d heads (%d kv) of %d, vocabulary %d, context %d",
             m->arch.c_str(), m->num_layers, m->hidden, m->num_heads, m->num_kv_heads, m->head_dim,
             m->vocab, m->max_len));
  } else if (const std::string* arch = file.meta().string("general.architecture")) {
    row("architecture", quote(*arch));
  }
  std::string list;
  for (const auto& [name, f] : formats) {
    list += strf("%s%s %s in %zu", list.empty() ? "" : ", ", name.c_str(),
                 human_bytes(f.bytes).c_str(), f.num);
  }
  row("tensors", strf("%zu: %s", file.tensors().size(), list.c_str()));
  row("text",
      strf("%s, %s", has_vocabulary(file) ? "vocabulary" : "no vocabulary",
           file.meta().has("tokenizer.chat_template") ? "chat template" : "no chat template"));
  row("sampling",
      strf("%s (%s)", describe_sampling(sampling.spec).c_str(), sampling.source.c_str()));
  if (needs) print_needs(*needs, m->num_layers);
  if (!o.tensors) return;
  std::printf("\n");
  for (const auto& [key, value] : file.meta().all())
    std::printf("%s = %s\n", key.c_str(), meta_line(value).c_str());
  std::printf("\n");
  for (const TensorInfo& t : file.tensors()) {
    std::printf("%-32s %-5s %8lld x %-8lld %s\n", t.name.c_str(), format_info(t.format).name,
                static_cast<long long>(t.rows), static_cast<long long>(t.cols),
                human_bytes(t.bytes).c_str());
  }
}

// Of the GPU that is there, or of one that has `given` free.
Result<DeviceMemory> gpu_memory(const EngineOptions& engine, const Checkpoint& file, size_t given) {
  const Result<CudaOptions> options = cuda_options(engine, file);
  if (!options) return options.error();
  if (given > 0) return DeviceMemory{given, options->activations};
  auto device = open_cuda(*options);
  if (!device) return device.error();
  (*device)->attach();
  return DeviceMemory{(*device)->free_memory(), options->activations};
}

Result<Needs> find_needs(const InspectOptions& o, const Checkpoint& file, const ModelShape& shape) {
  EngineOptions engine = o.engine;
  const size_t given = engine.gpu_memory.value_or(0);
  if (given > 0 && engine.device.kind != DeviceChoice::Kind::any && !engine.device.is_gpu())
    return Error{400, strf("--gpu-memory plans for a GPU, and --device says %s: leave one out",
                           engine.device.name().c_str())};
  Result<void> chosen = given > 0 ? choose_gpu(engine, shape) : choose_device(engine, shape);
  if (!chosen) return chosen.error();
  std::optional<DeviceMemory> gpu;
  EngineOptions automatic = engine;
  automatic.gpu_layers = GpuLayers{};
  resolve_deterministic(automatic, shape, file);  // by default only where all layers are on the GPU
  resolve_deterministic(engine, shape, file);
  if (engine.device.is_gpu()) {
    Result<DeviceMemory> found = gpu_memory(engine, file, given);
    if (!found) return found.error();
    gpu = *found;
  }
  const DeviceMemory* device = gpu ? &*gpu : nullptr;
  ServeOptions serving;
  serving.engine = engine;
  Needs needs;
  needs.server = serving_memory(serving);
  engine.front_end_bytes = needs.server.records;
  EngineOptions planned = engine;
  Result<MemoryEstimate> memory = estimate_memory(file, shape, planned, device);
  if (!memory) return memory.error();
  needs.memory = *memory;
  needs.on_gpu = gpu.has_value();
  if (gpu) {
    automatic.front_end_bytes = engine.front_end_bytes;
    // Options that layers on the CPU do not go with: then there is nothing to say.
    if (Result<MemoryEstimate> e = estimate_memory(file, shape, automatic, device))
      needs.with_auto = std::move(*e);
  }
  if (!memory->shortage.empty())
    needs.advice = what_would_fit(file, shape, engine, device, &needs.least);
  return needs;
}

}  // namespace

int cmd_inspect(const InspectOptions& o) {
  Result<std::string> path = locate_model(o.engine.model, o.engine.quiet);
  if (!path) return report(path.error());
  Result<std::unique_ptr<Checkpoint>> file =
      open_model(*path, random_format(o.engine), o.engine.random_seed);
  if (!file) return report(file.error());
  Result<ModelShape> shape = read_shape(**file);
  if (shape) {
    Result<std::unique_ptr<Model>> whole =
        load_model(ModelSource::headers_of(**file), *cpu_weight_sizes({}), {});
    if (!whole) shape = whole.error();
  }
  std::optional<Needs> needs;
  std::optional<Error> error;
  if (shape) {
    Result<Needs> found = find_needs(o, **file, *shape);
    if (!found) return report(found.error());  // options that do not go together
    needs = std::move(*found);
  } else {
    error = shape.error();
  }
  Result<SamplingDefaults> sampling =
      sampling_defaults((*file)->meta(), o.engine.generation_config);
  if (!sampling) return report(sampling.error());
  (o.json ? print_json : print_text)(o, **file, shape ? &*shape : nullptr,
                                     needs ? &*needs : nullptr, *sampling);
  return error ? report(*error) : kExitOk;
}

}  // namespace sluice

// sluice inspect: what is in a model file and what it needs, from its headers alone.
#include <cstdio>
#include <map>
#include <optional>

#include "base/json.h"
#include "base/str.h"
#include "load/open.h"
#include "model/model.h"
#include "runtime/ledger.h"
#include "runtime/placement.h"
#include "runtime/sampling_defaults.h"
#include "tensor/formats/all.h"
#include "tools/commands.h"

namespace sluice {

namespace {

struct FormatShare {
  size_t bytes = 0, num = 0;
};

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

void print_json(const InspectOptions& o,
                const Checkpoint& file,
                const ModelShape& m,
                const Ledger& l,
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
                 {"architecture", m.arch},
                 {"layers", m.num_layers},
                 {"hidden", m.hidden},
                 {"heads", m.num_heads},
                 {"kv_heads", m.num_kv_heads},
                 {"head_dim", m.head_dim},
                 {"vocab", m.vocab},
                 {"context", m.max_len},
                 {"has_vocabulary", has_vocabulary(file)},
                 {"has_chat_template", file.meta().has("tokenizer.chat_template")}};
  j["ledger"] = json::object{{"weights", l.weights},
                             {"kv", l.kv},
                             {"workspace", l.workspace},
                             {"program", l.program},
                             {"available", l.available},
                             {"kv_per_token", l.kv_per_token},
                             {"kv_per_long_token", l.kv_per_long_token},
                             {"window", l.window},
                             {"ctx", l.ctx},
                             {"full_sequences", l.full_sequences}};
  j["sampling_defaults"] = sampling_json(sampling.spec);
  j["metadata"] = std::move(meta);
  j["tensors"] = std::move(tensors);
  std::printf("%s\n", json::serialize(j).c_str());
}

void print_text(const InspectOptions& o,
                const Checkpoint& file,
                const ModelShape& m,
                const Ledger& l,
                const SamplingDefaults& sampling,
                bool on_gpu) {
  std::map<std::string, FormatShare> formats;
  for (const TensorInfo& t : file.tensors()) {
    FormatShare& f = formats[format_info(t.format).name];
    f.bytes += t.bytes;
    ++f.num;
  }
  auto row = [](const char* name, const std::string& value) {
    std::printf("%-16s %s\n", name, value.c_str());
  };
  row("model", o.engine.model);
  if (const std::string* name = file.meta().string("general.name")) row("name", quote(*name));
  row("architecture",
      strf("%s, %d layers, hidden %d, %d heads (%d kv) of %d, vocabulary %d, context %d",
           m.arch.c_str(), m.num_layers, m.hidden, m.num_heads, m.num_kv_heads, m.head_dim, m.vocab,
           m.max_len));
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
  row("weights", human_bytes(l.weights));
  std::string beyond;
  if (l.window > 0) {
    beyond =
        strf(", %s beyond the window of %d", human_bytes(l.kv_per_long_token).c_str(), l.window);
  }
  row("kv cache",
      strf("%s per token%s; %s for %d sequences of %d tokens", human_bytes(l.kv_per_token).c_str(),
           beyond.c_str(), human_bytes(l.kv).c_str(), l.full_sequences, l.ctx));
  row("workspace", human_bytes(l.workspace));
  row("program", human_bytes(l.program) +
                     (on_gpu ? " of context and graphs" : " with the vocabulary's tables"));
  row("in all",
      human_bytes(l.weights + l.kv + l.workspace + l.program) + " when the cache is full");
  row("free memory", human_bytes(l.available) + (on_gpu ? " of the GPU" : ""));
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
  Result<CudaOptions> options = cuda_options(engine, file);
  if (!options) return options.error();
  if (given > 0) return DeviceMemory{given, options->activations};
  auto device = open_cuda(*options);
  if (!device) return device.error();
  (*device)->attach();
  return DeviceMemory{(*device)->free_memory(), options->activations};
}

}  // namespace

int cmd_inspect(const InspectOptions& o) {
  Result<std::unique_ptr<Checkpoint>> file =
      open_model(o.engine.model, o.engine.format, o.engine.random_seed);
  if (!file) return report(file.error());
  Result<ModelShape> shape = read_shape(**file);
  if (!shape) return report(shape.error());
  EngineOptions engine = o.engine;
  if (o.gpu_memory > 0 && (engine.backend == "cpu" || engine.backend == "ref"))
    return report(
        Error{400, strf("--gpu-memory plans for a GPU, and --device says %s: leave one out",
                        engine.backend.c_str())});
  Result<void> chosen =
      o.gpu_memory > 0 ? choose_gpu(engine, *shape) : choose_device(engine, *shape);
  if (!chosen) return report(chosen.error());
  std::optional<DeviceMemory> gpu;
  if (engine.backend.starts_with("cuda")) {
    Result<DeviceMemory> found = gpu_memory(engine, **file, o.gpu_memory);
    if (!found) return report(found.error());
    gpu = *found;
  }
  Result<Ledger> ledger = plan_memory(**file, *shape, engine, gpu ? &*gpu : nullptr);
  if (!ledger) return report(ledger.error());
  Result<SamplingDefaults> sampling = sampling_defaults((*file)->meta(), engine.generation_config);
  if (!sampling) return report(sampling.error());
  if (o.json) {
    print_json(o, **file, *shape, *ledger, *sampling);
  } else {
    print_text(o, **file, *shape, *ledger, *sampling, gpu.has_value());
  }
  return kExitOk;
}

}  // namespace sluice

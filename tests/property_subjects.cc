#include "property_subjects.h"

#include <cstdlib>
#include <string_view>
#include <utility>

#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "backend/ref/ref_backend.h"
#include "load/random_checkpoint.h"
#include "tensor/gguf.h"

namespace sluice {

namespace {

// Small enough for thousands of steps a second; GQA of 3, two layers, rows that are no multiple
// of 16.
constexpr const char* kTinyConfig = R"({
  "model_type": "qwen2", "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6,
  "num_key_value_heads": 2, "intermediate_size": 160, "vocab_size": 201, "rope_theta": 10000.0,
  "rms_norm_eps": 1e-6, "tie_word_embeddings": true, "max_position_embeddings": 4096})";
constexpr const char* kTinyConfigK = R"({
  "model_type": "qwen3", "hidden_size": 256, "num_hidden_layers": 1, "num_attention_heads": 4,
  "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 256, "vocab_size": 100, "rope_theta": 10000.0,
  "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "max_position_embeddings": 4096})";

OpenFile random_model(const char* config, Format f) {
  return [=] { return random_checkpoint_from_text(config, "tiny", f, 7); };
}

std::unique_ptr<Backend> make_gpu(DType type, const LoadQuant& quant) {
  CudaOptions options;
  options.activations = type;
  options.deterministic = true;
  options.tune = false;
  options.int8 = quant;  // other kinds are the CPU's
  auto device = open_cuda(options);
  EXPECT_TRUE(device) << device.error().message;
  return std::move(*device);
}

Subject make_subject(std::string name, const OpenFile& open, KvType kv, LoadQuant quant = {}) {
  Subject s;
  s.name = std::move(name);
  s.kv = kv;
  for (int t = 1; t <= kMaxThreads; ++t) {
    auto file = open();
    EXPECT_TRUE(file) << file.error().message;
    s.files.push_back(std::move(*file));
    s.cuda = on_gpu();
    s.backends.push_back(s.cuda ? make_gpu(kv.type == DType::i8 ? DType::f16 : kv.type, quant)
                                : make_cpu_backend({.threads = t, .pin = false, .quant = quant}));
    auto model = load_model(*s.files.back(), *s.backends.back(), {});
    EXPECT_TRUE(model) << model.error().message;
    s.models.push_back(std::move(*model));
  }
  return s;
}

// The same in two parts. The one with the last layers is loaded first: it gives back what it reads.
Subject make_split(std::string name, const OpenFile& open, KvType kv, int host_layers) {
  Subject s;
  s.name = std::move(name);
  s.kv = kv;
  s.cuda = on_gpu();
  s.host_layers = host_layers;
  for (int t = 1; t <= kMaxThreads; ++t) {
    auto file = open();
    EXPECT_TRUE(file) << file.error().message;
    s.files.push_back(std::move(*file));
    const int rest = kMaxThreads + 1 - t;
    s.backends.push_back(s.cuda ? make_gpu(kv.type, {})
                                : make_cpu_backend({.threads = rest, .pin = false}));
    s.host_backends.push_back(make_cpu_backend({.threads = t, .pin = false}));
    LoadOptions load;
    load.layers.first = host_layers;
    auto last = load_model(*s.files.back(), *s.backends.back(), load);
    load.layers = {0, host_layers};
    auto first = load_model(*s.files.back(), *s.host_backends.back(), load);
    EXPECT_TRUE(first && last);
    s.models.push_back(std::move(*last));
    s.host_models.push_back(std::move(*first));
  }
  return s;
}

}  // namespace

bool on_gpu() {
  const char* device = std::getenv("SLUICE_TEST_DEVICE");
  return device && std::string_view(device) == "cuda";
}

OpenFile golden_model(const std::string& name) {
  return [name] { return open_gguf(SLUICE_SOURCE_DIR "/tests/golden/models/" + name + ".gguf"); };
}

OpenFile tiny_q8() { return random_model(kTinyConfig, Format::q8_0); }

Subject make_streamed(std::string name, const OpenFile& open, int host_layers, CudaOptions gpu) {
  Subject s;
  s.name = std::move(name);
  s.kv = gpu.activations;
  s.cuda = on_gpu();
  s.host_layers = host_layers;
  for (int t = 1; t <= kMaxThreads; ++t) {
    s.files.push_back(open().value());
    Checkpoint& file = *s.files.back();
    gpu.tune = false;
    if (s.cuda) {
      s.backends.push_back(open_cuda(gpu).value());
    } else {
      s.backends.push_back(make_ref_backend());
    }
    LoadOptions load;
    load.layers.first = host_layers;
    s.models.push_back(load_model(file, *s.backends.back(), load).value());
    if (host_layers == 0) continue;
    s.host_backends.push_back(
        s.cuda ? make_cpu_backend({.threads = t, .pin = false, .quant = gpu.int8})
               : make_ref_backend());
    s.stream_devices.push_back(std::make_unique<RefDevice>());
    Device& device = s.cuda ? static_cast<Device&>(*s.backends.back()) : *s.stream_devices.back();
    LayerStream::Sizes z;
    z.num_layers = host_layers;
    z.slot_bytes = kSlotBytes;
    s.streams.push_back(LayerStream::load(device, file, {}, z).value());
    load.layers = {0, host_layers};
    s.host_models.push_back(load_model(file, *s.host_backends.back(), load).value());
  }
  return s;
}

std::vector<Subject>& subjects() {
  static std::vector<Subject> list = [] {
    std::vector<Subject> v;
    v.push_back(make_subject("llama-f32", golden_model("llama"), DType::f32));
    v.push_back(make_subject("llama-window", golden_model("llama-window"), DType::f16));
    v.push_back(make_subject("gpt2", golden_model("gpt2"), DType::f16));
    v.push_back(make_subject("phi3-longrope", golden_model("phi3-longrope"), DType::f16));
    v.push_back(make_subject("gemma2", golden_model("gemma2"), DType::f16));
    v.push_back(make_subject("gemma3", golden_model("gemma3"), DType::f16));
    v.push_back(make_subject("q8_0", random_model(kTinyConfig, Format::q8_0), DType::f16));
    v.push_back(make_subject("q4_0", random_model(kTinyConfig, Format::q4_0), DType::f16));
    v.push_back(make_subject("q4_1", random_model(kTinyConfig, Format::q4_1), DType::f16));
    v.push_back(make_subject("q6_k", random_model(kTinyConfigK, Format::q6_k), DType::f16));
    v.push_back(make_subject("q4_k", random_model(kTinyConfigK, Format::q4_k), DType::f16));
    v.push_back(make_subject("q5_0", random_model(kTinyConfig, Format::q5_0), DType::f16));
    v.push_back(make_subject("f16", random_model(kTinyConfig, Format::f16), DType::f16));
    v.push_back(make_subject("w8a8", random_model(kTinyConfig, Format::f16), DType::f16,
                             {WeightQuant::w8a8, {}}));
    v.push_back(make_subject("w8a8-excluded", random_model(kTinyConfigK, Format::q4_k), DType::f16,
                             {WeightQuant::w8a8, {"attn_output", "attn_k"}}));
    v.push_back(make_subject("w4", random_model(kTinyConfig, Format::bf16), DType::f16,
                             {WeightQuant::w4, {"token_embd"}}));
    v.push_back(make_subject("u8", random_model(kTinyConfig, Format::f32), DType::f16,
                             {WeightQuant::u8, {}}));
    v.push_back(make_subject("bf16", random_model(kTinyConfig, Format::bf16), DType::f16));
    v.push_back(make_subject("kv-int8", random_model(kTinyConfigK, Format::q8_0), {DType::i8, 32}));
    v.push_back(make_subject("kv-int8:8-window", golden_model("llama-window"), {DType::i8, 8}));
    return v;
  }();
  return list;
}

std::vector<SplitPair>& split_subjects() {
  static std::vector<SplitPair> list = [] {
    std::vector<SplitPair> v;
    auto add = [&](const char* name, const OpenFile& open, DType kv, int layers) {
      v.push_back({make_split(name, open, kv, layers), make_subject(name, open, kv)});
    };
    add("llama-f32", golden_model("llama"), DType::f32, 2);
    add("llama-window", golden_model("llama-window"), DType::f16, 1);
    add("gpt2", golden_model("gpt2"), DType::f16, 1);
    add("phi3-longrope", golden_model("phi3-longrope"), DType::f16, 1);
    add("gemma2", golden_model("gemma2"), DType::f16, 1);
    add("gemma3", golden_model("gemma3"), DType::f16, 3);
    add("q8_0", tiny_q8(), DType::f16, 1);
    return v;
  }();
  return list;
}

}  // namespace sluice

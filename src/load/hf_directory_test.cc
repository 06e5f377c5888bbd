// Directories that are wrong in one way each, and what the text files become.
#include "load/hf_directory.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include <gtest/gtest.h>

#include "base/str.h"
#include "load/hf_config.h"
#include "load/hf_tensors.h"
#include "load/open.h"
#include "tensor/formats/all.h"
#include "tensor/formats/int4.h"
#include "tensor/formats/q8_0.h"
#include "tensor/safetensors_builder.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

const char* const kConfig = R"({"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1,
  "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 16,
  "max_position_embeddings": 64, "tie_word_embeddings": true)";

class HfFiles : public testing::Test {
 protected:
  HfFiles() : path_(fs::temp_directory_path() / ("sluice-hf-files" + std::to_string(getpid()))) {
    fs::remove_all(path_);
    fs::create_directories(path_);
    write("config.json", std::string(kConfig) + "}");
    const auto config = parse_hf_config(std::string(kConfig) + "}");
    for (const HfTensor& t : hf_tensors(config.value())) {
      shapes_[t.name] = t.vector ? std::vector<int64_t>{t.cols} : std::vector{t.rows, t.cols};
    }
  }
  ~HfFiles() override { fs::remove_all(path_); }

  void write(const std::string& name, const std::string& text) {
    std::ofstream(path_ / name, std::ios::binary) << text;
  }
  std::string weights(const std::string& without = "") {
    SafetensorsBuilder b;
    for (const auto& [name, shape] : shapes_) {
      if (name == without) continue;
      size_t size = 2;
      for (int64_t d : shape) size *= static_cast<size_t>(d);
      b.tensor("model." + name, "F16", shape, std::string(size, '\x01'));
    }
    for (const auto& [name, shape] : extra_) b.tensor(name, "U8", {3}, shape);
    return b.build();
  }
  std::string error() {
    auto r = open_hf_directory(path_.string());
    if (r) return "";
    EXPECT_EQ(r.error().message.find('\n'), std::string::npos);
    EXPECT_NE(r.error().message.find(path_.string()), std::string::npos) << r.error().message;
    return r.error().message;
  }
  std::unique_ptr<Checkpoint> open() {
    auto r = open_hf_directory(path_.string());
    EXPECT_TRUE(r) << r.error().message;
    return r ? std::move(*r) : nullptr;
  }
  std::unique_ptr<Checkpoint> open_only_text() {
    auto r = open_text(path_.string());
    EXPECT_TRUE(r) << r.error().message;
    return r ? std::move(*r) : nullptr;
  }

  fs::path path_;
  std::map<std::string, std::vector<int64_t>> shapes_;
  std::map<std::string, std::string> extra_;  // name, three bytes
};

#define EXPECT_SAYS(text, part) \
  EXPECT_NE(std::string(text).find(part), std::string::npos) << "got: " << text

TEST_F(HfFiles, WhatIsMissing) {
  EXPECT_SAYS(error(), "has no weights");
  write("pytorch_model.bin", "PK");
  EXPECT_SAYS(error(), "pickled weights");
  write("model.safetensors", weights("layers.0.mlp.up_proj.weight"));
  EXPECT_SAYS(error(), "no tensor layers.0.mlp.up_proj.weight");
  write("model.safetensors", weights());
  EXPECT_EQ(error(), "");
  fs::remove(path_ / "config.json");
  EXPECT_SAYS(error(), "has no config.json");
}

TEST_F(HfFiles, OneFileOfAnotherNameWillDo) {
  write("gptq_model-4bit.safetensors", weights());
  EXPECT_EQ(error(), "");
  write("another.safetensors", weights());
  EXPECT_SAYS(error(), "several safetensors files");
}

TEST_F(HfFiles, WeightsThatAreNot) {
  write("model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:12\n");
  EXPECT_SAYS(error(), "Git LFS pointer");
  const std::string whole = weights();
  write("model.safetensors", whole.substr(0, whole.size() - 5));
  EXPECT_SAYS(error(), "cut short");
  write("model.safetensors", "");
  EXPECT_SAYS(error(), "empty");
  write("model.safetensors", whole);
  write("config.json", "version https://git-lfs.github.com/spec/v1\n");
  EXPECT_SAYS(error(), "Git LFS pointer");
}

TEST_F(HfFiles, TensorsThatDoNotFit) {
  shapes_["norm.weight"] = {31};
  write("model.safetensors", weights());
  EXPECT_SAYS(error(), "'model.norm.weight' is [31], but config.json makes it [32]");
  shapes_["norm.weight"] = {32};
  extra_["model.layers.0.self_attn.q_proj.lora"] = "abc";
  write("model.safetensors", weights());
  EXPECT_SAYS(error(), "'model.layers.0.self_attn.q_proj.lora' is not part of a llama model");
  extra_.clear();
  extra_["model.layers.0.mlp.up_proj.bias"] = "abc";
  write("model.safetensors", weights());
  EXPECT_SAYS(error(), "up_proj.bias");
  extra_["model.layers.0.mlp.up_proj.bias"] = std::string(3, '\0');
  extra_["model.layers.0.self_attn.rotary_emb.inv_freq"] = "abc";
  extra_["vision_tower.encoder.weight"] = "abc";
  extra_["lm_head.weight"] = "abc";  // tied: the embedding is used
  write("model.safetensors", weights());
  EXPECT_EQ(error(), "");
  extra_["norm.weight"] = "abc";
  write("model.safetensors", weights());
  EXPECT_SAYS(error(), "is also in");
}

TEST_F(HfFiles, TypesThatAreNoWeights) {
  SafetensorsBuilder b;
  for (const auto& [name, shape] : shapes_) {
    size_t size = 8;
    for (int64_t d : shape) size *= static_cast<size_t>(d);
    b.tensor(name, name == "norm.weight" ? "I64" : "F64", shape, std::string(size, '\0'));
  }
  write("model.safetensors", b.build());
  EXPECT_SAYS(error(), "'norm.weight' is of type I64");
}

TEST_F(HfFiles, IndexesThatLie) {
  const std::string index = "model.safetensors.index.json";
  write("a.safetensors", weights());
  write(index, "{}");
  EXPECT_SAYS(error(), "no weight_map");
  write(index, R"({"weight_map": {"model.norm.weight": 1}})");
  EXPECT_SAYS(error(), "weight_map of 'model.norm.weight'");
  write(index, R"({"weight_map": {"model.norm.weight": "../a.safetensors"}})");
  EXPECT_SAYS(error(), "not the name of a .safetensors file beside it");
  write(index, R"({"weight_map": {"model.norm.weight": "/etc/a.safetensors"}})");
  EXPECT_SAYS(error(), "not the name of a .safetensors file beside it");
  write(index, R"({"weight_map": {"model.norm.weight": "b.safetensors"}})");
  EXPECT_SAYS(error(), "b.safetensors': no such file");
  write(index, R"({"weight_map": {"model.absent": "a.safetensors"}})");
  EXPECT_SAYS(error(), "has no tensor 'model.absent'");
  write(index, R"({"weight_map": {"model.norm.weight": "a.safetensors"}})");
  EXPECT_EQ(error(), "");
}

TEST_F(HfFiles, ConfigsThatAreNotSupported) {
  write("model.safetensors", weights());
  auto with = [&](const std::string& more) {
    write("config.json", std::string(kConfig) + ", " + more + "}");
    return error();
  };
  EXPECT_SAYS(with(R"("model_type": "mamba")"), "config.json': model_type 'mamba'");
  EXPECT_SAYS(with(R"("hidden_act": "relu")"), "hidden_act 'relu'");
}

TEST_F(HfFiles, QuantizationConfigsThatAreNotSupported) {
  write("model.safetensors", weights());
  auto with = [&](const std::string& quant) {
    write("config.json", std::string(kConfig) + R"(, "quantization_config": {)" + quant + "}}");
    return error();
  };
  EXPECT_SAYS(with(R"("quant_method": "mxfp4")"),
              "config.json': quantization_config: quant_method 'mxfp4'");
  EXPECT_SAYS(with(R"("quant_method": 4)"), "quant_method must be a string");
  EXPECT_SAYS(with(R"("quant_method": "gptq", "bits": 3)"), "gptq with 3 bits");
  EXPECT_SAYS(with(R"("quant_method": "gptq", "group_size": 0)"), "a group_size of 0");
  EXPECT_SAYS(with(R"("quant_method": "gptq", "group_size": -2)"), "group_size is -2, outside");
  EXPECT_SAYS(with(R"("quant_method": "gptq", "checkpoint_format": "marlin")"), "'marlin'");
  EXPECT_SAYS(with(R"("quant_method": "gptq", "format": "gptq_p")"), "'gptq_p'");
  EXPECT_SAYS(with(R"("quant_method": "gptq", "format": "gptq", "checkpoint_format": "gptq_v2")"),
              "checkpoint_format and format name different layouts");
  EXPECT_SAYS(with(R"("quant_method": "awq", "version": "gemv")"), "'gemv'");
  EXPECT_SAYS(with(R"("quant_method": "awq", "bits": 8)"), "awq with 8 bits");
  EXPECT_SAYS(with(R"("quant_method": "awq", "group_size": 20)"), "group_size of 20");
  EXPECT_SAYS(with(R"("quant_method": "awq", "q_group_size": 20)"), "q_group_size of 20");
  EXPECT_SAYS(with(R"("quant_method": "fp8", "fmt": "e5m2")"), "fmt 'e5m2'");
  EXPECT_SAYS(with(R"("quant_method": "fp8", "weight_block_size": [128])"),
              "weight_block_size must be a list of two sizes");
  EXPECT_SAYS(with(R"("quant_method": "fp8", "weight_block_size": [0, 128])"),
              "weight_block_size must be a list of two sizes");
  const std::string compressed = R"("quant_method": "compressed-tensors", "config_groups": )";
  EXPECT_SAYS(with(R"("quant_method": "compressed-tensors")"), "has no config_groups");
  EXPECT_SAYS(with(compressed + R"({"a": 1})"), "config_groups must hold objects");
  EXPECT_SAYS(with(compressed + R"({"a": {}}, "format": "nvfp4-pack-quantized")"),
              "compressed-tensors format 'nvfp4-pack-quantized'");
  EXPECT_SAYS(with(compressed + R"({"a": {"format": "marlin-24"}})"), "format 'marlin-24'");
  EXPECT_SAYS(with(compressed + R"({"a": {"weights": {"type": "int", "num_bits": 2}}})"),
              "type 'int' with 2 bits (num_bits)");
  EXPECT_SAYS(with(compressed + R"({"a": {"weights": {"type": "float", "num_bits": 4}}})"),
              "type 'float' with 4 bits (num_bits)");
  EXPECT_SAYS(with(compressed + R"({"a": {"format": "mxfp4-pack-quantized",
    "weights": {"type": "float", "num_bits": 4, "group_size": 16}}})"),
              "type 'float' with 4 bits (num_bits)");
  EXPECT_SAYS(with(compressed + R"({"a": {"weights": {"strategy": "tensor_group"}}})"),
              "strategy 'tensor_group'");
  EXPECT_SAYS(with(compressed + R"({"a": {"weights": {"group_size": 12}}})"), "group_size of 12");
  EXPECT_SAYS(with(compressed + R"({"a": {}}, "sparsity_config": {"format": "sparse-bitmask"})"),
              "sparsity_config");
  EXPECT_SAYS(with(compressed + R"({"a": {}}, "transform_config": {"config_groups": {"u": {}}})"),
              "transform_config");
  EXPECT_EQ(with(compressed + R"({"a": {}}, "transform_config": {}, "sparsity_config": null)"), "");
}

// A model whose up_proj is quantised as given, by a method without settings of its own.
class HfCodes : public HfFiles {
 protected:
  struct Part {
    std::string name, type;
    std::vector<int64_t> shape;
    std::string bytes;
  };
  std::string open_with(const std::string& quant, const std::vector<Part>& parts) {
    const std::string stem = "layers.0.mlp.up_proj.";
    write("config.json", std::string(kConfig) + R"(, "quantization_config": )" + quant + "}");
    SafetensorsBuilder b;
    for (const auto& [name, shape] : shapes_) {
      if (name == stem + "weight") continue;
      size_t size = 2;
      for (int64_t d : shape) size *= static_cast<size_t>(d);
      b.tensor(name, "F16", shape, std::string(size, '\0'));
    }
    for (const Part& p : parts) b.tensor(stem + p.name, p.type, p.shape, p.bytes);
    write("model.safetensors", b.build());
    return error();
  }
  static std::string text(size_t num, char c) { return std::string(num, c); }
};

TEST_F(HfCodes, CompressedTensorsAreChecked) {
  const std::string quant = R"({"quant_method": "compressed-tensors", "format": "pack-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "strategy": "group",
    "group_size": 16}}}})";
  const Part codes{"weight_packed", "I32", {32, 4}, text(512, '\x31')};
  const Part scales{"weight_scale", "F16", {32, 2}, text(128, '\x20')};
  EXPECT_EQ(open_with(quant, {codes, scales}), "");
  EXPECT_EQ(open()->find("blk.0.ffn_up.weight")->format, Format::f16);  // groups of 16
  EXPECT_SAYS(open_with(quant, {codes}), "weight_packed' has no weight_scale beside it");
  EXPECT_SAYS(open_with(quant, {{"weight_packed", "I32", {32, 5}, text(640, '1')}, scales}),
              "weight_packed' is [32, 5], but config.json makes it [32, 4]");
  EXPECT_SAYS(open_with(quant, {{"weight_packed", "F32", {32, 4}, text(512, '1')}, scales}),
              "weight_packed' must be I32");
  EXPECT_SAYS(open_with(quant, {codes, {"weight_scale", "F16", {32, 4}, text(256, ' ')}}),
              "weight_scale' is [32, 4], which fits no group_size or block of config.json");
  EXPECT_SAYS(open_with(quant, {codes, {"weight_scale", "F16", {16, 1}, text(32, ' ')}}),
              "weight_scale' is [16, 1], but config.json makes it [32, 1]");
  EXPECT_SAYS(open_with(quant, {codes, {"weight_scale", "I32", {32, 2}, text(256, ' ')}}),
              "weight_scale' must be F16, BF16 or F32");
  EXPECT_SAYS(open_with(quant, {codes, scales, {"weight_shape", "I32", {2}, text(8, '\x02')}}),
              "weight_shape' says [33686018, 33686018], but config.json makes it [32, 32]");
  EXPECT_SAYS(open_with(quant, {codes, scales, {"weight_zero_point", "I32", {4, 1}, text(16, 0)}}),
              "weight_zero_point' is [4, 1], but config.json makes it [4, 2]");
  EXPECT_SAYS(open_with(quant, {codes, scales, {"weight_zero_point", "I8", {32}, text(32, 0)}}),
              "weight_zero_point' has 32 elements beside 64 scales");
  EXPECT_SAYS(open_with(quant, {codes, scales, {"weight_g_idx", "I32", {32}, text(128, 9)}}),
              "weight_g_idx' names group");
  EXPECT_EQ(open_with(quant, {codes, scales, {"weight_g_idx", "I32", {32}, text(128, '\xff')}}),
            "");
  EXPECT_SAYS(open_with(R"({"quant_method": "gptq"})", {codes, scales}),
              "weight_packed' is not stored as quant_method of config.json says");
  EXPECT_SAYS(open_with(quant, {codes, scales, {"extra", "F16", {1}, "ab"}}), "is not part of");
  EXPECT_EQ(open_with(quant, {codes, scales, {"input_scale", "F16", {1}, "ab"}}), "");
}

TEST_F(HfCodes, Mxfp4IsChecked) {
  const std::string quant = R"({"quant_method": "compressed-tensors",
    "format": "mxfp4-pack-quantized", "config_groups": {"group_0": {"weights": {"num_bits": 4,
    "type": "float", "strategy": "group", "group_size": 32}}}})";
  const Part codes{"weight_packed", "U8", {32, 16}, text(512, '\x21')};
  EXPECT_SAYS(open_with(quant, {codes}), "weight_packed' has no weight_scale beside it");
  EXPECT_SAYS(open_with(quant, {codes, {"weight_scale", "U8", {32, 2}, text(64, '\x7f')}}),
              "weight_scale' is [32, 2], but config.json makes it [32, 1]");
  EXPECT_SAYS(open_with(quant, {codes, {"weight_scale", "F16", {32, 1}, text(64, '\x7f')}}),
              "weight_scale' must be U8");
  EXPECT_EQ(open_with(quant, {codes, {"weight_scale", "U8", {32, 1}, text(32, '\x7f')}}), "");
  auto file = open();
  const TensorInfo* t = file->find("blk.0.ffn_up.weight");
  ASSERT_TRUE(t && t->format == Format::mxfp4);
  std::vector<float> values(1024);
  format_info(t->format).decode(file->data(*t).data(), values.data(), 1024);
  EXPECT_EQ(values[0], 0.5f);  // the lower nibble is the even column
  EXPECT_EQ(values[1], 1.0f);
  EXPECT_EQ(values[31], 1.0f);
}

TEST_F(HfCodes, GptqV2StoresItsZeroPointsAsTheyAre) {
  const std::vector<Part> parts = {{"qweight", "I32", {4, 32}, text(512, '\x31')},
                                   {"qzeros", "I32", {1, 4}, text(16, '\x77')},
                                   {"scales", "F16", {1, 32}, text(64, '\x20')}};
  const std::string quant = R"({"quant_method": "gptq", "group_size": 32, )";
  const std::pair<const char*, float> cases[] = {{R"("checkpoint_format": "gptq"})", -8},
                                                 {R"("checkpoint_format": "gptq_v2"})", -7},
                                                 {R"("format": "gptq_v2"})", -7}};
  for (const auto& [more, minus_zero] : cases) {
    EXPECT_EQ(open_with(quant + more, parts), "");
    auto file = open();
    BlockInt4 block;
    std::memcpy(&block, file->data(*file->find("blk.0.ffn_up.weight")).data(), sizeof(block));
    EXPECT_EQ(f16_to_f32(block.m), minus_zero) << more;
  }
}

TEST_F(HfCodes, ModulesMayDifferWhereTheConfigSaysSo) {
  const std::vector<Part> parts = {{"qweight", "I32", {8, 32}, text(1024, '\x31')},
                                   {"qzeros", "I32", {1, 8}, text(32, '\x7f')},
                                   {"scales", "F16", {1, 32}, text(64, '\x20')}};
  const std::string quant = R"({"quant_method": "gptq", "bits": 4, "group_size": 16)";
  EXPECT_SAYS(open_with(quant + "}", parts),
              "qweight' is [8, 32], but config.json makes it [4, 32]");
  EXPECT_EQ(open_with(quant + R"(, "dynamic": {"+:.*up_proj": {"bits": 8}}})", parts), "");
  auto file = open();
  const TensorInfo* t = file->find("blk.0.ffn_up.weight");
  ASSERT_TRUE(t && t->format == Format::q8_0);
  BlockQ8_0 block;
  std::memcpy(&block, file->data(*t).data(), sizeof(block));
  EXPECT_EQ(block.d, 0x2020);
  EXPECT_EQ(block.qs[31], 0x31 - 128);
}

TEST_F(HfCodes, ScalesOutsideAHalfsRangeAreNotRounded) {
  const std::string quant = R"({"quant_method": "compressed-tensors", "format": "int-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 8, "strategy": "tensor"}}}})";
  for (const auto& [value, format] : {std::pair{0.01f, Format::q8_0},
                                      {1e-9f, Format::bf16},
                                      {1e6f, Format::bf16},
                                      {0.0f, Format::q8_0}}) {
    const std::string scale(reinterpret_cast<const char*>(&value), 4);
    EXPECT_EQ(open_with(quant, {{"weight", "I8", {32, 32}, text(1024, '\x7f')},
                                {"weight_scale", "F32", {1}, scale}}),
              "");
    auto file = open();
    const TensorInfo* t = file->find("blk.0.ffn_up.weight");
    ASSERT_EQ(t->format, format) << value;
    std::vector<float> values(1024);
    format_info(format).decode(file->data(*t).data(), values.data(), 1024);
    EXPECT_NEAR(values[1023], 127 * value, 0.004f * 127 * value);
  }
}

TEST_F(HfCodes, EightBitFloatsAreChecked) {
  const std::string quant = R"({"quant_method": "fp8", "weight_block_size": [16, 24]})";
  const Part codes{"weight", "F8_E4M3", {32, 32}, text(1024, '\x38')};
  EXPECT_SAYS(open_with(quant, {codes}), "weight' has no weight_scale beside it");
  EXPECT_SAYS(open_with(quant, {codes, {"weight_scale_inv", "F32", {2, 1}, text(8, '@')}}),
              "weight_scale_inv' is [2, 1], but config.json makes it [32, 1]");
  EXPECT_SAYS(open_with(quant, {{"weight", "F8_E4M3", {32, 16}, text(512, 0)},
                                {"weight_scale", "F32", {}, text(4, '@')}}),
              "weight' is [32, 16], but config.json makes it [32, 32]");
  EXPECT_SAYS(open_with(quant, {{"weight", "I8", {32, 32}, text(1024, 0)},
                                {"weight_scale", "F32", {}, text(4, '@')}}),
              "weight' is not stored as quant_method of config.json says");
  EXPECT_SAYS(open_with(quant, {{"weight", "F8_E5M2", {32, 32}, text(1024, 0)}}),
              "is of type F8_E5M2");
  // 1.0 in e4m3, and the scales 1, 2, 3, 4 of blocks of 16 x 24
  std::string scales;
  for (float v : {1.0f, 2.0f, 3.0f, 4.0f}) scales.append(reinterpret_cast<const char*>(&v), 4);
  EXPECT_EQ(open_with(quant, {codes, {"weight_scale_inv", "F32", {2, 2}, scales}}), "");
  auto file = open();
  const TensorInfo* t = file->find("blk.0.ffn_up.weight");
  ASSERT_TRUE(t && t->format == Format::bf16);
  const auto* values = reinterpret_cast<const uint16_t*>(file->data(*t).data());
  EXPECT_EQ(bf16_to_f32(values[0]), 1);
  EXPECT_EQ(bf16_to_f32(values[23]), 1);
  EXPECT_EQ(bf16_to_f32(values[24]), 2);
  EXPECT_EQ(bf16_to_f32(values[16 * 32 + 23]), 3);
  EXPECT_EQ(bf16_to_f32(values[32 * 32 - 1]), 4);
}

TEST_F(HfFiles, QuantisedWeightsAreChecked) {
  const std::string stem = "layers.0.mlp.up_proj.";
  const std::string quant = R"("quantization_config": {"quant_method": "gptq", "group_size": 32})";
  auto with = [&](const std::vector<int64_t>& zeros, const std::string& order) {
    SafetensorsBuilder b;
    for (const auto& [name, shape] : shapes_) {
      if (name == stem + "weight") continue;
      size_t size = 2;
      for (int64_t d : shape) size *= static_cast<size_t>(d);
      b.tensor(name, "F16", shape, std::string(size, '\0'));
    }
    b.tensor(stem + "qweight", "I32", {4, 32}, std::string(512, '\x31'));
    if (!zeros.empty()) {
      b.tensor(stem + "qzeros", "I32", zeros,
               std::string(static_cast<size_t>(zeros[0] * zeros[1] * 4), '\x77'));
    }
    b.tensor(stem + "scales", "F16", {1, 32}, std::string(64, '\x20'));
    if (!order.empty()) b.tensor(stem + "g_idx", "I32", {32}, order);
    write("model.safetensors", b.build());
  };
  with({1, 4}, "");
  EXPECT_SAYS(error(), "config.json has no quantization_config");
  write("config.json", std::string(kConfig) + ", " + quant + "}");
  EXPECT_EQ(error(), "");
  with({1, 3}, "");
  EXPECT_SAYS(error(), "qzeros' is [1, 3], but config.json makes it [1, 4]");
  with({}, "");
  EXPECT_SAYS(error(), "has no qzeros beside it");
  with({1, 4}, std::string(128, '\x01'));
  EXPECT_SAYS(error(), "names group 16843009 of 1");
  with({1, 4}, std::string(128, '\0'));
  auto file = open();
  ASSERT_TRUE(file);
  const TensorInfo* t = file->find("blk.0.ffn_up.weight");
  ASSERT_TRUE(t && t->format == Format::int4);
  EXPECT_EQ(t->bytes, 32u * sizeof(BlockInt4));
  BlockInt4 block;
  std::memcpy(&block, file->data(*t).data(), sizeof(block));
  EXPECT_EQ(f16_to_f32(block.m), -8);  // stored 7
  float values[32];
  decode(block, values);
  EXPECT_EQ(values[0], f16_to_f32(0x2020) * (1 - 8));
  EXPECT_EQ(values[1], f16_to_f32(0x2020) * (3 - 8));
}

TEST_F(HfFiles, TextFilesBecomeMetadata) {
  write("model.safetensors", weights());
  write("config.json", std::string(kConfig) + R"(, "bos_token_id": 1, "eos_token_id": 2})");
  write("tokenizer.json", "{\"version\": \"1.0\"}");
  write("tokenizer.model", std::string("\0\n\x01", 3));
  write("tokenizer_config.json", R"({"bos_token": null, "eos_token": {"content": "</s>"},
    "unk_token": "<unk>", "add_bos_token": true, "chat_template": "old",
    "added_tokens_decoder": {"7": {"content": "</s>"}, "x": {"content": "<unk>"}}})");
  write("generation_config.json", R"({"eos_token_id": [9, 2], "do_sample": true,
    "temperature": 0.6, "top_k": 20})");
  auto file = open();
  ASSERT_TRUE(file);
  const Meta& m = file->meta();
  EXPECT_EQ(*m.string("tokenizer.huggingface.json"), "{\"version\": \"1.0\"}");
  EXPECT_EQ(m.string("tokenizer.sentencepiece.model")->size(), 3u);
  EXPECT_FALSE(m.has("tokenizer.ggml.bos_token_id"));
  EXPECT_EQ(m.integer("tokenizer.ggml.eos_token_id"), 7);
  EXPECT_EQ(*m.string("tokenizer.huggingface.eos_token"), "</s>");
  EXPECT_EQ(*m.integers("tokenizer.ggml.eos_token_ids"), (std::vector<int64_t>{2, 7, 9}));
  EXPECT_EQ(*m.string("tokenizer.huggingface.unk_token"), "<unk>");
  EXPECT_FALSE(m.has("tokenizer.ggml.unknown_token_id"));  // for the vocabulary to find
  EXPECT_EQ(m.boolean("tokenizer.ggml.add_bos_token"), true);
  EXPECT_EQ(*m.string("tokenizer.chat_template"), "old");
  EXPECT_EQ(m.number("general.sampling.temp"), 0.6);
  EXPECT_EQ(m.integer("general.sampling.top_k"), 20);
  EXPECT_EQ(m.integer("llama.block_count"), 1);
  write("chat_template.jinja", "new");
  EXPECT_EQ(*open()->meta().string("tokenizer.chat_template"), "new");
  write("generation_config.json", R"({"do_sample": true, "top_p": 3})");
  EXPECT_SAYS(error(), "generation_config.json': top_p is 3");
}

TEST_F(HfFiles, ADirectoryOfTextFilesAlone) {
  fs::remove(path_ / "config.json");
  auto nothing = open_text(path_.string());
  ASSERT_FALSE(nothing);
  EXPECT_SAYS(nothing.error().message, "has no tokenizer.json, tokenizer.model or chat template");
  write("tokenizer_config.json", R"({"bos_token": "<s>", "chat_template":
    [{"name": "tool_use", "template": "b"}, {"name": "default", "template": "a"}]})");
  auto file = open_only_text();
  ASSERT_TRUE(file);
  EXPECT_TRUE(file->tensors().empty());
  EXPECT_EQ(*file->meta().string("tokenizer.chat_template"), "a");
  EXPECT_EQ(*file->meta().string("tokenizer.chat_template.tool_use"), "b");
  EXPECT_EQ(*file->meta().string("tokenizer.huggingface.bos_token"), "<s>");
  EXPECT_FALSE(has_vocabulary(*file));
  write("tokenizer.json", "{}");
  EXPECT_TRUE(has_vocabulary(*open_only_text()));
  write("tokenizer_config.json", R"({"chat_template": 5})");
  auto bad = open_text(path_.string());
  ASSERT_FALSE(bad);
  EXPECT_SAYS(bad.error().message, "chat_template must be a string or a list");
}

TEST_F(HfFiles, AFileWithinIsAnsweredWithTheDirectory) {
  write("model.safetensors", weights());
  auto r = open_model((path_ / "model.safetensors").string(), "q8_0", 0);
  ASSERT_FALSE(r);
  EXPECT_SAYS(r.error().message, "give the directory");
  EXPECT_TRUE(open_model(path_.string(), "q8_0", 0));
}

TEST(HfFamilies, ConfigsOfEveryFamilyGiveTheirKeys) {
  auto meta_of = [](const std::string& text) {
    auto c = parse_hf_config(text);
    EXPECT_TRUE(c) << (c ? "" : c.error().message);
    Meta m;
    if (c) write_meta(*c, m);
    return m;
  };
  // gemma-3-4b: what equals the family's defaults is left out.
  const Meta gemma3 = meta_of(R"({"model_type": "gemma3", "text_config": {"hidden_size": 2560,
    "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}})");
  EXPECT_EQ(gemma3.integer("gemma3.attention.key_length"), 256);
  EXPECT_EQ(gemma3.integer("gemma3.attention.head_count_kv"), 4);
  EXPECT_EQ(gemma3.number("gemma3.rope.freq_base"), 1e6);
  EXPECT_EQ(gemma3.number("gemma3.rope.freq_base_swa"), 1e4);
  EXPECT_EQ(gemma3.number("gemma3.rope.scaling.factor"), 8);
  EXPECT_EQ(gemma3.number("gemma3.attention.scale"), 1.0 / 16);
  EXPECT_FALSE(gemma3.has("gemma3.attn_logit_softcapping"));
  const Meta gemma2 = meta_of(R"({"model_type": "gemma2", "hidden_size": 4608,
    "intermediate_size": 36864, "num_hidden_layers": 46, "num_attention_heads": 32,
    "num_key_value_heads": 16, "head_dim": 128, "query_pre_attn_scalar": 144, "vocab_size": 256000,
    "max_position_embeddings": 8192, "final_logit_softcapping": 30.0, "sliding_window": 4096})");
  EXPECT_EQ(gemma2.number("gemma2.attention.scale"), 1.0 / 12);
  EXPECT_EQ(gemma2.number("gemma2.attn_logit_softcapping"), 50);
  const Meta gpt2 = meta_of(R"({"model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
    "n_layer": 12, "n_positions": 1024, "vocab_size": 50257, "layer_norm_epsilon": 1e-05})");
  EXPECT_EQ(gpt2.integer("gpt2.feed_forward_length"), 3072);
  EXPECT_EQ(gpt2.number("gpt2.attention.layer_norm_epsilon"), 1e-5);
  EXPECT_FALSE(gpt2.has("gpt2.rope.freq_base"));
  const Meta phi3 = meta_of(R"({"model_type": "phi3", "hidden_size": 64, "num_attention_heads": 2,
    "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 100, "sliding_window": 2047,
    "max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
    "partial_rotary_factor": 0.25, "rope_scaling": {"type": "su",
    "short_factor": [1, 1.1, 1.2, 1.3], "long_factor": [1, 2, 3, 4]}})");
  EXPECT_EQ(phi3.integer("phi3.rope.dimension_count"), 8);
  EXPECT_EQ(phi3.integer("phi3.rope.scaling.original_context_length"), 4096);
  EXPECT_NEAR(*phi3.number("phi3.rope.scaling.attn_factor"), 1.1902380714238083, 1e-9);
  EXPECT_FALSE(phi3.has("phi3.rope.scaling.type"));
}

}  // namespace
}  // namespace sluice

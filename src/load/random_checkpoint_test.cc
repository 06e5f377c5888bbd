#include "load/random_checkpoint.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numbers>
#include <vector>

#include <gtest/gtest.h>

#include "load/hf_config.h"
#include "load/random_fill.h"
#include "tensor/formats/all.h"

namespace sluice {
namespace {

std::string shape(const std::string& name) {
  return std::string(SLUICE_SOURCE_DIR "/shapes/").append(name).append(".json");
}

std::unique_ptr<Checkpoint> open_shape(const std::string& name, Format format, uint64_t seed = 1) {
  auto r = random_checkpoint(shape(name), format, seed);
  EXPECT_TRUE(r) << (r ? "" : r.error().message);
  return r ? std::move(*r) : nullptr;
}

// The published parameter counts: a wrong or missing tensor shows.
TEST(RandomCheckpoint, ShippedShapesHaveTheModelsParameterCounts) {
  const struct {
    const char* name;
    const char* arch;
    int64_t parameters;
  } models[] = {
      {"smollm2-135m", "llama", 134515008},  {"qwen2.5-0.5b", "qwen2", 494032768},
      {"qwen2.5-1.5b", "qwen2", 1543714304}, {"qwen2.5-7b", "qwen2", 7615616512},
      {"qwen3-0.6b", "qwen3", 596049920},    {"qwen3-8b", "qwen3", 8190735360},
      {"qwen3-14b", "qwen3", 14768307200},   {"llama-2-7b", "llama", 6738415616},
      {"llama-3.1-8b", "llama", 8030261248}, {"gpt2", "gpt2", 124439808},
      {"lab-16m", "llama", 15735168},
  };
  size_t num_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(SLUICE_SOURCE_DIR "/shapes")) {
    num_files += entry.path().extension() == ".json";
  }
  EXPECT_EQ(num_files, std::size(models));
  for (const auto& m : models) {
    auto c = open_shape(m.name, Format::q4_0);
    ASSERT_NE(c, nullptr);
    int64_t total = 0;
    for (const TensorInfo& t : c->tensors()) {
      if (t.name != "rope_freqs.weight") total += t.rows * t.cols;
      EXPECT_EQ(t.bytes, row_bytes(t.format, t.cols) * static_cast<size_t>(t.rows));
      EXPECT_EQ(c->find(t.name), &t);
    }
    EXPECT_EQ(total, m.parameters) << m.name;
    EXPECT_EQ(*c->meta().string("general.architecture"), m.arch);
    EXPECT_FALSE(c->meta().has(std::string(m.arch) + ".attention.sliding_window")) << m.name;
  }
}

TEST(RandomCheckpoint, MetadataIsAsInGguf) {
  auto c = open_shape("llama-3.1-8b", Format::q4_0);
  ASSERT_NE(c, nullptr);
  const Meta& m = c->meta();
  EXPECT_EQ(m.integer("llama.block_count"), 32);
  EXPECT_EQ(m.integer("llama.context_length"), 131072);
  EXPECT_EQ(m.integer("llama.embedding_length"), 4096);
  EXPECT_EQ(m.integer("llama.feed_forward_length"), 14336);
  EXPECT_EQ(m.integer("llama.attention.head_count"), 32);
  EXPECT_EQ(m.integer("llama.attention.head_count_kv"), 8);
  EXPECT_EQ(m.integer("llama.attention.key_length"), 128);
  EXPECT_EQ(m.number("llama.attention.layer_norm_rms_epsilon"), 1e-5);
  EXPECT_EQ(m.number("llama.rope.freq_base"), 500000);
  EXPECT_EQ(m.integer("llama.rope.dimension_count"), 128);
  EXPECT_EQ(m.integer("llama.vocab_size"), 128256);
  EXPECT_FALSE(m.has("llama.rope.scaling.type"));
}

TEST(RandomCheckpoint, Llama3DivisorsFollowTheWavelengths) {
  auto c = open_shape("llama-3.1-8b", Format::q4_0);
  ASSERT_NE(c, nullptr);
  const TensorInfo* t = c->find("rope_freqs.weight");
  ASSERT_NE(t, nullptr);
  ASSERT_EQ(t->cols, 64);
  float divisors[64];
  std::memcpy(divisors, c->data(*t).data(), sizeof(divisors));
  for (int i = 0; i < 64; ++i) {
    const double wavelength = 2 * std::numbers::pi * std::pow(500000.0, i / 64.0);
    if (wavelength < 8192 / 4.0) {
      EXPECT_EQ(divisors[i], 1) << i;
    } else if (wavelength > 8192) {
      EXPECT_EQ(divisors[i], 8) << i;
    } else {
      const double smooth = (8192 / wavelength - 1) / 3;
      EXPECT_NEAR(1 / divisors[i], (1 - smooth) / 8 + smooth, 1e-6) << i;
    }
  }
}

TEST(RandomCheckpoint, FormatsFallBackWhereBlocksDoNotFit) {
  auto c = open_shape("smollm2-135m", Format::q6_k);  // 576 columns: no multiple of 256
  ASSERT_NE(c, nullptr);
  EXPECT_EQ(c->find("blk.0.attn_q.weight")->format, Format::q8_0);
  EXPECT_EQ(c->find("blk.0.ffn_down.weight")->format, Format::q6_k);  // 1536
  EXPECT_EQ(c->find("blk.0.attn_norm.weight")->format, Format::f32);
  EXPECT_EQ(c->find("output.weight"), nullptr);
  auto tied = open_shape("smollm2-135m", Format::q4_0);
  EXPECT_EQ(tied->find("token_embd.weight")->format, Format::q8_0);
  auto untied = open_shape("llama-2-7b", Format::q4_1);
  EXPECT_EQ(untied->find("token_embd.weight")->format, Format::q4_1);
  EXPECT_EQ(untied->find("output.weight")->format, Format::q8_0);
  EXPECT_EQ(untied->find("blk.31.ffn_up.weight")->format, Format::q4_1);
}

std::vector<float> values_of(Checkpoint& c, const TensorInfo& t) {
  std::vector<float> out(static_cast<size_t>(t.rows * t.cols));
  format_info(t.format).decode(c.data(t).data(), out.data(), t.rows * t.cols);
  return out;
}

// Mean 0 and standard deviation 1 / sqrt(cols) over the matrix, and no shared component of the
// rows: their sums spread like sums of independent values.
TEST(RandomCheckpoint, MatricesHaveThePlannedSpread) {
  for (int f = 0; f < kNumFormats; ++f) {
    const auto format = static_cast<Format>(f);
    auto c = open_shape("qwen3-0.6b", format);
    ASSERT_NE(c, nullptr);
    const TensorInfo* t = c->find("blk.3.ffn_up.weight");
    ASSERT_EQ(t->format, format);
    const std::vector<float> v = values_of(*c, *t);
    double sum = 0, squares = 0, row_squares = 0;
    for (int64_t r = 0; r < t->rows; ++r) {
      double row = 0;
      for (int64_t i = 0; i < t->cols; ++i) {
        const double x = v[static_cast<size_t>(r * t->cols + i)];
        row += x;
        squares += x * x;
      }
      sum += row;
      row_squares += row * row;
    }
    const double n = static_cast<double>(v.size());
    const double deviation = std::sqrt(squares / n) * std::sqrt(static_cast<double>(t->cols));
    EXPECT_NEAR(deviation, 1, 0.02) << format_info(format).name;
    EXPECT_NEAR(sum / n * std::sqrt(n), 0, 0.15) << format_info(format).name;  // sigma is 0.03
    EXPECT_LT(row_squares / static_cast<double>(t->rows), 1.7) << format_info(format).name;
  }
}

TEST(RandomCheckpoint, NormsAreNearOneAndBiasesSmall) {
  auto c = open_shape("qwen2.5-0.5b", Format::q8_0);
  ASSERT_NE(c, nullptr);
  for (float x : values_of(*c, *c->find("output_norm.weight"))) EXPECT_NEAR(x, 1, 0.1001);
  for (float x : values_of(*c, *c->find("blk.0.attn_k.bias"))) EXPECT_NEAR(x, 0, 0.1001);
  EXPECT_EQ(c->find("blk.0.attn_k.bias")->cols, 128);
  auto q3 = open_shape("qwen3-0.6b", Format::q8_0);
  EXPECT_EQ(q3->find("blk.0.attn_q_norm.weight")->cols, 128);
  EXPECT_EQ(q3->find("blk.0.attn_q.weight")->rows, 2048);
}

TEST(RandomCheckpoint, SameBytesAgainAfterReleaseAndPerSeed) {
  for (Format format : {Format::f16, Format::q8_0, Format::q4_0, Format::q6_k}) {
    auto a = open_shape("qwen3-0.6b", format);
    auto b = open_shape("qwen3-0.6b", format, 2);
    ASSERT_NE(a, nullptr);
    const TensorInfo& t = *a->find("blk.0.ffn_gate.weight");
    const TensorInfo& other = *a->find("blk.1.ffn_gate.weight");
    auto bytes = [](std::span<const std::byte> s) { return std::vector(s.begin(), s.end()); };
    const auto first = bytes(a->data(t));
    EXPECT_EQ(a->data(t).data(), a->data(t).data());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(a->data(t).data()) % 64, 0u);
    a->release(t);
    a->release(t);
    EXPECT_EQ(bytes(a->data(t)), first);
    EXPECT_NE(bytes(a->data(other)), first);
    EXPECT_NE(bytes(b->data(t)), first);
  }
}

// Any split of the work gives the same bytes, the last short unit included.
TEST(RandomFill, RangesAreIndependent) {
  for (int f = 0; f < kNumFormats; ++f) {
    const auto format = static_cast<Format>(f);
    const int64_t unit = random_unit_elems(format);
    const int64_t cols = unit == 64 ? 8 : unit;
    const int64_t num_elems = cols * 37;
    const int64_t num_units = (num_elems + unit - 1) / unit;
    const RandomMatrix m{format, 42, cols};
    const size_t size = row_bytes(format, cols) * 37;
    std::vector<uint64_t> whole(size / 8 + 2, ~0ull), parts(whole);
    fill_random(m, reinterpret_cast<std::byte*>(whole.data()), num_elems, 0, num_units);
    for (int64_t u = num_units - 1; u >= 0; --u) {
      fill_random(m, reinterpret_cast<std::byte*>(parts.data()), num_elems, u, u + 1);
    }
    EXPECT_EQ(whole, parts) << format_info(format).name;
    EXPECT_EQ(reinterpret_cast<const uint8_t*>(whole.data())[size], 0xff) << "past the end";
  }
}

std::string error_of(const std::string& text) {
  auto r = parse_hf_config(text);
  return r ? "" : r.error().message;
}

std::string with(const std::string& fields) {
  return std::string(R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100,
    "max_position_embeddings": 512)")
      .append(fields.empty() ? "" : ", ")
      .append(fields)
      .append("}");
}

#define EXPECT_SAYS(text, part)                           \
  EXPECT_NE(error_of(text).find(part), std::string::npos) \
      << "got '" << error_of(text) << "', which does not say " << part

TEST(HfConfig, DefaultsAndScaling) {
  auto c = parse_hf_config(with(""));
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->num_kv_heads, 4);
  EXPECT_EQ(c->head_dim, 16);
  EXPECT_EQ(c->rope.theta, 10000);
  EXPECT_EQ(c->window, 0);
  EXPECT_FALSE(c->tied);
  auto yarn = parse_hf_config(with(R"("rope_scaling": {"type": "yarn", "factor": 4.0})"));
  ASSERT_TRUE(yarn) << yarn.error().message;
  EXPECT_EQ(yarn->rope.scaling, "yarn");
  EXPECT_EQ(yarn->rope.original_context, 512);
  auto newer = parse_hf_config(
      with(R"("rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 5e5})"));
  ASSERT_TRUE(newer) << newer.error().message;
  EXPECT_EQ(newer->rope.theta, 5e5);
  EXPECT_EQ(newer->rope.scaling, "linear");
  auto plain = parse_hf_config(with(R"("rope_scaling": {"rope_type": "default"})"));
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->rope.scaling, "");
}

TEST(HfConfig, WindowsFollowTheFamily) {
  auto set = [](const std::string& type, const std::string& more) {
    auto c = parse_hf_config(with(std::string(R"("model_type": ")")
                                      .append(type)
                                      .append(R"(", "sliding_window": 256)")
                                      .append(more)));
    EXPECT_TRUE(c) << (c ? "" : c.error().message);
    return c ? c->window : -1;
  };
  EXPECT_EQ(set("mistral", ""), 256);
  EXPECT_EQ(set("qwen2", ""), 0);
  EXPECT_EQ(set("qwen2", R"(, "use_sliding_window": true)"), 256);
  EXPECT_EQ(set("qwen2", R"(, "use_sliding_window": false)"), 0);
}

TEST(HfConfig, ErrorsSayWhatIsWrong) {
  EXPECT_SAYS("[]", "JSON object");
  EXPECT_SAYS("{", "invalid JSON");
  EXPECT_SAYS("{}", "model_type");
  EXPECT_SAYS(with(R"("model_type": "mamba")"), "'mamba' is not supported");
  EXPECT_SAYS(R"({"model_type": "llama"})", "has no num_hidden_layers");
  EXPECT_SAYS(with(R"("hidden_size": 0)"), "hidden_size is 0");
  EXPECT_SAYS(with(R"("hidden_size": -64)"), "hidden_size is -64");
  EXPECT_SAYS(with(R"("hidden_size": 1e30)"), "hidden_size is 1e+30");
  EXPECT_SAYS(with(R"("hidden_size": "64")"), "hidden_size must be a number");
  EXPECT_SAYS(with(R"("vocab_size": 100.5)"), "vocab_size must be a whole number");
  EXPECT_SAYS(with(R"("num_attention_heads": 3)"), "hidden_size (64) must be a multiple");
  EXPECT_SAYS(with(R"("num_key_value_heads": 3)"), "multiple of num_key_value_heads (3)");
  EXPECT_SAYS(with(R"("head_dim": 9)"), "head dimension of 9");
  EXPECT_SAYS(with(R"("head_dim": 512)"), "head_dim is 512");
  EXPECT_SAYS(with(R"("attention_bias": true)"), "attention_bias must be false");
  EXPECT_SAYS(with(R"("tie_word_embeddings": 1)"), "true or false");
  EXPECT_SAYS(with(R"("rope_scaling": 4)"), "rope_scaling must be an object");
  EXPECT_SAYS(with(R"("rope_scaling": {"type": "dynamic", "factor": 2})"), "'dynamic'");
  EXPECT_SAYS(with(R"("rope_scaling": {"type": "linear"})"), "has no factor");
  EXPECT_SAYS(with(R"("rope_scaling": {"type": "llama3", "factor": 8})"), "original_max_position");
  EXPECT_SAYS(with(R"("rope_theta": 0)"), "rope_theta is 0");
}

TEST(RandomCheckpoint, PathErrorsNameThePath) {
  for (const std::string& path :
       {std::string("absent.json"), std::filesystem::temp_directory_path().string()}) {
    auto r = random_checkpoint(path, Format::q4_0, 1);
    ASSERT_FALSE(r);
    EXPECT_NE(r.error().message.find(path), std::string::npos) << r.error().message;
  }
}

}  // namespace
}  // namespace sluice

#include "load/random_checkpoint.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <new>
#include <numbers>
#include <sstream>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/str.h"
#include "base/thread_pool.h"
#include "load/hf_config.h"
#include "load/random_fill.h"
#include "tensor/formats/all.h"

namespace sluice {
namespace {

enum class Fill : uint8_t { matrix, norm, bias, rope_divisors };

struct FreeBytes {
  void operator()(std::byte* p) const { std::free(p); }
};
using Bytes = std::unique_ptr<std::byte, FreeBytes>;

Bytes allocate(size_t size) {
  auto* p = static_cast<std::byte*>(std::aligned_alloc(64, (size + 63) / 64 * 64));
  if (!p) throw std::bad_alloc();
  return Bytes(p);
}

uint64_t key_of(uint64_t seed, std::string_view name) {
  uint64_t h = mix_bits(seed + 0x9e3779b97f4a7c15u);
  for (char c : name) h = mix_bits(h ^ static_cast<unsigned char>(c)) + 0x9e3779b97f4a7c15u;
  return h;
}

// What "llama3" scaling divides each pair's frequency by: 1 for short wavelengths, `factor` for
// long ones, and between them so that the frequency is interpolated.
std::vector<float> llama3_divisors(const HfRope& rope, int dims) {
  std::vector<float> divisors(static_cast<size_t>(dims / 2));
  const double original = rope.original_context;
  for (size_t i = 0; i < divisors.size(); ++i) {
    const double frequency = std::pow(rope.theta, -2.0 * static_cast<double>(i) / dims);
    const double turns = original * frequency / (2 * std::numbers::pi);  // within the old context
    double smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
    smooth = std::clamp(smooth, 0.0, 1.0);
    divisors[i] = static_cast<float>(1 / ((1 - smooth) / rope.factor + smooth));
  }
  return divisors;
}

class RandomCheckpoint final : public Checkpoint {
 public:
  RandomCheckpoint(const HfConfig& config, Format format, uint64_t seed)
      : config_(config), format_(format), seed_(seed) {
    CPU_ZERO(&cores_);
    for (int core : usable_cores()) CPU_SET(core, &cores_);
    add_meta();
    add_tensors();
  }

  std::span<const std::byte> data(const TensorInfo& tensor) override {
    const size_t i = index_of(tensor);
    Bytes& bytes = live_[i];
    if (!bytes) {
      bytes = allocate(tensor.bytes);
      fill(tensors_[i], fills_[i], bytes.get());
    }
    return {bytes.get(), tensor.bytes};
  }

  void release(const TensorInfo& tensor) override { live_.erase(index_of(tensor)); }

 private:
  size_t index_of(const TensorInfo& tensor) const {
    auto it = index_.find(tensor.name);
    CHECK(it != index_.end() && tensors_[it->second].bytes == tensor.bytes);
    return it->second;
  }

  void set(const char* key, MetaValue value) {
    meta_.set(config_.arch + "." + key, std::move(value));
  }
  void set_count(const char* key, int value) { set(key, static_cast<uint64_t>(value)); }

  void add_meta();
  void add_rope_meta();
  void add_tensors();
  void add_layer(int layer);
  void add(std::string name, Fill fill, Format format, int64_t rows, int64_t cols);
  void add_vector(std::string name, Fill fill, int64_t cols) {
    add(std::move(name), fill, Format::f32, 1, cols);
  }
  void add_matrix(std::string name, int64_t rows, int64_t cols) {
    add(std::move(name), Fill::matrix, format_, rows, cols);
  }
  void fill(const TensorInfo& tensor, Fill fill, std::byte* out) const;
  void fill_matrix(const TensorInfo& tensor, std::byte* out) const;

  HfConfig config_;
  Format format_;
  uint64_t seed_;
  cpu_set_t cores_;          // the caller may be bound to one core by the time data() is called
  std::vector<Fill> fills_;  // beside tensors_
  std::unordered_map<size_t, Bytes> live_;
};

void RandomCheckpoint::add_meta() {
  meta_.set("general.architecture", config_.arch);
  meta_.set("general.name", std::string("random weights"));
  set_count("block_count", config_.num_layers);
  set_count("context_length", config_.context);
  set_count("embedding_length", config_.hidden);
  set_count("feed_forward_length", config_.ffn);
  set_count("vocab_size", config_.vocab);
  set_count("attention.head_count", config_.num_heads);
  set_count("attention.head_count_kv", config_.num_kv_heads);
  set_count("attention.key_length", config_.head_dim);
  set_count("attention.value_length", config_.head_dim);
  set("attention.layer_norm_rms_epsilon", config_.eps);
  if (config_.window) set_count("attention.sliding_window", config_.window);
  add_rope_meta();
}

void RandomCheckpoint::add_rope_meta() {
  const HfRope& rope = config_.rope;
  set_count("rope.dimension_count", config_.head_dim);
  set("rope.freq_base", rope.theta);
  if (rope.scaling != "linear" && rope.scaling != "yarn") return;  // llama3 is rope_freqs.weight
  set("rope.scaling.type", rope.scaling);
  set("rope.scaling.factor", rope.factor);
  if (rope.scaling == "linear") return;
  set_count("rope.scaling.original_context_length", rope.original_context);
  set("rope.scaling.yarn_beta_fast", rope.beta_fast);
  set("rope.scaling.yarn_beta_slow", rope.beta_slow);
  if (rope.attention_factor > 0) set("rope.scaling.attn_factor", rope.attention_factor);
}

void RandomCheckpoint::add(std::string name, Fill fill, Format format, int64_t rows, int64_t cols) {
  if (cols % format_info(format).block_elems != 0) format = Format::q8_0;
  if (cols % format_info(format).block_elems != 0) format = Format::f16;
  index_.emplace(name, tensors_.size());
  const size_t bytes = row_bytes(format, cols) * static_cast<size_t>(rows);
  tensors_.push_back({std::move(name), format, rows, cols, bytes});
  fills_.push_back(fill);
}

void RandomCheckpoint::add_tensors() {
  const HfConfig& c = config_;
  const bool four_bits = format_ == Format::q4_0 || format_ == Format::q4_1;
  const Format output = four_bits ? Format::q8_0 : format_;
  add("token_embd.weight", Fill::matrix, c.tied ? output : format_, c.vocab, c.hidden);
  if (!c.tied) add("output.weight", Fill::matrix, output, c.vocab, c.hidden);
  add_vector("output_norm.weight", Fill::norm, c.hidden);
  if (c.rope.scaling == "llama3") {
    add_vector("rope_freqs.weight", Fill::rope_divisors, c.head_dim / 2);
  }
  for (int layer = 0; layer < c.num_layers; ++layer) add_layer(layer);
}

void RandomCheckpoint::add_layer(int layer) {
  const HfConfig& c = config_;
  const std::string blk = strf("blk.%d.", layer);
  const int64_t q_rows = int64_t{c.num_heads} * c.head_dim;
  const int64_t kv_rows = int64_t{c.num_kv_heads} * c.head_dim;
  add_vector(blk + "attn_norm.weight", Fill::norm, c.hidden);
  add_matrix(blk + "attn_q.weight", q_rows, c.hidden);
  add_matrix(blk + "attn_k.weight", kv_rows, c.hidden);
  add_matrix(blk + "attn_v.weight", kv_rows, c.hidden);
  if (c.qkv_bias) {
    add_vector(blk + "attn_q.bias", Fill::bias, q_rows);
    add_vector(blk + "attn_k.bias", Fill::bias, kv_rows);
    add_vector(blk + "attn_v.bias", Fill::bias, kv_rows);
  }
  if (c.qk_norm) {
    add_vector(blk + "attn_q_norm.weight", Fill::norm, c.head_dim);
    add_vector(blk + "attn_k_norm.weight", Fill::norm, c.head_dim);
  }
  add_matrix(blk + "attn_output.weight", c.hidden, q_rows);
  add_vector(blk + "ffn_norm.weight", Fill::norm, c.hidden);
  add_matrix(blk + "ffn_gate.weight", c.ffn, c.hidden);
  add_matrix(blk + "ffn_up.weight", c.ffn, c.hidden);
  add_matrix(blk + "ffn_down.weight", c.hidden, c.ffn);
}

void RandomCheckpoint::fill(const TensorInfo& tensor, Fill fill, std::byte* out) const {
  if (fill == Fill::matrix) return fill_matrix(tensor, out);
  auto* values = reinterpret_cast<float*>(out);
  if (fill == Fill::rope_divisors) {
    const std::vector<float> divisors = llama3_divisors(config_.rope, config_.head_dim);
    std::copy(divisors.begin(), divisors.end(), values);
    return;
  }
  const uint64_t key = key_of(seed_, tensor.name);
  const float middle = fill == Fill::norm ? 1 : 0;
  for (int64_t i = 0; i < tensor.cols; ++i) {
    const uint64_t r = mix_bits(key + static_cast<uint64_t>(i)) >> 40;  // 24 bits: exact in f32
    values[i] = middle + 0.1f * (static_cast<float>(r) * 0x1p-23f - 1);
  }
}

void RandomCheckpoint::fill_matrix(const TensorInfo& tensor, std::byte* out) const {
  constexpr size_t kBytesPerThread = 1 << 20;  // below that, starting a thread costs more
  const RandomMatrix m{tensor.format, key_of(seed_, tensor.name), tensor.cols};
  const int64_t num_elems = tensor.rows * tensor.cols;
  const int64_t unit = random_unit_elems(tensor.format);
  const int64_t num_units = (num_elems + unit - 1) / unit;
  const auto num_threads = static_cast<int64_t>(std::clamp<size_t>(
      tensor.bytes / kBytesPerThread, 1, static_cast<size_t>(CPU_COUNT(&cores_))));
  auto share = [&](int64_t t) {
    const int64_t each = num_units / num_threads;
    const int64_t begin = t * each;
    const int64_t end = t + 1 == num_threads ? num_units : begin + each;
    fill_random(m, out, num_elems, begin, end);
  };
  std::vector<std::jthread> threads;
  for (int64_t t = 1; t < num_threads; ++t) {
    threads.emplace_back([&, t] {
      pthread_setaffinity_np(pthread_self(), sizeof(cores_), &cores_);
      share(t);
    });
  }
  share(0);
}

Result<std::string> read_small_file(const std::string& path) {
  constexpr std::streamsize kMax = 1 << 20;
  std::ifstream in(path, std::ios::binary);
  if (!in) return Error{404, "cannot open; give a model's config.json"};
  std::string text(kMax + 1, '\0');
  in.read(text.data(), kMax + 1);
  if (in.gcount() > kMax) return Error{400, "too large for a config.json"};
  if (in.bad() || in.gcount() == 0)
    return Error{400, "empty or unreadable; give a model's config.json"};
  text.resize(static_cast<size_t>(in.gcount()));
  return text;
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> random_checkpoint(const std::string& config_json_path,
                                                      Format format,
                                                      uint64_t seed) {
  auto text = read_small_file(config_json_path);
  if (!text)
    return Error{text.error().code, quote(config_json_path, 400) + ": " + text.error().message};
  return random_checkpoint_from_text(*text, config_json_path, format, seed);
}

Result<std::unique_ptr<Checkpoint>> random_checkpoint_from_text(std::string_view config_json,
                                                                const std::string& origin,
                                                                Format format,
                                                                uint64_t seed) {
  auto config = parse_hf_config(config_json);
  if (!config)
    return Error{config.error().code, quote(origin, 400) + ": " + config.error().message};
  return std::unique_ptr<Checkpoint>(std::make_unique<RandomCheckpoint>(*config, format, seed));
}

}  // namespace sluice

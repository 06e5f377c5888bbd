#include "load/random_checkpoint.h"

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/str.h"
#include "load/hf_config.h"
#include "load/hf_tensors.h"
#include "load/random_fill.h"
#include "load/read_file.h"
#include "load/tensor_maker.h"
#include "tensor/formats/all.h"

namespace sluice {
namespace {

enum class Fill : uint8_t { matrix, norm, bias, given };

uint64_t key_of(uint64_t seed, std::string_view name) {
  uint64_t h = mix_bits(seed + 0x9e3779b97f4a7c15u);
  for (char c : name) h = mix_bits(h ^ static_cast<unsigned char>(c)) + 0x9e3779b97f4a7c15u;
  return h;
}

class RandomCheckpoint final : public Checkpoint {
 public:
  RandomCheckpoint(const HfConfig& config, Format format, uint64_t seed)
      : config_(config), format_(format), seed_(seed) {
    write_meta(config, meta_);
    meta_.set("general.name", std::string("random weights"));
    add_tensors();
  }

  std::span<const std::byte> data(const TensorInfo& tensor) override {
    const size_t i = index_of(tensor);
    Bytes& bytes = live_[i];
    if (!bytes) {
      bytes = allocate_bytes(tensor.bytes);
      fill(tensors_[i], fills_[i], bytes.get());
    }
    return {bytes.get(), tensor.bytes};
  }

  std::optional<RandomSource> random(const TensorInfo& tensor) const override {
    if (fills_[index_of(tensor)] != Fill::matrix) return std::nullopt;
    return RandomSource{key_of(seed_, tensor.name), tensor.cols};
  }

  void release(const TensorInfo& tensor) override { live_.erase(index_of(tensor)); }

 private:
  size_t index_of(const TensorInfo& tensor) const {
    auto it = index_.find(tensor.name);
    CHECK(it != index_.end() && tensors_[it->second].bytes == tensor.bytes);
    return it->second;
  }

  void add_tensors();
  void add(std::string name, Fill fill, Format format, int64_t rows, int64_t cols);
  void fill(const TensorInfo& tensor, Fill fill, std::byte* out) const;
  void fill_matrix(const TensorInfo& tensor, std::byte* out) const;

  HfConfig config_;
  Format format_;
  uint64_t seed_;
  FillThreads threads_;
  std::vector<Fill> fills_;  // beside tensors_
  std::map<std::string, std::vector<float>> given_;
  std::unordered_map<size_t, Bytes> live_;
};

void RandomCheckpoint::add(std::string name, Fill fill, Format format, int64_t rows, int64_t cols) {
  if (cols % format_info(format).block_elems != 0) format = Format::q8_0;
  if (cols % format_info(format).block_elems != 0) format = Format::f16;
  index_.emplace(name, tensors_.size());
  const size_t bytes = row_bytes(format, cols) * static_cast<size_t>(rows);
  tensors_.push_back({std::move(name), format, rows, cols, bytes});
  fills_.push_back(fill);
}

void RandomCheckpoint::add_tensors() {
  const bool four_bits = format_ == Format::q4_0 || format_ == Format::q4_1;
  const Format output = four_bits ? Format::q8_0 : format_;
  for (const HfTensor& t : hf_tensors(config_)) {
    if (t.vector) {
      add(t.gguf, t.gguf.ends_with(".bias") ? Fill::bias : Fill::norm, Format::f32, 1, t.cols);
    } else {
      const bool last =
          t.gguf == "output.weight" || (config_.tied && t.gguf == "token_embd.weight");
      add(t.gguf, Fill::matrix, last ? output : format_, t.rows, t.cols);
    }
  }
  for (auto& [name, values] : hf_rope_tensors(config_)) {
    add(name, Fill::given, Format::f32, 1, static_cast<int64_t>(values.size()));
    given_.emplace(name, std::move(values));
  }
}

void RandomCheckpoint::fill(const TensorInfo& tensor, Fill fill, std::byte* out) const {
  if (fill == Fill::matrix) return fill_matrix(tensor, out);
  auto* values = reinterpret_cast<float*>(out);
  if (fill == Fill::given) {
    const std::vector<float>& given = given_.at(tensor.name);
    std::copy(given.begin(), given.end(), values);
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
  const RandomMatrix m{tensor.format, key_of(seed_, tensor.name), tensor.cols};
  const int64_t num_elems = tensor.rows * tensor.cols;
  const int64_t unit = random_unit_elems(tensor.format);
  threads_.split((num_elems + unit - 1) / unit, tensor.bytes,
                 [&](int64_t begin, int64_t end) { fill_random(m, out, num_elems, begin, end); });
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> random_checkpoint(const std::string& config_json_path,
                                                      Format format,
                                                      uint64_t seed) {
  auto text = read_whole_file(config_json_path, 1 << 20);
  if (!text) return Error{text.error().code, text.error().message + "; give a config.json"};
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

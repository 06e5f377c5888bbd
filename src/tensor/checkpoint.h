// A model file as its readers present it: typed metadata and named tensors, nothing copied.
// Readers (GGUF, Hugging Face directories, random) validate everything before a Checkpoint exists:
// offsets, counts and sizes in it can be trusted. Used by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tensor/tensor.h"

namespace sluice {

// Metadata under GGUF's key names ("llama.block_count"); other readers translate to them.
using MetaValue = std::variant<bool,
                               int64_t,
                               uint64_t,
                               double,
                               std::string,
                               std::vector<int64_t>,
                               std::vector<float>,
                               std::vector<std::string>,
                               std::vector<bool>>;

class Meta {
 public:
  void set(std::string key, MetaValue value) { values_[std::move(key)] = std::move(value); }
  bool has(std::string_view key) const { return find(key) != nullptr; }
  const MetaValue* find(std::string_view key) const;
  // Converted between number kinds where the value fits; nullopt when absent or of another kind.
  std::optional<int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  const std::string* string(std::string_view key) const;
  const std::vector<std::string>* strings(std::string_view key) const;
  const std::vector<float>* floats(std::string_view key) const;
  const std::vector<int64_t>* integers(std::string_view key) const;
  const std::map<std::string, MetaValue, std::less<>>& all() const { return values_; }

 private:
  std::map<std::string, MetaValue, std::less<>> values_;
};

// A matrix [rows, cols] (a vector has rows = 1). GGUF's ne[0] is cols; dimensions above two are
// multiplied into rows.
struct TensorInfo {
  std::string name;
  Format format = Format::f32;
  int64_t rows = 0, cols = 0;
  size_t bytes = 0;
};

// A plain-format matrix that is a function of this key: fill_random() in load/random_fill.h, and
// devices that make it themselves.
struct RandomSource {
  uint64_t key = 0;
  int64_t cols = 0;
};

class Checkpoint {
 public:
  virtual ~Checkpoint() = default;
  const Meta& meta() const { return meta_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const TensorInfo* find(std::string_view name) const;
  // The tensor's bytes, valid until release() of the same tensor (or the checkpoint's end).
  virtual std::span<const std::byte> data(const TensorInfo& tensor) = 0;
  // Set where the bytes are a function: data() then need not be called.
  virtual std::optional<RandomSource> random(const TensorInfo&) const { return std::nullopt; }
  // The caller has copied what it needs: pages may go back to the system.
  virtual void release(const TensorInfo& tensor) = 0;

 protected:
  Meta meta_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, size_t, std::less<>> index_;
};

}  // namespace sluice

// Which kernel computes each of a GPU's matrix products, and the file that keeps those choices
// between runs. Plain data that needs no GPU, so that it is tested everywhere. Belongs to the
// backend's thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "tensor/tensor.h"

namespace sluice {

// What a choice depends on: y [n, rows] = x [n, cols] · wᵀ + bias.
struct GemmKey {
  int64_t rows = 0, cols = 0;
  int bucket = 0;  // n rounded up; 0: every n (deterministic mode)
  DType type = DType::bf16, out = DType::bf16;
  bool bias = false;
  bool wide = false;         // pointers and strides are multiples of 16 bytes
  bool coded = false;        // few rows for a weight in f8, whose codes are there
  bool cublas_only = false;  // the bucket's kernel does not take this product; never in a file
  auto operator<=>(const GemmKey&) const = default;
};

enum class GemmKernel : uint8_t { cublas, skinny, tall, narrow, wide };

struct GemmChoice {
  GemmKernel kernel = GemmKernel::cublas;
  int splits = 1;  // narrow, wide: ranges of columns that are added up apart (1-4, 8)
  std::array<uint64_t, 8> algo = {};  // cublas: its algorithm, opaque
  float microseconds = 0;             // of one product; 0: not timed
  bool timed() const { return microseconds > 0; }
  bool operator==(const GemmChoice&) const = default;
};

class GemmChoices {
 public:
  // Raised when a line's layout or meaning changes, or when there are other kernels to choose from:
  // files of other versions are ignored.
  static constexpr int kVersion = 9;

  const GemmChoice* find(const GemmKey& key) const {
    auto it = choices_.find(key);
    return it == choices_.end() ? nullptr : &it->second;
  }
  const GemmChoice& set(const GemmKey& key, const GemmChoice& choice) {
    return choices_.insert_or_assign(key, choice).first->second;
  }
  size_t size() const { return choices_.size(); }

  // The timed choices as text: a line with the version, then one line each.
  std::string text() const;
  // Adds the choices of such a text. Ignores a text of another version and lines it cannot read.
  void add(std::string_view text);

  // The same by a file. A missing file adds nothing; a file that cannot be written is left out.
  void load(const std::filesystem::path& path);
  void save(const std::filesystem::path& path) const;

 private:
  std::map<GemmKey, GemmChoice> choices_;
};

}  // namespace sluice

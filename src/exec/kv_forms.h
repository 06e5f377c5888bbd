// K and V of one layer between a CPU's cache, K [head][dimension][position] and V
// [head][position][dimension], and blocks as a GPU has them, both [head][position][dimension].
// Plain functions over memory; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/backend.h"

namespace sluice {

class KvForms {
 public:
  struct Positions {
    int first, end;  // of a block
  };
  // `host`: f16 or f32. `device`: f16, bf16 or f32.
  KvForms(const KvLayer& host, DType device) : host_(host), device_(device) {}

  // Those positions of a block of the host's cache, to or from a block of K and one of V.
  void to_device(int32_t block, Positions p, std::byte* k, std::byte* v) const;
  void to_host(int32_t block, Positions p, const std::byte* k, const std::byte* v) const;

 private:
  KvLayer host_;
  DType device_;
};

}  // namespace sluice

#include "backend/backend.h"

#include <cstdlib>
#include <cstring>
#include <new>

namespace sluice {

Buffer WeightStore::vector(std::span<const float> values) {
  void* data = std::malloc(values.size_bytes() + 1);
  if (!data) throw std::bad_alloc();
  if (!values.empty()) std::memcpy(data, values.data(), values.size_bytes());
  return {data, values.size_bytes(), [](void* p, size_t) { std::free(p); }};
}

void Backend::matmul_best(Tensor out, const Act& x, const Weight& w, std::span<Best> best) {
  matmul(out, x, w);
  for (size_t i = 0; i < best.size(); ++i)
    best[i] = better({}, out.row(static_cast<int64_t>(i)), out.cols);
}

std::unique_ptr<PageMemory> Backend::page_memory(size_t) { return host_page_memory(); }

}  // namespace sluice

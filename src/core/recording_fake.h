// Segments of a recording in memory, for tests. It may have no room at times, as a slow disk has.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/segment_encoder.h"

namespace sluice {

class MemorySink final : public SegmentSink {
 public:
  // `refuses` is asked before each write.
  explicit MemorySink(std::function<bool()> refuses = [] { return false; })
      : refuses_(std::move(refuses)) {}
  bool ready(size_t) override { return !refuses_(); }
  bool begin(uint32_t, std::span<const std::byte> first) override {
    segments.emplace_back();
    return write(first);
  }
  bool write(std::span<const std::byte> records) override {
    if (refuses_()) return false;
    segments.back().insert(segments.back().end(), records.begin(), records.end());
    return true;
  }
  void failed() override { ++num_failed; }

  std::vector<Bytes> segments;
  int num_failed = 0;

 private:
  std::function<bool()> refuses_;
};

// Other ids for tokens 0 ... num - 1.
inline std::shared_ptr<const TokenMap> shuffled_tokens(int num, uint64_t seed) {
  auto map = std::make_shared<TokenMap>();
  for (int t = 0; t < num; ++t) map->push_back(t);
  for (size_t k = map->size(); k > 1; --k) {
    seed = seed * 0x5851F42D4C957F2Du + 0x14057B7EF767814Fu;
    std::swap((*map)[k - 1], (*map)[(seed >> 33) % k]);
  }
  return map;
}

}  // namespace sluice

#include "tools/mixed_workload.h"

#include <bit>
#include <cstddef>

namespace sluice {

namespace {

// Python's generator: MT19937 seeded by an array of one word, and integers by rejection over the
// fewest bits.
class PythonRandom {
 public:
  explicit PythonRandom(uint32_t seed) {
    constexpr int kN = 624;
    state_.resize(kN);
    state_[0] = 19650218u;
    for (int i = 1; i < kN; ++i)
      state_[i] = 1812433253u * (state_[i - 1] ^ state_[i - 1] >> 30) + static_cast<uint32_t>(i);
    int i = 1;
    for (int k = 0; k < kN; ++k) {
      state_[i] = (state_[i] ^ (state_[i - 1] ^ state_[i - 1] >> 30) * 1664525u) + seed;
      if (++i >= kN) state_[0] = state_[kN - 1], i = 1;
    }
    for (int k = 0; k < kN - 1; ++k) {
      state_[i] = (state_[i] ^ (state_[i - 1] ^ state_[i - 1] >> 30) * 1566083941u) -
                  static_cast<uint32_t>(i);
      if (++i >= kN) state_[0] = state_[kN - 1], i = 1;
    }
    state_[0] = 0x80000000u;
  }

  // Uniform in [lo, hi].
  int between(int lo, int hi) {
    auto n = static_cast<uint32_t>(hi - lo + 1);
    int bits = std::bit_width(n);
    uint32_t r = 0;
    do {
      r = next() >> (32 - bits);
    } while (r >= n);
    return lo + static_cast<int>(r);
  }

 private:
  uint32_t next() {
    constexpr int kN = 624, kM = 397;
    if (at_ >= kN) {
      for (int i = 0; i < kN; ++i) {
        uint32_t y = (state_[i] & 0x80000000u) | (state_[(i + 1) % kN] & 0x7fffffffu);
        state_[i] = state_[(i + kM) % kN] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
      }
      at_ = 0;
    }
    uint32_t y = state_[at_++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
  }

  std::vector<uint32_t> state_;
  int at_ = 624;
};

}  // namespace

std::vector<MixedRequest> mixed_workload(int num,
                                         int longest_input,
                                         int longest_output,
                                         uint32_t seed) {
  PythonRandom random(seed);
  std::vector<MixedRequest> out(static_cast<size_t>(num));
  for (MixedRequest& r : out) {
    r.prompt.resize(static_cast<size_t>(random.between(100, longest_input)));
    for (int32_t& id : r.prompt) id = random.between(0, 10000);
  }
  for (MixedRequest& r : out) r.output = random.between(100, longest_output);
  return out;
}

}  // namespace sluice

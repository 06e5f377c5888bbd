#include "exec/swap_rates.h"

#include <algorithm>
#include <cstring>

namespace sluice {

namespace {

constexpr size_t kHostBytes = size_t{8} << 20, kDeviceBytes = size_t{32} << 20;
constexpr size_t kPiece = size_t{256} << 10;
constexpr int kTurns = 3;

double host_copy(Backend& backend, const Clock& clock, void* to, const void* from) {
  struct Copy {
    std::byte* to;
    const std::byte* from;
  } copy{static_cast<std::byte*>(to), static_cast<const std::byte*>(from)};
  Time best = kNever;
  for (int turn = 0; turn < kTurns; ++turn) {
    const Time begin = clock.now();
    backend.parallel(
        static_cast<int>(kHostBytes / kPiece),
        [](void* p, int i) {
          auto& c = *static_cast<Copy*>(p);
          const size_t at = static_cast<size_t>(i) * kPiece;
          std::memcpy(c.to + at, c.from + at, kPiece);
        },
        &copy);
    best = std::min(best, clock.now() - begin);
  }
  // A clock may be coarser than the copy.
  return static_cast<double>(kHostBytes) / std::max(seconds(best), 1e-6);
}

}  // namespace

CopyRates measure_copies(Backend& backend, const Clock& clock) {
  Buffer pool = backend.allocate(kHostBytes), places = backend.allocate(kHostBytes);
  std::memset(pool.data(), 1, kHostBytes);
  std::memset(places.data(), 1, kHostBytes);
  return {host_copy(backend, clock, places.data(), pool.data()),
          host_copy(backend, clock, pool.data(), places.data())};
}

CopyRates measure_copies(Device& device) {
  Buffer pool = device.allocate(kDeviceBytes), places = device.pinned(kDeviceBytes);
  auto rate = [&](auto&& copy) {
    float best = 0;
    for (int turn = 0; turn < kTurns; ++turn) {
      device.mark(0);
      copy();
      device.mark(1);
      device.wait(1);
      const float ms = device.elapsed(0, 1);
      best = turn == 0 ? ms : std::min(best, ms);
    }
    return static_cast<double>(kDeviceBytes) / std::max(best / 1e3, 1e-6);
  };
  const double out = rate([&] { device.download(places.data(), pool.data(), kDeviceBytes); });
  return {out, rate([&] { device.upload(pool.data(), places.data(), kDeviceBytes); })};
}

}  // namespace sluice

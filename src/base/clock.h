// Time as a value. Only loops and front ends read a clock; core takes `now` as an argument.
#pragma once

#include <chrono>

namespace sluice {

using Time = std::chrono::nanoseconds;  // since the start of the process (or of the simulation)
inline constexpr Time kNever = Time::max();

struct Clock {
  virtual ~Clock() = default;
  virtual Time now() const = 0;
};

class RealClock final : public Clock {
 public:
  Time now() const override { return std::chrono::steady_clock::now() - start_; }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

class SimClock final : public Clock {
 public:
  Time now() const override { return now_; }
  void advance_to(Time t) { now_ = t > now_ ? t : now_; }

 private:
  Time now_{0};
};

inline double seconds(Time t) { return std::chrono::duration<double>(t).count(); }

}  // namespace sluice

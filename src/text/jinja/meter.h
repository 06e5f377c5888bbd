// What one rendering may use: steps, bytes and time. Everything that makes or walks values goes
// through its meter: containers allocate with Metered, text grows through Text, and functions that
// only read charge for what they read. One thread; outlives all values of its rendering.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"

namespace sluice::jinja {

struct TemplateError {
  std::string message;
  int line;
};

class Meter {
 public:
  // `clock` may be null: then there is no limit of time.
  Meter(uint64_t steps, size_t bytes, const Clock* clock = nullptr, Time limit = kNever);

  [[noreturn]] void fail(std::string message) const {
    throw TemplateError{std::move(message), line};
  }
  // A step is 50 to 100 ns of work.
  void step(uint64_t n = 1) {
    if (n > fuel_) refill(n);
    fuel_ -= n;
  }
  // Bytes that are copied, compared or counted: a step per 256.
  void scan(size_t bytes) { step(1 + bytes / 256); }
  // Bytes in which something is searched: a step per 64.
  void search(size_t bytes) { step(1 + bytes / 64); }
  // Bytes that are decoded or changed one character at a time: a step per 16.
  void walk(size_t bytes) { step(1 + bytes / 16); }

  // Memory: charged before it is taken, with the steps of filling it.
  void take(size_t bytes) {
    require(bytes);
    bytes_ -= bytes;
    if (bytes >= 256) step(bytes / 256);
  }
  void give(size_t bytes) { bytes_ += bytes; }
  void require(size_t bytes) const {  // fails when that much could not be taken
    if (bytes > bytes_) out_of_memory();
  }

  // From here on: `steps` more than are left, and at most `bytes` of memory beside that in use.
  void rebase(uint64_t steps, size_t bytes);
  size_t bytes_left() const { return bytes_; }
  uint64_t steps_left() const { return fuel_ + reserve_; }

  int line = 0;  // of the template, for messages

 private:
  static constexpr uint64_t kSlice = 4096;  // steps between two looks at the clock
  void refill(uint64_t n);
  [[noreturn]] void out_of_memory() const;

  uint64_t fuel_ = 0, reserve_;  // steps until the next look at the clock, and after it
  size_t bytes_;
  const Clock* clock_;
  Time deadline_;
};

// Allocator that charges a meter. It has no default: every container names its meter.
template <typename T>
class Metered {
 public:
  using value_type = T;
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;

  Metered(Meter& m) : meter_(&m) {}  // NOLINT: containers are constructed from a Meter
  template <typename U>
  Metered(const Metered<U>& other) : meter_(other.meter()) {}  // NOLINT: rebinding

  T* allocate(size_t n) {
    if (n > SIZE_MAX / 2 / sizeof(T)) meter_->require(SIZE_MAX);
    meter_->take(n * sizeof(T));
    return std::allocator<T>().allocate(n);
  }
  void deallocate(T* p, size_t n) {
    std::allocator<T>().deallocate(p, n);
    meter_->give(n * sizeof(T));
  }
  Meter* meter() const { return meter_; }
  bool operator==(const Metered& other) const { return meter_ == other.meter_; }

 private:
  Meter* meter_;
};

}  // namespace sluice::jinja

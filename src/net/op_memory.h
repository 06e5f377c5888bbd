// Reusable memory for an asynchronous operation that runs one at a time, so that starting it does
// not allocate. One io thread.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <utility>

namespace sluice {

class OpMemory {
 public:
  void* allocate(size_t size) {
    if (used_ || size > sizeof bytes_) return ::operator new(size);
    used_ = true;
    return bytes_;
  }
  void deallocate(void* p) {
    if (p != bytes_) return ::operator delete(p);
    used_ = false;
  }

 private:
  alignas(std::max_align_t) std::byte bytes_[384];
  bool used_ = false;
};

template <typename T>
class OpAllocator {
 public:
  using value_type = T;
  explicit OpAllocator(std::shared_ptr<OpMemory> memory) : memory_(std::move(memory)) {}
  template <typename U>
  OpAllocator(const OpAllocator<U>& other) : memory_(other.memory_) {}
  T* allocate(size_t n) { return static_cast<T*>(memory_->allocate(n * sizeof(T))); }
  void deallocate(T* p, size_t) { memory_->deallocate(p); }
  bool operator==(const OpAllocator& other) const { return memory_ == other.memory_; }

 private:
  template <typename>
  friend class OpAllocator;
  std::shared_ptr<OpMemory> memory_;
};

}  // namespace sluice

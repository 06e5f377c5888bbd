// The GPU for tests, and data on it. Test code only.
#pragma once

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cuda_plugin.h"
#include "backend/paged_batch.h"
#include "base/check.h"
#include "tensor/formats/f16.h"

namespace sluice {

// Null, with the reason printed, where there is no GPU. One that is there and does not open is a
// failure.
inline std::unique_ptr<Device> test_device(DType type,
                                           bool deterministic = false,
                                           bool stored_weights = false) {
  CudaOptions options;
  options.activations = type;
  options.deterministic = deterministic;
  options.stored_weights = stored_weights;
  options.tune = false;
  Result<std::unique_ptr<Device>> device = open_cuda(options);
  if (!device) {
    if (find_gpu().usable) ADD_FAILURE() << device.error().message;
    std::printf("no GPU: %s\n", device.error().message.c_str());
    return nullptr;
  }
  (*device)->attach();
  return std::move(*device);
}

inline float rounded(float v, DType type) {
  if (type == DType::f16) return f16_to_f32(f32_to_f16(v));
  if (type == DType::bf16) return bf16_to_f32(f32_to_bf16(v));
  return v;
}

// Values that the type holds.
inline Matrix random_matrix(
    int64_t rows, int64_t cols, uint32_t seed, DType type, float scale = 1) {
  Matrix m = Matrix::random(rows, cols, seed, scale);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) m.row(r)[c] = rounded(m.row(r)[c], type);
  }
  return m;
}

// A matrix on the device with rows of `gap` more elements; memory that nothing wrote is NaN.
class OnDevice {
 public:
  OnDevice(Device& device, int64_t rows, int64_t cols, DType type, int64_t gap = 8)
      : device_(device), tensor_{nullptr, type, rows, cols, cols + gap} {
    size_t bytes = static_cast<size_t>(rows * tensor_.stride) * dtype_bytes(type);
    buffer_ = device.allocate(bytes);
    tensor_.data = buffer_.data();
    poison();
  }
  OnDevice(Device& device, Matrix& m, DType type, int64_t gap = 8)
      : OnDevice(device, m.rows(), m.cols(), type, gap) {
    std::vector<std::byte> bytes(buffer_.bytes(), std::byte{0xff});
    for (int64_t r = 0; r < m.rows(); ++r) {
      for (int64_t c = 0; c < m.cols(); ++c)
        store(bytes.data(), r * tensor_.stride + c, m.row(r)[c]);
    }
    put(buffer_.data(), bytes.data(), bytes.size());
  }
  void poison() {
    std::vector<std::byte> bytes(buffer_.bytes(), std::byte{0xff});
    put(buffer_.data(), bytes.data(), bytes.size());
  }
  operator Tensor() const { return tensor_; }
  Act act() const {
    Act a;
    a.f = tensor_;
    return a;
  }
  // The same with memory for its codes in f8 or i8, which the op that makes it fills.
  Act act_with_f8(DType type = DType::f8) {
    CHECK(tensor_.stride == tensor_.cols && tensor_.cols % 16 == 0);
    auto rows = static_cast<size_t>(tensor_.rows), cols = static_cast<size_t>(tensor_.cols);
    if (!f8_.data()) f8_ = device_.allocate(rows * (cols + sizeof(float)));
    Act a = act();
    auto* codes = static_cast<std::byte*>(f8_.data());
    a.f8 = {codes, reinterpret_cast<float*>(codes + rows * cols), type};
    return a;
  }
  // The same with memory for its split rows; what nothing wrote in them is not a number, or -1.
  Act act_with_split(bool k_format) {
    const auto bytes = static_cast<size_t>(split_bytes(tensor_.rows, tensor_.cols));
    if (!split_.data()) split_ = device_.allocate(bytes);
    const std::vector<std::byte> unset(bytes, std::byte{0xff});
    put(split_.data(), unset.data(), bytes);
    Act a = act();
    a.split = {split_.data(), k_format};
    return a;
  }
  Matrix get() {
    std::vector<std::byte> bytes(buffer_.bytes());
    Buffer pinned = device_.pinned(bytes.size());
    device_.download(pinned.data(), buffer_.data(), bytes.size());
    device_.mark(0);
    device_.wait(0);
    std::memcpy(bytes.data(), pinned.data(), bytes.size());
    Matrix m(tensor_.rows, tensor_.cols);
    for (int64_t r = 0; r < tensor_.rows; ++r) {
      for (int64_t c = 0; c < tensor_.cols; ++c)
        m.row(r)[c] = load(bytes.data(), r * tensor_.stride + c);
      for (int64_t c = tensor_.cols; c < tensor_.stride; ++c)
        EXPECT_TRUE(std::isnan(load(bytes.data(), r * tensor_.stride + c))) << "wrote past a row";
    }
    return m;
  }

 private:
  void store(std::byte* p, int64_t at, float v) const {
    if (tensor_.type == DType::f32) {
      std::memcpy(p + at * 4, &v, 4);
    } else {
      uint16_t bits = tensor_.type == DType::f16 ? f32_to_f16(v) : f32_to_bf16(v);
      std::memcpy(p + at * 2, &bits, 2);
    }
  }
  float load(const std::byte* p, int64_t at) const {
    float v = 0;
    uint16_t bits = 0;
    if (tensor_.type == DType::f32) {
      std::memcpy(&v, p + at * 4, 4);
      return v;
    }
    std::memcpy(&bits, p + at * 2, 2);
    return tensor_.type == DType::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
  }
  void put(void* to, const void* from, size_t bytes) {
    Buffer pinned = device_.pinned(bytes);
    std::memcpy(pinned.data(), from, bytes);
    device_.upload(to, pinned.data(), bytes);
    device_.mark(0);
    device_.wait(0);
  }

  Device& device_;
  Tensor tensor_;
  Buffer buffer_, f8_, split_;
};

// A host array on the device.
template <typename T>
class ArrayOnDevice {
 public:
  ArrayOnDevice(Device& device, const std::vector<T>& values)
      : buffer_(device.allocate(values.size() * sizeof(T))) {
    Buffer pinned = device.pinned(values.size() * sizeof(T));
    std::memcpy(pinned.data(), values.data(), values.size() * sizeof(T));
    device.upload(buffer_.data(), pinned.data(), values.size() * sizeof(T));
    device.mark(0);
    device.wait(0);
  }
  T* data() const { return static_cast<T*>(buffer_.data()); }

 private:
  Buffer buffer_;
};

// ‖a − b‖ / ‖b‖; infinite where something is not finite.
inline double relative_norm(Matrix& a, Matrix& b) {
  double diff = 0, size = 0;
  for (int64_t r = 0; r < b.rows(); ++r) {
    for (int64_t c = 0; c < b.cols(); ++c) {
      if (!std::isfinite(a.row(r)[c])) return INFINITY;
      double d = static_cast<double>(a.row(r)[c]) - b.row(r)[c];
      diff += d * d;
      size += static_cast<double>(b.row(r)[c]) * b.row(r)[c];
    }
  }
  return std::sqrt(diff / std::max(size, 1e-30));
}

// What rounding one op's output to the type costs.
inline double tolerance(DType type) {
  return type == DType::f32 ? 2e-6 : type == DType::f16 ? 1e-3 : 6e-3;
}

}  // namespace sluice

// Measures the limits of the GPU: bandwidth, and the rate of matrix products.
#include <algorithm>

#include "backend/cuda/check.cuh"
#include "backend/cuda/cuda_backend.cuh"
#include "backend/cuda/target.cuh"

namespace sluice::cuda {

// On random data: zeros flatter. The best of several, each long enough to be past its start.
DeviceLimits CudaBackend::measure_limits() {
  constexpr int64_t kSide = 8192;
  constexpr size_t kBytes = size_t{2} << 30;
  DeviceLimits limits;
  auto best = [&](auto&& run) {
    double least = 0;
    for (int i = 0; i < 6; ++i) {
      mark(0);
      run();
      mark(1);
      wait(1);
      double s = elapsed(0, 1) * 1e-3;
      if (i > 0 && (least == 0 || s < least)) least = s;
    }
    return least;
  };
  {
    Buffer from = allocate(kBytes), to = allocate(kBytes);
    limits.copy =
        2.0 * kBytes / best([&] {
          check(cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice, stream_),
                "copy");
        });
    limits.read = kBytes / best([&] { read_all(from.data(), kBytes, to.data(), stream_); });
  }
  if (options_.activations == DType::f32) return limits;
  size_t bytes = kSide * kSide * 2;
  Buffer a = allocate(bytes), b = allocate(bytes), c = allocate(bytes);
  RandomSource source{11, kSide};
  TensorInfo info{"random", Format::bf16, kSide, kSide, bytes};
  {
    Uploader uploader(stream_);
    uploader.convert(a.data(), options_.activations, {&info, {}, &source});
    source.key = 12;
    uploader.convert(b.data(), options_.activations, {&info, {}, &source});
  }
  GemmWeight w{a.data(), options_.activations, kSide, kSide};
  Tensor x{b.data(), options_.activations, kSide, kSide, kSide};
  Tensor out{c.data(), options_.activations, kSide, kSide, kSide};
  auto rate = [&](const GemmWeight& weight, const Tensor& in, const CodesView& f8) {
    gemm_.tune_bucket({weight}, out, in, f8, stream_);
    return 2.0 * kSide * kSide * kSide * 4 / best([&] {
             for (int i = 0; i < 4; ++i) gemm_.run(Product(out, in, weight, f8), true, stream_);
           });
  };
  limits.gemm = rate(w, x, {});
  // Both operands in 8 bits with a scale per row, as models run them.
  Buffer a8 = allocate(bytes / 2), b8 = allocate(bytes / 2), scales = allocate(2 * kSide * 4);
  auto* scale = static_cast<float*>(scales.data());
  auto scaled_rate = [&](DType type) {
    const CodesView w8{a8.data(), scale, type}, x8{b8.data(), scale + kSide, type};
    quantize_rows(w8, Tensor{a.data(), options_.activations, kSide, kSide, kSide}, stream_);
    quantize_rows(x8, x, stream_);
    GemmWeight scaled{a8.data(), type, kSide, kSide};
    scaled.scale = w8.scale;
    return rate(scaled, x, x8);
  };
  if (has_wgmma()) limits.gemm_i8 = scaled_rate(DType::i8);
  if (!device_.f8) return limits;
  limits.gemm_f8 = scaled_rate(DType::f8);
  // Without scales: the faster is the device's rate.
  const GemmWeight plain{a8.data(), DType::f8, kSide, kSide};
  const Tensor codes{b8.data(), DType::f8, kSide, kSide, kSide};
  try {
    limits.gemm_f8 = std::max(limits.gemm_f8, rate(plain, codes, {}));
  } catch (const std::exception&) {
    // This cuBLAS has no such product.
  }
  return limits;
}

}  // namespace sluice::cuda

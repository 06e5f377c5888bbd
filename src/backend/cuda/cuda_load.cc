// The CUDA backend's weights: how they are loaded, and how their products are timed.
#include <algorithm>
#include <map>
#include <tuple>

#include "backend/cuda/check.cuh"
#include "backend/cuda/cuda_backend.cuh"
#include "base/check.h"

namespace sluice::cuda {

Buffer CudaBackend::weight_memory(size_t bytes) {
  if (!placed_.data()) return allocate(bytes);
  const size_t padded = (bytes + 255) & ~size_t{255};
  CHECK(padded <= placed_.size());
  Buffer b(placed_.data(), bytes, [](void*, size_t) {});
  placed_ = placed_.subspan(padded);
  return b;
}

Buffer CudaBackend::vector(std::span<const float> values) {
  Buffer b = allocate(values.size_bytes());
  check(cudaMemcpyAsync(b.data(), values.data(), values.size_bytes(), cudaMemcpyHostToDevice,
                        stream_),
        "upload");
  check(cudaStreamSynchronize(stream_), "upload");
  return b;
}

Weight CudaBackend::load(std::span<const WeightSegment> segments, std::vector<float> bias) {
  if (!uploader_) uploader_.emplace(stream_);
  const CudaWeightPlan plan = plan_cuda_weight(segments, options_.types());
  const DType type = options_.activations;
  auto data = std::make_unique<CudaWeight>();
  if (plan.type == DType::i8) {
    data->data = weight_memory(static_cast<size_t>(plan.rows * plan.cols));
    data->scale = weight_memory(static_cast<size_t>(plan.rows) * sizeof(float));
    load_int8(segments, *data);
  } else if (plan.parts.empty()) {
    const size_t row = static_cast<size_t>(plan.cols) * dtype_bytes(type);
    const size_t bytes = static_cast<size_t>(plan.rows) * row;
    data->data = plan.type == DType::f8 ? allocate(bytes) : weight_memory(bytes);
    auto* to = static_cast<std::byte*>(data->data.data());
    for (const WeightSegment& s : segments) {
      uploader_->convert(to, type, s);
      to += static_cast<size_t>(s.tensor->rows) * row;
    }
  } else {
    pack_segments(segments, plan, *data);
  }
  data->gemm = {plan.parts.empty() ? data->data.data() : nullptr, type, plan.rows, plan.cols};
  if (!bias.empty()) {
    data->bias_f32 = vector(bias);
    TensorInfo info{"bias", Format::f32, 1, plan.rows, bias.size() * 4};
    data->bias = allocate(bias.size() * dtype_bytes(type));
    uploader_->convert(data->bias.data(), type,
                       {&info, std::as_bytes(std::span<const float>(bias)), nullptr});
    data->gemm.bias = data->bias.data();
    data->gemm.bias_type = type;
    data->gemm.bias_f32 = static_cast<const float*>(data->bias_f32.data());
  }
  if (plan.type == DType::f8) quantize(*data);
  if (plan.type == DType::i8) {
    data->gemm.type = DType::i8;
    data->gemm.scale = static_cast<const float*>(data->scale.data());
  }
  loaded_.push_back({data->gemm, plan.layer, !plan.parts.empty()});
  Weight w;
  w.rows = plan.rows;
  w.cols = plan.cols;
  w.act = plan.act;
  w.bytes = data->data.bytes() + data->scale.bytes();
  CHECK(w.bytes == plan.bytes);
  w.data = std::move(data);
  return w;
}

void CudaBackend::pack_segments(std::span<const WeightSegment> segments,
                                const CudaWeightPlan& plan,
                                CudaWeight& w) {
  w.data = weight_memory(plan.bytes);
  auto* to = static_cast<uint8_t*>(w.data.data());
  for (const CudaWeightPart& p : plan.parts) {
    w.parts.push_back({p.format, to, p.rows, plan.cols});
    to += PackedShape(p.format, p.rows, plan.cols).bytes();
  }
  std::vector<int64_t> filled(plan.parts.size());
  for (size_t i = 0; i < segments.size(); ++i) {
    const size_t part = plan.part_of[i];
    uploader_->pack(w.parts[part], filled[part], segments[i]);
    filled[part] += segments[i].tensor->rows;
  }
  scratch_bytes_ = std::max(scratch_bytes_, stored_scratch(plan, options_.types()));
}

// From f32, so that nothing is rounded on the way, some rows at a time; rows of Q8_0 by themselves.
void CudaBackend::load_int8(std::span<const WeightSegment> segments, CudaWeight& w) {
  auto* codes = static_cast<std::byte*>(w.data.data());
  auto* scale = static_cast<float*>(w.scale.data());
  Buffer values;
  for (const WeightSegment& s : segments) {
    const int64_t rows = s.tensor->rows, cols = s.tensor->cols;
    const CodesView to{codes, scale, DType::i8};
    if (s.tensor->format == Format::q8_0 && !s.random) {
      uploader_->int8_rows(to, s);
    } else {
      const size_t row = static_cast<size_t>(cols) * sizeof(float);
      const auto fit = static_cast<int64_t>(Uploader::kStageBytes / row) / 4 * 4;
      const int64_t step = std::min(std::max<int64_t>(fit, 4), rows);
      const size_t bytes = static_cast<size_t>(step) * row;
      if (values.bytes() < bytes) values = allocate(bytes);
      for (int64_t at = 0; at < rows; at += step) {
        const int64_t num = std::min(step, rows - at);
        uploader_->convert_rows(values.data(), DType::f32, s, at, num);
        quantize_rows({codes + at * cols, scale + at, DType::i8},
                      {values.data(), DType::f32, num, cols, cols}, stream_);
      }
    }
    codes += rows * cols;
    scale += rows;
  }
  check(cudaStreamSynchronize(stream_), "quantize");
}

void CudaBackend::quantize(CudaWeight& w) {
  GemmWeight& g = w.gemm;
  Buffer codes = weight_memory(static_cast<size_t>(g.rows * g.cols));
  w.scale = weight_memory(static_cast<size_t>(g.rows) * sizeof(float));
  Tensor from{w.data.data(), g.type, g.rows, g.cols, g.cols};
  quantize_rows({codes.data(), static_cast<float*>(w.scale.data())}, from, stream_);
  check(cudaStreamSynchronize(stream_), "quantize");
  w.data = std::move(codes);
  g.data = w.data.data();
  g.type = DType::f8;
  g.scale = static_cast<const float*>(w.scale.data());
}

namespace {

// Which of a shape's products are timed: as the models run them.
struct TunedShape {
  std::vector<GemmWeight> weights;  // several, so that they do not stay in the cache
  bool f32_out = false;
  int least = 1, most = 0;  // rows of x
};

// Groups the weights by shape. Products of the output matrix have few rows and put out f32, layers'
// put out either type where the backend has two.
std::vector<TunedShape> tuned_shapes(const std::vector<LoadedWeight>& loaded,
                                     bool both_types,
                                     int max_tokens,
                                     int max_outputs) {
  std::map<std::tuple<int64_t, int64_t, bool, bool, bool, DType>, TunedShape> shapes;
  for (const auto& [w, layer, stored] : loaded) {
    for (bool f32_out : {false, true}) {
      if (layer ? f32_out && !both_types : !f32_out) continue;
      const int most = layer ? max_tokens : max_outputs;
      if (stored && most <= kMaxStreamed) continue;
      TunedShape& s = shapes[{w.rows, w.cols, w.bias != nullptr, f32_out, stored, w.type}];
      s.weights.push_back(w);
      s.f32_out = f32_out;
      s.least = stored ? kMaxStreamed + 1 : 1;
      s.most = most;
    }
  }
  std::vector<TunedShape> list;
  for (auto& [key, shape] : shapes) list.push_back(std::move(shape));
  return list;
}

}  // namespace

// Outputs go to scratch memory that is freed again; where that is scarce, large batches stay
// untimed. Stored weights are timed decoded, as many rows as are decoded together.
void CudaBackend::tune(int max_tokens, int max_outputs) {
  if (uploader_) uploader_.reset();          // staging memory is free again: loading is over
  if (scratch_bytes_ > 0) scratch_memory();  // before graphs are captured
  if (!options_.deterministic) {
    for (LoadedWeight& l : loaded_) {
      if (!l.stored) continue;
      l.gemm.data = scratch_memory();
      l.gemm.rows = decoded_rows(l.gemm.rows, l.gemm.cols);
    }
  } else {
    std::erase_if(loaded_, [](const LoadedWeight& l) { return l.stored; });
  }
  if (!options_.tune || options_.activations == DType::f32) return;
  constexpr int kMostTimed = 8192;
  int most = std::min(max_tokens, kMostTimed);
  std::vector<TunedShape> shapes;
  int64_t most_in = 0, most_out = 0;
  for (;; most /= 2) {
    shapes = tuned_shapes(loaded_, output_type() != activation_type(), most, max_outputs);
    if (shapes.empty()) return;  // deterministic, and all weights as stored
    most_in = most_out = 0;
    for (const TunedShape& s : shapes) {
      most_in = std::max(most_in, s.most * s.weights[0].cols);
      most_out = std::max(most_out, s.most * s.weights[0].rows);
    }
    if (static_cast<size_t>(most_in + most_out) * 4 < free_memory() / 2) break;
    if (most < 64) return;
  }
  Buffer x = allocate(static_cast<size_t>(most_in) * 4);
  Buffer out = allocate(static_cast<size_t>(most_out) * 4);
  Buffer x8, x8_scales;
  const bool int8 = options_.int8.kind == WeightQuant::w8a8;
  if (options_.fp8_weights || int8) {
    x8 = allocate(static_cast<size_t>(most_in));
    x8_scales = allocate(static_cast<size_t>(std::max(most, max_outputs)) * sizeof(float));
  }
  const CodesView f8{x8.data(), static_cast<float*>(x8_scales.data()),
                     int8 ? DType::i8 : DType::f8};
  RandomSource source{7, 1};
  TensorInfo info{"x", Format::bf16, 1, most_in, static_cast<size_t>(most_in) * 2};
  Uploader(stream_).convert(x.data(), options_.activations, {&info, {}, &source});
  Tensor input{x.data(), options_.activations, 1, most_in, most_in};
  for (const TunedShape& s : shapes)
    gemm_.tune(s.weights, s.f32_out, s.least, s.most, input, out.data(), f8, stream_);
  // The first use of cuBLAS takes some 70 ms, and steps of few rows do without it.
  for (const TunedShape& s : shapes) {
    if (s.least == 1) continue;
    const GemmWeight& w = s.weights[0];
    const Tensor to{out.data(), s.f32_out ? DType::f32 : input.type, s.most, w.rows, w.rows};
    gemm_.run(Product(to, {x.data(), input.type, s.most, w.cols, w.cols}, w, {}), false, stream_);
  }
  check(cudaStreamSynchronize(stream_), "tune");
  gemm_.save_choices();
}

}  // namespace sluice::cuda

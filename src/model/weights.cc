#include "model/weights.h"

#include <optional>

#include "base/str.h"
#include "tensor/formats/all.h"

namespace sluice {

WeightLoader::WeightLoader(const ModelSource& source,
                           WeightStore& store,
                           const LoadOptions& options)
    : headers_(source.headers), data_(source.data), store_(store), options_(options) {
  for (const TensorInfo& t : headers_.tensors()) total_bytes_ += t.bytes;
}

const TensorInfo* WeightLoader::expect(const std::string& name, int64_t rows, int64_t cols) {
  if (!ok()) return nullptr;
  const TensorInfo* t = headers_.find(name);
  if (!t) {
    error_ = strf("the model file has no tensor %s", name.c_str());
    return nullptr;
  }
  if (t->rows != rows || t->cols != cols) {
    error_ = strf("tensor %s is %lld x %lld, expected %lld x %lld", name.c_str(),
                  static_cast<long long>(t->rows), static_cast<long long>(t->cols),
                  static_cast<long long>(rows), static_cast<long long>(cols));
    return nullptr;
  }
  return t;
}

void WeightLoader::loaded(const TensorInfo& tensor, bool release) {
  if (!data_) return;
  done_bytes_ += tensor.bytes;
  if (release) data_->release(tensor);
  if (options_.progress) options_.progress(done_bytes_, total_bytes_);
}

DeviceVector WeightLoader::vector(const std::string& name, int64_t size) {
  std::vector<float> values = host_vector(name, size);
  if (values.empty()) return {};
  if (!data_) return {Buffer(), values.size()};
  return {store_.vector(values), values.size()};
}

std::vector<float> WeightLoader::host_vector(const std::string& name, int64_t size) {
  const TensorInfo* t = expect(name, 1, size);
  if (!t) return {};
  std::vector<float> out(static_cast<size_t>(size));
  if (data_) format_info(t->format).decode(data_->data(*t).data(), out.data(), size);
  weight_bytes_ += out.size() * sizeof(float);
  loaded(*t, true);
  return out;
}

Weight WeightLoader::load(const std::vector<TensorPart>& parts, int64_t cols, bool bias) {
  std::vector<WeightSegment> segments;
  std::vector<std::optional<RandomSource>> sources;
  std::vector<float> biases;
  for (const TensorPart& p : parts) {
    const TensorInfo* t = expect(p.name + ".weight", p.rows, cols);
    if (!t) return {};
    sources.push_back(store_.makes_random(t->format) ? headers_.random(*t) : std::nullopt);
    if (sources.back() || !data_) {
      segments.push_back({t, {}, nullptr});
    } else {
      segments.push_back({t, data_->data(*t)});
    }
    if (bias) {
      std::vector<float> b = host_vector(p.name + ".bias", p.rows);
      biases.insert(biases.end(), b.begin(), b.end());
    }
  }
  if (!ok()) return {};
  for (size_t i = 0; i < segments.size(); ++i) {
    if (sources[i]) segments[i].random = &*sources[i];
  }
  Weight w = store_.load(segments, std::move(biases));
  for (size_t i = 0; i < segments.size(); ++i)
    loaded(*segments[i].tensor, !store_.keeps_source(w, i));
  weight_bytes_ += w.bytes;
  return w;
}

Weight WeightLoader::matrix(const std::string& name, int64_t rows, int64_t cols, bool bias) {
  return load({{name, rows}}, cols, bias);
}

Projection WeightLoader::projection(const std::vector<TensorPart>& parts, int64_t cols, bool bias) {
  Projection p;
  if (options_.fuse) {
    p.parts.push_back(load(parts, cols, bias));
  } else {
    for (const TensorPart& part : parts) p.parts.push_back(load({part}, cols, bias));
  }
  return p;
}

}  // namespace sluice

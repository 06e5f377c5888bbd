// What tests and benchmarks of the CUDA backend's sampling share. Test code only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <vector>

#include "backend/cuda/check.cuh"
#include "backend/device.h"

namespace sluice {

using cuda::check;

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  int below(int n) { return static_cast<int>(bits() % static_cast<uint64_t>(n)); }
  bool chance(int percent) { return below(100) < percent; }
  float uniform(float lo, float hi) {
    return lo + (hi - lo) * (static_cast<float>(bits() >> 40) * 0x1p-24f);
  }
  // Near enough: four sums of 16 bits.
  float normal() {
    uint64_t b = bits();
    int sum = 0;
    for (int k = 0; k < 4; ++k) sum += static_cast<int>(b >> (16 * k) & 0xffff);
    return (static_cast<float>(sum) - 131070.0f) / 37837.0f;
  }
  template <typename T>
  T pick(std::initializer_list<T> list) {
    return list.begin()[below(static_cast<int>(list.size()))];
  }

 private:
  uint64_t state_;
};

// Device memory for n of T, poisoned.
template <typename T>
class Array {
 public:
  explicit Array(size_t n) : n_(n) {
    check(cudaMalloc(&data_, std::max<size_t>(n, 1) * sizeof(T)), "malloc");
    poison();
  }
  Array(const Array&) = delete;
  ~Array() { cudaFree(data_); }
  T* data() const { return data_; }
  void poison() { check(cudaMemset(data_, 0xee, n_ * sizeof(T)), "memset"); }
  void put(const T* from, size_t n) {
    check(cudaMemcpy(data_, from, n * sizeof(T), cudaMemcpyHostToDevice), "put");
  }
  std::vector<T> get() const {
    std::vector<T> v(n_);
    check(cudaMemcpy(v.data(), data_, n_ * sizeof(T), cudaMemcpyDeviceToHost), "get");
    return v;
  }

 private:
  T* data_ = nullptr;
  size_t n_;
};

// A packet in the making, and its copy on the device.
struct PacketBuilder {
  std::vector<RowSpec> specs;
  std::vector<PacketEdit> edits;
  std::vector<PacketSlice> slices;
  std::vector<OutputRow> outputs;
  std::vector<int32_t> words;
  std::vector<std::byte> bytes;
  std::unique_ptr<Array<std::byte>> memory;

  template <typename T>
  uint32_t add(const std::vector<T>& v) {
    bytes.resize((bytes.size() + 15) / 16 * 16);
    size_t at = bytes.size();
    bytes.resize(at + v.size() * sizeof(T));
    if (!v.empty()) std::memcpy(bytes.data() + at, v.data(), v.size() * sizeof(T));
    return static_cast<uint32_t>(at);
  }
  Packet upload() {
    Packet p;
    p.specs_at = add(specs), p.num_specs = static_cast<uint32_t>(specs.size());
    p.edits_at = add(edits), p.num_edits = static_cast<uint32_t>(edits.size());
    p.slices_at = add(slices), p.num_slices = static_cast<uint32_t>(slices.size());
    p.outputs_at = add(outputs), p.num_outputs = static_cast<uint32_t>(outputs.size());
    p.words_at = add(words);
    memory = std::make_unique<Array<std::byte>>(bytes.size() + 16);
    memory->put(bytes.data(), bytes.size());
    p.data = memory->data();
    return p;
  }
};

// Median microseconds of one of `num` launches in a graph.
inline float time_graph(cudaStream_t stream, int num, const std::function<void(int)>& launch) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < num; ++i) launch(i);
  check(cudaStreamEndCapture(stream, &graph), "capture");
  check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (int i = 0; i < 33; ++i) {
    check(cudaEventRecord(begin, stream), "record");
    check(cudaGraphLaunch(exec, stream), "graph");
    check(cudaEventRecord(end, stream), "record");
    check(cudaEventSynchronize(end), "bench");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    if (i >= 3) times.push_back(1000 * ms / static_cast<float>(num));
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  std::nth_element(times.begin(), times.begin() + 15, times.end());
  return times[15];
}

}  // namespace sluice

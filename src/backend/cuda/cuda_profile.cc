// Times the CUDA backend's ops: each alone, and by their absence from a captured step.
#include <algorithm>
#include <string_view>

#include "backend/cuda/check.cuh"
#include "backend/cuda/cuda_backend.cuh"
#include "backend/cuda/graph_names.cuh"

namespace sluice::cuda {

void CudaBackend::end_op(const OpTime& op) noexcept {
  cudaEvent_t e = nullptr;
  if (cudaEventCreate(&e) != cudaSuccess) return;
  cudaEventRecord(e, stream_);
  op_events_.push_back(e);
  ops_.push_back(op);
}

void CudaBackend::begin_profile() {
  hold(stream_, 0.02);
  cudaEvent_t e = nullptr;
  check(cudaEventCreate(&e), "event");
  check(cudaEventRecord(e, stream_), "event");
  op_events_ = {e};
  ops_.clear();
  profiling_ = true;
}

std::vector<OpTime> CudaBackend::end_profile() {
  profiling_ = false;
  check(cudaStreamSynchronize(stream_), "profile");
  for (size_t i = 0; i < ops_.size(); ++i) {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, op_events_[i], op_events_[i + 1]), "time");
    ops_[i].seconds = ms * 1e-3;
  }
  for (cudaEvent_t e : op_events_) cudaEventDestroy(e);
  op_events_.clear();
  return std::move(ops_);
}

bool CudaBackend::run_replaced(const OpTime& op) {
  const OpTime& r = replaced_op_;
  if (std::string_view(r.op) != op.op || r.rows != op.rows || r.cols != op.cols) return false;
  if (replaced_mode_ == OpMode::empty) nothing(stream_);
  return true;
}

void CudaBackend::count_nodes() noexcept { op_ends_->push_back(num_captured_nodes(stream_)); }

double CudaBackend::time_captured(const std::function<void()>& queue,
                                  std::vector<std::string>* kernels) {
  constexpr int kWarm = 3, kTimed = 12;
  std::vector<size_t> ends;
  begin_capture();
  try {
    if (kernels) op_ends_ = &ends;
    queue();
    op_ends_ = nullptr;
  } catch (...) {
    op_ends_ = nullptr;
    abort_capture();
    throw;
  }
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream_, &graph), "capture");
  if (kernels) *kernels = kernel_names(graph, ends);
  cudaGraphExec_t exec = nullptr;
  cudaError_t e = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  check(e, "graph");
  std::vector<double> times;
  cudaEvent_t begin = nullptr, end = nullptr;
  e = cudaEventCreate(&begin);
  if (e == cudaSuccess) e = cudaEventCreate(&end);
  for (int i = 0; i < kWarm + kTimed && e == cudaSuccess; ++i) {
    cudaEventRecord(begin, stream_);
    e = cudaGraphLaunch(exec, stream_);
    cudaEventRecord(end, stream_);
    if (e == cudaSuccess) e = cudaEventSynchronize(end);
    float ms = 0;
    if (e == cudaSuccess) e = cudaEventElapsedTime(&ms, begin, end);
    if (i >= kWarm) times.push_back(ms * 1e-3);
  }
  cudaEventDestroy(end);
  cudaEventDestroy(begin);
  cudaGraphExecDestroy(exec);
  check(e, "graph");
  std::ranges::nth_element(times, times.begin() + kTimed / 2);
  return times[kTimed / 2];
}

void CudaBackend::abort_profile() noexcept {
  profiling_ = false;
  for (cudaEvent_t e : op_events_) cudaEventDestroy(e);
  op_events_.clear();
}

void CudaBackend::replace_op(const OpTime& op, OpMode mode) {
  replaced_op_ = op;
  replaced_mode_ = mode;
}

}  // namespace sluice::cuda

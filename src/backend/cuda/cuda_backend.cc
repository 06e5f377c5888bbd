// The CUDA backend's memory, queue and captured graphs, and what the shared object exports.
#include "backend/cuda/cuda_backend.cuh"

#include <cuda.h>
#include <cudaTypedefs.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "backend/cuda/arch.cuh"
#include "backend/cuda/check.cuh"
#include "backend/cuda/prepare.cuh"
#include "backend/cuda/target.cuh"
#include "backend/cuda_archs.h"
#include "base/check.h"
#include "base/log.h"

namespace sluice::cuda {

namespace {

void free_device(void* p, size_t) { cudaFree(p); }
void free_pinned(void* p, size_t) { cudaFreeHost(p); }

}  // namespace

std::string why_not(const cudaDeviceProp& p) {
  if (p.major < 8)
    return "has compute capability " + std::to_string(p.major) + "." + std::to_string(p.minor) +
           "; 8.0 is needed (an A100, or a GeForce RTX 30 or later)";
  if (p.sharedMemPerBlockOptin < kLeastShared) return "has too little shared memory per block";
  if (has_code_for(p.major, p.minor)) return {};
  return "needs a build with -DSLUICE_CUDA_ARCHS=" + arch_of(p.major, p.minor) +
         "; this one is for " + archs();
}

CudaBackend::Gpu::Gpu(const CudaOptions& o) {
  check(cudaSetDevice(o.index), "device");
  cudaDeviceProp p{};
  check(cudaGetDeviceProperties(&p, o.index), "properties");
  name = p.name;
  num_sms = p.multiProcessorCount;
  f8 = p.major == 9;
  int clock = 0, bits = 0;  // kHz; two transfers a cycle
  cudaDeviceGetAttribute(&clock, cudaDevAttrMemoryClockRate, o.index);
  cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, o.index);
  if (clock > 0 && bits > 0) bandwidth = 2e3 * clock * (bits / 8.0);
  if (std::string why = why_not(p); !why.empty()) throw std::runtime_error(name + " " + why);
  if (o.fp8_weights && !f8)
    throw std::runtime_error("weights in fp8 need a Hopper GPU, which " + name + " is not");
}

CudaBackend::CudaBackend(const CudaOptions& options)
    : options_(options), device_(options), gemm_(options.index, settle_deterministic()) {
  add_lane();
  stream_ = lanes_[0].stream;
  add_marks(2);
  gemm_.load_choices();
  if (options.int8.kind == WeightQuant::w8a8 && !has_wgmma())
    LOG(warn, "int8 weights on %s: one kernel for any number of rows, slow for prompts",
        device_.name.c_str());
}

bool CudaBackend::settle_deterministic() {
  if (options_.by_default && !has_wgmma()) options_.deterministic = false;
  return options_.deterministic;
}

CudaBackend::~CudaBackend() {
  for (Lane& l : lanes_) cudaStreamSynchronize(l.stream);
  if (copies_) cudaStreamSynchronize(copies_);
  if (downloads_) cudaStreamSynchronize(downloads_);
  disown_stack();
  for (cudaGraphExec_t g : graphs_) cudaGraphExecDestroy(g);
  for (cudaEvent_t e : marks_) cudaEventDestroy(e);
  uploader_.reset();
  for (Lane& l : lanes_) cudaStreamDestroy(l.stream);
  if (copies_) cudaStreamDestroy(copies_);
  if (beside_) cudaEventDestroy(beside_);
  if (downloads_) cudaStreamDestroy(downloads_);
}

std::string CudaBackend::describe() const {
  const char* type = options_.activations == DType::bf16  ? "bf16"
                     : options_.activations == DType::f16 ? "f16"
                                                          : "f32";
  return std::string("cuda:") + std::to_string(options_.index) + ", " + device_.name + ", " + type +
         (options_.fp8_weights ? ", fp8 weights" : "") +
         (options_.int8.kind == WeightQuant::w8a8 ? ", int8 weights" : "") +
         (scratch_bytes_ > 0 ? ", weights as stored" : "") +
         (options_.deterministic ? ", deterministic" : "");
}

void CudaBackend::attach() { check(cudaSetDevice(options_.index), "device"); }

Buffer CudaBackend::allocate(size_t bytes) {
  void* p = nullptr;
  check(cudaMalloc(&p, std::max<size_t>(bytes, 1)), "memory");
  Buffer b(p, bytes, free_device);
  check(cudaMemsetAsync(p, 0, bytes, stream_), "memory");
  return b;
}

Buffer CudaBackend::pinned(size_t bytes) {
  void* p = nullptr;
  check(cudaMallocHost(&p, std::max<size_t>(bytes, 1)), "pinned memory");
  std::memset(p, 0, bytes);
  return {p, bytes, free_pinned};
}

size_t CudaBackend::free_memory() const {
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "memory");
  return free;
}

void CudaBackend::upload(void* to, const void* from, size_t bytes) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_), "upload");
}
void CudaBackend::download(void* to, const void* from, size_t bytes) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_), "download");
}

void CudaBackend::prefetch(void* to, const void* from, size_t bytes, int after, int done) {
  if (!copies_) check(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking), "stream");
  check(cudaStreamWaitEvent(copies_, mark_at(after), 0), "prefetch");
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, copies_), "prefetch");
  check(cudaEventRecord(mark_at(done), copies_), "prefetch");
}

void CudaBackend::download_beside(std::span<const HostCopy> copies,
                                  void (*then)(void*),
                                  void* context) {
  if (!downloads_) check(cudaStreamCreateWithFlags(&downloads_, cudaStreamNonBlocking), "stream");
  if (!beside_) check(cudaEventCreateWithFlags(&beside_, cudaEventDisableTiming), "event");
  check(cudaEventRecord(beside_, stream_), "download");
  check(cudaStreamWaitEvent(downloads_, beside_, 0), "download");
  for (const HostCopy& c : copies)
    check(cudaMemcpyAsync(c.to, c.from, c.bytes, cudaMemcpyDeviceToHost, downloads_), "download");
  if (then) check(cudaLaunchHostFunc(downloads_, then, context), "download");
}

void CudaBackend::join_downloads() {
  if (!downloads_ || !beside_) return;
  check(cudaEventRecord(beside_, downloads_), "download");
  check(cudaStreamWaitEvent(stream_, beside_, 0), "download");
}

void CudaBackend::add_lane() {
  check(cudaStreamCreateWithFlags(&lanes_.emplace_back().stream, cudaStreamNonBlocking), "stream");
}

void CudaBackend::add_marks(int num) {
  while (static_cast<int>(marks_.size()) < num)
    check(cudaEventCreate(&marks_.emplace_back()), "event");
}

void CudaBackend::reserve_lanes(int lanes, int marks) {
  for (; static_cast<int>(lanes_.size()) > lanes; lanes_.pop_back()) {
    cudaStreamSynchronize(lanes_.back().stream);
    cudaStreamDestroy(lanes_.back().stream);
  }
  while (static_cast<int>(lanes_.size()) < lanes) add_lane();
  for (size_t i = 1; i < lanes_.size(); ++i) {
    if (!lanes_[i].products.data()) lanes_[i].products = allocate(Gemm::kWorkspace);
    if (!lanes_[i].scratch.data()) lanes_[i].scratch = allocate(scratch_bytes());
  }
  check(cudaStreamSynchronize(stream_), "memory");  // it is zero before a lane uses it
  add_marks(marks);
}

void CudaBackend::use_lane(int index) {
  lane_ = static_cast<size_t>(index);
  stream_ = lanes_[lane_].stream;
  gemm_.use_workspace(lanes_[lane_].products.data());
}

void CudaBackend::mark(int index) { check(cudaEventRecord(mark_at(index), stream_), "mark"); }
void CudaBackend::wait(int index) { check(cudaEventSynchronize(mark_at(index)), "step"); }
void CudaBackend::start_after(int index) {
  check(cudaStreamWaitEvent(stream_, mark_at(index), 0), "lane");
}
void CudaBackend::start_after(const uint64_t* flag, uint64_t value) {
  wait_for(flag, value, stream_);
}
float CudaBackend::elapsed(int from, int to) {
  float ms = 0;
  check(cudaEventElapsedTime(&ms, mark_at(from), mark_at(to)), "time");
  return ms;
}

void CudaBackend::begin_capture() {
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture");
}

int CudaBackend::end_capture() {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream_, &graph), "capture");
  cudaGraphExec_t exec = nullptr;
  cudaError_t e = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  check(e, "graph");
  graphs_.push_back(exec);
  return static_cast<int>(graphs_.size()) - 1;
}

void CudaBackend::abort_capture() noexcept {
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(stream_, &graph) == cudaSuccess && graph) cudaGraphDestroy(graph);
  static_cast<void>(cudaGetLastError());
}

void CudaBackend::launch(int sequence) {
  check(cudaGraphLaunch(graphs_[static_cast<size_t>(sequence)], stream_), "graph");
}

void CudaBackend::parallel(int, void (*)(void*, int), void*) { CHECK(!"host work on a device"); }

namespace {

Device* open(const CudaOptions& options, char* error, size_t error_bytes) {
  try {
    return new CudaBackend(options);
  } catch (const std::bad_alloc&) {
    std::snprintf(error, error_bytes, "no free memory on this GPU: stop what else uses it");
    return nullptr;
  } catch (const std::exception& e) {
    std::snprintf(error, error_bytes, "%s", e.what());
    return nullptr;
  }
}

int num_gpus() {
  int num = 0;
  const cudaError_t failed = cudaGetDeviceCount(&num);
  if (failed == cudaSuccess) return num;
  static_cast<void>(cudaGetLastError());
  return -static_cast<int>(failed);
}

bool usable(int index, char* why, size_t why_bytes) {
  cudaDeviceProp p{};
  if (const cudaError_t e = cudaGetDeviceProperties(&p, index); e != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    std::snprintf(why, why_bytes, "GPU %d: %s", index, cudaGetErrorString(e));
    return false;
  }
  const std::string reason = why_not(p);
  if (reason.empty()) return true;
  std::snprintf(why, why_bytes, "%s %s", p.name, reason.c_str());
  return false;
}

// Whether this process uses the GPU already; true where the driver does not say.
bool in_use(int index) {
  void* f = nullptr;
  cudaDriverEntryPointQueryResult found{};
  if (cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &f, 7000, cudaEnableDefault,
                                       &found) != cudaSuccess ||
      found != cudaDriverEntryPointSuccess) {
    static_cast<void>(cudaGetLastError());
    return true;
  }
  unsigned flags = 0;
  int active = 1;
  auto state = reinterpret_cast<PFN_cuDevicePrimaryCtxGetState_v7000>(f);
  return state(index, &flags, &active) != CUDA_SUCCESS || active != 0;
}

// A GPU must be opened to be asked, and holds some hundred megabytes while it is open.
size_t memory_left(int index) {
  int before = 0;
  size_t free = 0, total = 0;
  const bool used = in_use(index);
  if (cudaGetDevice(&before) != cudaSuccess) before = index;
  if (cudaSetDevice(index) == cudaSuccess) {
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) free = 0;
    if (!used) cudaDeviceReset();
  }
  if (in_use(before)) cudaSetDevice(before);  // cudaSetDevice would create a context
  static_cast<void>(cudaGetLastError());
  return free;
}

}  // namespace

}  // namespace sluice::cuda

extern "C" __attribute__((visibility("default"))) const sluice::CudaExports* sluice_cuda() {
  static const sluice::CudaExports exports{sluice::kCudaPluginVersion, sluice::cuda::num_gpus,
                                           sluice::cuda::usable, sluice::cuda::memory_left,
                                           sluice::cuda::open};
  return &exports;
}

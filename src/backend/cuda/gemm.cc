#include "backend/cuda/gemm.cuh"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <type_traits>

#include "backend/cuda/check.cuh"
#include "backend/cuda/skinny.cuh"
#include "backend/cuda/target.cuh"
#include "base/cache_dir.h"

namespace sluice::cuda {

namespace {

void check(cublasStatus_t s, const char* what) {
  if (s == CUBLAS_STATUS_ALLOC_FAILED) throw std::bad_alloc();
  if (s != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(std::string("cuBLAS: ") + what + ": " + cublasLtGetStatusString(s));
}

cudaDataType_t cuda_type(DType t) {
  return t == DType::f32   ? CUDA_R_32F
         : t == DType::f16 ? CUDA_R_16F
         : t == DType::f8  ? CUDA_R_8F_E4M3
                           : CUDA_R_16BF;
}

bool wide_enough(const Tensor& t) {
  return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 &&
         static_cast<size_t>(t.stride) * dtype_bytes(t.type) % 16 == 0;
}

// n rounded up to a size that has an algorithm of its own: powers of two, by 32 where a step's
// products turn from reading weights to computing, and by 128 where steps run prompts and decodes.
int bucket_of(int64_t n) {
  if (n <= 1) return 1;
  if (n > 64 && n <= 256) return static_cast<int>((n + 31) / 32 * 32);
  if (n > 256 && n <= 2048) return static_cast<int>((n + 127) / 128 * 128);
  return 1 << std::bit_width(static_cast<unsigned>(n - 1));
}

constexpr int kDeterministicBucket = 0;
constexpr int kMostGraphed = 512;

// cuBLAS adds a bias of the output's type; others take a kernel of their own.
bool fuses_bias(const Tensor& out, const GemmWeight& w) {
  return w.bias && w.type != DType::f8 && w.bias_type == out.type;
}

// x as cuBLAS and narrow() read it.
Tensor typed_input(const Tensor& x, const GemmWeight& w, const QuantizedRows& memory) {
  return w.scale ? Tensor{memory.data, DType::f8, x.rows, x.cols, x.cols} : x;
}

}  // namespace

// Column-major, as cuBLAS sees it: out [rows, n] = w [cols, rows]ᵀ · x [cols, n].
struct Gemm::Problem {
  cublasLtMatmulDesc_t op = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  uint32_t align_a = 256, align_bc = 256;

  // x_scale: [n], where x is in f8.
  Problem(const Tensor& out, const Tensor& x, const GemmWeight& w, const float* x_scale = nullptr) {
    check(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F), "descriptor");
    cublasOperation_t transposed = CUBLAS_OP_T;
    set(CUBLASLT_MATMUL_DESC_TRANSA, transposed);
    if (fuses_bias(out, w)) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, w.bias);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(out.type));
    }
    if (w.scale) {
      int32_t per_row = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
      set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, per_row);
      set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, per_row);
      set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, w.scale);
      set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, x_scale);
    }
    auto rows = static_cast<uint64_t>(w.rows), cols = static_cast<uint64_t>(w.cols);
    auto n = static_cast<uint64_t>(out.rows);
    check(cublasLtMatrixLayoutCreate(&a, cuda_type(w.type), cols, rows, w.cols), "layout");
    check(cublasLtMatrixLayoutCreate(&b, cuda_type(x.type), cols, n, x.stride), "layout");
    check(cublasLtMatrixLayoutCreate(&c, cuda_type(out.type), rows, n, out.stride), "layout");
    bool wide = wide_enough(out) && wide_enough(x);
    align_bc =
        wide ? 16 : static_cast<uint32_t>(std::min(dtype_bytes(out.type), dtype_bytes(x.type)));
    align_a = w.cols * static_cast<int64_t>(dtype_bytes(w.type)) % 16 == 0
                  ? 16
                  : static_cast<uint32_t>(dtype_bytes(w.type));
  }
  ~Problem() {
    cublasLtMatrixLayoutDestroy(c);
    cublasLtMatrixLayoutDestroy(b);
    cublasLtMatrixLayoutDestroy(a);
    cublasLtMatmulDescDestroy(op);
  }
  Problem(const Problem&) = delete;

  template <typename T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    check(cublasLtMatmulDescSetAttribute(op, attribute, &value, sizeof(value)), "attribute");
  }

  cublasStatus_t run(cublasLtHandle_t handle,
                     const Tensor& out,
                     const Tensor& x,
                     const GemmWeight& w,
                     const cublasLtMatmulAlgo_t& algo,
                     void* workspace,
                     cudaStream_t stream) const {
    float one = 1, zero = 0;
    return cublasLtMatmul(handle, op, &one, w.data, a, x.data, b, &zero, out.data, c, out.data, c,
                          &algo, workspace, kWorkspace, stream);
  }
};

Gemm::Gemm(int device, bool deterministic) : deterministic_(deterministic) {
  cudaDeviceProp prop{};
  check(cudaGetDeviceProperties(&prop, device), "properties");
  device_name_ = prop.name;
  num_sms_ = prop.multiProcessorCount;
  check(cublasLtCreate(&handle_), "start");
  check(cudaMalloc(&own_workspace_, kWorkspace), "workspace");
  workspace_ = own_workspace_;
}

Gemm::~Gemm() {
  cudaFree(own_workspace_);
  cublasLtDestroy(handle_);
}

Gemm::Key Gemm::key_of(const Tensor& out, const Tensor& x, const GemmWeight& w) const {
  int bucket = deterministic_ ? kDeterministicBucket : bucket_of(out.rows);
  return {w.rows,
          w.cols,
          bucket,
          w.type,
          out.type,
          w.bias != nullptr,
          wide_enough(out) && wide_enough(x)};
}

std::vector<cublasLtMatmulHeuristicResult_t> Gemm::candidates(const Problem& p, int most) const {
  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), "preference");
  auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
          "preference");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, size_t{kWorkspace});
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p.align_a);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.align_bc);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p.align_bc);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.align_bc);
  if (deterministic_) {
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
  }
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(most));
  int num = 0;
  cublasStatus_t s = cublasLtMatmulAlgoGetHeuristic(handle_, p.op, p.a, p.b, p.c, p.c, preference,
                                                    most, found.data(), &num);
  cublasLtMatmulPreferenceDestroy(preference);
  if (s != CUBLAS_STATUS_SUCCESS || num == 0)
    throw std::runtime_error("cuBLAS: no algorithm for a matrix product");
  found.resize(static_cast<size_t>(num));
  std::erase_if(found, [](const auto& r) { return r.state != CUBLAS_STATUS_SUCCESS; });
  if (deterministic_) {
    std::erase_if(found, [](const auto& r) {
      int32_t splits = 1;
      size_t written = 0;
      cublasLtMatmulAlgoConfigGetAttribute(&r.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits,
                                           sizeof(splits), &written);
      return splits > 1;
    });
  }
  if (found.empty()) throw std::runtime_error("cuBLAS: no algorithm for a matrix product");
  return found;
}

// Without a timed choice: the heuristic's first. In deterministic mode the one for 64 rows serves
// all, so that it does not depend on which batch came first.
const Gemm::Plan& Gemm::plan_of(const Key& key, const Problem& problem) {
  auto it = plans_.find(key);
  if (it != plans_.end()) return it->second;
  Plan plan;
  plan.algo = candidates(problem, 8).front().algo;
  return plans_.emplace(key, plan).first->second;
}

bool Gemm::takes(int kernel, const Tensor& x, const Tensor& typed, const GemmWeight& w) {
  if (kernel == kCublas) return true;
  if (kernel == kSkinny) return can_skinny(x, w);
  return kernel == kTall ? can_tall(typed, w) : can_narrow(typed, w);
}

void Gemm::run_own(int kernel,
                   const Tensor& out,
                   const Tensor& x,
                   const Tensor& typed,
                   const float* x_scale,
                   const GemmWeight& w,
                   cudaStream_t stream) const {
  if (kernel == kSkinny) return skinny(out, x, w, stream);
  if (kernel == kTall) return tall(out, typed, x_scale, w, num_sms_, stream);
  narrow(out, typed, x_scale, w, kernel, stream);
}

// Enough blocks for every multiprocessor to have one.
int Gemm::kernel_by_default(const Tensor& x, const Tensor& typed, const GemmWeight& w) const {
  if (can_skinny(x, w)) return kSkinny;
  if (!can_narrow(typed, w)) return kCublas;
  int splits = 1;
  while (splits < 8 && (w.rows + 127) / 128 * splits < num_sms_) splits *= 2;
  return splits;
}

void Gemm::run(Tensor out,
               Tensor x,
               const GemmWeight& w,
               const QuantizedRows& memory,
               bool ready,
               cudaStream_t stream) {
  Key key = key_of(out, x, w);
  auto it = plans_.find(key);
  Tensor typed = typed_input(x, w, memory);
  int kernel = deterministic_       ? kCublas
               : it != plans_.end() ? it->second.kernel
                                    : kernel_by_default(x, typed, w);
  if (!takes(kernel, x, typed, w)) kernel = kCublas;
  if (w.scale && !ready && kernel != kSkinny) quantize_rows(memory, x, stream);
  if (kernel != kCublas) return run_own(kernel, out, x, typed, memory.scale, w, stream);

  Problem problem(out, typed, w, memory.scale);
  const Plan* plan = it == plans_.end() ? nullptr : &it->second;
  if (plan && plan->kernel != kCublas) {  // our own kernel does not take this one
    key.bucket = -key.bucket;
    it = plans_.find(key);
    plan = it == plans_.end() ? nullptr : &it->second;
  }
  if (!plan && deterministic_) {
    Tensor some_out = out, some_x = typed;
    some_out.rows = some_x.rows = 64;
    plan = &plan_of(key, Problem(some_out, some_x, w, memory.scale));
  } else if (!plan) {
    plan = &plan_of(key, problem);
  }
  cublasStatus_t s = problem.run(handle_, out, typed, w, plan->algo, workspace_, stream);
  if (s != CUBLAS_STATUS_SUCCESS && !deterministic_) {
    // The choice was timed at the bucket's full size, perhaps in another run of the program.
    s = problem.run(handle_, out, typed, w, candidates(problem, 1).front().algo, workspace_,
                    stream);
  }
  check(s, "matrix product");
  if (w.bias && !fuses_bias(out, w)) add_bias(out, w.bias_f32, stream);
}

struct DestroyGraph {
  void operator()(cudaGraphExec_t g) const { cudaGraphExecDestroy(g); }
};
using Graph = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, DestroyGraph>;

// What `queue` puts on the stream as a graph; null where it fails.
template <typename Queue>
Graph captured(cudaStream_t stream, Queue&& queue) {
  cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  bool queued = false;
  try {
    queued = queue();
  } catch (const std::exception&) {
    // A launch that was refused: not a candidate. The capture ends all the same.
  }
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  bool ended = cudaStreamEndCapture(stream, &graph) == cudaSuccess && graph;
  if (ended && queued && cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess) exec = nullptr;
  if (graph) cudaGraphDestroy(graph);
  static_cast<void>(cudaGetLastError());
  return Graph(exec);
}

void Gemm::time_key(const Key& key,
                    const std::vector<GemmWeight>& weights,
                    Tensor out,
                    Tensor x,
                    const QuantizedRows& memory,
                    cudaStream_t stream) {
  cudaEvent_t begin, end;
  cuda::check(cudaEventCreate(&begin), "event");
  cuda::check(cudaEventCreate(&end), "event");
  const GemmWeight& first = weights[0];
  Tensor typed = typed_input(x, first, memory);
  if (first.scale) quantize_rows(memory, x, stream);
  Plan best;
  // As many products as reads three times the cache, at least four.
  auto bytes =
      static_cast<double>(first.rows * first.cols) * static_cast<double>(dtype_bytes(first.type));
  int repeats = std::clamp(static_cast<int>(150e6 / bytes), 4, 24);
  // As in a step, where graphs run up to so many rows, and some small kernel makes the input.
  bool as_graph = out.rows <= kMostGraphed;
  auto fit = static_cast<int64_t>(kWorkspace / sizeof(float)) / x.cols;
  Tensor sum{workspace_, DType::f32, std::min(x.rows, fit), x.cols, x.cols};
  auto products = [&](auto&& product) {
    bool ran = true;
    for (int i = 0; i < repeats && ran; ++i) {
      if (as_graph && sum.rows > 0) add(sum, x, stream);
      ran = product(weights[static_cast<size_t>(i) % weights.size()]);
    }
    return ran;
  };
  // A few rows come without their codes in f8 (CudaBackend::codes_of).
  auto make_codes = [&] {
    if (first.scale && x.rows <= kMaxSkinny) quantize_rows(memory, x, stream);
  };
  // Microseconds of one product, the best of three rounds after a first; 0 where it does not run.
  auto time = [&](auto&& product) {
    Graph graph;
    if (as_graph && !(graph = captured(stream, [&] { return products(product); }))) return 0.0f;
    float least = 0;
    for (int round = 0; round < 4; ++round) {
      cuda::check(cudaEventRecord(begin, stream), "event");
      bool ran = graph ? cudaGraphLaunch(graph.get(), stream) == cudaSuccess : products(product);
      cuda::check(cudaEventRecord(end, stream), "event");
      cuda::check(cudaEventSynchronize(end), "event");
      if (!ran) return 0.0f;
      float ms = 0;
      cuda::check(cudaEventElapsedTime(&ms, begin, end), "event");
      if (round > 0 && (least == 0 || ms < least)) least = ms;
    }
    return least * 1000 / static_cast<float>(repeats);
  };
  auto consider = [&](float t, int kernel, const cublasLtMatmulAlgo_t& algo) {
    if (t > 0 && (best.microseconds == 0 || t < best.microseconds)) best = {algo, kernel, t};
  };
  for (const auto& c : candidates(Problem(out, typed, first, memory.scale), 12)) {
    float t = time([&](const GemmWeight& w) {
      make_codes();
      bool ran =
          Problem(out, typed, w, memory.scale)
              .run(handle_, out, typed, w, c.algo, workspace_, stream) == CUBLAS_STATUS_SUCCESS;
      if (w.bias && !fuses_bias(out, w)) add_bias(out, w.bias_f32, stream);
      return ran;
    });
    consider(t, kCublas, c.algo);
  }
  for (int kernel : {kSkinny, kTall, 1, 2, 4, 8}) {
    if (deterministic_ || !takes(kernel, x, typed, first)) continue;
    float t = time([&](const GemmWeight& w) {
      if (kernel != kSkinny) make_codes();
      return run_own(kernel, out, x, typed, memory.scale, w, stream), true;
    });
    consider(t, kernel, {});
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  if (best.microseconds > 0) {
    plans_[key] = best;
    ++num_tuned_;
  }
}

void Gemm::tune_bucket(const std::vector<GemmWeight>& weights,
                       Tensor out,
                       Tensor x,
                       const QuantizedRows& memory,
                       cudaStream_t stream) {
  time_key(key_of(out, x, weights[0]), weights, out, x, memory, stream);
}

void Gemm::tune(const std::vector<GemmWeight>& weights,
                bool f32_out,
                int max_n,
                Tensor x,
                void* out,
                const QuantizedRows& memory,
                cudaStream_t stream) {
  const GemmWeight& w = weights[0];
  DType out_type = f32_out ? DType::f32 : x.type;
  for (int n = 1; n <= bucket_of(max_n); n = bucket_of(n + 1)) {
    int rows = std::min(n, max_n);
    if (deterministic_) rows = 64;
    Tensor to{out, out_type, rows, w.rows, w.rows};
    Tensor from{x.data, x.type, rows, w.cols, w.cols};
    Key key = key_of(to, from, w);
    auto it = plans_.find(key);
    if (it == plans_.end() || it->second.microseconds == 0) {
      if (rows <= max_n) time_key(key, weights, to, from, memory, stream);
    }
    if (deterministic_) return;
  }
}

// One line per choice: rows cols bucket type out bias wide kernel microseconds and the algorithm's
// words.
std::string Gemm::file() const {
  std::filesystem::path dir = user_cache_dir();
  if (dir.empty()) return {};
  std::string name = device_name_;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '-');
  return (dir / ("gemm3-" + name + "-" + std::to_string(cublasLtGetVersion()) +
                 (has_wgmma() ? "" : "-mma") + (deterministic_ ? "-deterministic" : "") + ".txt"))
      .string();
}

void Gemm::load_choices() {
  std::string path = file();
  if (path.empty()) return;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    std::istringstream s(line);
    Key k{};
    Plan p;
    int type = 0, out = 0;
    s >> k.rows >> k.cols >> k.bucket >> type >> out >> k.bias >> k.wide >> p.kernel >>
        p.microseconds;
    for (uint64_t& word : p.algo.data) s >> word;
    std::string rest;
    bool whole = !s.fail() && !(s >> rest);
    bool known = p.kernel >= kTall && p.kernel <= 8 &&
                 std::has_single_bit(static_cast<unsigned>(std::max(1, p.kernel)));
    if (!whole || !known || type < 0 || type > 3 || out < 0 || out > 3) continue;
    k.type = static_cast<DType>(type);
    k.out = static_cast<DType>(out);
    plans_[k] = p;
  }
}

void Gemm::save_choices() const {
  std::string path = file();
  if (path.empty() || num_tuned_ == 0) return;
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  std::string partial = path + "." + std::to_string(getpid());
  {
    std::ofstream out(partial);
    for (const auto& [k, p] : plans_) {
      if (p.microseconds == 0) continue;
      out << k.rows << ' ' << k.cols << ' ' << k.bucket << ' ' << static_cast<int>(k.type) << ' '
          << static_cast<int>(k.out) << ' ' << k.bias << ' ' << k.wide << ' ' << p.kernel << ' '
          << p.microseconds;
      for (uint64_t word : p.algo.data) out << ' ' << word;
      out << '\n';
    }
    out.flush();
    if (!out) {
      std::filesystem::remove(partial, ignored);
      return;
    }
  }
  std::filesystem::rename(partial, path, ignored);
}

}  // namespace sluice::cuda

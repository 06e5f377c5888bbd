// Chooses the kernel of each product by timing the candidates as a step would run them.
#include <algorithm>
#include <memory>
#include <type_traits>

#include "backend/cuda/check.cuh"
#include "backend/cuda/gemm_problem.cuh"
#include "backend/cuda/skinny.cuh"

namespace sluice::cuda {

namespace {

constexpr int kMostGraphed = 512;  // rows of a step that runs as a graph

struct DestroyGraph {
  void operator()(cudaGraphExec_t g) const { cudaGraphExecDestroy(g); }
};
using Graph = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, DestroyGraph>;

// What `queue` puts on the stream as a graph; null where it fails.
template <typename Queue>
Graph captured(cudaStream_t stream, Queue&& queue) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
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

}  // namespace

// Times one way of computing a product, on several weights of its shape in turn.
class Gemm::Timer {
 public:
  // `first`: the product with the first weight.
  Timer(const std::vector<GemmWeight>& weights,
        const Product& first,
        void* workspace,
        cudaStream_t stream)
      : weights_(weights), first_(first), stream_(stream) {
    check(cudaEventCreate(&begin_), "event");
    check(cudaEventCreate(&end_), "event");
    const GemmWeight& w = first.w;
    // As many products as read three times the cache, at least four.
    auto bytes = static_cast<double>(w.rows * w.cols) * static_cast<double>(dtype_bytes(w.type));
    repeats_ = std::clamp(static_cast<int>(150e6 / bytes), 4, 24);
    // As in a step, where graphs run up to so many rows, and some small kernel makes the input.
    as_graph_ = first.out.rows <= kMostGraphed;
    const Tensor& x = first.x;
    auto fit = static_cast<int64_t>(kScratch / sizeof(float)) / x.cols;
    sum_ = {workspace, DType::f32, std::min(x.rows, fit), x.cols, x.cols};
  }
  ~Timer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Timer(const Timer&) = delete;

  // Microseconds of one run(product), the best of three rounds after a first; 0 where it does not
  // run.
  template <typename Run>
  float time(Run&& run) const {
    Graph graph;
    if (as_graph_ && !(graph = captured(stream_, [&] { return run_all(run); }))) return 0;
    float least = 0;
    for (int round = 0; round < 4; ++round) {
      check(cudaEventRecord(begin_, stream_), "event");
      bool ran = graph ? cudaGraphLaunch(graph.get(), stream_) == cudaSuccess : run_all(run);
      check(cudaEventRecord(end_, stream_), "event");
      check(cudaEventSynchronize(end_), "event");
      if (!ran) return 0;
      float ms = 0;
      check(cudaEventElapsedTime(&ms, begin_, end_), "event");
      if (round > 0 && (least == 0 || ms < least)) least = ms;
    }
    return least * 1000 / static_cast<float>(repeats_);
  }

 private:
  template <typename Run>
  bool run_all(Run& run) const {
    bool ran = true;
    for (int i = 0; i < repeats_ && ran; ++i) {
      if (as_graph_ && sum_.rows > 0) add(sum_, first_.x, stream_);
      const GemmWeight& w = weights_[static_cast<size_t>(i) % weights_.size()];
      ran = run(Product(first_.out, first_.x, w, first_.f8));
    }
    return ran;
  }

  const std::vector<GemmWeight>& weights_;
  const Product& first_;
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  int repeats_ = 0;
  bool as_graph_ = false;
  Tensor sum_;
};

std::vector<GemmChoice> Gemm::own_candidates(const Product& p) const {
  if (fixed(p.w)) return {};
  const bool i8 = p.w.type == DType::i8;
  std::vector<GemmChoice> list{{GemmKernel::tall}};
  if (!i8 || p.x.rows <= 2 * kMaxSkinny) list.push_back({GemmKernel::skinny});
  for (int splits : kNarrowSplits) {
    list.push_back({GemmKernel::narrow, splits});
    const Spread spread = wide_spread(p.w, p.x.rows, splits, num_sms_, handover());
    const bool many = i8 || p.x.rows > kMaxSkinny;
    if (spread.even || (many && (splits == 1 || spread.cluster > 1)))
      list.push_back({GemmKernel::wide, splits});
  }
  std::erase_if(list, [&](const GemmChoice& c) { return !takes(c, p); });
  return list;
}

void Gemm::time_key(const GemmKey& key,
                    const std::vector<GemmWeight>& weights,
                    const Product& first,
                    cudaStream_t stream) {
  const Timer timer(weights, first, workspace_, stream);
  if (first.w.scale) quantize_rows(first.f8, first.x, stream);
  const bool i8 = first.w.type == DType::i8;
  const bool makes_codes = has_few_codes(first.w, first.x.rows) && !key.coded;
  auto make_codes = [&] {
    if (makes_codes) quantize_rows(first.f8, first.x, stream);
  };
  GemmChoice best;
  auto consider = [&](GemmChoice choice, float microseconds) {
    choice.microseconds = microseconds;
    if (choice.timed() && (!best.timed() || microseconds < best.microseconds)) best = choice;
  };
  std::vector<cublasLtMatmulHeuristicResult_t> theirs;
  if (!i8) theirs = candidates(Problem(first), 12);
  for (const auto& c : theirs) {
    float t = timer.time([&](const Product& p) {
      make_codes();
      bool ran = Problem(p).run(handle_, p, c.algo, workspace_, stream) == CUBLAS_STATUS_SUCCESS;
      if (p.w.bias && !p.fuses_bias()) add_bias(p.out, p.w.bias_f32, stream);
      return ran;
    });
    consider({GemmKernel::cublas, 1, words_of(c.algo)}, t);
  }
  for (const GemmChoice& choice : own_candidates(first)) {
    float t = timer.time([&](const Product& p) {
      if (choice.kernel != GemmKernel::skinny) make_codes();
      run_own(choice, p, stream);
      return true;
    });
    consider(choice, t);
  }
  if (!best.timed()) return;
  choices_.set(key, best);
  tuned_ = true;
}

bool Gemm::gives_same_bits(const cublasLtMatmulAlgo_t& algo,
                           const Product& some,
                           cudaStream_t stream) {
  const size_t bytes = static_cast<size_t>(some.out.rows * some.out.stride) * 2;
  Product other = some;
  other.out.data = static_cast<std::byte*>(some.out.data) + bytes;
  run_own({GemmKernel::wide}, some, stream);
  if (Problem(other).run(handle_, other, algo, workspace_, stream) != CUBLAS_STATUS_SUCCESS)
    return false;
  auto* found = static_cast<uint32_t*>(workspace_);
  find_difference(some.out.data, other.out.data, bytes, found, stream);
  uint32_t differs = 1;
  check(cudaMemcpyAsync(&differs, found, sizeof(differs), cudaMemcpyDeviceToHost, stream), "bits");
  check(cudaStreamSynchronize(stream), "bits");
  return differs == 0;
}

void Gemm::tune_same_bits(
    const std::vector<GemmWeight>& weights, int max_n, Tensor x, void* out, cudaStream_t stream) {
  const GemmWeight& w = weights[0];
  auto product = [&](int n) {
    return Product({out, x.type, n, w.rows, w.rows}, {x.data, x.type, n, w.cols, w.cols}, w, {});
  };
  int before = kLeastSameBits - 1;  // the bucket before
  for (int n = gemm_bucket(kLeastSameBits); before < max_n; before = n, n = gemm_bucket(n + 1)) {
    const int rows = std::min(n, max_n);
    const Product first = product(rows);
    const std::optional<GemmKey> key = same_bits_key(first);
    if (!key || choices_.find(*key)) continue;
    const Timer timer(weights, first, workspace_, stream);
    GemmChoice best{GemmKernel::wide};
    best.microseconds = timer.time([&](const Product& p) {
      run_own(GemmChoice{GemmKernel::wide}, p, stream);
      return true;
    });
    if (!best.timed()) continue;
    std::vector<std::pair<float, cublasLtMatmulAlgo_t>> faster;
    for (const auto& c : candidates(Problem(first), 12)) {
      const float t = timer.time([&](const Product& p) {
        return Problem(p).run(handle_, p, c.algo, workspace_, stream) == CUBLAS_STATUS_SUCCESS;
      });
      if (t > 0 && t < best.microseconds) faster.emplace_back(t, c.algo);
    }
    std::sort(faster.begin(), faster.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [microseconds, algo] : faster) {
      const int tried[] = {rows, before + 1, before + (rows - before) / 2, rows - 1};
      const bool same = std::all_of(std::begin(tried), std::end(tried), [&](int num) {
        return num <= before || gives_same_bits(algo, product(num), stream);
      });
      if (!same) continue;
      best = {GemmKernel::cublas, 1, words_of(algo), microseconds};
      break;
    }
    choices_.set(*key, best);
    tuned_ = true;
  }
}

void Gemm::tune_bucket(const std::vector<GemmWeight>& weights,
                       Tensor out,
                       Tensor x,
                       const CodesView& f8,
                       cudaStream_t stream) {
  time_key(key_of(out, x, weights[0], true), weights, Product(out, x, weights[0], f8), stream);
}

void Gemm::tune(const std::vector<GemmWeight>& weights,
                bool f32_out,
                int min_n,
                int max_n,
                Tensor x,
                void* out,
                const CodesView& f8,
                cudaStream_t stream) {
  const GemmWeight& w = weights[0];
  DType out_type = f32_out ? DType::f32 : x.type;
  for (int n = gemm_bucket(min_n); n <= gemm_bucket(max_n); n = gemm_bucket(n + 1)) {
    int rows = std::min(n, max_n);
    if (fixed(w)) rows = 64;
    Tensor to{out, out_type, rows, w.rows, w.rows};
    Tensor from{x.data, x.type, rows, w.cols, w.cols};
    if (fixed(w) && invariant_choice(Product(to, from, w, f8)).kernel != GemmKernel::cublas)
      return tune_same_bits(weights, f32_out ? 0 : max_n, x, out, stream);
    for (bool f8_ready : {false, true}) {
      const GemmKey key = key_of(to, from, w, f8_ready);
      if (f8_ready != key.coded) continue;
      const GemmChoice* choice = choices_.find(key);
      if ((!choice || !choice->timed()) && rows <= max_n)
        time_key(key, weights, Product(to, from, w, f8), stream);
    }
    if (fixed(w)) return;
  }
}

}  // namespace sluice::cuda

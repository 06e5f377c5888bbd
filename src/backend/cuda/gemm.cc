#include "backend/cuda/gemm.cuh"

#include <algorithm>
#include <bit>

#include "backend/cuda/check.cuh"
#include "backend/cuda/gemm_problem.cuh"
#include "backend/cuda/skinny.cuh"
#include "backend/cuda/target.cuh"
#include "base/cache_dir.h"

namespace sluice::cuda {

namespace {

constexpr int kDeterministicBucket = 0;

}  // namespace

int gemm_bucket(int64_t n) {
  if (n <= 1) return 1;
  if (n > 64 && n <= 256) return static_cast<int>((n + 31) / 32 * 32);
  if (n > 256 && n <= 2048) return static_cast<int>((n + 127) / 128 * 128);
  return 1 << std::bit_width(static_cast<unsigned>(n - 1));
}

Gemm::Gemm(int device, bool deterministic) : deterministic_(deterministic) {
  cudaDeviceProp prop{};
  check(cudaGetDeviceProperties(&prop, device), "properties");
  device_name_ = prop.name;
  num_sms_ = prop.multiProcessorCount;
  check(cublasLtCreate(&handle_), "start");
  check(cudaMalloc(&own_workspace_, kWorkspace), "workspace");
  workspace_ = own_workspace_;
  check(cudaMemset(handover().flags, 0, Handover::kFlagBytes), "workspace");
}

Handover Gemm::handover() const {
  auto* flags = static_cast<std::byte*>(workspace_) + kScratch;
  return {workspace_, int64_t{kScratch}, reinterpret_cast<uint32_t*>(flags)};
}

Gemm::~Gemm() {
  cudaFree(own_workspace_);
  cublasLtDestroy(handle_);
}

GemmKey Gemm::key_of(const Tensor& out, const Tensor& x, const GemmWeight& w, bool f8_ready) const {
  GemmKey k;
  k.rows = w.rows;
  k.cols = w.cols;
  k.bucket = fixed(w) ? kDeterministicBucket : gemm_bucket(out.rows);
  k.type = w.type;
  k.out = out.type;
  k.bias = w.bias != nullptr;
  k.wide = wide_enough(out) && wide_enough(x);
  k.coded = f8_ready && has_few_codes(w, out.rows);
  return k;
}

std::vector<cublasLtMatmulHeuristicResult_t> Gemm::candidates(const Problem& p, int most) const {
  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), "preference");
  auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
          "preference");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, size_t{kScratch});
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

bool Gemm::takes(const GemmChoice& choice, const Product& p) {
  if (p.w.gate) {
    const bool gates = choice.kernel == GemmKernel::narrow || choice.kernel == GemmKernel::wide;
    if (!gates || !fits_gate(p.out, p.w)) return false;
  }
  switch (choice.kernel) {
    case GemmKernel::cublas:
      return p.w.type != DType::i8;
    case GemmKernel::skinny:
      return p.w.type == DType::i8 ? can_skinny_int8(p.typed, p.w) : can_skinny(p.x, p.w);
    case GemmKernel::tall:
      return can_tall(p.typed, p.w);
    case GemmKernel::narrow:
      return can_narrow(p.typed, p.w);
    case GemmKernel::wide:
      return can_wide(p.typed, p.w);
  }
  return false;
}

void Gemm::run_own(const GemmChoice& choice, const Product& p, cudaStream_t stream) const {
  switch (choice.kernel) {
    case GemmKernel::skinny:
      if (p.w.type == DType::i8) return skinny_int8(p.out, p.typed, p.f8.scale, p.w, stream);
      return skinny(p.out, p.x, p.w, stream);
    case GemmKernel::tall:
      return tall(p.out, p.typed, p.f8.scale, p.w, num_sms_, stream);
    case GemmKernel::narrow:
      return narrow(p.out, p.typed, p.f8.scale, p.w, choice.splits, deterministic_, stream);
    case GemmKernel::wide:
      return wide(p.out, p.typed, p.f8.scale, p.w, choice.splits, num_sms_, stream, {}, handover());
    case GemmKernel::cublas:
      break;
  }
  throw std::logic_error("cuBLAS is not a kernel of ours");
}

// Enough thread blocks for every multiprocessor to have one.
GemmChoice Gemm::default_choice(const Product& p) const {
  const bool i8 = p.w.type == DType::i8;
  if (i8 ? p.x.rows <= kMaxSkinny : can_skinny(p.x, p.w)) return {GemmKernel::skinny};
  int splits = 1;
  while (splits < 8 && (p.w.rows + 127) / 128 * splits < num_sms_) splits *= 2;
  if (can_narrow(p.typed, p.w)) return {GemmKernel::narrow, splits};
  if (i8 && can_wide(p.typed, p.w)) return {GemmKernel::wide, splits};
  return {i8 ? GemmKernel::skinny : GemmKernel::cublas};
}

// Ranges of columns enough to occupy most of a large GPU at few rows, by the weight's shape alone.
// Clusters that are all there at once serve any number of rows; with more of them, blocks that
// share a multiprocessor are faster for few rows, and so are even shares.
GemmChoice Gemm::invariant_choice(const Product& p) const {
  if (!can_wide(p.typed, p.w)) return {};
  const int64_t tiles = (p.w.rows + 127) / 128;
  int splits = 8;
  for (int few : {4, 3, 2, 1})
    if (tiles * few >= 96) splits = few;
  const bool clusters = splits > 1 && splits < 8 && tiles <= clusters_at_once(splits);
  const bool even = splits == 1 && wide_spread(p.w, 1, splits, num_sms_, handover()).even;
  const int64_t most_narrow = clusters || even ? 0 : splits == 1 ? kMaxSkinny : kMaxTall;
  return {p.x.rows <= most_narrow ? GemmKernel::narrow : GemmKernel::wide, splits};
}

// Products of prompts and large batches whose columns wide() adds up in one range.
std::optional<GemmKey> Gemm::same_bits_key(const Product& p) const {
  if (!fixed(p.w) || dtype_bytes(p.w.type) != 2 || p.out.type != p.w.type || p.w.bias ||
      p.out.rows < kLeastSameBits || invariant_choice(p) != GemmChoice{GemmKernel::wide})
    return std::nullopt;
  GemmKey key = key_of(p.out, p.x, p.w, false);
  key.bucket = gemm_bucket(p.out.rows);
  return key;
}

bool Gemm::run_same_bits(const Product& p, cudaStream_t stream) {
  const std::optional<GemmKey> key = same_bits_key(p);
  const GemmChoice* choice = key ? choices_.find(*key) : nullptr;
  if (!choice || choice->kernel != GemmKernel::cublas) return false;
  return Problem(p).run(handle_, p, algo_of(choice->algo), workspace_, stream) ==
         CUBLAS_STATUS_SUCCESS;
}

void Gemm::run(const Product& p, bool f8_ready, cudaStream_t stream) {
  if (run_same_bits(p, stream)) return;
  const GemmKey key = key_of(p.out, p.x, p.w, f8_ready);
  const GemmChoice* found = choices_.find(key);
  const bool i8 = p.w.type == DType::i8;
  GemmChoice choice;
  if (fixed(p.w)) {
    choice = invariant_choice(p);
  } else {
    choice = found ? *found : default_choice(p);
  }
  if (!takes(choice, p)) choice = i8 ? default_choice(p) : GemmChoice{};
  if (p.w.scale && !f8_ready && (i8 || choice.kernel != GemmKernel::skinny))
    quantize_rows(p.f8, p.x, stream);
  if (choice.kernel != GemmKernel::cublas) return run_own(choice, p, stream);
  run_cublas(key, found, p, stream);
}

bool Gemm::fuses(const Product& p) const { return fixed(p.w) && takes(invariant_choice(p), p); }

void Gemm::run_gated(const Product& p, cudaStream_t stream) {
  run_own(invariant_choice(p), p, stream);
}

// Without a choice: the heuristic's first algorithm. In deterministic mode the one for 64 rows
// serves all, so that it does not depend on which batch came first.
void Gemm::run_cublas(GemmKey key,
                      const GemmChoice* choice,
                      const Product& p,
                      cudaStream_t stream) {
  const Problem problem(p);
  if (choice && choice->kernel != GemmKernel::cublas) {  // a kernel that does not take this one
    key.cublas_only = true;
    choice = choices_.find(key);
  }
  if (!choice) {
    Product some = p;
    if (deterministic_) some.out.rows = some.x.rows = some.typed.rows = 64;
    GemmChoice first;
    first.algo = words_of(candidates(Problem(some), 8).front().algo);
    choice = &choices_.set(key, first);
  }
  cublasStatus_t s = problem.run(handle_, p, algo_of(choice->algo), workspace_, stream);
  if (s != CUBLAS_STATUS_SUCCESS && !deterministic_) {
    // The choice was timed at the bucket's full size, perhaps in another run of the program.
    s = problem.run(handle_, p, candidates(problem, 1).front().algo, workspace_, stream);
  }
  check(s, "matrix product");
  if (p.w.bias && !p.fuses_bias()) add_bias(p.out, p.w.bias_f32, stream);
}

std::filesystem::path Gemm::file() const {
  const std::filesystem::path dir = user_cache_dir();
  if (dir.empty()) return {};
  std::string name = device_name_;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '-');
  return dir / ("gemm-" + name + "-" + std::to_string(cublasLtGetVersion()) +
                (has_wgmma() ? "" : "-mma") + (deterministic_ ? "-deterministic" : "") + ".txt");
}

void Gemm::load_choices() {
  if (const std::filesystem::path path = file(); !path.empty()) choices_.load(path);
}

void Gemm::save_choices() const {
  if (const std::filesystem::path path = file(); !path.empty() && tuned_) choices_.save(path);
}

}  // namespace sluice::cuda

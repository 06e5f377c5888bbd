#include "backend/cpu/cpu_backend.h"

#include <atomic>
#include <utility>

#include "backend/cpu/attention.h"
#include "backend/cpu/elementwise.h"
#include "backend/cpu/features.h"
#include "backend/cpu/matmul/matmul.h"
#include "backend/cpu/matmul/matmul_gated.h"
#include "backend/cpu/numa.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/vector_math.h"
#include "base/thread_pool.h"

namespace sluice {

namespace {

struct CpuWeight final : WeightData {
  explicit CpuWeight(PackedWeight p) : packed(std::move(p)) {}
  PackedWeight packed;
};

const PackedWeight& packed(const Weight& w) {
  return static_cast<const CpuWeight&>(*w.data).packed;
}

Weight weight_of(const PackedWeight& p, std::vector<float> bias) {
  Weight w;
  w.rows = p.rows;
  w.cols = p.cols;
  w.act = p.act;
  w.bytes = p.bytes;
  w.bias = std::move(bias);
  return w;
}

class CpuWeightSizes final : public WeightStore {
 public:
  explicit CpuWeightSizes(LoadQuant quant) : quant_(std::move(quant)) {}

  Weight load(std::span<const WeightSegment> segments, std::vector<float> bias) override {
    return weight_of(plan_weight(segments, {.quant = &quant_}), std::move(bias));
  }
  bool keeps_source(const Weight&, size_t) const override { return false; }

 private:
  LoadQuant quant_;
};

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(CpuOptions options)
      : pool_(options.threads, options.pin),
        quant_(std::move(options.quant)),
        kernels_(vector_kernels(cpu_features())),
        rows_(pool_, kernels_),
        attention_(pool_, kernels_, options.attention) {}

  std::string describe() const override {
    return "cpu, " + std::to_string(pool_.size()) +
           (pool_.size() == 1 ? " thread, " : " threads, ") + isa_name(cpu_features()) +
           (memory_nodes().empty()
                ? ""
                : ", memory over " + std::to_string(memory_nodes().size()) + " nodes");
  }

  void attach() override { pool_.pin_caller(); }
  Buffer allocate(size_t bytes) override { return allocate_pages(bytes); }

  Weight load(std::span<const WeightSegment> segments, std::vector<float> bias) override {
    auto data = std::make_unique<CpuWeight>(
        pack_weight(pool_, segments, bias, {.arena = &arena_, .quant = &quant_}));
    Weight w = weight_of(data->packed, std::move(bias));
    w.data = std::move(data);
    return w;
  }

  bool keeps_source(const Weight& w, size_t segment) const override {
    return packed(w).segments[segment].in_source;
  }

  void embed(Tensor out, const Weight& table, std::span<const int32_t> tokens) override {
    auto n = static_cast<int64_t>(tokens.size());
    double ns = 0.5 * static_cast<double>(table.cols);
    for_ranges(pool_, n, ns, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        embed_row(packed(table), tokens[static_cast<size_t>(i)], out.row(i));
      }
    });
  }

  void rope_table(float* cos_sin,
                  const RopeSpec& rope,
                  std::span<const int32_t> positions) override {
    rows_.rope_table(cos_sin, rope, positions);
  }

  void rms_norm(
      const Act& out, Tensor x, const float* weight, float eps, const int32_t* rows) override {
    rows_.rms_norm(out, x, weight, eps, rows);
  }

  void add_rms_norm(
      const Act& out, Tensor x, Tensor delta, const float* weight, float eps) override {
    rows_.add_rms_norm(out, x, delta, weight, eps);
  }

  void layer_norm(const Act& out,
                  Tensor x,
                  const LayerNormSpec& norm,
                  const int32_t* rows) override {
    rows_.layer_norm(out, x, norm, rows);
  }

  void add_layer_norm(const Act& out, Tensor x, Tensor delta, const LayerNormSpec& norm) override {
    rows_.add_layer_norm(out, x, delta, norm);
  }

  void add(Tensor x, Tensor delta) override { rows_.add(x, delta); }
  void scale(Tensor x, float factor) override { rows_.scale(x, factor); }
  void softcap(Tensor x, float cap) override { rows_.softcap(x, cap); }

  uint64_t progress() const override { return progress_.load(std::memory_order_relaxed); }

  void matmul(Tensor out, const Act& x, const Weight& w) override {
    count_op();
    sluice::matmul(pool_, out, x, packed(w), scratch_);
  }

  void matmul_best(Tensor, const Act& x, const Weight& w, std::span<Best> best) override {
    count_op();
    sluice::matmul_best(pool_, x, packed(w), best, best_);
  }

  void finish_qkv(Tensor qkv, const QkvSpec& spec, const BatchView& batch, KvLayer kv) override {
    rows_.finish_qkv(qkv, spec, batch, kv);
  }

  void attention(const Act& out,
                 Tensor q,
                 const AttentionSpec& spec,
                 const BatchView& batch,
                 KvLayer kv) override {
    count_op();
    attention_.run(out, q, spec, batch, kv);
  }

  void activate(const Act& out, Tensor x, Activation activation) override {
    rows_.activate(out, x, activation);
  }

  void activate_gated(const Act& out, Tensor gate_up, Activation activation) override {
    rows_.activate_gated(out, gate_up, activation);
  }

  void matmul_gated(
      const Act& out, Tensor inner, const Act& x, const Weight& w, Activation activation) override {
    const GatedProduct product{out, x, packed(w), activation};
    if (!sluice::matmul_gated(pool_, product, kernels_, scratch_, gated_)) {
      return Backend::matmul_gated(out, inner, x, w, activation);
    }
    count_op();
  }

  void copy_blocks(std::span<const KvLayer> layers, std::span<const BlockCopy> copies) override {
    rows_.copy_blocks(layers, copies);
  }

  void parallel(int n, void (*f)(void* ctx, int index), void* ctx) override {
    pool_.for_each(n, [&](int64_t i, int) { f(ctx, static_cast<int>(i)); });
  }

 private:
  // Counts long ops that are done. Only the device thread writes.
  void count_op() {
    progress_.store(progress_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  std::atomic<uint64_t> progress_{0};
  ThreadPool pool_;
  LoadQuant quant_;
  WeightArena arena_;
  const VectorKernels& kernels_;
  CpuElementwise rows_;
  MatmulScratch scratch_;
  CpuAttention attention_;
  BestScratch best_;
  GatedScratch gated_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(CpuOptions options) {
  return std::make_unique<CpuBackend>(std::move(options));
}

std::unique_ptr<WeightStore> cpu_weight_sizes(LoadQuant quant) {
  return std::make_unique<CpuWeightSizes>(std::move(quant));
}

}  // namespace sluice

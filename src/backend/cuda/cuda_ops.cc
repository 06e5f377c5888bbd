// The CUDA backend's ops: each queues its kernels.
#include <algorithm>

#include "backend/cuda/attention.cuh"
#include "backend/cuda/check.cuh"
#include "backend/cuda/cuda_backend.cuh"
#include "backend/cuda/prepare.cuh"
#include "backend/cuda/target.cuh"
#include "base/check.h"

namespace sluice::cuda {

namespace {

// The memory into which an op writes `out` in 8 bits too, for the products that read it so.
CodesView codes_of(const Act& out) {
  if (!out.fills_f8()) return {};
  CHECK(out.f.stride == out.f.cols);
  return out.f8;
}

}  // namespace

void CudaBackend::embed(Tensor out, const Weight& table, std::span<const int32_t> tokens) {
  Timed t(*this, "embed");
  if (t.replaced()) return;
  const CudaWeight& w = cuda_weight(table);
  CHECK(w.parts.size() <= 1);  // a table is one tensor
  if (!w.parts.empty()) return embed_packed(out, w.parts[0], tokens.data(), stream_);
  cuda::embed(out, w.gemm.data, w.gemm.type, tokens.data(), stream_);
}

void CudaBackend::rope_table(float* cos_sin,
                             const RopeSpec& rope,
                             std::span<const int32_t> positions) {
  Timed t(*this, "rope");
  if (t.replaced()) return;
  cuda::rope_table(cos_sin, rope, positions.data(), static_cast<int64_t>(positions.size()),
                   stream_);
}

void CudaBackend::run_norm(NormArgs args) {
  Timed t(*this, "norm");
  if (t.replaced()) return;
  // In deterministic mode products of few rows have one block per multiprocessor, but for stored
  // weights and the output matrix.
  args.early = options_.deterministic && has_wgmma() && !options_.stored_weights && !args.rows;
  cuda::norm(args, stream_);
}
void CudaBackend::rms_norm(
    const Act& out, Tensor x, const float* weight, float eps, const int32_t* rows) {
  run_norm({out.f, x, {}, weight, nullptr, eps, rows, codes_of(out), split_of(out)});
}
void CudaBackend::add_rms_norm(
    const Act& out, Tensor x, Tensor delta, const float* weight, float eps) {
  run_norm({out.f, x, delta, weight, nullptr, eps, nullptr, codes_of(out), split_of(out)});
}
void CudaBackend::layer_norm(const Act& out,
                             Tensor x,
                             const LayerNormSpec& n,
                             const int32_t* rows) {
  run_norm({out.f, x, {}, n.weight, n.bias, n.eps, rows, codes_of(out), split_of(out)});
}
void CudaBackend::add_layer_norm(const Act& out, Tensor x, Tensor delta, const LayerNormSpec& n) {
  run_norm({out.f, x, delta, n.weight, n.bias, n.eps, nullptr, codes_of(out), split_of(out)});
}

void CudaBackend::add(Tensor x, Tensor delta) {
  Timed t(*this, "add");
  if (t.replaced()) return;
  cuda::add(x, delta, stream_);
}

void CudaBackend::scale(Tensor x, float factor) {
  Timed t(*this, "scale");
  if (t.replaced()) return;
  cuda::scale(x, factor, stream_);
}

void CudaBackend::softcap(Tensor x, float cap) {
  Timed t(*this, "softcap");
  if (t.replaced()) return;
  cuda::softcap(x, cap, stream_);
}

// Models give every Act that weights in 8 bits read its own memory; scratch serves tests and single
// products. It grows, so not while a graph is captured.
CodesView CudaBackend::f8_of(const Act& x, DType type) {
  if (x.f8.data) {
    CHECK(x.f8.type == type);
    return x.f8;
  }
  const size_t scales = static_cast<size_t>(x.f.rows) * sizeof(float);
  const size_t at = (scales + 255) & ~size_t{255};
  const size_t bytes = at + static_cast<size_t>(x.f.rows * x.f.cols);
  if (f8_scratch_.bytes() < bytes) {
    check(cudaStreamSynchronize(stream_), "memory");
    f8_scratch_ = allocate(bytes);
  }
  auto* memory = static_cast<std::byte*>(f8_scratch_.data());
  return {memory + at, reinterpret_cast<float*>(memory), type};
}

namespace {

// Columns [first, first + num) of a product's output.
Tensor columns(const Tensor& out, int64_t first, int64_t num) {
  auto* data = static_cast<std::byte*>(out.data);
  return {data + static_cast<size_t>(first) * dtype_bytes(out.type), out.type, out.rows, num,
          out.stride};
}

// Rows [first, first + num).
Tensor rows_of(const Tensor& t, int64_t first, int64_t num) {
  auto* data = static_cast<std::byte*>(t.data);
  return {data + static_cast<size_t>(first * t.stride) * dtype_bytes(t.type), t.type, num, t.cols,
          t.stride};
}

}  // namespace

void* CudaBackend::scratch_memory() {
  Buffer& b = lanes_[lane_].scratch;
  if (b.bytes() < scratch_bytes()) {
    check(cudaStreamSynchronize(stream_), "memory");
    b = allocate(scratch_bytes());
  }
  return b.data();
}

SplitOut CudaBackend::split_of(const Act& x) const {
  if (!x.split.data || x.f.rows > kMaxStreamed) return {};
  const Format format = x.split.k_format ? Format::q4_k : Format::q8_0;
  return {SplitRows(x.split.data, x.f.rows, x.f.cols),
          few_rows(format, x.f.rows, options_.deterministic)};
}

// At most kMaxStreamed rows of x at a time where products read split rows: x's own, or scratch.
void CudaBackend::multiply_streamed(Tensor out, const Act& act, const CudaWeight& w) {
  const Tensor& x = act.f;
  const SplitOut own = split_of(act);
  const int64_t few = std::min<int64_t>(kMaxStreamed, x.rows);
  const bool splits = std::any_of(w.parts.begin(), w.parts.end(), [&](const PackedPart& p) {
    return few_rows(p.format, few, options_.deterministic) != FewRows::streamed;
  });
  const int64_t step = splits ? few : x.rows;
  for (int64_t at = 0; at < x.rows; at += step) {
    const int64_t num = std::min(step, x.rows - at);
    const Tensor from = rows_of(x, at, num);
    SplitRows split = own.rows;
    FewRows made = own.kind;  // how `split` is
    int64_t first = 0;
    for (const PackedPart& p : w.parts) {
      const float* bias = w.gemm.bias_f32 ? w.gemm.bias_f32 + first : nullptr;
      const Tensor to = rows_of(columns(out, first, p.rows), at, num);
      const FewRows kind = few_rows(p.format, num, options_.deterministic);
      first += p.rows;
      if (kind == FewRows::streamed) {
        streamed(to, from, p, bias, stream_);
        continue;
      }
      if (kind == FewRows::integers && kind != made && takes_unsplit(from)) {
        integer_product(to, from, p, bias, stream_);
        continue;
      }
      if (kind != made) {
        split = SplitRows(scratch_memory(), num, from.cols);
        made = kind;
        fill_split({split, kind}, from, stream_);
      }
      if (kind == FewRows::halves) {
        half_product(to, split, p, bias, stream_);
      } else {
        integer_product(to, split, p, bias, stream_);
      }
    }
  }
}

// In deterministic mode one kernel serves every number of rows.
void CudaBackend::multiply_stored(Tensor out, const Act& act, const CudaWeight& w) {
  const Tensor& x = act.f;
  if (options_.deterministic || x.rows <= kMaxStreamed) return multiply_streamed(out, act, w);
  GemmWeight g = w.gemm;
  auto* memory = static_cast<std::byte*>(scratch_memory());
  const int64_t step = decoded_rows(g.rows, g.cols);
  for (int64_t at = 0; at < w.gemm.rows; at += step) {
    const int64_t end = std::min(at + step, w.gemm.rows);
    int64_t first = 0;  // row of the weight where a part begins
    for (const PackedPart& p : w.parts) {
      const int64_t from = std::max(at, first), to = std::min(end, first + p.rows);
      if (from < to)
        decode_packed(memory + static_cast<size_t>((from - at) * g.cols) * sizeof(uint16_t), g.type,
                      p, from - first, to - from, stream_);
      first += p.rows;
    }
    g.data = memory;
    g.rows = end - at;
    if (w.gemm.bias) {
      g.bias = static_cast<const std::byte*>(w.gemm.bias) + static_cast<size_t>(at) * 2;
      g.bias_f32 = w.gemm.bias_f32 + at;
    }
    gemm_.run(Product(columns(out, at, g.rows), x, g, {}), false, stream_);
  }
}

void CudaBackend::matmul(Tensor out, const Act& x, const Weight& w) {
  const CudaWeight& weight = cuda_weight(w);
  const GemmWeight& g = weight.gemm;
  Timed t(*this, "matmul", g.rows, g.cols);
  if (t.replaced()) return;
  if (!weight.parts.empty()) return multiply_stored(out, x, weight);
  gemm_.run(Product(out, x.f, g, g.scale ? f8_of(x, g.type) : CodesView{}), x.fills_f8(), stream_);
}

void CudaBackend::matmul_gated(
    const Act& out, Tensor inner, const Act& x, const Weight& w, Activation activation) {
  const CudaWeight& weight = cuda_weight(w);
  const bool alone = !codes_of(out).data && split_of(out).kind == FewRows::streamed;
  if (alone && weight.parts.empty() && !weight.gemm.scale) {
    GemmWeight g = weight.gemm;
    g.gate = Gate{activation, inner.type == g.type};
    const Product product(out.f, x.f, g, {});
    if (gemm_.fuses(product)) {
      Timed t(*this, "matmul", g.rows, g.cols);
      if (!t.replaced()) gemm_.run_gated(product, stream_);
      return;
    }
  }
  Backend::matmul_gated(out, inner, x, w, activation);
}

void CudaBackend::finish_qkv(Tensor qkv, const QkvSpec& spec, const BatchView& batch, KvLayer kv) {
  Timed t(*this, "rope_kv");
  if (t.replaced()) return;
  cuda::finish_qkv(qkv, spec, batch, kv, stream_);
}

void CudaBackend::attention(
    const Act& out, Tensor q, const AttentionSpec& spec, const BatchView& batch, KvLayer kv) {
  Timed t(*this, "attention");
  AttentionArgs a{out.f.data,
                  out.f.stride,
                  q.data,
                  q.stride,
                  q.type,
                  kv.k,
                  kv.v,
                  KvType(kv.type, kv.group),
                  kv.block_size,
                  spec,
                  batch.tables ? batch.tables + kv.table_at : nullptr,
                  batch.table_stride,
                  batch.first_block + kv.table_at,
                  batch.positions,
                  batch.row_slot,
                  options_.deterministic,
                  max_positions_,
                  lanes_[lane_].attention.data(),
                  device_.num_sms};
  auto num_decode = static_cast<size_t>(batch.num_decode);
  if (batch.prefixes.plan && spec.window == 0) {
    auto* memory = static_cast<std::byte*>(lanes_[lane_].attention.data());
    a.prefixes = batch.prefixes;
    a.workspace = memory + spans_at_;
    a.prefix_states = reinterpret_cast<float*>(memory + prefix_states_at_);
  }
  const CodesView codes = codes_of(out);
  if (batch.num_decode == batch.num_tokens && cuda::decode_makes_codes(a, batch.num_decode))
    a.codes = codes;
  if (t.replaced()) return;
  if (num_decode > 0) cuda::attend_decode(a, batch.num_decode, stream_);
  if (batch.slices.size() > num_decode) {
    cuda::attend_prefill(a, batch.slices.subspan(num_decode), batch.device_slices + num_decode,
                         stream_);
  }
  if (codes.data && !a.codes.data) quantize_rows(codes, out.f, stream_);
  fill_split(split_of(out), out.f, stream_);
}

void CudaBackend::activate(const Act& out, Tensor x, Activation activation) {
  Timed t(*this, "activate");
  if (!t.replaced()) cuda::activate({out.f, codes_of(out), split_of(out)}, x, activation, stream_);
}
void CudaBackend::activate_gated(const Act& out, Tensor gate_up, Activation activation) {
  Timed t(*this, "activate");
  if (!t.replaced())
    cuda::activate_gated({out.f, codes_of(out), split_of(out)}, gate_up, activation, stream_);
}

void CudaBackend::copy_blocks(std::span<const KvLayer> layers, std::span<const BlockCopy> copies) {
  Timed t(*this, "copy");
  for (const KvLayer& l : layers) cuda::copy_blocks(l, copies, stream_);
}

void CudaBackend::reserve_sampling(int slots, int vocab) {
  sampler_.emplace();
  sampler_->reserve(slots, vocab, static_cast<int>(lanes_.size()));
}
size_t CudaBackend::sampling_bytes(int slots, int vocab, int lanes) const {
  return Sampler::bytes(slots, vocab, lanes);
}

void CudaBackend::prepare(const Packet& packet,
                          const StepArrays& arrays,
                          int num_tokens,
                          int padded) {
  Timed t(*this, "prepare");
  if (packet.num_specs > 0) sampler_->open_rows(packet, stream_);
  cuda::prepare(packet, arrays, num_tokens, padded, sampler_->last_tokens(), prefix_sizes_,
                stream_);
}

void CudaBackend::sample(const SampleStep& step) {
  Timed t(*this, "sample");
  if (t.replaced()) return;
  sampler_->sample(step, stream_, static_cast<int>(lane_));
}

void CudaBackend::reserve_attention(const AttentionSpec& spec, int max_decode, int max_positions) {
  for (Lane& l : lanes_) l.attention = allocate(attention_bytes(spec, max_decode, max_positions));
  max_positions_ = max_positions;
  prefix_sizes_ = sizes_of_prefixes(spec, max_decode);
  const AttentionMemory memory = attention_memory(spec, max_decode, max_positions);
  spans_at_ = memory.spans_at, prefix_states_at_ = memory.states_at;
}
size_t CudaBackend::attention_bytes(const AttentionSpec& spec,
                                    int max_decode,
                                    int max_positions) const {
  return attention_memory(spec, max_decode, max_positions).bytes;
}

// Rows with a common prefix are attended by spans. In the default mode the memory for that lies
// behind the mode's own, and the states of prefixes behind both.
CudaBackend::AttentionMemory CudaBackend::attention_memory(const AttentionSpec& spec,
                                                           int max_decode,
                                                           int max_positions) const {
  auto workspace = [&](bool deterministic) {
    const size_t bytes =
        cuda::attention_workspace(spec, max_decode, max_positions, device_.num_sms, deterministic);
    return (bytes + 255) / 256 * 256;
  };
  AttentionMemory m;
  m.bytes = workspace(options_.deterministic);
  const PrefixSizes sizes = sizes_of_prefixes(spec, max_decode);
  if (sizes.kv_heads == 0) return m;
  if (!options_.deterministic) {
    m.spans_at = m.bytes;
    m.bytes += workspace(true);
  }
  m.states_at = m.bytes;
  m.bytes += prefix_bytes(sizes);
  return m;
}

PrefixSizes CudaBackend::sizes_of_prefixes(const AttentionSpec& spec, int max_decode) const {
  const bool may = options_.least_shared != 0 && options_.activations != DType::f32;
  return may ? prefix_sizes(spec, max_decode, device_.num_sms) : PrefixSizes{};
}

// Reading so many positions once more would take as long as the second kernel does.
PrefixSharing CudaBackend::prefix_sharing(const AttentionSpec& spec, KvType kv) const {
  constexpr double kSeconds = 15e-6;
  if (sizes_of_prefixes(spec, 1).kv_heads == 0 || spec.head_dim * dtype_bytes(kv.type) % 16 != 0)
    return {};
  if (options_.least_shared) return {*options_.least_shared};
  const auto position =
      static_cast<double>(2 * spec.num_kv_heads * kv.head_bytes(spec.head_dim, 1));
  return {static_cast<int64_t>(kSeconds * device_.bandwidth / position)};
}

}  // namespace sluice::cuda

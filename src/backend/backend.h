// A device: its memory, weights in the layout its kernels read, and some twenty ops, each coarse
// enough that everything worth fusing is one call. Implementations: ref (naive oracle), cpu,
// cuda (a shared object of its own). One Backend belongs to one device thread; ops run in call
// order. Pointers in tensors and batches are the device's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/best.h"
#include "backend/page_memory.h"
#include "backend/prefix_groups.h"
#include "backend/split_rows.h"
#include "base/result.h"
#include "tensor/checkpoint.h"
#include "tensor/tensor.h"

namespace sluice {

// Activations quantised per row in blocks of 32: value = scale * q, scale = absmax / 127,
// q rounded to nearest even. `sum` is the integer sum of a block's q.
struct QuantView {
  int8_t* q = nullptr;     // [rows, cols]
  float* scale = nullptr;  // [rows, cols / 32]
  int32_t* sum = nullptr;  // [rows, cols / 32]
  int64_t rows = 0, cols = 0;
};
inline constexpr int kActBlock = 32;

// The same with one scale and one sum for the whole row.
struct RowQuantView {
  int8_t* q = nullptr;     // [rows, cols]
  float* scale = nullptr;  // [rows]
  int32_t* sum = nullptr;  // [rows]
  int64_t rows = 0, cols = 0;
};

// The same in blocks of 256, as K-quants read them: a scale for each, integer sums of every 16.
struct SuperQuantView {
  int8_t* q = nullptr;     // [rows, cols]
  float* scale = nullptr;  // [rows, cols / 256]
  int16_t* sum = nullptr;  // [rows, cols / 16]
  int64_t rows = 0, cols = 0;
};
inline constexpr int kActSuper = 256, kActSum = 16;

// Rows of fp8 or int8 codes with one scale each, on GPUs: value = scale * code. In e4m3 a row's
// absmax becomes 448; in i8 it is as in RowQuantView.
struct CodesView {
  void* data = nullptr;    // [rows, cols]
  float* scale = nullptr;  // [rows]
  DType type = DType::f8;  // or i8
  bool alone = false;      // nobody reads the activations themselves: they need not be written
  bool of_many = false;    // in e4m3 up to kMaxRowsWithoutF8 rows are not filled in
};
// Products in e4m3 of up to so many rows can read the activations themselves. Attention leaves them
// to that, since no block has a row of few.
inline constexpr int kMaxRowsWithoutF8 = 8;

// Few rows in two bytes an element, as products with stored weights on GPUs read them.
struct SplitView {
  void* data = nullptr;   // split_bytes() of up to kMaxStreamed rows; more rows are not filled in
  bool k_format = false;  // for weights of K formats
};

// Forms of the activations that a weight's kernels read. A bit set: a fused weight may hold
// segments of several kinds.
enum ActNeeds : uint8_t {
  kActF32 = 1,
  kActQ8 = 2,
  kActRow8 = 4,
  kActF8 = 8,
  kActSuper8 = 16,
  kActI8 = 32,      // CodesView in i8, and memory for the activations; never beside kActF8
  kActSplit = 64,   // SplitView, beside kActF32
  kActSplitK = 128  // the same for K formats
};

// Activations in the forms their readers need, written once by the op that produces them.
// An op that outputs an Act fills the forms whose pointers are set (f8: if fills_f8()).
struct Act {
  Tensor f;               // in the backend's activation type; data may be null
  QuantView q;            // q.q may be null
  RowQuantView r = {};    // r.q may be null
  CodesView f8 = {};      // fp8 or int8 codes of f's rows and columns; f8.data may be null
  SuperQuantView s = {};  // s.q may be null
  SplitView split = {};   // split.data may be null

  int64_t rows() const { return f.data ? f.rows : q.q ? q.rows : r.q ? r.rows : s.rows; }
  bool fills_f8() const {
    const bool leaves_few = f8.of_many && f8.type == DType::f8;
    return f8.data && (!leaves_few || f.rows > kMaxRowsWithoutF8);
  }
};

// One weight matrix out of one or several tensors stacked by rows (fused QKV, gate-up).
// Segments may differ in format. y[rows] = W[rows, cols] x + bias.
struct WeightSegment {
  const TensorInfo* tensor;
  std::span<const std::byte> data;       // empty where the backend makes random weights itself
  const RandomSource* random = nullptr;  // what makes the data, where it is a function
};

// A backend's own storage behind a Weight.
struct WeightData {
  virtual ~WeightData() = default;
};

struct Weight {
  int64_t rows = 0, cols = 0;
  uint8_t act = kActF32;    // ActNeeds of its kernels
  size_t bytes = 0;         // read per pass, as packed
  std::vector<float> bias;  // empty, or [rows]
  std::unique_ptr<WeightData> data;
};

// Rotary embedding of `dims` leading dimensions of each head. `interleaved`: pairs (2i, 2i+1), as
// in GGUF llama; otherwise (i, i + dims/2).
struct RopeSpec {
  int dims = 0;
  bool interleaved = false;
  std::vector<float> inv_freq;  // [dims / 2], scaling applied
  float attention_factor = 1;   // multiplies cos and sin (YaRN)
};

// How the cache holds K and V. Floats: writes saturate to the largest finite value.
// i8: value = scale * code, an exact product. `group` consecutive dimensions of a head
// share one f16 scale = max(absmax / 127, 2^-24), and codes are rounded to nearest even with that
// scale as it was stored. On a GPU values beyond +-65,468 saturate, nearly where f16's do.
struct KvType {
  DType type = DType::f16;
  int group = 0;  // i8: dimensions per scale: 8, 32 or 64, a divisor of head_dim

  KvType() = default;
  KvType(DType t, int dims_per_scale = 0) : type(t), group(dims_per_scale) {}
  // K, or V, of one kv head in a block: the elements, behind them the scales.
  size_t head_bytes(int head_dim, int block_size) const {
    size_t scales = group > 0 ? static_cast<size_t>(head_dim / group) : 0;
    return static_cast<size_t>(block_size) *
           (static_cast<size_t>(head_dim) * dtype_bytes(type) + scales * sizeof(uint16_t));
  }
};

// One layer's cache memory. A block holds block_size positions of every kv head.
//   k [blocks, kv_heads, head_dim, block_size]   position innermost: lanes of QK are positions
//   v [blocks, kv_heads, block_size, head_dim]   dimension innermost: lanes of PV are dimensions
// With i8 codes lie in fours, so that a lane of QK or PV is a dot product of four bytes:
//   k [blocks, kv_heads, head_dim / 4, block_size, 4]
//   v [blocks, kv_heads, block_size / 4, head_dim, 4]
// and each head's codes are followed by its scales, [head_dim / group, block_size].
// GPUs have both as [blocks, kv_heads, block_size, head_dim], codes plus 128 and then the scales.
struct KvLayer {
  void* k = nullptr;
  void* v = nullptr;
  DType type = DType::f16;  // f16, i8, or f32 in tests; on a GPU bf16 and f8 too
  int block_size = 16;      // power of two, 8 to 128
  int num_kv_heads = 0, head_dim = 0;
  int64_t table_at = 0;  // its block tables begin at BatchView::tables + table_at (see there)
  int group = 0;         // KvType::group

  size_t head_bytes() const { return KvType(type, group).head_bytes(head_dim, block_size); }
  size_t block_bytes() const { return static_cast<size_t>(num_kv_heads) * head_bytes(); }
};

// A sequence's share of the step: rows [row, row + count) are positions [pos, pos + count).
struct SliceView {
  int32_t row = 0, count = 0, pos = 0;
  int32_t slot = 0;  // its block table for a layer is tables + table_at + slot * table_stride
};

struct BatchView {
  int32_t num_tokens = 0;
  int32_t num_decode = 0;              // slices [0, num_decode) have count == 1
  const int32_t* tokens = nullptr;     // [num_tokens]
  const int32_t* positions = nullptr;  // [num_tokens]
  const int32_t* row_slot = nullptr;   // [num_tokens] slot of each row
  std::span<const SliceView> slices;   // the host may read them
  // [slots, table_stride] block ids; null: a slot's blocks for a layer are consecutive, from
  // first_block + table_at + slot * table_stride on.
  const int32_t* tables = nullptr;
  int64_t table_stride = 0;
  int64_t first_block = 0;
  const SliceView* device_slices = nullptr;  // slices again, where the device's kernels read them
  PrefixView prefixes = {};                  // what decode rows have in common, on a device
};

// The blocks of one slot for a layer.
struct SlotTable {
  const int32_t* table = nullptr;  // null: they are consecutive
  int64_t first = 0;
  SlotTable() = default;
  SlotTable(const BatchView& batch, const KvLayer& kv, int64_t slot) {
    const int64_t at = kv.table_at + slot * batch.table_stride;
    table = batch.tables ? batch.tables + at : nullptr;
    first = batch.first_block + at;
  }
  // Kernels of every ISA call it: a copy that is not inlined would be one ISA's for all.
  [[gnu::always_inline]] int64_t operator[](int64_t index) const {
    return table ? table[index] : first + index;
  }
};

struct AttentionSpec {
  int num_heads = 0, num_kv_heads = 0, head_dim = 0;
  float scale = 1;    // applied to q·k
  int window = 0;     // > 0: a query at position p sees positions > p - window
  float softcap = 0;  // > 0: scaled scores become softcap * tanh(score / softcap)
};

// After the QKV matmul: per-head RMS norm of q and k (when the norms are set), rotary embedding of
// both, and k, v written to the cache. q stays in place in qkv's first columns.
struct QkvSpec {
  AttentionSpec attention;
  const RopeSpec* rope = nullptr;
  const float* cos_sin = nullptr;  // [num_tokens, dims]: cos then sin, from rope_table()
  const float* q_norm = nullptr;   // [head_dim] or null
  const float* k_norm = nullptr;
  float eps = 0;
  Tensor q = {};  // where q goes, in the activations' type; data null or qkv's: it stays there
};

// (x - mean) / sqrt(variance + eps) * weight + bias
struct LayerNormSpec {
  const float* weight = nullptr;  // [cols]
  const float* bias = nullptr;    // [cols]
  float eps = 0;
};

// What an MLP does to its inner activations.
enum class Activation : uint8_t {
  silu,       // x / (1 + e^-x)
  gelu_tanh,  // GELU by its tanh approximation
};

// A layer with RMS norms, rotary attention and a gated MLP, for decode_layers().
struct DecodeLayer {
  const float* attn_norm = nullptr;
  const Weight* qkv = nullptr;
  QkvSpec spec;
  KvLayer kv;
  const Weight* o = nullptr;
  const float* ffn_norm = nullptr;
  const Weight* gate_up = nullptr;
  Activation activation = Activation::silu;
  const Weight* down = nullptr;
};

// A step of decodes alone.
struct DecodeStep {
  BatchView batch;
  Tensor x;                      // the residual stream
  std::span<std::byte> scratch;  // of no use to anybody else meanwhile
};

struct BlockCopy {
  int32_t from = 0, to = 0;
};

// Memory of the device, freed with it. Zeroed.
class Buffer {
 public:
  Buffer() = default;
  Buffer(void* data, size_t bytes, void (*free)(void*, size_t))
      : data_(data), bytes_(bytes), free_(free) {}
  Buffer(Buffer&& o) noexcept { swap(o); }
  Buffer& operator=(Buffer&& o) noexcept { return swap(o), *this; }
  ~Buffer() {
    if (data_) free_(data_, bytes_);
  }
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void swap(Buffer& o) {
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    std::swap(free_, o.free_);
  }
  void* data_ = nullptr;
  size_t bytes_ = 0;
  void (*free_)(void*, size_t) = nullptr;
};

// Takes a model's weights, and says which types activations have. A Backend keeps the weights; the
// stores of cpu_weight_sizes() and cuda_weight_sizes() only measure them, so that memory is planned
// by the code that will load the model.
class WeightStore {
 public:
  virtual ~WeightStore() = default;
  // Packs (or maps) the weight. The segments' data may be released afterwards unless the returned
  // weight says otherwise through keeps_source(), of each. A store that only measures reads no data
  // and returns a weight without any.
  virtual Weight load(std::span<const WeightSegment> segments, std::vector<float> bias) = 0;
  virtual bool keeps_source(const Weight& weight, size_t segment) const = 0;
  // Memory beside them that products with the weights loaded so far need.
  virtual size_t scratch_bytes() const { return 0; }
  // Whether load() makes this format's random weights without their data.
  virtual bool makes_random(Format) const { return false; }
  // A norm's weights, where the ops read them.
  virtual Buffer vector(std::span<const float> values);
  // Type of activations between ops; the residual stream and logits are f32.
  virtual DType activation_type() const { return DType::f32; }
  // Type of matmul outputs that no matmul reads: more exact where that is cheap.
  virtual DType output_type() const { return activation_type(); }
};

class Backend : public WeightStore {
 public:
  virtual std::string describe() const = 0;  // "cpu, 2 threads, avx512-vnni"
  // Called once by the thread that will run the ops from now on (the device thread).
  virtual void attach() = 0;
  // Throws std::bad_alloc when the device has no more.
  virtual Buffer allocate(size_t bytes) = 0;
  // Size of one page of page_memory().
  virtual size_t page_bytes() const { return host_page_bytes(); }
  // `num_pages`: the most that will be mapped at once. Throws std::bad_alloc when the device has no
  // room for them.
  virtual std::unique_ptr<PageMemory> page_memory(size_t num_pages);
  // A count that rises while ops run, any thread; 0 for ever: only whole steps tell of progress.
  virtual uint64_t progress() const { return 0; }

  // out [n, cols] f32 = rows `tokens` of table
  virtual void embed(Tensor out, const Weight& table, std::span<const int32_t> tokens) = 0;
  // cos_sin [n, dims]
  virtual void rope_table(float* cos_sin,
                          const RopeSpec& rope,
                          std::span<const int32_t> positions) = 0;
  // out = x / rms(x) * weight, and out may be x. With `rows`, row i of out comes from row rows[i]
  // of x.
  virtual void rms_norm(
      const Act& out, Tensor x, const float* weight, float eps, const int32_t* rows = nullptr) = 0;
  // x += delta, then out = norm of x
  virtual void add_rms_norm(
      const Act& out, Tensor x, Tensor delta, const float* weight, float eps) = 0;
  // The same two with mean and bias.
  virtual void layer_norm(const Act& out,
                          Tensor x,
                          const LayerNormSpec& norm,
                          const int32_t* rows = nullptr) = 0;
  virtual void add_layer_norm(const Act& out,
                              Tensor x,
                              Tensor delta,
                              const LayerNormSpec& norm) = 0;
  // x += delta
  virtual void add(Tensor x, Tensor delta) = 0;
  // x *= factor
  virtual void scale(Tensor x, float factor) = 0;
  // x = cap * tanh(x / cap)
  virtual void softcap(Tensor x, float cap) = 0;
  // out [n, w.rows] = x [n, w.cols] · wᵀ + bias
  virtual void matmul(Tensor out, const Act& x, const Weight& w) = 0;
  // best[i] = argmax of row i of that product. `out` is scratch for it; its contents are
  // unspecified on return. For backends whose memory is the host's.
  virtual void matmul_best(Tensor out, const Act& x, const Weight& w, std::span<Best> best);
  // qkv [n, (heads + 2 kv_heads) * head_dim]
  virtual void finish_qkv(Tensor qkv, const QkvSpec& spec, const BatchView& batch, KvLayer kv) = 0;
  // out [n, heads * head_dim]; q is the first columns of qkv
  virtual void attention(
      const Act& out, Tensor q, const AttentionSpec& spec, const BatchView& batch, KvLayer kv) = 0;
  // out [n, f] = activation(x [n, f])
  virtual void activate(const Act& out, Tensor x, Activation activation) = 0;
  // gate_up [n, 2 f]: out [n, f] = activation(gate) * up
  virtual void activate_gated(const Act& out, Tensor gate_up, Activation activation) = 0;
  // out [n, f] = activation(gate) * up, where x · wᵀ + bias is [gate, up] [n, 2 f]. `inner` is
  // scratch for that; its contents are unspecified on return.
  virtual void matmul_gated(
      const Act& out, Tensor inner, const Act& x, const Weight& w, Activation activation) {
    matmul(inner, x, w);
    activate_gated(out, inner, activation);
  }
  // Steps of up to so many rows, all decodes, may try decode_layers().
  virtual int max_decode_rows() const { return 0; }
  // All layers of such a step at once, where that is faster than op by op: x becomes the residual
  // stream behind the last. False: nothing was done.
  virtual bool decode_layers(const DecodeStep&, std::span<const DecodeLayer>) { return false; }
  // Whole blocks of every layer's k and v.
  virtual void copy_blocks(std::span<const KvLayer> layers, std::span<const BlockCopy> copies) = 0;
  // Host work spread over the device's threads (sampling): f(index) for index in [0, n).
  virtual void parallel(int n, void (*f)(void* ctx, int index), void* ctx) = 0;
};

}  // namespace sluice

#include "tools/bench_kernels/cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "backend/cpu/features.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/quantize.h"
#include "base/check.h"
#include "tensor/formats/all.h"

namespace sluice {

namespace {

constexpr size_t kPage = 4096;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

std::vector<float> normal_values(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> v(n);
  for (float& x : v) x = normal(rng);
  return v;
}

// Rows that are all alike: speed does not depend on the values.
std::vector<std::byte> source_rows(Format format, int64_t rows, int64_t cols) {
  std::vector<float> row = normal_values(static_cast<size_t>(cols), 1);
  const size_t bytes = row_bytes(format, cols);
  std::vector<std::byte> all(bytes * static_cast<size_t>(rows));
  format_info(format).encode(row.data(), all.data(), cols);
  for (size_t r = 1; r < static_cast<size_t>(rows); ++r)
    std::memcpy(all.data() + r * bytes, all.data(), bytes);
  return all;
}

// Activations in every form that kernels read.
class Activations {
 public:
  Activations(int64_t m, int64_t cols) : cols_(cols) {
    auto n = static_cast<size_t>(m * cols), blocks = n / kActBlock + 1;
    x_ = normal_values(n, 2);
    q_.resize(n);
    r_.resize(n);
    scale_.resize(blocks);
    sum_.resize(blocks);
    row_scale_.resize(static_cast<size_t>(m));
    row_sum_.resize(static_cast<size_t>(m));
    if (cols % kActBlock != 0) return;  // the rows that read the quantised forms want whole blocks
    quantize_row(x_.data(), m * cols, q_.data(), scale_.data(), sum_.data());
    if (cols % kActSuper == 0) {
      s_.resize(n);
      super_scale_.resize(n / kActSuper);
      sum16_.resize(n / kActSum);
      quantize_supers(x_.data(), m * cols, s_.data(), super_scale_.data(), sum16_.data());
    }
    for (int64_t i = 0; i < m; ++i)
      quantize_whole_row(&x_[static_cast<size_t>(i * cols)], cols,
                         &r_[static_cast<size_t>(i * cols)], &row_scale_[static_cast<size_t>(i)],
                         &row_sum_[static_cast<size_t>(i)]);
  }
  Act act(int64_t m) {
    Act a;
    a.f = {x_.data(), DType::f32, m, cols_, cols_};
    a.q = {q_.data(), scale_.data(), sum_.data(), m, cols_};
    a.r = {r_.data(), row_scale_.data(), row_sum_.data(), m, cols_};
    if (!s_.empty()) a.s = {s_.data(), super_scale_.data(), sum16_.data(), m, cols_};
    return a;
  }

 private:
  int64_t cols_;
  std::vector<float> x_, scale_, row_scale_, super_scale_;
  std::vector<int8_t> q_, r_, s_;
  std::vector<int32_t> sum_, row_sum_;
  std::vector<int16_t> sum16_;
};

class MatmulCase final : public KernelCase {
 public:
  MatmulCase(ThreadPool& pool, Rotation& rotation, const MatmulCaseSpec& s, int64_t cols)
      : pool_(pool),
        rows_(s.rows),
        activations_(s.max_m, cols),
        out_(allocate_pages(static_cast<size_t>(s.max_m * s.rows) * sizeof(float))) {
    std::vector<std::byte> source = source_rows(s.row->fmt, s.rows, cols);
    const int64_t groups = num_groups(*s.row, s.rows);
    const size_t size = s.row->in_place ? source.size() : s.row->packed_bytes(s.rows, cols);
    std::vector<std::byte*> places = rotation.places(size);
    if (s.row->in_place) {
      std::memcpy(places[0], source.data(), size);
    } else {
      pool.for_each(groups, [&](int64_t g, int) {
        s.row->pack({source.data(), s.rows, cols, places[0], g, g + 1});
      });
    }
    pool.for_each(static_cast<int64_t>(places.size()) - 1, [&](int64_t i, int) {
      std::memcpy(places[static_cast<size_t>(i) + 1], places[0], size);
    });
    PackedSegment segment;
    segment.kernel = s.row;
    segment.rows = s.rows;
    segment.group_bytes =
        s.row->in_place ? row_bytes(s.row->fmt, cols) *
                              static_cast<size_t>(std::min<int64_t>(s.row->group_rows, s.rows))
                        : size / static_cast<size_t>(groups);
    for (std::byte* place : places) {
      PackedWeight w;
      w.rows = s.rows;
      w.cols = cols;
      w.act = s.row->act_needs;
      w.bytes = size;
      segment.data = place;
      w.segments.push_back(segment);
      copies_.push_back(std::move(w));
    }
  }

  void run(int m) override {
    const PackedWeight& w = copies_[next_];
    next_ = (next_ + 1) % copies_.size();
    matmul(pool_, {out_.data(), DType::f32, m, rows_, rows_}, activations_.act(m), w, scratch_);
  }
  double bytes(int) const override { return static_cast<double>(copies_[0].bytes); }
  double ops(int m) const override {
    return 2.0 * m * static_cast<double>(rows_) * static_cast<double>(copies_[0].cols);
  }

 private:
  ThreadPool& pool_;
  int64_t rows_;
  Activations activations_;
  Buffer out_;  // on pages like those of a model's activations
  MatmulScratch scratch_;
  std::vector<PackedWeight> copies_;
  size_t next_ = 0;
};

// One layer's cache, as large as the rotation; each call's sequences have blocks of their own.
class AttentionCase final : public KernelCase {
 public:
  AttentionCase(Backend& backend, const AttentionCaseSpec& s, int num_sets)
      : backend_(backend),
        spec_{s.shape.num_heads, s.shape.num_kv_heads, s.shape.head_dim,
              1 / std::sqrt(static_cast<float>(s.shape.head_dim))},
        decode_(s.decode),
        per_slot_(blocks_of(s)),
        slots_(s.decode > 0 ? s.max_m : 1),
        num_sets_(num_sets),
        cache_(backend, one_layer(s.shape), s.kv, num_sets * slots_ * per_slot_, kBlockSize),
        q_(normal_values(static_cast<size_t>(s.max_m) * q_cols(), 3)),
        out_(q_.size()) {
    // In shuffled order, as a server that has run for a while hands blocks out.
    tables_.resize(static_cast<size_t>(num_sets * slots_ * per_slot_));
    for (size_t i = 0; i < tables_.size(); ++i) tables_[i] = static_cast<int32_t>(i + 1);
    std::shuffle(tables_.begin(), tables_.end(), std::mt19937(5));
    fill();
  }

  void run(int m) override {
    set_batch(m);
    batch_.tables = tables_.data() + int64_t{next_} * slots_ * per_slot_;
    next_ = (next_ + 1) % num_sets_;
    auto cols = static_cast<int64_t>(q_cols());
    Act out;
    out.f = {out_.data(), DType::f32, m, cols, cols};
    backend_.attention(out, {q_.data(), DType::f32, m, cols, cols}, spec_, batch_,
                       cache_.layers()[0]);
  }
  double bytes(int m) const override {
    return bytes_per_position() * (decode_ > 0 ? m * (decode_ + 1) : m);
  }
  double ops(int m) const override {
    double seen = decode_ > 0 ? m * (decode_ + 1.0) : 0.5 * m * (m + 1.0);
    return 4.0 * seen * static_cast<double>(q_cols());
  }
  static size_t set_bytes(const AttentionCaseSpec& s) {
    return KvCache::bytes_per_block(one_layer(s.shape), one_cache_group(1), s.kv, kBlockSize) *
           static_cast<size_t>((s.decode > 0 ? s.max_m : 1) * blocks_of(s));
  }

 private:
  static constexpr int kBlockSize = 16;
  static int blocks_of(const AttentionCaseSpec& s) {
    int positions = s.decode > 0 ? s.decode + 1 : s.max_m;
    return (positions + kBlockSize - 1) / kBlockSize;
  }
  size_t q_cols() const { return static_cast<size_t>(spec_.num_heads * spec_.head_dim); }
  double bytes_per_position() const {
    return static_cast<double>(cache_.bytes()) /
           ((static_cast<double>(tables_.size()) + 1) * kBlockSize);
  }

  void set_batch(int m) {
    if (batch_.num_tokens == m) return;
    clear_batch();
    for (int i = 0; decode_ > 0 && i < m; ++i) add_slice(i, decode_, 1);
    if (decode_ == 0) add_slice(0, 0, m);
    finish_batch();
  }
  void clear_batch() {
    slices_.clear();
    positions_.clear();
    row_slot_.clear();
  }
  void add_slice(int slot, int pos, int count) {
    slices_.push_back({static_cast<int32_t>(positions_.size()), count, pos, slot});
    for (int i = 0; i < count; ++i) {
      positions_.push_back(pos + i);
      row_slot_.push_back(slot);
    }
  }
  void finish_batch() {
    batch_.num_tokens = static_cast<int32_t>(positions_.size());
    batch_.num_decode = slices_[0].count == 1 ? static_cast<int32_t>(slices_.size()) : 0;
    batch_.positions = positions_.data();
    batch_.row_slot = row_slot_.data();
    batch_.slices = slices_;
    batch_.tables = tables_.data();
    batch_.table_stride = per_slot_;
  }

  // K and V of one sequence, written as a step writes them; the others have the same.
  void fill() {
    int count = per_slot_ * kBlockSize;
    int64_t cols = int64_t{spec_.num_heads + 2 * spec_.num_kv_heads} * spec_.head_dim;
    std::vector<float> qkv = normal_values(static_cast<size_t>(count * cols), 4);
    QkvSpec spec;
    spec.attention = spec_;
    add_slice(0, 0, count);
    finish_batch();
    backend_.finish_qkv({qkv.data(), DType::f32, count, cols, cols}, spec, batch_,
                        cache_.layers()[0]);
    std::vector<BlockCopy> copies;
    auto first = static_cast<size_t>(per_slot_);
    for (size_t i = first; i < tables_.size(); ++i)
      copies.push_back({tables_[i % first], tables_[i]});
    backend_.copy_blocks(cache_.layers(), copies);
    batch_ = {};
  }

  Backend& backend_;
  AttentionSpec spec_;
  int decode_, per_slot_, slots_, num_sets_;
  KvCache cache_;
  std::vector<float> q_, out_;
  std::vector<int32_t> tables_, positions_, row_slot_;  // tables_ [sets, slots, per_slot]
  std::vector<SliceView> slices_;
  BatchView batch_;
  int next_ = 0;
};

}  // namespace

ModelShape one_layer(ModelShape shape) {
  shape.num_layers = 1;
  shape.windows.assign(1, 0);
  return shape;
}

std::vector<std::byte*> Rotation::places(size_t size) {
  size = round_up(size, kPage);
  const size_t num = std::max<size_t>(1, bytes_ / size);
  if (memory_.bytes() < num * size) {
    memory_ = {};
    memory_ = allocate_pages(std::max(bytes_, num * size));
  }
  std::vector<std::byte*> places;
  for (size_t i = 0; i < num; ++i)
    places.push_back(static_cast<std::byte*>(memory_.data()) + i * size);
  return places;
}

std::unique_ptr<KernelCase> make_matmul_case(ThreadPool& pool,
                                             Rotation& rotation,
                                             const MatmulCaseSpec& spec) {
  const int64_t unit =
      std::max<int64_t>(spec.row->cols_multiple, format_info(spec.row->fmt).block_elems);
  const int64_t cols = (spec.cols + unit - 1) / unit * unit;
  return std::make_unique<MatmulCase>(pool, rotation, spec, cols);
}

std::unique_ptr<KernelCase> make_attention_case(Backend& backend,
                                                size_t rotation_bytes,
                                                const AttentionCaseSpec& spec) {
  const size_t sets = std::max<size_t>(1, rotation_bytes / AttentionCase::set_bytes(spec));
  return std::make_unique<AttentionCase>(backend, spec, static_cast<int>(sets));
}

PeakType row_type(const MatmulRow& row) {
  switch (row.arith) {
    case Arith::int_block32:
    case Arith::int_super:
    case Arith::int_row:
      break;
    case Arith::f32_lanes16:
      return PeakType::f32;
    case Arith::bf16_tiles:
    case Arith::bf16_quads:
      return PeakType::bf16;
  }
  return PeakType::int8;
}

std::vector<const PeakRow*> usable_peaks(PeakType type) {
  std::vector<const PeakRow*> found;
  for (const PeakRow& p : peak_rows()) {
    if (p.type == type && cpu_features().has(p.need)) found.push_back(&p);
  }
  return found;
}

const PeakRow* own_peak(const MatmulRow& row) {
  for (const PeakRow* p : usable_peaks(row_type(row))) {
    if ((row.need & p->need) == p->need) return p;
  }
  return nullptr;
}

}  // namespace sluice

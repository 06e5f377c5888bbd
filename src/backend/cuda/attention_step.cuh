// A step of attention over a paged cache with random contents, and its output in double. Shared by
// the programs' files that test attention on a GPU.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "backend/cuda/attention_tile.cuh"
#include "backend/cuda/check.cuh"
#include "backend/cuda/target.cuh"

namespace sluice::cuda {

inline uint32_t g_seed = 1;
inline int g_failures = 0, g_checks = 0, g_num_sms = 132;
inline std::string g_kv;  // names of the cache types to check begin so

inline const char* name(KvType t) {
  if (t.type == DType::i8) return t.group == 8 ? "int8:8" : t.group == 32 ? "int8:32" : "int8:64";
  return t.type == DType::f32    ? "f32"
         : t.type == DType::f16  ? "f16"
         : t.type == DType::bf16 ? "bf16"
                                 : "f8";
}

// A value rounded to `type`, and its bytes.
inline void encode(DType type, float x, uint8_t* to) {
  if (type == DType::f32) {
    std::memcpy(to, &x, 4);
  } else if (type == DType::f16) {
    __half h(x);
    std::memcpy(to, &h, 2);
  } else if (type == DType::bf16) {
    __nv_bfloat16 h(x);
    std::memcpy(to, &h, 2);
  } else {
    __nv_fp8_e4m3 h(x);
    std::memcpy(to, &h, 1);
  }
}
inline float decode(DType type, const uint8_t* from) {
  if (type == DType::f32) return *reinterpret_cast<const float*>(from);
  if (type == DType::f16) return static_cast<float>(*reinterpret_cast<const __half*>(from));
  if (type == DType::bf16) return static_cast<float>(*reinterpret_cast<const __nv_bfloat16*>(from));
  return static_cast<float>(*reinterpret_cast<const __nv_fp8_e4m3*>(from));
}

class Device {
 public:
  explicit Device(size_t bytes) : bytes_(bytes) { check(cudaMalloc(&data_, bytes), "malloc"); }
  template <typename X>
  explicit Device(const std::vector<X>& from)
      : Device(std::max<size_t>(1, from.size()) * sizeof(X)) {
    put(from);
  }
  Device(const Device&) = delete;
  ~Device() { cudaFree(data_); }
  template <typename X>
  void put(const std::vector<X>& from) {
    check(cudaMemcpy(data_, from.data(), from.size() * sizeof(X), cudaMemcpyHostToDevice), "put");
  }
  std::vector<uint8_t> get() const {
    std::vector<uint8_t> to(bytes_);
    check(cudaMemcpy(to.data(), data_, bytes_, cudaMemcpyDeviceToHost), "get");
    return to;
  }
  template <typename X>
  X* as() const {
    return static_cast<X*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

struct Setup {
  DType type = DType::bf16;
  KvType kv_type = DType::bf16;
  int heads = 8, kv_heads = 2, head_dim = 128, block_size = 16;
  int window = 0;
  float softcap = 0, q_scale = 1;
  bool deterministic = false;
  bool consecutive = false;  // no tables: the blocks of a slot lie behind each other

  std::string describe() const {
    char text[200];
    std::snprintf(text, sizeof(text), "%s/%s heads %d/%d dim %d block %d window %d cap %g%s%s",
                  name(type), name(kv_type), heads, kv_heads, head_dim, block_size, window, softcap,
                  deterministic ? " deterministic" : "", consecutive ? " consecutive" : "");
    return text;
  }
};

struct Part {
  int pos, count;
};

// Sequences whose tables begin with the same blocks, the first one's.
struct Sharing {
  std::vector<int> parts;
  int positions;
};

// A step over a paged cache: sequence i is slot i; the first num_decode parts are decode rows.
class Step {
 public:
  Step(const Setup& setup,
       std::vector<Part> parts,
       bool poison_future = true,
       std::vector<Sharing> shared = {})
      : s_(setup),
        parts_(std::move(parts)),
        shared_(std::move(shared)),
        rng_(g_seed * 7919 + g_checks) {
    for (size_t i = 0; i < parts_.size(); ++i) {
      slices_.push_back({static_cast<int>(positions_.size()), parts_[i].count, parts_[i].pos,
                         static_cast<int>(i)});
      for (int j = 0; j < parts_[i].count; ++j) {
        positions_.push_back(parts_[i].pos + j);
        row_slot_.push_back(static_cast<int>(i));
      }
    }
    make_cache(poison_future);
    make_rows();
  }

  int rows() const { return static_cast<int>(positions_.size()); }
  const std::vector<SliceView>& slices() const { return slices_; }

  AttentionArgs args() const {
    AttentionArgs a{};
    a.out = out_->as<uint8_t>();
    a.q = q_->as<uint8_t>();
    a.out_stride = a.q_stride = stride();
    a.type = s_.type;
    a.k = k_->as<uint8_t>();
    a.v = v_->as<uint8_t>();
    a.kv_type = s_.kv_type;
    a.block_size = s_.block_size;
    float scale = 1 / std::sqrt(static_cast<float>(s_.head_dim));
    a.spec = {s_.heads, s_.kv_heads, s_.head_dim, scale, s_.window, s_.softcap};
    if (!s_.consecutive) a.tables = d_tables_->as<int32_t>();
    a.first_block = 1;
    a.table_stride = blocks_per_slot_;
    a.positions = d_positions_->as<int32_t>();
    a.row_slot = d_row_slot_->as<int32_t>();
    a.deterministic = s_.deterministic;
    a.max_positions = max_positions();
    a.workspace = workspace_->as<uint8_t>();
    a.num_sms = num_sms_;
    return a;
  }
  // Decode splits rows as on a GPU with so many multiprocessors.
  void set_num_sms(int num_sms) {
    num_sms_ = num_sms;
    AttentionSpec spec{s_.heads, s_.kv_heads, s_.head_dim, 1, 0, 0};
    size_t bytes = attention_workspace(spec, rows(), max_positions(), num_sms, s_.deterministic);
    workspace_ = std::make_unique<Device>(bytes);
    check(cudaMemset(workspace_->as<uint8_t>(), 0, bytes), "workspace");
  }
  void set_positions(const std::vector<int32_t>& p) {
    positions_ = p;
    d_positions_->put(p);
  }
  void poison() { check(cudaMemset(out_->as<uint8_t>(), 0xff, out_bytes()), "poison"); }
  std::vector<uint8_t> output() const { return out_->get(); }
  // The bytes of one row of `out`.
  std::vector<uint8_t> row(const std::vector<uint8_t>& out, int r) const {
    auto begin = out.begin() + static_cast<int64_t>(r) * stride() * size();
    return {begin, begin + static_cast<int64_t>(s_.heads) * s_.head_dim * size()};
  }

  void run_decode(int num) {
    prompts_ = false;
    attend_decode(args(), num, nullptr);
  }
  void run_prefill(const std::vector<SliceView>& slices) {
    prompts_ = true;
    Device d(slices);
    attend_prefill(args(), slices, d.as<SliceView>(), nullptr);
    check(cudaDeviceSynchronize(), "prefill");
  }

  // Compares rows [first, first + num); the others must still be poisoned.
  void compare(const std::string& what, int first, int num) {
    check(cudaDeviceSynchronize(), what.c_str());
    ++g_checks;
    std::vector<uint8_t> out = output();
    std::string fault = unwritten(out, first, num);
    if (fault.empty()) fault = wrong(out, first, num);
    if (fault.empty()) return;
    if (++g_failures < 60) {
      std::printf("FAIL %s: %s, parts %zu (first %d+%d): %s\n", what.c_str(), s_.describe().c_str(),
                  parts_.size(), parts_[0].pos, parts_[0].count, fault.c_str());
    }
  }

 private:
  int max_positions() const { return blocks_per_slot_ * s_.block_size; }
  int64_t stride() const { return s_.heads * s_.head_dim + 8; }
  size_t size() const { return dtype_bytes(s_.type); }
  size_t out_bytes() const { return static_cast<size_t>(rows()) * stride() * size(); }

  static float normal(std::mt19937& rng) {  // near enough, and fast
    float x = 0;
    uint64_t bits = (static_cast<uint64_t>(rng()) << 32) | rng();
    for (int i = 0; i < 4; ++i, bits >>= 16) x += static_cast<float>(bits & 0xffff) / 65536 - 0.5f;
    return x * 1.732f;
  }

  // f(i) for i in [0, num), on several threads.
  static void spread(int num, const std::function<void(int)>& f) {
    constexpr int kThreads = 12;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = t; i < num; i += kThreads) f(i);
      });
    }
    for (std::thread& t : threads) t.join();
  }
  int first_seen(const Part& p, bool poison_future) const {
    return s_.window > 0 && poison_future ? std::max(0, p.pos + 1 - s_.window) : 0;
  }

  void make_cache(bool poison_future) {
    int longest = 0, slots = static_cast<int>(parts_.size());
    for (const Part& p : parts_) longest = std::max(longest, p.pos + p.count);
    blocks_per_slot_ = (longest + s_.block_size - 1) / s_.block_size + 1;
    std::vector<int32_t> ids;
    tables_.assign(static_cast<size_t>(slots) * blocks_per_slot_, 0);
    int needed = 0;
    for (const Part& p : parts_) needed += (p.pos + p.count + s_.block_size - 1) / s_.block_size;
    if (s_.consecutive) needed = slots * blocks_per_slot_;
    ids.resize(needed);
    std::iota(ids.begin(), ids.end(), 1);
    std::shuffle(ids.begin(), ids.end(), rng_);
    size_t bytes = static_cast<size_t>(needed + 1) * s_.kv_heads * head_bytes();
    host_k_.assign(bytes, 0xff);
    host_v_.assign(bytes, 0xff);
    uint32_t seed = rng_();
    for (int i = 0; i < slots; ++i) {
      const Part& p = parts_[i];
      int end = p.pos + p.count;
      for (int b = first_seen(p, poison_future) / s_.block_size; b * s_.block_size < end; ++b) {
        const int32_t cell = i * blocks_per_slot_ + b;
        tables_[static_cast<size_t>(cell)] = s_.consecutive ? 1 + cell : ids.back();
        ids.pop_back();
      }
    }
    std::vector<int> own_from(slots, 0);  // positions before are another's
    for (const Sharing& g : shared_) {
      for (size_t i = 1; i < g.parts.size(); ++i) {
        own_from[g.parts[i]] = g.positions;
        std::copy_n(tables_.begin() + int64_t{g.parts[0]} * blocks_per_slot_,
                    g.positions / s_.block_size,
                    tables_.begin() + int64_t{g.parts[i]} * blocks_per_slot_);
      }
    }
    spread(slots, [&](int i) {
      std::mt19937 rng(seed + static_cast<uint32_t>(i));
      const Part& p = parts_[i];
      int pos = std::max(first_seen(p, poison_future), own_from[i]);
      for (; pos < p.pos + p.count; ++pos) {
        for (int h = 0; h < s_.kv_heads; ++h) {
          put_row(host_k_, i, h, pos, rng);
          put_row(host_v_, i, h, pos, rng);
        }
      }
    });
    k_ = std::make_unique<Device>(host_k_);
    v_ = std::make_unique<Device>(host_v_);
    d_tables_ = std::make_unique<Device>(tables_);
  }
  void make_rows() {
    host_q_.assign(out_bytes(), 0xff);
    for (int r = 0; r < rows(); ++r) {
      for (int i = 0; i < s_.heads * s_.head_dim; ++i) {
        encode(s_.type, normal(rng_) * s_.q_scale, &host_q_[(r * stride() + i) * size()]);
      }
    }
    q_ = std::make_unique<Device>(host_q_);
    out_ = std::make_unique<Device>(out_bytes());
    d_positions_ = std::make_unique<Device>(positions_);
    d_row_slot_ = std::make_unique<Device>(row_slot_);
    set_num_sms(g_num_sms);
    poison();
  }
  size_t head_bytes() const { return s_.kv_type.head_bytes(s_.head_dim, s_.block_size); }
  // The offset of a head's part of the block that holds `pos`.
  size_t part_at(int slot, int head, int pos) const {
    size_t block = tables_[static_cast<size_t>(slot) * blocks_per_slot_ + pos / s_.block_size];
    return (block * s_.kv_heads + head) * head_bytes();
  }
  size_t element_at(int slot, int head, int pos, int d) const {
    size_t in_part = static_cast<size_t>(pos % s_.block_size) * s_.head_dim + d;
    return part_at(slot, head, pos) + in_part * dtype_bytes(s_.kv_type.type);
  }
  size_t scale_at(int slot, int head, int pos, int d) const {
    size_t index = d / s_.kv_type.group * s_.block_size + pos % s_.block_size;
    return part_at(slot, head, pos) + static_cast<size_t>(s_.block_size) * s_.head_dim + index * 2;
  }
  // Random values; of codes the scales differ by up to 16 times.
  void put_row(std::vector<uint8_t>& side, int slot, int head, int pos, std::mt19937& rng) const {
    for (int d = 0; d < s_.head_dim; ++d) {
      uint8_t* to = &side[element_at(slot, head, pos, d)];
      if (s_.kv_type.type != DType::i8) {
        encode(s_.kv_type.type, normal(rng), to);
        continue;
      }
      if (d % s_.kv_type.group == 0) {
        float scale = (1 + static_cast<float>(rng() % 64) / 64) / 64 / (1 << rng() % 4);
        encode(DType::f16, scale, &side[scale_at(slot, head, pos, d)]);
      }
      *to = static_cast<uint8_t>(std::clamp(std::lround(normal(rng) * 50), -127L, 127L) + 128);
    }
  }
  double element(const std::vector<uint8_t>& side, int slot, int head, int pos, int d) const {
    const uint8_t* from = &side[element_at(slot, head, pos, d)];
    if (s_.kv_type.type != DType::i8) return decode(s_.kv_type.type, from);
    return (*from - 128) *
           static_cast<double>(decode(DType::f16, &side[scale_at(slot, head, pos, d)]));
  }

  std::string unwritten(const std::vector<uint8_t>& out, int first, int num) const {
    char text[200];
    for (int r = 0; r < rows(); ++r) {
      for (int i = 0; i < stride(); ++i) {
        bool poisoned = true;
        for (size_t b = 0; b < size(); ++b)
          poisoned &= out[(r * stride() + i) * size() + b] == 0xff;
        bool inside = r >= first && r < first + num && i < s_.heads * s_.head_dim;
        if (poisoned != inside) continue;
        std::snprintf(text, sizeof(text), "row %d (position %d) head %d dim %d %s", r,
                      positions_[r], i / s_.head_dim, i % s_.head_dim,
                      inside ? "not written" : "written, must not be");
        return text;
      }
    }
    return {};
  }

  // All (row, head) pairs, or a sample of them when there are many.
  std::string wrong(const std::vector<uint8_t>& out, int first, int num) const {
    int pairs = num * s_.heads, step = std::max(1, pairs / 400);
    if (step > 1 && step % 2 == 0) ++step;
    int num_samples = (pairs + step - 1) / step;
    std::vector<std::string> faults(num_samples);
    spread(num_samples, [&](int i) {
      int pair = i * step;
      faults[i] = wrong_pair(out, first + pair / s_.heads, pair % s_.heads);
    });
    for (const std::string& f : faults) {
      if (!f.empty()) return f;
    }
    return {};
  }

  std::string wrong_pair(const std::vector<uint8_t>& out, int r, int head) const {
    std::vector<double> want = reference(r, head);
    double diff = 0, norm = 0, worst = -1;
    int worst_d = 0;
    for (int d = 0; d < s_.head_dim; ++d) {
      double got = value(out, r, head, d), e = std::abs(got - want[d]);
      if (std::isnan(e)) e = 1e30;
      if (e > worst) worst = e, worst_d = d;
      diff += e * e;
      norm += want[d] * want[d];
    }
    if (std::sqrt(diff) <= limit() * std::sqrt(norm) + 1e-7) return {};
    char text[300];
    std::snprintf(text, sizeof(text),
                  "row %d (position %d) head %d: relative error %.3g, worst dim %d got %g want %g",
                  r, positions_[r], head, std::sqrt(diff / norm), worst_d,
                  value(out, r, head, worst_d), want[worst_d]);
    return text;
  }
  // Relative error of a row's output.
  double limit() const {
    if (s_.type == DType::f32) return 1e-5;
    if (s_.type == DType::bf16) return 8e-3;
    // Hopper's kernel for prompts rounds K's codes times their scales to f16, at most 1/8 and in
    // the mean 1/29 of what rounding to codes itself costs. Where queries are large (q_scale), the
    // same rounding in double puts one of 300,000 rows off by 4.6e-3, and all by less than 7e-4
    // with exact K.
    const bool rounded = prompts_ && s_.kv_type.type == DType::i8 && !s_.deterministic &&
                         s_.head_dim <= 128 && has_wgmma();
    return rounded ? 6e-3 : 1.5e-3;
  }
  double value(const std::vector<uint8_t>& rows, int r, int head, int d) const {
    return decode(s_.type, &rows[(r * stride() + head * s_.head_dim + d) * size()]);
  }

  std::vector<double> reference(int r, int head) const {
    int kv_head = head / (s_.heads / s_.kv_heads), p = positions_[r];
    int from = s_.window > 0 ? std::max(0, p + 1 - s_.window) : 0;
    std::vector<double> weights, out(s_.head_dim, 0.0), q(s_.head_dim);
    for (int d = 0; d < s_.head_dim; ++d) q[d] = value(host_q_, r, head, d);
    double top = -1e300, sum = 0;
    for (int pos = from; pos <= p; ++pos) {
      double x = 0;
      for (int d = 0; d < s_.head_dim; ++d)
        x += q[d] * element(host_k_, row_slot_[r], kv_head, pos, d);
      x *= 1 / std::sqrt(static_cast<float>(s_.head_dim));
      if (s_.softcap > 0) x = s_.softcap * std::tanh(x / s_.softcap);
      weights.push_back(x);
      top = std::max(top, x);
    }
    for (double& w : weights) sum += w = std::exp(w - top);
    for (int pos = from; pos <= p; ++pos) {
      double w = weights[pos - from] / sum;
      for (int d = 0; d < s_.head_dim; ++d)
        out[d] += w * element(host_v_, row_slot_[r], kv_head, pos, d);
    }
    return out;
  }

  Setup s_;
  std::vector<Part> parts_;
  std::vector<Sharing> shared_;
  std::mt19937 rng_;
  int blocks_per_slot_ = 0, num_sms_ = 0;
  bool prompts_ = false;  // the last run was of prompts
  std::vector<SliceView> slices_;
  std::vector<int32_t> positions_, row_slot_, tables_;
  std::vector<uint8_t> host_k_, host_v_, host_q_;
  std::unique_ptr<Device> k_, v_, q_, out_, d_tables_, d_positions_, d_row_slot_, workspace_;
};

struct Types {
  DType type;
  KvType kv;
};
inline const Types kAllTypes[] = {
    {DType::bf16, DType::bf16},    {DType::f16, DType::f16},       {DType::bf16, DType::f8},
    {DType::f16, DType::f8},       {DType::bf16, {DType::i8, 32}}, {DType::f16, {DType::i8, 32}},
    {DType::bf16, {DType::i8, 8}}, {DType::f16, {DType::i8, 64}},  {DType::f32, DType::f32}};

inline bool wanted(Types t) { return std::string(name(t.kv)).starts_with(g_kv); }

// The types at these places of kAllTypes that --kv asks for.
inline std::vector<Types> types(std::vector<int> of = {0, 1, 2, 3, 4, 5, 6, 7, 8}) {
  std::vector<Types> list;
  for (int i : of) {
    if (wanted(kAllTypes[i])) list.push_back(kAllTypes[i]);
  }
  return list;
}

// Whether heads of `dim` are whole groups.
inline bool fits(Types t, int dim) { return t.kv.group == 0 || dim % t.kv.group == 0; }

inline Setup make(
    Types t, int kv_heads, int group, int dim, int block = 16, int window = 0, float cap = 0) {
  Setup s;
  s.type = t.type;
  s.kv_type = t.kv;
  s.kv_heads = kv_heads;
  s.heads = kv_heads * group;
  s.head_dim = dim;
  s.block_size = block;
  s.window = window;
  s.softcap = cap;
  return s;
}

// Rows that read a common prefix once (attention_prefix_test.cu).
void check_prefixes(bool small);

}  // namespace sluice::cuda

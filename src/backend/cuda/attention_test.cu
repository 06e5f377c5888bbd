// The attention kernels against sums in double, on a GPU: fresh random inputs, poisoned outputs,
// shuffled blocks, NaN in every cache position that no query may see. A program of its own.
//   attention_test [--seed N] [--small] [--kv NAME]   checks; --small: a few sizes, for
//                                                     compute-sanitizer; --kv: of bf16, f8, int8...
//   attention_test --bench                            times
//   attention_test --bench-kv                         times of long contexts by types of K and V
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "backend/cuda/attention_bench.cuh"
#include "backend/cuda/attention_tile.cuh"
#include "backend/cuda/check.cuh"

namespace sluice::cuda {
namespace {

uint32_t g_seed = 1;
int g_failures = 0, g_checks = 0, g_num_sms = 132;
std::string g_kv;  // names of the cache types to check begin so

const char* name(KvType t) {
  if (t.type == DType::i8) return t.group == 8 ? "int8:8" : t.group == 32 ? "int8:32" : "int8:64";
  return t.type == DType::f32    ? "f32"
         : t.type == DType::f16  ? "f16"
         : t.type == DType::bf16 ? "bf16"
                                 : "f8";
}

// A value rounded to `type`, and its bytes.
void encode(DType type, float x, uint8_t* to) {
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
float decode(DType type, const uint8_t* from) {
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

// A step over a paged cache: sequence i is slot i; the first num_decode parts are decode rows.
class Step {
 public:
  Step(const Setup& setup, std::vector<Part> parts, bool poison_future = true)
      : s_(setup), parts_(std::move(parts)), rng_(g_seed * 7919 + g_checks) {
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

  void run_decode(int num) { attend_decode(args(), num, nullptr); }
  void run_prefill(const std::vector<SliceView>& slices) {
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
    spread(slots, [&](int i) {
      std::mt19937 rng(seed + static_cast<uint32_t>(i));
      const Part& p = parts_[i];
      for (int pos = first_seen(p, poison_future); pos < p.pos + p.count; ++pos) {
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
    double limit = s_.type == DType::f32 ? 1e-5 : s_.type == DType::f16 ? 1.5e-3 : 8e-3;
    if (std::sqrt(diff) <= limit * std::sqrt(norm) + 1e-7) return {};
    char text[300];
    std::snprintf(text, sizeof(text),
                  "row %d (position %d) head %d: relative error %.3g, worst dim %d got %g want %g",
                  r, positions_[r], head, std::sqrt(diff / norm), worst_d,
                  value(out, r, head, worst_d), want[worst_d]);
    return text;
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
  std::mt19937 rng_;
  int blocks_per_slot_ = 0, num_sms_ = 0;
  std::vector<SliceView> slices_;
  std::vector<int32_t> positions_, row_slot_, tables_;
  std::vector<uint8_t> host_k_, host_v_, host_q_;
  std::unique_ptr<Device> k_, v_, q_, out_, d_tables_, d_positions_, d_row_slot_, workspace_;
};

// Both ways of running a set of slices.
void check_decode(const Setup& setup, const std::vector<int>& contexts) {
  std::vector<Part> parts;
  for (int c : contexts) parts.push_back({c - 1, 1});
  Step step(setup, parts);
  int num = std::max(1, step.rows() - 1);  // the last row stays untouched
  step.run_decode(num);
  step.compare("decode", 0, num);
  std::vector<uint8_t> once = step.output();
  for (int i = 0; i < 3; ++i) {
    step.poison();
    step.run_decode(num);
    check(cudaDeviceSynchronize(), "decode");
    if (step.output() == once) continue;
    ++g_failures;
    std::printf("FAIL decode: %s: run %d differs\n", setup.describe().c_str(), i);
    break;
  }
}
void check_prefill(const Setup& setup, const std::vector<Part>& parts) {
  Step step(setup, parts);
  step.run_prefill(step.slices());
  step.compare("prefill", 0, step.rows());
  if (parts.size() < 3) return;
  std::vector<SliceView> some(step.slices().begin() + 1, step.slices().end() - 1);
  step.poison();
  step.run_prefill(some);
  int first = some[0].row, end = some.back().row + some.back().count;
  step.compare("prefill of some slices", first, end - first);
}

std::vector<int> contexts(int num, int longest) {
  std::mt19937 rng(g_seed + num * 31 + longest);
  std::vector<int> c;
  for (int i = 0; i < num; ++i) c.push_back(1 + static_cast<int>(rng() % longest));
  c[0] = longest;
  return c;
}

// Decode of rows [0, num), by one block per row and kv head and by several; `check_output` is told
// how many.
void check_splits(Step& step,
                  const Setup& setup,
                  int num,
                  const std::function<void(const char*, int)>& check_output) {
  int groups = num * setup.kv_heads * ((setup.heads / setup.kv_heads + 15) / 16);
  for (int splits : {1, 2, 3, 7, 40}) {
    step.set_num_sms((groups * splits + 1) / 2);  // two blocks each
    step.poison();
    step.run_decode(num);
    check(cudaDeviceSynchronize(), "decode");
    check_output("decode, splits", splits);
  }
  step.set_num_sms(g_num_sms);
}

// One prompt: in one slice, in chunks of each size, and as decode rows, each by one block or by
// several, gives the same bits.
void check_bits(Setup setup, int length, const std::vector<int>& chunks) {
  setup.deterministic = true;
  Step step(setup, {{0, length}, {40, 33}});
  ++g_checks;
  step.run_prefill(step.slices());
  std::vector<uint8_t> whole = step.output();
  auto differs = [&](const char* what, int number) {
    std::vector<uint8_t> got = step.output();
    for (int r = 0; r < length; ++r) {
      if (step.row(got, r) == step.row(whole, r)) continue;
      if (++g_failures < 60) {
        std::printf("FAIL bits: %s: %s %d: row %d differs\n", setup.describe().c_str(), what,
                    number, r);
      }
      return;
    }
  };
  for (int chunk : chunks) {
    step.poison();
    for (int at = 0; at < length; at += chunk) {
      step.run_prefill({{at, std::min(chunk, length - at), at, 0}});
    }
    differs("chunks of", chunk);
  }
  check_splits(step, setup, length, differs);
}

// A long context, where spans grow: the same bits as a chunk of a prompt and as decode rows.
void check_long(Setup setup, int pos, int count) {
  setup.deterministic = true;
  Step step(setup, {{pos, count}});
  step.run_prefill(step.slices());
  step.compare("long prefill", 0, count);
  std::vector<uint8_t> whole = step.output();
  check_splits(step, setup, count, [&](const char* what, int number) {
    if (step.output() == whole) return;
    ++g_failures;
    std::printf("FAIL long bits: %s: %s %d\n", setup.describe().c_str(), what, number);
  });
  step.compare("long decode", 0, count);
}

// Positions advance under a captured graph.
void check_graph(const Setup& setup, int num, int longest) {
  std::vector<Part> parts;
  for (int i = 0; i < num; ++i) parts.push_back({longest - 1, 1});
  Step step(setup, parts, false);
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check(cudaStreamCreate(&stream), "stream");
  step.run_decode(num);  // attributes are set outside of the capture
  check(cudaDeviceSynchronize(), "decode");
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  attend_decode(step.args(), num, stream);
  check(cudaStreamEndCapture(stream, &graph), "capture");
  check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  for (int at : {0, 1, 15, 63, 64, 300, longest - 1}) {
    std::vector<int32_t> positions;
    for (int i = 0; i < num; ++i) positions.push_back(std::max(0, at - (i % 3) * 70));
    step.set_positions(positions);
    step.poison();
    check(cudaGraphLaunch(exec, stream), "launch");
    check(cudaStreamSynchronize(stream), "graph");
    step.compare("graph", 0, num);
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

struct Types {
  DType type;
  KvType kv;
};
const Types kAllTypes[] = {
    {DType::bf16, DType::bf16},    {DType::f16, DType::f16},       {DType::bf16, DType::f8},
    {DType::f16, DType::f8},       {DType::bf16, {DType::i8, 32}}, {DType::f16, {DType::i8, 32}},
    {DType::bf16, {DType::i8, 8}}, {DType::f16, {DType::i8, 64}},  {DType::f32, DType::f32}};

bool wanted(Types t) { return std::string(name(t.kv)).starts_with(g_kv); }

// The types at these places of kAllTypes that --kv asks for.
std::vector<Types> types(std::vector<int> of = {0, 1, 2, 3, 4, 5, 6, 7, 8}) {
  std::vector<Types> list;
  for (int i : of) {
    if (wanted(kAllTypes[i])) list.push_back(kAllTypes[i]);
  }
  return list;
}

// Whether heads of `dim` are whole groups.
bool fits(Types t, int dim) { return t.kv.group == 0 || dim % t.kv.group == 0; }

Setup make(
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

const std::vector<Part> kMixed = {{0, 1},   {0, 77},  {130, 5}, {63, 1},
                                  {64, 64}, {7, 300}, {511, 40}};

// Without tables, every kernel: decode in one part and in several, prefill, span by span.
void check_consecutive() {
  for (Types t : types()) {
    for (int dim : {20, 64, 128, 256}) {
      if (!fits(t, dim)) continue;
      for (bool deterministic : {false, true}) {
        Setup s = make(t, 2, 4, dim);
        s.deterministic = deterministic;
        s.consecutive = true;
        check_decode(s, {1500, 1, 64, 65, 130});
        check_prefill(s, {{0, 200}, {100, 9}, {63, 1}});
      }
    }
  }
}

void check_small() {
  check_consecutive();
  for (Types t : types()) {
    for (int dim : {64, 80, 256}) {
      if (!fits(t, dim)) continue;
      check_decode(make(t, 2, 7, dim), {200, 1, 64, 65, 130});
      check_prefill(make(t, 2, 7, dim, 16, 50, 20), {{0, 20}, {100, 9}, {63, 1}});
    }
  }
  for (Types t : types({0, 4})) {
    check_decode(make(t, 1, 7, 128), {1500, 700});  // several clusters
    check_prefill(make(t, 1, 2, 128), {{0, 600}});  // the ring of stages goes round
    check_graph(make(t, 2, 4, 128), 3, 400);
  }
  for (Types t : types({0, 6})) check_bits(make(t, 2, 7, 128), 70, {1, 3, 64});
  for (Types t : types({2, 4})) check_bits(make(t, 1, 9, 64), 300, {129});
}

// Every type, head size, group, block size, window and soft cap.
void check_shapes(bool deterministic) {
  auto of = [&](auto... sizes) {
    Setup s = make(sizes...);
    s.deterministic = deterministic;
    return s;
  };
  for (Types t : types()) {
    for (int group : {1, 2, 5, 7, 8, 16, 20}) {
      check_decode(of(t, 2, group, 128), contexts(9, 700));
      check_prefill(of(t, 2, group, 128), kMixed);
    }
    for (int dim : {8, 16, 24, 32, 48, 64, 80, 96, 112, 192, 256}) {
      if (!fits(t, dim)) continue;
      check_decode(of(t, 2, 4, dim), contexts(7, 600));
      check_prefill(of(t, 2, 4, dim), kMixed);
    }
    for (int block : {8, 16, 64, 128}) {
      for (int window : {0, 1, 17, 64, 200}) {
        for (float cap : {0.0f, 5.0f}) {
          Setup s = of(t, 2, 3, 64, block, window, cap);
          s.q_scale = 4;
          check_decode(s, contexts(11, 900));
          check_prefill(s, kMixed);
        }
      }
    }
  }
  for (Types t : types({0})) {
    Setup odd = of(t, 1, 3, 20);  // rows of 40 bytes
    check_decode(odd, contexts(5, 300));
    check_prefill(odd, kMixed);
  }
}

// Few and many rows, short and long ones.
void check_sizes(bool deterministic) {
  auto of = [&](auto... sizes) {
    Setup s = make(sizes...);
    s.deterministic = deterministic;
    return s;
  };
  for (Types t : types({0, 2, 4, 6})) {
    for (int num : {1, 2, 3, 17, 33, 64, 131, 300}) {
      check_decode(of(t, 4, 7, 128), contexts(num, num > 100 ? 600 : 2500));
    }
    check_decode(of(t, 4, 7, 128), {9000});
    check_decode(of(t, 1, 8, 128), {9000, 8191, 8192, 8193});
    check_prefill(of(t, 2, 7, 128), {{0, 1500}});
    check_prefill(of(t, 1, 1, 128), {{0, 1000}, {3000, 200}, {0, 129}});
    std::vector<Part> many(70, Part{20, 3});
    many.push_back({0, 400});
    check_prefill(of(t, 2, 4, 64), many);
    check_graph(of(t, 2, 7, 128), 5, 2000);
    check_graph(of(t, 4, 4, 64, 16, 128), 37, 500);
  }
}

void check_all() {
  check_consecutive();
  for (bool deterministic : {false, true}) check_shapes(deterministic);
  std::printf("shapes: %d checks, %d failures\n", g_checks, g_failures);
  std::fflush(stdout);
  for (bool deterministic : {false, true}) check_sizes(deterministic);
  std::printf("sizes: %d checks, %d failures\n", g_checks, g_failures);
  std::fflush(stdout);
  for (Types t : types()) {
    for (int dim : {64, 128, 256}) {
      check_bits(make(t, 2, dim == 64 ? 7 : 4, dim), 700, {1, 3, 64, 129});
      check_bits(make(t, 1, 5, dim, 16, 100, 30), 400, {1, 3, 64, 129});
      check_bits(make(t, 1, 3, dim, 64, 300), 900, {200});
    }
    for (int group : {1, 2, 8, 9, 16, 20}) check_bits(make(t, 2, group, 128), 600, {100});
    for (int dim : {8, 16, 32, 48, 80, 96, 112, 192}) {
      if (!fits(t, dim)) continue;
      check_bits(make(t, 2, 4, dim), 600, {100});
    }
  }
  std::printf("bits: %d checks, %d failures\n", g_checks, g_failures);
  for (Types t : types()) {
    if (t.type == DType::f32) continue;
    check_long(make(t, 1, 4, 64), 39990, 40);
    check_long(make(t, 1, 9, 128), 16380, 20);
    check_long(make(t, 1, 2, 256, 16, 9000), 20000, 10);
  }
  std::printf("long: %d checks, %d failures\n", g_checks, g_failures);
}

int run(int argc, char** argv) {
  bool small = false, bench = false, bench_kv = false;
  for (int i = 1; i < argc; ++i) {
    if (!std::strcmp(argv[i], "--small")) small = true;
    if (!std::strcmp(argv[i], "--bench")) bench = true;
    if (!std::strcmp(argv[i], "--bench-kv")) bench_kv = true;
    if (!std::strcmp(argv[i], "--kv") && i + 1 < argc) g_kv = argv[++i];
    if (!std::strcmp(argv[i], "--seed") && i + 1 < argc) g_seed = std::atoi(argv[++i]);
  }
  check(cudaDeviceGetAttribute(&g_num_sms, cudaDevAttrMultiProcessorCount, 0), "no GPU");
  if (bench) return bench_attention(g_num_sms);
  if (bench_kv) return bench_cache_types(g_num_sms);
  small ? check_small() : check_all();
  std::printf("%d checks, %d failures\n", g_checks, g_failures);
  return g_failures || g_checks == 0 ? 1 : 0;
}

}  // namespace
}  // namespace sluice::cuda

int main(int argc, char** argv) {
  try {
    return sluice::cuda::run(argc, argv);
  } catch (const std::exception& e) {
    std::printf("%s\n", e.what());
    return 1;
  }
}

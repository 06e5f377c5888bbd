// The attention kernels against sums in double, on a GPU: fresh random inputs, poisoned outputs,
// shuffled blocks, NaN in every cache position that no query may see. A program of its own.
//   attention_test [--seed N] [--small] [--kv NAME]   checks; --small: a few sizes, for
//                                                     compute-sanitizer; --kv: of bf16, f8, int8...
//   attention_test --prefixes                         only the checks of common prefixes
//   attention_test --bench                            times
//   attention_test --bench-kv                         times of long contexts by types of K and V
//   attention_test --bench-kv-prompts                 the same of prompts alone
//   attention_test --bench-prefixes                   times of rows with a common prefix
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/attention_bench.cuh"
#include "backend/cuda/attention_step.cuh"

namespace sluice::cuda {
namespace {

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
  check_prefixes(true);
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
  for (bool deterministic : {false, true}) check_sizes(deterministic);
  std::printf("sizes: %d checks, %d failures\n", g_checks, g_failures);
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
  check_prefixes(false);
  std::printf("prefixes: %d checks, %d failures\n", g_checks, g_failures);
  for (Types t : types()) {
    if (t.type == DType::f32) continue;
    check_long(make(t, 1, 4, 64), 39990, 40);
    check_long(make(t, 1, 9, 128), 16380, 20);
    check_long(make(t, 1, 2, 256, 16, 9000), 20000, 10);
  }
  std::printf("long: %d checks, %d failures\n", g_checks, g_failures);
}

int run(int argc, char** argv) {
  bool small = false, prefixes = false, bench = false, bench_kv = false, bench_prompts = false;
  bool bench_prefixes = false;
  for (int i = 1; i < argc; ++i) {
    if (!std::strcmp(argv[i], "--small")) small = true;
    if (!std::strcmp(argv[i], "--prefixes")) prefixes = true;
    if (!std::strcmp(argv[i], "--bench")) bench = true;
    if (!std::strcmp(argv[i], "--bench-kv")) bench_kv = true;
    if (!std::strcmp(argv[i], "--bench-kv-prompts")) bench_prompts = true;
    if (!std::strcmp(argv[i], "--bench-prefixes")) bench_prefixes = true;
    if (!std::strcmp(argv[i], "--kv") && i + 1 < argc) g_kv = argv[++i];
    if (!std::strcmp(argv[i], "--seed") && i + 1 < argc) g_seed = std::atoi(argv[++i]);
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // a run that is cut off has printed what it found
  check(cudaDeviceGetAttribute(&g_num_sms, cudaDevAttrMultiProcessorCount, 0), "no GPU");
  if (bench) return bench_attention(g_num_sms);
  if (bench_prefixes) return bench_common_prefixes(g_num_sms);
  if (bench_kv || bench_prompts) return bench_cache_types(g_num_sms, bench_kv);
  if (prefixes) {
    check_prefixes(small);
  } else {
    small ? check_small() : check_all();
  }
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

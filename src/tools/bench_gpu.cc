// sluice bench gpu: what a GPU can do at best, measured now, and how near decode steps, prefill and
// a mixed workload come to it. Steps are the engine's own, timed on the device.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <thread>

#include "backend/cuda_plugin.h"
#include "base/json.h"
#include "base/metrics.h"
#include "base/random.h"
#include "base/str.h"
#include "runtime/collect.h"
#include "tools/bench_limits.h"
#include "tools/commands.h"
#include "tools/mixed_workload.h"
#include "tools/terminal.h"

namespace sluice {

namespace {

struct Floor {
  DeviceLimits limits;
  const ModelShape* shape;
  double kv_bytes_per_token;
  bool fp8;  // the layers' weights

  double product(const Product& p, double n) const {
    auto elems = static_cast<double>(p.rows) * static_cast<double>(p.cols);
    bool narrow = fp8 && std::string_view(p.name) != "lm_head";
    return std::max(elems * (narrow ? 1 : 2) / limits.copy, elems * 2 * n / limits.gemm);
  }
  double attention(double positions) const { return positions * kv_bytes_per_token / limits.copy; }
  // One decode step of n sequences with so many positions each.
  double decode(double n, double context) const {
    double t = attention(n * context);
    for (const Product& p : products(*shape)) t += product(p, n) * p.times;
    return t;
  }
};

Request make_request(int input, int output, int vocab, uint32_t index) {
  auto prompt = std::make_shared<std::vector<Token>>();
  for (int p = 0; p < input; ++p)
    prompt->push_back(
        static_cast<Token>(draw_u32({17, index, p, 1}) % static_cast<uint32_t>(vocab)));
  auto spec = std::make_shared<SamplingSpec>();
  spec->temperature = 0;
  Request r;
  r.prompt = std::move(prompt);
  r.sampling = std::move(spec);
  r.max_new = output;
  return r;
}

struct RunTimes {
  std::vector<StepReport> steps;
  double elapsed = 0;
  uint64_t tokens_out = 0;
};

Result<RunTimes> run(Session& s, std::vector<Request> requests) {
  s.take_reports();
  Collector collector(s.engine(), nullptr);
  Time begin = s.clock().now();
  size_t num = requests.size();
  for (Request& r : requests) collector.submit(std::move(r));
  collector.wait();
  RunTimes t;
  Time end{0};
  for (size_t i = 0; i < num; ++i) {
    const RequestOutput& out = collector.outputs()[i];
    if (out.refused) return *out.refused;
    if (out.choices[0].finish != Finish::length)
      return Error{500, strf("a request ended with %s", finish_name(out.choices[0].finish))};
    t.tokens_out += out.choices[0].tokens.size();
    end = std::max(end, out.choices[0].timing.finish);
  }
  t.elapsed = seconds(end - begin);
  t.steps = s.take_reports();
  return t;
}

struct DecodeRow {
  int batch = 0, context = 0;
  double step = 0, floor = 0;  // seconds; the median step
  Percentiles gap;             // on the device, between steps
  std::vector<OpTime> ops;
};

// Batch and lengths of the step that a report completes were reported when it was launched.
Result<DecodeRow> measure_decode(
    Session& s, const Floor& floor, int batch, int context, int steps) {
  DecodeRow row;
  row.batch = batch;
  row.context = context;
  // The first run captures the batch's graph and times its ops. Sequences that start first decode
  // while others' prompts run, and must last until all are there.
  int prompt = std::max(1, context - steps / 2);
  const SchedulerConfig& c = s.options().scheduler;
  int64_t per_step = c.chunk > 0 ? std::min(c.chunk, c.budget) : c.budget;  // of prompts
  auto apart = static_cast<int>(int64_t{batch} * prompt / per_step + 2);
  std::vector<Request> requests;
  for (int i = 0; i < batch; ++i)
    requests.push_back(
        make_request(prompt, steps + apart, s.model().shape().vocab, static_cast<uint32_t>(i)));
  s.device_executor()->profile_decode(batch);
  Result<RunTimes> t = run(s, requests);
  if (!t) return t.error();
  row.ops = s.device_executor()->take_profile();
  t = run(s, requests);
  if (!t) return t.error();
  std::map<uint64_t, std::pair<int, int>> launched;
  Percentiles step;
  Time last_end{0};
  uint64_t last_step = 0;
  for (const StepReport& r : t->steps) {
    if (r.launched) launched[r.launched_step] = {r.num_decode, r.num_tokens};
    if (!r.completed) continue;
    auto [decodes, tokens] = launched[r.completed_step];
    bool counted = decodes == batch && tokens == batch;
    if (counted) step.add(seconds(r.end - r.begin));
    if (counted && last_step + 1 == r.completed_step) row.gap.add(seconds(r.begin - last_end));
    last_end = r.end;
    last_step = counted ? r.completed_step : 0;
  }
  if (step.count() == 0)
    return Error{500, strf("no step of %d decodes ran: memory for so many?", batch)};
  row.step = step.at(0.5);
  row.floor = floor.decode(batch, context);
  return row;
}

// The largest differences between what ops took and what they must take.
std::vector<std::pair<std::string, double>> largest_gaps(const DecodeRow& row, const Floor& floor) {
  std::map<std::string, double> gaps;
  for (const OpTime& op : row.ops) {
    std::string name = op.op;
    double least = 0;
    for (const Product& p : products(*floor.shape)) {
      if (name == "matmul" && p.rows == op.rows && p.cols == op.cols) {
        least = floor.product(p, row.batch);
        gaps[p.name] += op.seconds - least;
        name.clear();
        break;
      }
    }
    if (!name.empty()) gaps[name] += op.seconds;
  }
  if (gaps.contains("attention"))
    gaps["attention"] -= floor.attention(static_cast<double>(row.batch) * row.context);
  std::vector<std::pair<std::string, double>> sorted(gaps.begin(), gaps.end());
  std::ranges::sort(sorted, [](const auto& a, const auto& b) { return a.second > b.second; });
  return sorted;
}

struct PrefillTime {
  double seconds = 0, floor = 0, flops = 0;
  int tokens = 0;
};

Result<PrefillTime> measure_prefill(Session& s, const Floor& floor) {
  constexpr int kPrompts = 8, kLength = 1024;
  PrefillTime best;
  best.tokens = kPrompts * kLength;
  const ModelShape& m = s.model().shape();
  for (const Product& p : products(m)) {
    if (std::string_view(p.name) == "lm_head") continue;
    double flops = 2.0 * static_cast<double>(p.rows * p.cols) * p.times * best.tokens;
    best.flops += flops;
  }
  best.flops +=
      4.0 * kPrompts * (kLength * (kLength + 1) / 2.0) * m.num_heads * m.head_dim * m.num_layers;
  best.floor = best.flops / floor.limits.gemm;
  for (int i = 0; i < 4; ++i) {
    std::vector<Request> requests;
    for (int k = 0; k < kPrompts; ++k)
      requests.push_back(
          make_request(kLength, 1, m.vocab, static_cast<uint32_t>(1000 + 8 * i + k)));
    Result<RunTimes> t = run(s, std::move(requests));
    if (!t) return t.error();
    double all = 0;
    for (const StepReport& r : t->steps)
      if (r.completed) all += seconds(r.end - r.begin);
    if (i > 0 && (best.seconds == 0 || all < best.seconds)) best.seconds = all;
  }
  return best;
}

struct Mixed {
  double elapsed = 0;
  uint64_t tokens = 0;
  Percentiles gap;
};

Result<Mixed> measure_mixed(Session& s) {
  Mixed best;
  int vocab = s.model().shape().vocab;
  for (int i = 0; i < 2; ++i) {
    std::vector<Request> requests;
    uint64_t seed = 1;
    for (const MixedRequest& w : mixed_workload(256, 1024, 1024, 0)) {
      Request r = make_request(1, w.output, vocab, 0);
      auto prompt = std::make_shared<std::vector<Token>>();
      for (int32_t id : w.prompt) prompt->push_back(id % vocab);
      r.prompt = std::move(prompt);
      auto spec = std::make_shared<SamplingSpec>();
      spec->temperature = 0.6f;
      spec->seed = seed++;
      r.sampling = std::move(spec);
      requests.push_back(std::move(r));
    }
    Result<RunTimes> t = run(s, std::move(requests));
    if (!t) return t.error();
    if (i > 0 && t->elapsed > best.elapsed) continue;
    best.elapsed = t->elapsed;
    best.tokens = t->tokens_out;
    best.gap = {};
    Time last_end{0};
    for (const StepReport& r : t->steps) {
      if (!r.completed) continue;
      if (last_end.count() > 0) best.gap.add(seconds(r.begin - last_end));
      last_end = r.end;
    }
  }
  return best;
}

json::object decode_json(DecodeRow& r, const Floor& floor) {
  json::object gaps;
  for (const auto& [name, s] : largest_gaps(r, floor)) gaps[name] = s;
  return {{"batch", r.batch},
          {"context", r.context},
          {"step_s", r.step},
          {"floor_s", r.floor},
          {"of_floor", r.floor / r.step},
          {"tokens_per_s", r.batch / r.step},
          {"host_gap_p50_s", r.gap.count() > 0 ? r.gap.at(0.5) : 0},
          {"host_gap_p99_s", r.gap.count() > 0 ? r.gap.at(0.99) : 0},
          {"op_gaps_s", gaps}};
}

void print_decode(DecodeRow& r, const Floor& floor) {
  std::string gaps;
  auto list = largest_gaps(r, floor);
  for (size_t i = 0; i < std::min<size_t>(3, list.size()); ++i)
    gaps += strf("%s%s %.0f us", i ? ", " : "", list[i].first.c_str(), list[i].second * 1e6);
  std::printf("%6d %8d %9.3f %9.3f %7.1f %% %10.0f %7.1f %7.1f  %s\n", r.batch, r.context,
              r.step * 1e3, r.floor * 1e3, r.floor / r.step * 100, r.batch / r.step,
              r.gap.count() > 0 ? r.gap.at(0.5) * 1e6 : 0,
              r.gap.count() > 0 ? r.gap.at(0.99) * 1e6 : 0, gaps.c_str());
}

// Before the session takes the memory. The type is that of most models: both have the same limits.
Result<DeviceLimits> measure_limits(const EngineOptions& o) {
  CudaOptions options;
  if (o.backend.starts_with("cuda:")) options.index = std::atoi(o.backend.c_str() + 5);
  if (o.dtype == "f16") options.activations = DType::f16;
  auto device = open_cuda(options);
  if (!device) return device.error();
  (*device)->attach();
  return (*device)->measure_limits();
}

}  // namespace

int cmd_bench_gpu(const BenchGpuOptions& given) {
  BenchGpuOptions o = given;
  if (o.engine.backend == "auto") o.engine.backend = "cuda";
  if (!o.engine.backend.starts_with("cuda"))
    return report(Error{400, "bench gpu measures a GPU: use --device cuda"});
  if (o.engine.model.starts_with("random:") && o.engine.format == "q8_0") o.engine.format = "bf16";
  o.engine.scheduler.prefix_cache = false;
  int batch = *std::ranges::max_element(o.batches), context = *std::ranges::max_element(o.contexts);
  o.engine.scheduler.max_seqs = std::max(batch, 256);
  int apart = static_cast<int>(int64_t{batch} * context / 8192) + 16;
  if (o.engine.ctx == 0) o.engine.ctx = std::max(context + o.steps + apart, 2064);

  Result<DeviceLimits> limits = measure_limits(o.engine);
  if (!limits) return report(limits.error());
  Result<std::unique_ptr<Session>> session = open_session(o.engine);
  if (!session) return report(session.error());
  Session& s = **session;
  show_ledger(s);
  s.keep_reports();
  Floor floor{*limits, &s.model().shape(), static_cast<double>(s.ledger().kv_per_token),
              o.engine.quantize == "fp8"};

  json::object j{{"model", o.engine.model},          {"backend", s.backend().describe()},
                 {"load_s", s.load_seconds()},       {"weights_bytes", s.ledger().weights},
                 {"copy_bytes_per_s", limits->copy}, {"read_bytes_per_s", limits->read},
                 {"gemm_flops", limits->gemm}};
  if (!o.json) {
    std::printf("%s, %s, loaded in %.1f s (%.1f GB/s)\n", o.engine.model.c_str(),
                s.backend().describe().c_str(), s.load_seconds(),
                static_cast<double>(s.ledger().weights) / s.load_seconds() / 1e9);
    std::printf("limits: copy %.2f TB/s, read %.2f TB/s, matrix product %.0f TFLOP/s\n\n",
                limits->copy / 1e12, limits->read / 1e12, limits->gemm / 1e12);
    std::printf("%6s %8s %9s %9s %9s %10s %7s %7s  %s\n", "batch", "context", "step ms", "floor ms",
                "of floor", "tokens/s", "gap p50", "p99 us", "largest gaps per step");
  }
  json::array rows;
  for (int c : o.contexts) {
    for (int b : o.batches) {
      Result<DecodeRow> row = measure_decode(s, floor, b, c, o.steps);
      if (!row) {
        std::fprintf(stderr, "sluice: batch %d, context %d: %s\n", b, c,
                     row.error().message.c_str());
        continue;
      }
      rows.push_back(decode_json(*row, floor));
      if (!o.json) print_decode(*row, floor);
    }
  }
  j["decode"] = rows;
  Result<PrefillTime> prefill = measure_prefill(s, floor);
  if (!prefill) return report(prefill.error());
  j["prefill"] = json::object{{"tokens", prefill->tokens},
                              {"seconds", prefill->seconds},
                              {"tokens_per_s", prefill->tokens / prefill->seconds},
                              {"mfu", prefill->floor / prefill->seconds}};
  if (!o.json)
    std::printf(
        "\nprefill of 8 x 1024: %.1f ms, %.0f tokens/s, %.1f %% of the matrix product's rate\n",
        prefill->seconds * 1e3, prefill->tokens / prefill->seconds,
        prefill->floor / prefill->seconds * 100);
  if (o.workload) {
    Result<Mixed> mixed = measure_mixed(s);
    if (!mixed) return report(mixed.error());
    double rate = static_cast<double>(mixed->tokens) / mixed->elapsed;
    j["mixed"] = json::object{{"output_tokens", mixed->tokens},
                              {"seconds", mixed->elapsed},
                              {"output_tokens_per_s", rate},
                              {"gap_p50_s", mixed->gap.at(0.5)},
                              {"gap_p99_s", mixed->gap.at(0.99)}};
    if (!o.json)
      std::printf(
          "256 requests, 100-1024 in and out: %llu tokens in %.2f s, %.0f output tokens/s, gap p50 "
          "%.1f us p99 %.1f us\n",
          static_cast<unsigned long long>(mixed->tokens), mixed->elapsed, rate,
          mixed->gap.at(0.5) * 1e6, mixed->gap.at(0.99) * 1e6);
  }
  if (o.json) std::printf("%s\n", json::serialize(j).c_str());
  return kExitOk;
}

}  // namespace sluice

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
#include "runtime/placement.h"
#include "tools/bench_limits.h"
#include "tools/commands.h"
#include "tools/gpu_floor.h"
#include "tools/mixed_workload.h"
#include "tools/terminal.h"

namespace sluice {

namespace {

// The first `shared` tokens are the same for every index.
Request make_request(int input, int output, int vocab, uint32_t index, int shared = 0) {
  auto prompt = std::make_shared<std::vector<Token>>();
  for (int p = 0; p < input; ++p)
    prompt->push_back(static_cast<Token>(draw_u32({17, p < shared ? 0 : index, p, 1}) %
                                         static_cast<uint32_t>(vocab)));
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
  double step = 0;                   // seconds; the median step
  double floor = 0, floor_read = 0;  // by the bandwidth of a copy, and of reading alone
  Percentiles gap;                   // on the device, between steps
  double graph = 0;  // seconds of the profiled step's replay, without sampling's read
  std::vector<OpRow> ops;
};

// Batch and lengths of the step that a report completes were reported when it was launched.
Result<DecodeRow> measure_decode(
    Session& s, const GpuFloor& floor, int batch, int context, const BenchGpuOptions& o) {
  const int steps = o.steps, vocab = s.model().shape().vocab;
  DecodeRow row;
  row.batch = batch;
  row.context = context;
  // The first run captures the batch's graph and times its ops. Sequences that start first decode
  // while others' prompts run, and must last until all are there.
  int prompt = std::max(1, context - steps / 2);
  const SchedulerConfig& c = s.options().scheduler;
  int64_t per_step = c.chunk > 0 ? std::min(c.chunk, c.budget) : c.budget;  // of prompts
  if (c.mixed_budget > 0) per_step = std::min<int64_t>(per_step, (c.mixed_budget + 3) / 4);
  auto apart = static_cast<int>(int64_t{batch} * prompt / per_step + 2);
  std::vector<Request> requests;
  for (int i = 0; i < batch; ++i)
    requests.push_back(
        make_request(prompt, steps + apart, vocab, static_cast<uint32_t>(i + 1), o.shared));
  if (o.shared > 0) {  // into the prefix cache, where all find the same blocks
    Result<RunTimes> first = run(s, {make_request(o.shared + 1, 1, vocab, 0, o.shared)});
    if (!first) return first.error();
  }
  s.device_executor()->profile_decode(batch);
  Result<RunTimes> t = run(s, requests);
  if (!t) return t.error();
  StepProfile profile = s.device_executor()->take_profile();
  row.graph = profile.step;
  // Positions that a row reads, where those in common are read once for all.
  const double own = context - static_cast<double>(o.shared) * (batch - 1) / batch;
  row.ops = op_rows(profile, floor, batch, own);
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
  row.floor = floor.decode(batch, own);
  row.floor_read = floor.at(floor.limits.read).decode(batch, own);
  return row;
}

struct PrefillTime {
  int prompts = 0, length = 0;
  double seconds = 0, floor = 0;
  int tokens() const { return prompts * length; }
};

// Steps of prompts alone: the best of several, all their steps together.
Result<PrefillTime> measure_prefill(Session& s, const GpuFloor& floor, int prompts, int length) {
  PrefillTime best;
  best.prompts = prompts;
  best.length = length;
  best.floor = floor.prefill(prompts, length);
  const ModelShape& m = s.model().shape();
  for (int i = 0; i < 4; ++i) {
    std::vector<Request> requests;
    for (int k = 0; k < prompts; ++k)
      requests.push_back(
          make_request(length, 1, m.vocab, static_cast<uint32_t>(1000 + prompts * i + k)));
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

json::object decode_json(DecodeRow& r) {
  json::object gaps;
  json::array ops;
  for (const OpRow& op : r.ops) {
    gaps[op.name] = op.gap();
    ops.push_back(json::object{{"name", op.name},
                               {"calls", op.calls},
                               {"in_step_s", op.seconds},
                               {"boundary_s", op.boundary},
                               {"alone_s", op.alone},
                               {"floor_s", op.floor},
                               {"kernels", op.kernels}});
  }
  return {{"batch", r.batch},
          {"context", r.context},
          {"step_s", r.step},
          {"floor_s", r.floor},
          {"of_floor", r.floor / r.step},
          {"floor_read_s", r.floor_read},
          {"of_floor_read", r.floor_read / r.step},
          {"tokens_per_s", r.batch / r.step},
          {"host_gap_p50_s", r.gap.count() > 0 ? r.gap.at(0.5) : 0},
          {"host_gap_p99_s", r.gap.count() > 0 ? r.gap.at(0.99) : 0},
          {"graph_s", r.graph},
          {"op_gaps_s", gaps},
          {"ops", ops}};
}

void print_decode(DecodeRow& r) {
  std::string gaps;
  for (size_t i = 0; i < std::min<size_t>(3, r.ops.size()); ++i)
    gaps += strf("%s%s %.0f us", i ? ", " : "", r.ops[i].name.c_str(), r.ops[i].gap() * 1e6);
  std::printf("%6d %8d %9.3f %9.3f %7.1f %% %9.3f %7.1f %% %10.0f %7.1f %7.1f  %s\n", r.batch,
              r.context, r.step * 1e3, r.floor * 1e3, r.floor / r.step * 100, r.floor_read * 1e3,
              r.floor_read / r.step * 100, r.batch / r.step,
              r.gap.count() > 0 ? r.gap.at(0.5) * 1e6 : 0,
              r.gap.count() > 0 ? r.gap.at(0.99) * 1e6 : 0, gaps.c_str());
}

void print_ops(const DecodeRow& r) {
  std::printf("\n  %-12s %5s %9s %9s %9s %9s %9s  %s\n", "op, us", "calls", "in step", "boundary",
              "alone", "floor", "gap", "kernels");
  OpRow sum;
  for (const OpRow& op : r.ops) {
    std::printf("  %-12s %5d %9.1f %9.1f %9.1f %9.1f %9.1f  %s\n", op.name.c_str(), op.calls,
                op.seconds * 1e6, op.boundary * 1e6, op.alone * 1e6, op.floor * 1e6, op.gap() * 1e6,
                op.kernels.c_str());
    sum.calls += op.calls;
    sum.seconds += op.seconds;
    sum.boundary += op.boundary;
    sum.alone += op.alone;
    sum.floor += op.floor;
  }
  std::printf("  %-12s %5d %9.1f %9.1f %9.1f %9.1f %9.1f  the graph takes %.1f\n\n", "sum",
              sum.calls, sum.seconds * 1e6, sum.boundary * 1e6, sum.alone * 1e6, sum.floor * 1e6,
              sum.gap() * 1e6, r.graph * 1e6);
}

json::object prefill_json(const PrefillTime& p) {
  return {{"prompts", p.prompts},
          {"tokens", p.tokens()},
          {"seconds", p.seconds},
          {"tokens_per_s", p.tokens() / p.seconds},
          {"mfu", p.floor / p.seconds}};
}

// Steps of one prompt: how near products of so many rows come to their rate.
Result<json::array> measure_rows(Session& s, const GpuFloor& floor, const BenchGpuOptions& o) {
  json::array list;
  if (!o.json && !o.rows.empty())
    std::printf("\n%6s %9s %9s %10s\n", "rows", "step ms", "of rate", "tokens/s");
  for (int rows : o.rows) {
    Result<PrefillTime> p = measure_prefill(s, floor, 1, rows);
    if (!p) return p.error();
    list.push_back(prefill_json(*p));
    if (!o.json)
      std::printf("%6d %9.3f %7.1f %% %10.0f\n", rows, p->seconds * 1e3,
                  p->floor / p->seconds * 100, rows / p->seconds);
  }
  return list;
}

// Sizes the context and the batch for all that will be measured.
void resolve_sizes(BenchGpuOptions& o) {
  int batch = *std::ranges::max_element(o.batches), context = *std::ranges::max_element(o.contexts);
  o.engine.scheduler.prefix_cache = o.shared > 0;
  o.engine.scheduler.max_seqs = std::max(batch, 256);
  int apart = static_cast<int>(int64_t{batch} * context / 8192) + 16;
  for (int rows : o.rows) context = std::max(context, rows);
  if (!o.engine.ctx) o.engine.ctx = std::max(context + o.steps + apart, 2064);
}

// The type of the layers' weights that GpuFloor assumes.
DType layer_type(Quantize quantize) {
  if (quantize == Quantize::fp8) return DType::f8;
  return quantize == Quantize::w8a8 ? DType::i8 : DType::bf16;
}

void print_head(const BenchGpuOptions& o, const Session& s, const DeviceLimits& limits) {
  std::printf("%s, %s, loaded in %.1f s (%.1f GB/s)\n", o.engine.model.c_str(),
              s.backend().describe().c_str(), s.load_seconds(),
              static_cast<double>(s.ledger().weights) / s.load_seconds() / 1e9);
  std::printf(
      "limits: copy %.2f TB/s, read %.2f TB/s, matrix product %.0f TFLOP/s, fp8 %.0f, int8 "
      "%.0f\n\n",
      limits.copy / 1e12, limits.read / 1e12, limits.gemm / 1e12, limits.gemm_f8 / 1e12,
      limits.gemm_i8 / 1e12);
  std::printf("%6s %8s %9s %9s %9s %9s %9s %10s %7s %7s  %s\n", "batch", "context", "step ms",
              "copy ms", "of floor", "read ms", "of floor", "tokens/s", "gap p50", "p99 us",
              "largest gaps per step");
}

// Every batch size at every context; a row that cannot be measured is said and left out.
json::array measure_decodes(Session& s, const GpuFloor& floor, const BenchGpuOptions& o) {
  json::array rows;
  for (int c : o.contexts) {
    for (int b : o.batches) {
      Result<DecodeRow> row = measure_decode(s, floor, b, c, o);
      if (!row) {
        std::fprintf(stderr, "sluice: batch %d, context %d: %s\n", b, c,
                     row.error().message.c_str());
        continue;
      }
      rows.push_back(decode_json(*row));
      if (o.json) continue;
      print_decode(*row);
      if (o.ops) print_ops(*row);
    }
  }
  return rows;
}

json::object mixed_json(Mixed& mixed, bool print) {
  double rate = static_cast<double>(mixed.tokens) / mixed.elapsed;
  if (print)
    std::printf(
        "256 requests, 100-1024 in and out: %llu tokens in %.2f s, %.0f output tokens/s, gap p50 "
        "%.1f us p99 %.1f us\n",
        static_cast<unsigned long long>(mixed.tokens), mixed.elapsed, rate, mixed.gap.at(0.5) * 1e6,
        mixed.gap.at(0.99) * 1e6);
  return {{"output_tokens", mixed.tokens},
          {"seconds", mixed.elapsed},
          {"output_tokens_per_s", rate},
          {"gap_p50_s", mixed.gap.at(0.5)},
          {"gap_p99_s", mixed.gap.at(0.99)}};
}

}  // namespace

int cmd_bench_gpu(const BenchGpuOptions& given) {
  BenchGpuOptions o = given;
  if (o.shared > 0 && o.shared + o.steps >= std::ranges::min(o.contexts))
    return report(Error{400, strf("--shared %d: contexts must be longer, by more than %d steps",
                                  o.shared, o.steps)});
  if (o.shared > 0 && !o.rows.empty())
    return report(Error{400, "--shared measures decodes alone: leave out --rows"});
  DeviceChoice& device = o.engine.device;
  if (device.kind == DeviceChoice::Kind::any) device.kind = DeviceChoice::Kind::cuda;
  if (!device.is_gpu()) return report(Error{400, "bench gpu measures a GPU: use --device cuda"});
  if (o.engine.gpu_layers)
    return report(Error{400, "bench gpu measures a GPU alone: leave out --gpu-layers"});
  device = resolve_device(device);
  if (!o.engine.format) o.engine.format = "bf16";
  resolve_sizes(o);

  Result<DeviceLimits> limits = gpu_limits(o.engine);  // before the session takes the memory
  if (!limits) return report(limits.error());
  Result<std::unique_ptr<Session>> session = open_session(o.engine);
  if (!session) return report(session.error());
  Session& s = **session;
  show_ledger(s);
  s.keep_reports();
  GpuFloor floor{*limits, &s.model().shape(), static_cast<double>(s.ledger().kv_per_token),
                 layer_type(o.engine.quantize), limits->copy};

  json::object j{{"model", o.engine.model},          {"backend", s.backend().describe()},
                 {"load_s", s.load_seconds()},       {"weights_bytes", s.ledger().weights},
                 {"copy_bytes_per_s", limits->copy}, {"read_bytes_per_s", limits->read},
                 {"gemm_flops", limits->gemm},       {"gemm_f8_flops", limits->gemm_f8},
                 {"gemm_i8_ops", limits->gemm_i8}};
  if (!o.json) print_head(o, s, *limits);
  j["decode"] = measure_decodes(s, floor, o);
  if (o.shared > 0) {  // prompts would be found in the prefix cache
    if (o.json) std::printf("%s\n", plain_json(j).c_str());
    return kExitOk;
  }
  Result<PrefillTime> prefill = measure_prefill(s, floor, 8, 1024);
  if (!prefill) return report(prefill.error());
  j["prefill"] = prefill_json(*prefill);
  if (!o.json)
    std::printf(
        "\nprefill of 8 x 1024: %.1f ms, %.0f tokens/s, %.1f %% of the matrix product's rate\n",
        prefill->seconds * 1e3, prefill->tokens() / prefill->seconds,
        prefill->floor / prefill->seconds * 100);
  Result<json::array> by_rows = measure_rows(s, floor, o);
  if (!by_rows) return report(by_rows.error());
  j["rows"] = std::move(*by_rows);
  if (o.workload) {
    Result<Mixed> mixed = measure_mixed(s);
    if (!mixed) return report(mixed.error());
    j["mixed"] = mixed_json(*mixed, !o.json);
  }
  if (o.json) std::printf("%s\n", plain_json(j).c_str());
  return kExitOk;
}

}  // namespace sluice

#include "tools/plan/figures.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/metrics.h"
#include "base/str.h"
#include "tools/replay/recorded_workload.h"

namespace sluice {

namespace {

constexpr double kLastArrival = 1e8;  // seconds: three years
constexpr double kLongest = 1e7;      // tokens, as traces may have them

Quantiles quantiles(Percentiles& p) { return {p.at(0.5), p.at(0.9), p.at(0.99), p.mean()}; }

// Requests as they end, simulated or not.
struct Gathered {
  Percentiles ttft, tpot, itl, e2e;
  uint64_t in = 0, out = 0;
  PlanFigures f;

  void add(double ttft_s,
           double tpot_s,
           double e2e_s,
           double gap,
           int input,
           int tokens,
           const Slo& slo,
           bool expired = false) {
    ttft.add(ttft_s);
    if (tokens > 1) tpot.add(tpot_s);
    e2e.add(e2e_s);
    in += static_cast<uint64_t>(input);
    out += static_cast<uint64_t>(tokens);
    const auto keeps = [](double limit, double is) { return limit <= 0 || is <= limit; };
    f.good += !expired && keeps(slo.ttft, ttft_s) && keeps(slo.tpot, tpot_s) &&
              keeps(slo.itl, gap) && keeps(slo.e2e, e2e_s);
  }
  PlanFigures finish() {
    f.ttft = quantiles(ttft), f.tpot = quantiles(tpot);
    f.itl = quantiles(itl), f.e2e = quantiles(e2e);
    if (f.elapsed > 0) {
      f.requests_per_s = static_cast<double>(ttft.count()) / f.elapsed;
      f.output_per_s = static_cast<double>(out) / f.elapsed;
      f.total_per_s = static_cast<double>(in + out) / f.elapsed;
      f.goodput = static_cast<double>(f.good) / f.elapsed;
    }
    return f;
  }
};

json::object quantiles_json(const Quantiles& q) {
  return json::object{{"p50", q.p50}, {"p90", q.p90}, {"p99", q.p99}, {"mean", q.mean}};
}

bool is_recording(const std::string& path) {
  std::error_code error;
  return path.ends_with(".slrec") || (!path.empty() && std::filesystem::is_directory(path, error));
}

}  // namespace

PlanFigures figures_of(std::span<const SimRun> runs, const Slo& slo) {
  Gathered g;
  double hits = 0, queries = 0;
  Time begin = kNever, end{0};
  for (const SimRun& run : runs) {
    for (const SimAnswer& a : run.answers) {
      ++g.f.requests;
      begin = std::min(begin, a.arrival);
      if (a.refused) continue;
      end = std::max(end, a.finish);
      if (a.num_tokens == 0) continue;  // its deadline came first
      g.add(a.ttft(), a.tpot(), a.e2e(), seconds(a.longest_gap), a.input, a.num_tokens, slo,
            a.expired);
    }
    for (float gap : run.gaps) g.itl.add(static_cast<double>(gap));
    g.f.refused += static_cast<uint64_t>(run.num_refused);
    g.f.expired += static_cast<uint64_t>(run.num_expired);
    g.f.steps += run.num_steps;
    g.f.preemptions += run.num_preemptions;
    g.f.most_running = std::max(g.f.most_running, run.most_running);
    g.f.most_kv = std::max(g.f.most_kv, run.most_kv);
    g.f.mean_kv += run.mean_kv / static_cast<double>(runs.size());
    g.f.busy += run.elapsed > 0 ? run.busy / run.elapsed / static_cast<double>(runs.size()) : 0;
    hits += static_cast<double>(run.prefix_hits);
    queries += static_cast<double>(run.prefix_queries);
  }
  g.f.elapsed = end > begin ? seconds(end - begin) : 0;
  g.f.hit_rate = queries > 0 ? hits / queries : 0;
  return g.finish();
}

PlanFigures figures_of(const LabRun& run, const Slo& slo) {
  Gathered g;
  g.f.requests = run.num_requests;
  g.f.elapsed = run.elapsed;
  g.f.steps = run.steps.size();
  g.f.preemptions = run.preemptions;
  g.f.most_running = run.most_running;
  for (const TokenTimes& t : run.times) {
    double longest = 0;
    for (size_t i = 1; i < t.tokens.size(); ++i) {
      const double gap = t.tokens[i] - t.tokens[i - 1];
      longest = std::max(longest, gap);
      g.itl.add(gap);
    }
    g.add(t.ttft(), t.tpot(), t.tokens.back() - t.arrival, longest, t.prompt,
          static_cast<int>(t.tokens.size()), slo);
  }
  double busy = 0;
  for (const StepSample& s : run.steps) busy += s.inference;
  g.f.busy = run.elapsed > 0 ? std::min(1.0, busy / run.elapsed) : 0;
  return g.finish();
}

json::object figures_json(const PlanFigures& f) {
  return json::object{{"requests", f.requests},
                      {"refused", f.refused},
                      {"expired", f.expired},
                      {"good", f.good},
                      {"ttft_s", quantiles_json(f.ttft)},
                      {"tpot_s", quantiles_json(f.tpot)},
                      {"itl_s", quantiles_json(f.itl)},
                      {"e2e_s", quantiles_json(f.e2e)},
                      {"elapsed_s", f.elapsed},
                      {"requests_per_s", f.requests_per_s},
                      {"output_tokens_per_s", f.output_per_s},
                      {"total_tokens_per_s", f.total_per_s},
                      {"goodput_requests_per_s", f.goodput},
                      {"device_busy", f.busy},
                      {"kv_use_most", f.most_kv},
                      {"kv_use_mean", f.mean_kv},
                      {"prefix_hit_rate", f.hit_rate},
                      {"steps", f.steps},
                      {"preemptions", f.preemptions},
                      {"most_running", f.most_running}};
}

std::string workload_name(const WorkloadOptions& o) {
  if (o.trace.empty())
    return strf("%g requests/s, %s tokens in, %s out", o.rate, o.input.c_str(), o.output.c_str());
  const size_t slash = o.trace.rfind('/');
  std::string name = slash == std::string::npos ? o.trace : o.trace.substr(slash + 1);
  if (o.time_scale != 1) name += strf(", gaps x %g", o.time_scale);
  if (o.length_scale != 1) name += strf(", lengths x %g", o.length_scale);
  return name;
}

Result<std::vector<SimRequest>> plan_workload(const WorkloadOptions& o) {
  bool late = false;
  const auto at = [&](double s) {
    late = late || !(s <= kLastArrival);
    return Time(late ? 0 : static_cast<int64_t>(s * 1e9));
  };
  const auto too_late = [](const char* what) {
    return Error{400, strf("requests come more than %g s after the first: %s", kLastArrival, what)};
  };
  const auto scaled = [&](int n) {
    return static_cast<int>(std::clamp(std::round(n * o.length_scale), 1.0, kLongest));
  };
  std::vector<SimRequest> out;
  if (is_recording(o.trace)) {
    Result<std::vector<SimRequest>> recorded = recorded_arrivals(o.trace);
    if (!recorded) return recorded.error();
    out = std::move(*recorded);
    if (o.requests > 0 && out.size() > static_cast<size_t>(o.requests))
      out.resize(static_cast<size_t>(o.requests));
    for (SimRequest& r : out) {
      const Time allowed = r.deadline == kNever ? kNever : r.deadline - r.at;
      r.at = at(seconds(r.at) * o.time_scale);
      if (allowed != kNever) r.deadline = r.at + allowed;
      r.input = scaled(r.input), r.output = scaled(r.output);
      r.block_tokens = scaled(r.block_tokens);
    }
    if (late) return too_late("lower --time-scale");
    return out;
  }
  if (!o.trace.empty()) {
    Result<std::vector<TraceEntry>> trace =
        read_trace(o.trace, o.requests > 0 ? std::optional<int>(o.requests) : std::nullopt);
    if (!trace) return trace.error();
    for (TraceEntry& e : *trace) {
      SimRequest& r = out.emplace_back();
      r.at = at(e.at * o.time_scale);
      r.input = scaled(e.input), r.output = scaled(e.output);
      r.blocks = std::move(e.blocks);
      r.block_tokens = scaled(kTraceBlockTokens);
    }
    if (late) return too_late("lower --time-scale");
    return out;
  }
  Result<LengthRange> input = parse_length_range(o.input, "--input");
  if (!input) return input.error();
  Result<LengthRange> output = parse_length_range(o.output, "--output");
  if (!output) return output.error();
  RunPoint point;
  point.rate = o.rate;
  point.poisson = o.arrivals == Arrivals::poisson;
  ArrivalTimes times(point, o.seed);
  const int num = o.requests > 0 ? o.requests : 500;
  for (int i = 0; i < num; ++i) {
    SimRequest& r = out.emplace_back();
    r.at = at(times.next());
    r.input = input->pick(o.seed, static_cast<uint64_t>(i), 1);
    r.output = std::max(1, output->pick(o.seed, static_cast<uint64_t>(i), 2));
  }
  if (late) return too_late("raise --rate, or lower --requests");
  return out;
}

LabWorkload lab_workload(std::span<const SimRequest> workload) {
  LabWorkload out;
  for (const SimRequest& r : workload)
    out.push_back({.at = seconds(r.at),
                   .input = r.input,
                   .output = r.output,
                   .blocks = r.blocks,
                   .block_tokens = r.block_tokens});
  return out;
}

std::vector<SimRequest> share_of(std::span<const SimRequest> workload, int first, int replicas) {
  std::vector<SimRequest> out;
  for (size_t i = static_cast<size_t>(first); i < workload.size();
       i += static_cast<size_t>(replicas))
    out.push_back(workload[i]);
  return out;
}

}  // namespace sluice

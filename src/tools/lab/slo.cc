// sluice bench slo: users who decode, long prompts among them; fixed budgets against --slo.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>

#include "base/json.h"
#include "base/mailbox.h"
#include "base/metrics.h"
#include "base/random.h"
#include "base/str.h"
#include "runtime/session.h"
#include "tools/commands.h"
#include "tools/lab/lab.h"
#include "tools/run_report.h"
#include "tools/terminal.h"

namespace sluice {

namespace {

// One request of the load. Written by the engine thread until it is in the mailbox.
struct SloRequest {
  int user = -1;  // -1: a long prompt
  int prompt = 0;
  RequestId id = 0;
  Time arrival{0};
  std::vector<Time> tokens;
  std::string error;  // refused, or failed
};

using SloDone = Mailbox<size_t>;

class SloSink final : public Sink {
 public:
  SloSink(std::shared_ptr<SloRequest> request, size_t index, std::shared_ptr<SloDone> done)
      : request_(std::move(request)), index_(index), done_(std::move(done)) {}
  void on_event(const Event& e, std::span<const TopLogprob>) override {
    request_->arrival = e.timing.arrival;
    if (e.token != kNoToken) request_->tokens.push_back(e.timing.last_token);
    if (e.finish == Finish::none) return;
    if (e.finish != Finish::length && e.finish != Finish::cancelled)
      request_->error = strf("a request ended with %s", finish_name(e.finish));
    done_->push(index_);
  }
  void on_refused(const Error& error) override {
    request_->error = error.message;
    done_->push(index_);
  }

 private:
  std::shared_ptr<SloRequest> request_;
  size_t index_;
  std::shared_ptr<SloDone> done_;
};

// What came of one setting.
struct SloRun {
  int budget = 0;  // 0: chosen by --slo
  int num_prompts = 0, prompts_in_time = 0;
  uint64_t num_tokens = 0, tokens_in_time = 0;  // outputs
  Percentiles itl, ttft, chosen, error;         // s, s, tokens, share of the time taken
  double goodput = 0, output_rate = 0;          // tokens/s
  bool kept = false;                            // all targets
  LimitShares shares;
};

// Drives an engine: users in a closed loop, long prompts by the clock.
class SloLoad {
 public:
  SloLoad(Session& session, const BenchSloOptions& o) : session_(session), o_(o) {}

  Result<void> run(StatusLine& status, const std::string& what) {
    const Clock& clock = session_.clock();
    const Time begin = clock.now();
    measured_ = begin + after(o_.warmup);
    end_ = measured_ + after(o_.duration);
    // Users end at different times, as if they had been there for long.
    for (int u = 0; u < o_.users; ++u)
      submit(u, o_.input, std::max(2, o_.output * (u + 1) / o_.users));
    Time next = begin + after(std::min(o_.warmup / 2, o_.every));  // the one of the warm-up
    std::vector<size_t> done;
    for (Time now = begin; now < end_; now = clock.now()) {
      if (now >= next) {
        submit(-1, o_.prompt, o_.prompt_output);
        next = next < measured_ ? measured_ + after(o_.every) / 2 : next + after(o_.every);
      }
      done_->wait_drain(done, std::max(std::min(next, end_) - clock.now(), Time{0}));
      for (size_t index : done) {
        if (!requests_[index]->error.empty()) return Error{400, requests_[index]->error};
        if (int u = requests_[index]->user; u >= 0) submit(u, o_.input, o_.output);
      }
      num_done_ += done.size();
      status.show(strf("%s: %.0f of %.0f s", what.c_str(), seconds(clock.now() - begin),
                       seconds(end_ - begin)));
    }
    // What still runs has been measured as far as it got.
    for (const auto& r : requests_) session_.engine().cancel(r->id);
    for (; num_done_ < requests_.size(); num_done_ += done.size()) done_->wait_drain(done, kNever);
    return {};
  }

  SloRun reduce(int budget) const {
    const SloTarget& target = o_.engine.scheduler.slo;
    SloRun run;
    run.budget = budget;
    uint64_t prompt_tokens = 0;
    auto counts = [&](Time t) { return t >= measured_ && t < end_; };
    for (const auto& r : requests_) {
      for (size_t k = 1; k < r->tokens.size(); ++k) {
        if (!counts(r->tokens[k])) continue;
        const Time gap = r->tokens[k] - r->tokens[k - 1];
        run.itl.add(seconds(gap));
        ++run.num_tokens;
        run.tokens_in_time += gap <= target.itl;
      }
      // A prompt whose first token never came has waited to the end of the run.
      if (r->user >= 0 || !counts(r->arrival)) continue;
      const Time first = r->tokens.empty() ? end_ : r->tokens.front();
      const Time wait = first - r->arrival;
      const Time limit = target.ttft > Time{0} ? target.ttft : kNever;
      if (r->tokens.empty() && wait < limit) continue;  // nobody knows
      ++run.num_prompts;
      run.ttft.add(seconds(wait));
      if (r->tokens.empty() || wait > limit) continue;
      ++run.prompts_in_time;
      prompt_tokens += static_cast<uint64_t>(r->prompt) + 1;
    }
    run.goodput = static_cast<double>(run.tokens_in_time + prompt_tokens) / o_.duration;
    run.output_rate = static_cast<double>(run.num_tokens) / o_.duration;
    run.kept = run.itl.count() > 0 &&
               run.itl.at(static_cast<double>(target.itl_quantile)) <= seconds(target.itl) &&
               (target.ttft == Time{0} || run.ttft.count() == 0 ||
                run.ttft.at(static_cast<double>(target.ttft_quantile)) <= seconds(target.ttft));
    return run;
  }

  Time measured() const { return measured_; }

 private:
  static Time after(double s) { return Time(static_cast<int64_t>(s * 1e9)); }

  void submit(int user, int input, int output) {
    const size_t index = requests_.size();
    auto prompt = std::make_shared<std::vector<Token>>();
    const auto vocab = static_cast<uint32_t>(session_.model().shape().vocab);
    for (int p = 0; p < input; ++p)
      prompt->push_back(
          static_cast<Token>(draw_u32({o_.seed, static_cast<uint32_t>(index), p, 7}) % vocab));
    auto sampling = std::make_shared<SamplingSpec>();
    sampling->temperature = 0;
    Request r;
    r.prompt = std::move(prompt);
    r.sampling = std::move(sampling);
    r.max_new = output;
    auto record = std::make_shared<SloRequest>();
    record->user = user;
    record->prompt = input;
    record->arrival = session_.clock().now();
    record->tokens.reserve(static_cast<size_t>(output));
    requests_.push_back(record);
    record->id =
        session_.engine().submit(std::move(r), std::make_shared<SloSink>(record, index, done_));
  }

  Session& session_;
  const BenchSloOptions& o_;
  std::shared_ptr<SloDone> done_ = std::make_shared<SloDone>();
  std::vector<std::shared_ptr<SloRequest>> requests_;
  size_t num_done_ = 0;
  Time measured_{0}, end_{0};
};

// The choices and predictions of the measured steps, and how near they came to the device's limits.
void add_choices(Session& s, Time from, double duration, const BenchLimits& limits, SloRun& run) {
  std::vector<StepReport> reports = s.take_reports();
  std::erase_if(reports, [&](const StepReport& r) { return r.plan_begin < from; });
  run.shares = limit_shares(step_samples(reports), s.model().shape(), s.step_bytes(),
                            s.ledger().kv_per_token, duration, limits);
  for (const StepReport& r : reports) {
    const SloStats& slo = r.stats.slo;
    if (r.launched && r.num_tokens > r.num_decode && r.num_decode > 0)
      run.chosen.add(r.num_tokens - r.num_decode);
    if (r.completed && slo.last_predicted > 0)
      run.error.add(std::fabs(slo.last_predicted - slo.last_seconds) / slo.last_seconds);
  }
}

Result<SloRun> run_setting(const BenchSloOptions& o,
                           int budget,
                           const BenchLimits& limits,
                           StatusLine& status) {
  EngineOptions engine = o.engine;
  engine.quiet = true;
  engine.scheduler.prefix_cache = false;
  // In every run the same, and no less than the largest budget that is tried.
  if (!engine.step_sizes->budget) engine.step_sizes->budget = *std::ranges::max_element(o.budgets);
  if (budget > 0) {
    engine.scheduler.slo = {};
    engine.step_sizes->chunk = 0;
    engine.step_sizes->mixed_budget = budget;
  }
  const std::string what = budget > 0 ? strf("budget %d", budget) : std::string("--slo");
  status.show(what + ": loading", true);
  Result<std::unique_ptr<Session>> session = open_session(engine);
  if (!session) return session.error();
  Session& s = **session;
  s.keep_reports();
  SloLoad load(s, o);
  if (auto ok = load.run(status, what); !ok) return ok.error();
  SloRun run = load.reduce(budget);
  add_choices(s, load.measured(), o.duration, limits, run);
  return run;
}

std::string setting_name(const SloRun& r) {
  return r.budget > 0 ? std::to_string(r.budget) : std::string("slo");
}

json::object slo_json(SloRun& r) {
  json::object j;
  j["setting"] = setting_name(r);
  j["itl_p50"] = r.itl.at(0.5);
  j["itl_p99"] = r.itl.at(0.99);
  j["itl_max"] = r.itl.at(1);
  j["ttft_p50"] = r.ttft.at(0.5);
  j["ttft_p95"] = r.ttft.at(0.95);
  j["prompts"] = r.num_prompts;
  j["prompts_in_time"] = r.prompts_in_time;
  j["output_tokens"] = r.num_tokens;
  j["output_tokens_in_time"] = r.tokens_in_time;
  j["output_tokens_per_s"] = r.output_rate;
  j["goodput"] = r.goodput;
  j["kept"] = r.kept;
  for (const auto& pair : limit_shares_json(r.shares)) j[pair.key()] = pair.value();
  j["prompt_tokens_p10"] = r.chosen.at(0.1);
  j["prompt_tokens_p50"] = r.chosen.at(0.5);
  j["prompt_tokens_p90"] = r.chosen.at(0.9);
  if (r.error.count() > 0) {
    j["prediction_error_p50"] = r.error.at(0.5);
    j["prediction_error_p90"] = r.error.at(0.9);
  }
  return j;
}

// All runs of one setting.
struct SloTotal {
  double goodput = 0;
  bool kept = true;  // in every run
  void add(const SloRun& r) {
    goodput += r.goodput;
    kept = kept && r.kept;
  }
};

void print_slo_row(SloRun& r) {
  std::printf("%-8s %8.2f %8.2f %8.2f %9.0f %9.0f %5d of %-3d %9.0f %9.0f %7.0f %6s %6s  %s\n",
              setting_name(r).c_str(), r.itl.at(0.5) * 1e3, r.itl.at(0.99) * 1e3, r.itl.at(1) * 1e3,
              r.ttft.at(0.5) * 1e3, r.ttft.at(0.95) * 1e3, r.prompts_in_time, r.num_prompts,
              r.output_rate, r.goodput, r.chosen.at(0.5), r.shares.percent(r.shares.mfu).c_str(),
              r.shares.percent(r.shares.sol).c_str(), r.kept ? "yes" : "no");
  std::fflush(stdout);
}

}  // namespace

int cmd_bench_slo(const BenchSloOptions& o) {
  if (!o.engine.scheduler.slo.any())
    return report(Error{400, "bench slo compares with a target: add one like --slo itl_p99=50ms"});
  const std::optional<int>& most = o.engine.step_sizes->budget;
  for (int budget : o.budgets) {
    if (most && budget > *most)
      return report(Error{
          400, strf("--budgets %d is more than --budget %d allows in a step", budget, *most)});
  }
  const BenchLimits limits = engine_limits(o.engine);
  StatusLine status(!o.engine.quiet);
  std::vector<int> settings = o.budgets;
  settings.push_back(0);
  json::array runs;
  std::map<int, SloTotal> totals;
  if (!o.json)
    std::printf("%-8s %8s %8s %8s %9s %9s %12s %9s %9s %7s %6s %6s  %s\n", "budget", "ITL p50",
                "p99", "most", "TTFT p50", "p95", "in time", "tokens/s", "goodput", "prompt",
                "MFU %", "SOL %", "kept");
  for (int round = 0; round < o.repeat; ++round) {
    for (int budget : settings) {
      Result<SloRun> run = run_setting(o, budget, limits, status);
      status.clear();
      if (!run) return report(run.error());
      totals[budget].add(*run);
      o.json ? runs.push_back(slo_json(*run)) : print_slo_row(*run);
    }
    std::ranges::reverse(settings);
  }
  int best_budget = 0;
  double best = 0;
  for (const auto& [budget, total] : totals) {
    if (budget > 0 && total.kept && total.goodput > best)
      best = total.goodput, best_budget = budget;
  }
  const double chosen = totals[0].goodput;
  if (o.json) {
    json::object j;
    j["model"] = o.engine.model;
    j["device"] = o.engine.device.name();
    j["target"] = slo_target_name(o.engine.scheduler.slo);
    j["users"] = o.users;
    j["prompt"] = o.prompt;
    j["every"] = o.every;
    j["duration"] = o.duration;
    j["runs"] = std::move(runs);
    j["best_budget"] = best_budget;
    if (best_budget > 0) j["slo_of_best"] = chosen / best;
    std::printf("%s\n", plain_json(j).c_str());
  } else if (best_budget > 0) {
    std::printf(
        "ITL and TTFT in ms. The best budget that keeps %s: %d; --slo has %.3f of its goodput.\n",
        slo_target_name(o.engine.scheduler.slo).c_str(), best_budget, chosen / best);
  } else {
    std::printf("ITL and TTFT in ms. No fixed budget keeps %s.\n",
                slo_target_name(o.engine.scheduler.slo).c_str());
  }
  return kExitOk;
}

}  // namespace sluice

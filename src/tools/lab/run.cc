#include "tools/lab/run.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>
#include <thread>

#include "base/mailbox.h"
#include "base/metrics.h"
#include "base/random.h"
#include "base/str.h"
#include "runtime/session.h"
#include "tools/uncached.h"

namespace sluice {

namespace {

// What came back for one request. Written by the engine thread until its last event.
struct LabAnswer {
  std::vector<Time> times;
  std::vector<Token> tokens;
  SeqTiming timing;
  std::optional<Error> refused;
  Finish finish = Finish::none;
};

uint64_t add_to_digest(uint64_t digest, uint32_t x) { return (digest ^ x) * 1099511628211u; }

class LabSink final : public Sink {
 public:
  // The mailbox may outlive the wait for it: its last push is still under way then.
  LabSink(LabAnswer& answer, std::shared_ptr<Mailbox<int>> done)
      : answer_(answer), done_(std::move(done)) {}
  void on_event(const Event& e, std::span<const TopLogprob>) override {
    if (e.token != kNoToken) {
      answer_.times.push_back(e.timing.last_token);
      answer_.tokens.push_back(e.token);
    }
    if (e.finish == Finish::none) return;
    answer_.timing = e.timing;
    answer_.finish = e.finish;
    done_->push(0);
  }
  void on_refused(const Error& error) override {
    answer_.refused = error;
    done_->push(0);
  }

 private:
  LabAnswer& answer_;
  std::shared_ptr<Mailbox<int>> done_;
};

Request lab_request(
    const LabSetup& setup, const LabRequest& r, int vocab, uint64_t seed, size_t index) {
  auto prompt = std::make_shared<std::vector<Token>>(lab_prompt(r, vocab, seed, index));
  auto sampling = std::make_shared<SamplingSpec>();
  sampling->temperature = setup.temperature;
  sampling->top_p = setup.top_p;
  sampling->seed = seed + index;
  Request out;
  out.prompt = std::move(prompt);
  out.sampling = std::move(sampling);
  out.max_new = r.output;
  return out;
}

// Submits each at its time and waits for all.
Result<std::vector<LabAnswer>> answer_all(Session& s,
                                          std::vector<Request> requests,
                                          const LabWorkload* arrivals) {
  std::vector<LabAnswer> answers(requests.size());
  auto done = std::make_shared<Mailbox<int>>();
  const auto begin = std::chrono::steady_clock::now();
  for (size_t i = 0; i < requests.size(); ++i) {
    if (arrivals && (*arrivals)[i].at > 0)
      std::this_thread::sleep_until(begin + std::chrono::duration<double>((*arrivals)[i].at));
    s.engine().submit(std::move(requests[i]), std::make_shared<LabSink>(answers[i], done));
  }
  std::vector<int> some;
  for (size_t ended = 0; ended < answers.size(); ended += some.size())
    done->wait_drain(some, kNever);
  for (const LabAnswer& a : answers) {
    if (a.refused) return *a.refused;
    if (a.finish != Finish::length)
      return Error{500, strf("a request ended with %s", finish_name(a.finish))};
  }
  return answers;
}

// Batches of max_seqs requests, one after another: prompts padded on the left with token 0, every
// row computed until the longest output ends, and all answered then.
Result<std::vector<LabAnswer>> answer_padded(Session& s, std::vector<Request> requests) {
  std::vector<LabAnswer> all;
  const auto size = static_cast<size_t>(s.options().scheduler.max_seqs);
  for (size_t first = 0; first < requests.size(); first += size) {
    const size_t num = std::min(size, requests.size() - first);
    const std::span<Request> batch = std::span(requests).subspan(first, num);
    size_t prompt = 0;
    int output = 0;
    std::vector<size_t> asked;
    for (const Request& r : batch) {
      prompt = std::max(prompt, r.prompt->size());
      output = std::max(output, r.max_new);
      asked.push_back(static_cast<size_t>(r.max_new));
    }
    for (Request& r : batch) {
      auto padded = std::make_shared<std::vector<Token>>(prompt - r.prompt->size(), Token{0});
      padded->insert(padded->end(), r.prompt->begin(), r.prompt->end());
      r.prompt = std::move(padded);
      r.max_new = output;
    }
    Result<std::vector<LabAnswer>> answers = answer_all(
        s, {std::make_move_iterator(batch.begin()), std::make_move_iterator(batch.end())}, nullptr);
    if (!answers) return answers.error();
    for (size_t i = 0; i < num; ++i) {
      LabAnswer& a = (*answers)[i];
      a.tokens.resize(asked[i]);
      a.times.assign(asked[i], a.times.back());
      all.push_back(std::move(a));
      all.back().timing.arrival = all.front().timing.arrival;
    }
  }
  return all;
}

// The same for requests that are all there from the start, with their text.
Result<std::vector<LabAnswer>> answer_as_text(Session& s,
                                              std::vector<Request> requests,
                                              TextWork work,
                                              uint64_t& digest) {
  const std::unique_ptr<Tokenizer> words = numbered_words(s.model().shape().vocab);
  Collector collector(s.engine(), words.get(), detokenise_on(work));
  for (Request& r : requests) collector.submit(std::move(r));
  collector.wait();
  std::vector<LabAnswer> answers;
  for (const RequestOutput& out : collector.outputs()) {
    if (out.refused) return *out.refused;
    const ChoiceOutput& c = out.choices[0];
    if (c.finish != Finish::length)
      return Error{500, strf("a request ended with %s", finish_name(c.finish))};
    answers.push_back({c.token_times, c.tokens, c.timing, {}, c.finish});
    for (char byte : c.text) digest = add_to_digest(digest, static_cast<uint8_t>(byte));
  }
  return answers;
}

Result<std::vector<LabAnswer>> answer_uncached(Session& s, const std::vector<Request>& requests) {
  std::vector<LabAnswer> all(requests.size());
  auto ask = [&](std::vector<Request> round,
                 const std::vector<size_t>& whose) -> Result<std::vector<Token>> {
    Result<std::vector<LabAnswer>> answers = answer_all(s, std::move(round), nullptr);
    if (!answers) return answers.error();
    std::vector<Token> tokens;
    for (size_t k = 0; k < whose.size(); ++k) {
      LabAnswer &a = all[whose[k]], &one = (*answers)[k];
      if (a.tokens.empty()) a.timing = one.timing;
      a.timing.finish = one.timing.finish;
      a.tokens.push_back(one.tokens[0]);
      a.times.push_back(one.times[0]);
      tokens.push_back(one.tokens[0]);
    }
    return tokens;
  };
  if (auto ok = run_without_cache(requests, ask); !ok) return ok.error();
  return all;
}

LabRun reduce_lab(Session& s,
                  const LabWorkload& w,
                  const std::vector<LabAnswer>& answers,
                  uint64_t digest) {
  LabRun run;
  run.num_requests = w.size();
  run.digest = digest;
  Time begin = kNever, end{0};
  for (size_t i = 0; i < w.size(); ++i) {
    const LabAnswer& a = answers[i];
    begin = std::min(begin, a.timing.arrival);
    end = std::max(end, a.timing.finish);
    run.tokens_in += static_cast<uint64_t>(w[i].input);
    run.tokens_out += a.tokens.size();
    run.preemptions += static_cast<uint64_t>(a.timing.num_preemptions);
    TokenTimes& t = run.times.emplace_back();
    t.arrival = seconds(a.timing.arrival);
    t.prompt = w[i].input;
    for (Time at : a.times) t.tokens.push_back(seconds(at));
    for (Token id : a.tokens) run.digest = add_to_digest(run.digest, static_cast<uint32_t>(id));
  }
  run.elapsed = seconds(end - begin);
  run.reports = s.take_reports();
  run.steps = step_samples(run.reports);
  for (const StepReport& r : run.reports) {
    run.most_running = std::max(run.most_running, r.stats.num_running);
    if (r.launched) run.computed += static_cast<uint64_t>(r.num_tokens);
  }
  run.shape = s.model().shape();
  run.step_bytes = s.step_bytes();
  run.kv_per_token = s.ledger().kv_per_token;
  return run;
}

constexpr FigureInfo kFigures[] = {
    {"requests/s", "", true},       {"output tokens/s", "", true}, {"makespan", "s", false},
    {"TTFT p50", "ms", false},      {"TTFT mean", "ms", false},    {"ITL p50", "ms", false},
    {"ITL p99", "ms", false},       {"mean latency", "ms", false}, {"steps", "", false},
    {"computed tokens", "", false}, {"preemptions", "", false},    {"most at once", "", true},
};

}  // namespace

std::vector<Token> lab_prompt(const LabRequest& r, int vocab, uint64_t seed, size_t index) {
  const auto below = [vocab](const DrawKey& key) {
    return static_cast<Token>(draw_u32(key) % static_cast<uint32_t>(vocab));
  };
  std::vector<Token> out;
  for (int p = 0; p < r.input; ++p) {
    const auto block = static_cast<size_t>(p / r.block_tokens);
    if (block < r.blocks.size()) {
      out.push_back(below({seed ^ mix_bits(r.blocks[block]), 0, p % r.block_tokens, 5}));
      continue;
    }
    const bool shared = p < r.prefix;
    const auto whose = static_cast<uint32_t>(shared ? r.group : static_cast<int>(index));
    out.push_back(below({seed, whose, p, shared ? 4u : 3u}));
  }
  return out;
}

LabSetup lab_setup(const std::string& model, const std::string& format, int threads) {
  LabSetup s;
  s.engine.model = model;
  if (model.starts_with("random:")) s.engine.format = format;
  s.engine.device.kind = DeviceChoice::Kind::cpu;
  if (threads > 0) s.engine.threads = threads;
  s.engine.quiet = true;
  return s;
}

Result<LabRun> run_lab(const LabSetup& setup, const LabWorkload& workload, uint64_t seed) {
  EngineOptions engine = setup.engine;
  if (!setup.kv_cache) engine.scheduler.prefix_cache = false;
  Result<std::unique_ptr<Session>> opened = Session::open(engine);
  if (!opened) return opened.error();
  return run_lab_on(**opened, setup, workload, seed);
}

Result<LabRun> run_lab_on(Session& s,
                          const LabSetup& setup,
                          const LabWorkload& workload,
                          uint64_t seed) {
  const int vocab = s.model().shape().vocab;
  std::vector<Request> requests;
  for (size_t i = 0; i < workload.size(); ++i) {
    requests.push_back(lab_request(setup, workload[i], vocab, seed, i));
    if (auto ok = Scheduler::check(requests.back(), s.options().scheduler); !ok) return ok.error();
  }
  // One request first: no run pays for cold code and untouched memory.
  if (setup.warm) {
    std::vector<Request> warm;
    warm.push_back(lab_request(setup, {.input = 32, .output = 4}, vocab, seed + 1'000'003, 0));
    if (auto ok = answer_all(s, std::move(warm), nullptr); !ok) return ok.error();
  }
  s.keep_reports();
  s.take_reports();
  uint64_t digest = 14695981039346656037u;
  Result<std::vector<LabAnswer>> answers =
      setup.text != TextWork::none ? answer_as_text(s, std::move(requests), setup.text, digest)
      : setup.padded               ? answer_padded(s, std::move(requests))
      : setup.kv_cache             ? answer_all(s, std::move(requests), &workload)
                                   : answer_uncached(s, requests);
  if (!answers) return answers.error();
  return reduce_lab(s, workload, *answers, digest);
}

LimitShares shares_of(const LabRun& r, const BenchLimits& limits) {
  return limit_shares(r.steps, r.shape, r.step_bytes, r.kv_per_token, r.elapsed, limits);
}

const FigureInfo& figure_info(Figure figure) { return kFigures[static_cast<size_t>(figure)]; }

double figure_of(const LabRun& run, Figure figure) {
  Percentiles ttft, itl, latency;
  for (const TokenTimes& t : run.times) {
    ttft.add(t.ttft());
    latency.add(t.tokens.back() - t.arrival);
    for (size_t i = 1; i < t.tokens.size(); ++i) itl.add(t.tokens[i] - t.tokens[i - 1]);
  }
  switch (figure) {
    case Figure::requests_per_s:
      return static_cast<double>(run.num_requests) / run.elapsed;
    case Figure::tokens_per_s:
      return static_cast<double>(run.tokens_out) / run.elapsed;
    case Figure::makespan:
      return run.elapsed;
    case Figure::ttft_p50:
      return ttft.at(0.5) * 1e3;
    case Figure::ttft_mean:
      return ttft.mean() * 1e3;
    case Figure::itl_p50:
      return itl.at(0.5) * 1e3;
    case Figure::itl_p99:
      return itl.at(0.99) * 1e3;
    case Figure::latency_mean:
      return latency.mean() * 1e3;
    case Figure::steps:
      return static_cast<double>(run.steps.size());
    case Figure::computed:
      return static_cast<double>(run.computed);
    case Figure::preemptions:
      return static_cast<double>(run.preemptions);
    case Figure::concurrency:
      return run.most_running;
  }
  return 0;
}

std::string figure_text(double v, Figure figure) {
  const char* unit = figure_info(figure).unit;
  const char* space = *unit ? " " : "";
  const char* format = v == std::floor(v) || std::fabs(v) >= 1000 ? "%.0f%s%s"
                       : std::fabs(v) >= 100                      ? "%.0f%s%s"
                       : std::fabs(v) >= 10                       ? "%.1f%s%s"
                                                                  : "%.2f%s%s";
  return strf(format, v, space, unit);
}

}  // namespace sluice

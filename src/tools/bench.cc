// sluice bench throughput | latency: the engine measured against the machine's read bandwidth.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/json.h"
#include "base/metrics.h"
#include "base/random.h"
#include "base/str.h"
#include "core/policy.h"
#include "runtime/collect.h"
#include "tools/bench_limits.h"
#include "tools/commands.h"
#include "tools/constrain_run.h"
#include "tools/run_constraints.h"
#include "tools/run_report.h"
#include "tools/terminal.h"
#include "tools/uncached.h"

namespace sluice {

namespace {

struct Lengths {
  int input, output;
};

struct Range {
  int lo, hi;
};

Result<Range> parse_range(const std::string& text, const char* what) {
  int lo = 0, hi = 0;
  char extra = 0;
  int got = std::sscanf(text.c_str(), "%d-%d%c", &lo, &hi, &extra);
  if (got == 1 && text.find('-') == std::string::npos) hi = lo;
  if ((got != 1 && got != 2) || lo < 1 || hi < lo) {
    return Error{400, strf("%s %s: write N or LO-HI", what, quote(text).c_str())};
  }
  return Range{lo, hi};
}

// Lengths of a recorded workload: Azure's CSV (TIMESTAMP,ContextTokens,GeneratedTokens) or JSONL
// with input_length and output_length.
Result<std::vector<Lengths>> read_workload(const std::string& path, size_t limit) {
  std::ifstream in(path);
  if (!in) return Error{404, strf("cannot read %s", quote(path, 400).c_str())};
  std::vector<Lengths> out;
  std::string line;
  for (int number = 1; std::getline(in, line) && out.size() < limit; ++number) {
    if (line.empty() || line[0] == '\r' ||
        (number == 1 && line.find("ContextTokens") != std::string::npos))
      continue;
    Lengths l{};
    if (line[0] == '{') {
      Result<json::value> v = parse_json(line);
      if (v && v->is_object()) {
        const json::value *i = v->as_object().if_contains("input_length"),
                          *o = v->as_object().if_contains("output_length");
        if (i && o && i->is_int64() && o->is_int64())
          l = {static_cast<int>(i->as_int64()), static_cast<int>(o->as_int64())};
      }
    } else if (size_t comma = line.find(','); comma != std::string::npos) {
      std::sscanf(line.c_str() + comma + 1, "%d,%d", &l.input, &l.output);
    }
    if (l.input < 1 || l.output < 1)
      return Error{400, strf("%s line %d: no lengths in it", path.c_str(), number)};
    out.push_back(l);
  }
  if (out.empty()) return Error{400, strf("%s holds no requests", quote(path, 400).c_str())};
  return out;
}

using ConstraintPtr = std::shared_ptr<const constrain::Constraint>;

// Of --json-schema; null without it.
Result<ConstraintPtr> bench_constraint(Session& s, const BenchOptions& o) {
  if (o.json_schema.empty()) {
    if (!o.vocab.empty()) return Error{400, "--vocab goes with --json-schema"};
    return ConstraintPtr();
  }
  if (!o.kv_cache) return Error{400, "--json-schema does not go with --no-kv-cache"};
  Result<constrain::ConstraintSource> source = read_json_schema(o.json_schema);
  if (!source) return source.error();
  if (!o.vocab.empty()) {
    Result<ConstraintModel> model = load_constraint_model(o.vocab);
    if (!model) return model.error();
    if (model->trie->vocab_size() > static_cast<size_t>(s.model().shape().vocab))
      return Error{400, "--vocab: the vocabulary has more tokens than the model"};
    return constrain::Constraint::compile(*source, model->trie);
  }
  if (!s.tokenizer())
    return Error{400, "--json-schema needs a vocabulary: name a model that has one with --vocab"};
  return RunConstraints(s).compile(*source);
}

void constrain_request(const ConstraintPtr& constraint, Request& r) {
  if (!constraint) return;
  r.constraint = constraint;
  r.stop.tokens.assign(constraint->trie().ends().begin(), constraint->trie().ends().end());
}

Request make_request(const Lengths& l, int vocab, uint64_t seed, uint64_t index) {
  auto prompt = std::make_shared<std::vector<Token>>();
  for (int p = 0; p < l.input; ++p) {
    prompt->push_back(static_cast<Token>(draw_u32({seed, static_cast<uint32_t>(index), p, 1}) %
                                         static_cast<uint32_t>(vocab)));
  }
  auto spec = std::make_shared<SamplingSpec>();
  spec->temperature = 0;
  Request r;
  r.prompt = std::move(prompt);
  r.sampling = std::move(spec);
  r.max_new = l.output;
  return r;
}

// Tokens that a padded batch computes for nobody.
struct Padding {
  uint64_t prompt = 0;  // on the left of shorter prompts
  uint64_t output = 0;  // behind the end of shorter outputs
};

struct Measurement {
  double elapsed = 0;
  uint64_t tokens_in = 0, tokens_out = 0, kv_positions_read = 0;
  Percentiles ttft, itl, e2e, host, step, plan_to_begin, waiting;
  std::vector<TokenTimes> times;
  std::vector<StepSample> samples;
  Percentiles decode;  // steps in which every request decodes
  uint64_t num_steps = 0, preemptions = 0, batched_tokens = 0, batched_slices = 0;
  TierStats tiers;
  Padding padding;
  int most_running = 0;                     // sequences at once
  uint64_t digest = 14695981039346656037u;  // FNV-1a of all output tokens
  Percentiles internal, external, waste;    // of KvUse, after each step with somebody running
};

using Outputs = std::vector<ChoiceOutput>;

// Runs all requests at once, to their ends.
Result<Outputs> run_requests(Session& s,
                             std::vector<Request> requests,
                             StatusLine& status,
                             TextWork text = TextWork::none,
                             const Tokenizer* tokenizer = nullptr) {
  size_t num = requests.size();
  const bool may_end = num > 0 && requests[0].constraint;
  Collector collector(s.engine(), text == TextWork::none ? nullptr : tokenizer,
                      detokenise_on(text));
  Time begin = s.clock().now();
  for (Request& r : requests) collector.submit(std::move(r));
  collector.wait({}, [&](size_t done, uint64_t tokens) {
    double t = std::max(seconds(s.clock().now() - begin), 1e-3);
    status.show(strf("%s %zu of %zu requests, %.0f tokens/s",
                     progress_bar(static_cast<double>(done) / static_cast<double>(num)).c_str(),
                     done, num, static_cast<double>(tokens) / t));
  });
  Outputs outputs;
  for (const RequestOutput& out : collector.outputs()) {
    if (out.refused) return *out.refused;
    const ChoiceOutput& c = outputs.emplace_back(out.choices[0]);
    if (c.finish != Finish::length && !(may_end && c.finish == Finish::stop))
      return Error{500, strf("a request ended with %s", finish_name(c.finish))};
  }
  return outputs;
}

Result<Outputs> run_uncached(Session& s, const std::vector<Request>& requests, StatusLine& status) {
  Outputs outputs(requests.size());
  auto ask = [&](std::vector<Request> round,
                 const std::vector<size_t>& whose) -> Result<std::vector<Token>> {
    Result<Outputs> answers = run_requests(s, std::move(round), status);
    if (!answers) return answers.error();
    std::vector<Token> tokens;
    for (size_t k = 0; k < whose.size(); ++k) {
      ChoiceOutput &all = outputs[whose[k]], &one = (*answers)[k];
      if (all.tokens.empty()) all.timing = one.timing;
      all.timing.finish = one.timing.finish;
      all.timing.num_preemptions += one.timing.num_preemptions;
      all.tokens.push_back(one.tokens[0]);
      all.token_times.push_back(one.token_times[0]);
      tokens.push_back(one.tokens[0]);
    }
    return tokens;
  };
  if (auto ok = run_without_cache(requests, ask); !ok) return ok.error();
  return outputs;
}

// Batches of --max-seqs requests in their order, as tensors of one shape hold them: every prompt is
// padded on the left to the longest of its batch, every row runs as long as the longest output, and
// the next batch starts when all rows have ended. Rows without a request are padding too. Padding
// is token 0 and is computed like any token. There is no mask, so a padded prompt's output is not
// that of the prompt alone; what a masked row costs is the same.
Result<Outputs> run_padded(Session& s,
                           const std::vector<Request>& requests,
                           StatusLine& status,
                           Padding& padding) {
  Outputs outputs;
  Time begin = s.clock().now();
  auto batch = static_cast<size_t>(s.options().scheduler.max_seqs);
  for (size_t first = 0; first < requests.size(); first += batch) {
    size_t num = std::min(batch, requests.size() - first), prompt = 0;
    int output = 0;
    for (size_t i = first; i < first + num; ++i) {
      prompt = std::max(prompt, requests[i].prompt->size());
      output = std::max(output, requests[i].max_new);
    }
    std::vector<Request> rows;
    for (size_t i = first; i < first + batch; ++i) {
      Request& r = rows.emplace_back(requests[std::min(i, requests.size() - 1)]);
      std::vector<Token> padded(prompt, Token{0});
      if (i < first + num) {
        std::ranges::copy_backward(*r.prompt, padded.end());
        padding.prompt += prompt - r.prompt->size();
        padding.output += static_cast<uint64_t>(output - r.max_new);
      } else {
        padding.prompt += prompt;
        padding.output += static_cast<uint64_t>(output - 1);
      }
      r.prompt = std::make_shared<const std::vector<Token>>(std::move(padded));
      r.max_new = output;
    }
    Result<Outputs> done = run_requests(s, std::move(rows), status);
    if (!done) return done.error();
    Time finish{0};  // all answers go out together
    for (const ChoiceOutput& c : *done) finish = std::max(finish, c.timing.finish);
    done->resize(num);
    for (ChoiceOutput& c : *done) {
      auto wanted = static_cast<size_t>(requests[outputs.size()].max_new);
      c.tokens.resize(wanted);
      c.token_times.resize(wanted);
      c.timing.arrival = begin;
      c.timing.finish = finish;
      outputs.push_back(std::move(c));
    }
  }
  return outputs;
}

// Runs the requests and reduces what came back.
Result<Measurement> measure(Session& s,
                            const std::vector<Lengths>& lengths,
                            const BenchOptions& o,
                            const ConstraintPtr& constraint,
                            uint64_t seed,
                            StatusLine& status) {
  Measurement m;
  std::vector<Request> requests;
  for (size_t i = 0; i < lengths.size(); ++i) {
    requests.push_back(make_request(lengths[i], s.model().shape().vocab, seed, i));
    constrain_request(constraint, requests.back());
  }
  std::unique_ptr<Tokenizer> words;
  if (o.text != TextWork::none && !s.tokenizer()) words = numbered_words(s.model().shape().vocab);
  const Tokenizer* tokenizer = words ? words.get() : s.tokenizer();
  s.take_reports();
  Time begin = s.clock().now();
  Result<Outputs> outputs = o.padded ? run_padded(s, requests, status, m.padding)
                            : o.kv_cache
                                ? run_requests(s, std::move(requests), status, o.text, tokenizer)
                                : run_uncached(s, requests, status);
  if (!outputs) return outputs.error();
  const Time drained = s.clock().now();
  Time end{0};
  for (size_t i = 0; i < lengths.size(); ++i) {
    const ChoiceOutput& c = (*outputs)[i];
    end = std::max(end, c.timing.finish);
    m.tokens_in += static_cast<uint64_t>(lengths[i].input);
    m.tokens_out += c.tokens.size();
    for (Token t : c.tokens) m.digest = (m.digest ^ static_cast<uint32_t>(t)) * 1099511628211u;
    m.preemptions += static_cast<uint64_t>(c.timing.num_preemptions);
    if (!o.engine.record_metrics) continue;
    m.waiting.add(seconds(c.timing.first_scheduled - c.timing.arrival));
    TokenTimes& times = m.times.emplace_back();
    times.arrival = seconds(c.timing.arrival);
    times.prompt = lengths[i].input;
    for (Time t : c.token_times) times.tokens.push_back(seconds(t));
    m.ttft.add(seconds(c.timing.first_token - c.timing.arrival));
    m.e2e.add(seconds(c.timing.finish - c.timing.arrival));
    for (size_t k = 1; k < c.token_times.size(); ++k) {
      m.itl.add(seconds(c.token_times[k] - c.token_times[k - 1]));
      if (o.kv_cache) m.kv_positions_read += static_cast<uint64_t>(lengths[i].input) + k;
    }
  }
  m.elapsed = seconds((o.engine.record_metrics ? end : drained) - begin);
  uint64_t all_decode = UINT64_MAX;  // the last launched step that was nothing else
  uint64_t before = UINT64_MAX;      // and the one before: at most two are in flight
  std::vector<uint64_t> only_close;  // steps that compute nothing: they close rows, move blocks
  const std::vector<StepReport> reports = s.take_reports();
  m.samples = step_samples(reports);
  for (const StepReport& r : reports) {
    if (r.launched) {
      auto all = static_cast<int>(lengths.size());
      before = std::exchange(
          all_decode, r.num_decode == all && r.num_tokens == all ? r.launched_step : UINT64_MAX);
      m.batched_tokens += static_cast<uint64_t>(r.num_tokens);
      m.batched_slices += static_cast<uint64_t>(r.num_slices);
    }
    m.tiers = r.stats.tiers;
    m.most_running = std::max(m.most_running, r.stats.num_running);
    if (r.stats.num_running > 0) {
      m.internal.add(r.kv.internal_fragmentation());
      m.external.add(r.kv.external_fragmentation());
      m.waste.add(r.kv.waste());
    }
    if (r.launched && r.num_slices == 0) only_close.push_back(r.launched_step);
    if (!r.completed || std::ranges::find(only_close, r.completed_step) != only_close.end())
      continue;
    ++m.num_steps;
    m.step.add(seconds(r.end - r.begin));
    if (r.completed_step == all_decode || r.completed_step == before)
      m.decode.add(seconds(r.end - r.begin));
    m.plan_to_begin.add(seconds(r.begin - r.scheduled));
    m.host.add(seconds(r.host_time()));
  }
  return m;
}

struct Row {
  const char* name;
  std::string value;
};

void print_table(const std::vector<Row>& rows) {
  for (const Row& r : rows) std::printf("%-28s %s\n", r.name, r.value.c_str());
}

std::string ms(double s) { return strf("%.2f ms", s * 1e3); }

std::string p50_p99(Percentiles& p) {
  return p.count() == 0 ? "-"
                        : strf("p50 %s  p99 %s", ms(p.at(0.5)).c_str(), ms(p.at(0.99)).c_str());
}

json::object percentiles_json(Percentiles& p) {
  if (p.count() == 0) return {};
  return {{"mean", p.mean()},
          {"p50", p.at(0.5)},
          {"p90", p.at(0.9)},
          {"p99", p.at(0.99)},
          {"max", p.at(1)}};
}

// Bytes that the run had to read at least: the weights once per step, and each decode's K and V.
double bytes_needed(const Session& s, const Measurement& m) {
  return static_cast<double>(m.num_steps) * static_cast<double>(s.step_bytes()) +
         static_cast<double>(m.kv_positions_read) * static_cast<double>(s.ledger().kv_per_token);
}

// Operations per second until the first token of a run of one request.
double prefill_rate(const Session& s, const Measurement& m) {
  return prefill_ops(s.model().shape(), static_cast<int>(m.tokens_in)) / m.ttft.mean();
}

LimitShares shares_of(const Session& s, const Measurement& m, const BenchLimits& limits) {
  return limit_shares(m.samples, s.model().shape(), s.step_bytes(), s.ledger().kv_per_token,
                      m.elapsed, limits);
}

// Which share of each type's peak a rate is: "12.5 % of int8 (amx tdpbssd, 3,200 Gop/s), ...".
std::string of_peaks(double rate, const BenchLimits& limits) {
  std::string text;
  for (PeakType type : {PeakType::int8, PeakType::bf16, PeakType::f32}) {
    const BenchLimits::Peak* p = limits.best(type);
    if (!p || (type == PeakType::f32 && limits.best(PeakType::bf16))) continue;
    text += strf("%s%.1f %% of %s (%s, %.0f)", text.empty() ? "" : ", ", rate / p->ops_per_s * 100,
                 peak_type_name(type), p->name.c_str(), p->ops_per_s / 1e9);
  }
  return text;
}

// Share of the computed tokens.
double padding_share(const Measurement& m) {
  if (m.batched_tokens == 0) return 0;
  return static_cast<double>(m.padding.prompt + m.padding.output) /
         static_cast<double>(m.batched_tokens);
}

json::object result_json(const Session& s,
                         const BenchOptions& o,
                         Measurement& m,
                         size_t num,
                         const BenchLimits& limits,
                         double spread) {
  json::object j;
  j["model"] = o.engine.model;
  j["backend"] = s.backend().describe();
  if (o.engine.model.starts_with("random:")) j["format"] = random_format(o.engine);
  j["elapsed_s"] = m.elapsed;
  j["spread"] = spread;
  j["input_tokens"] = m.tokens_in;
  j["output_tokens"] = m.tokens_out;
  j["output_tokens_per_s"] = static_cast<double>(m.tokens_out) / m.elapsed;
  j["total_tokens_per_s"] = static_cast<double>(m.tokens_in + m.tokens_out) / m.elapsed;
  j["requests_per_s"] = static_cast<double>(num) / m.elapsed;
  j["output_digest"] = strf("%016llx", static_cast<unsigned long long>(m.digest));
  j["kv_cache"] = o.kv_cache;
  j["padded"] = o.padded;
  j["padding"] = json::object{{"prompt_tokens", m.padding.prompt},
                              {"output_tokens", m.padding.output},
                              {"share", padding_share(m)}};
  j["record_metrics"] = o.engine.record_metrics;
  if (!o.engine.record_metrics) return j;
  j["ttft_s"] = percentiles_json(m.ttft);
  j["itl_s"] = percentiles_json(m.itl);
  j["e2e_s"] = percentiles_json(m.e2e);
  j["waiting_s"] = percentiles_json(m.waiting);
  j["sla"] = sla_json(sla_summary(m.times));
  j["wde"] = wde_line(s.options().scheduler.budget, num, m.elapsed, step_means(m.samples));
  j["computed_tokens"] = m.batched_tokens;
  j["steps"] = m.num_steps;
  j["step_s"] = percentiles_json(m.step);
  j["decode_step_s"] = percentiles_json(m.decode);
  j["host_s"] = percentiles_json(m.host);
  j["scheduling2inference_s"] = percentiles_json(m.plan_to_begin);
  j["preemptions"] = m.preemptions;
  j["tiers"] = json::object{{"preempt", name_of(kPreempts, s.options().scheduler.preempt)},
                            {"swapped", m.tiers.num_swapped},
                            {"blocks_out", m.tiers.blocks_out},
                            {"blocks_in", m.tiers.blocks_in},
                            {"bytes_out", m.tiers.bytes_out()},
                            {"bytes_in", m.tiers.bytes_in()},
                            {"prefix_hits", m.tiers.prefix_hits},
                            {"disk_writes", m.tiers.disk_writes},
                            {"disk_reads", m.tiers.disk_reads},
                            {"disk_lost", m.tiers.disk_lost},
                            {"disk_hits", m.tiers.disk_hits}};
  j["pipeline"] = name_of(kPipelines, s.options().scheduler.pipeline);
  j["kv"] = json::object{{"allocator", name_of(kAllocators, s.options().scheduler.allocator)},
                         {"blocks", s.options().scheduler.num_blocks},
                         {"most_sequences", m.most_running},
                         {"internal_fragmentation", percentiles_json(m.internal)},
                         {"external_fragmentation", percentiles_json(m.external)},
                         {"waste", percentiles_json(m.waste)}};
  j["step_bytes"] = s.step_bytes();
  if (limits.read > 0) {
    j["read_bandwidth_bytes_per_s"] = limits.read;
    j["bandwidth_fraction"] = bytes_needed(s, m) / m.elapsed / limits.read;
    json::object peaks;
    for (const BenchLimits::Peak& p : limits.peaks) peaks[p.name] = p.ops_per_s;
    j["peak_ops_per_s"] = peaks;
    if (m.ttft.count() == 1) j["prefill_ops_per_s"] = prefill_rate(s, m);
    const LimitShares shares = shares_of(s, m, limits);
    for (const auto& pair : limit_shares_json(shares)) j[pair.key()] = pair.value();
  }
  j["load_s"] = s.load_seconds();
  return j;
}

Result<std::vector<Lengths>> make_lengths(const BenchOptions& o, int num) {
  if (!o.workload.empty()) return read_workload(o.workload, static_cast<size_t>(num));
  Result<Range> in = parse_range(o.input, "--input"), out = parse_range(o.output, "--output");
  if (!in) return in.error();
  if (!out) return out.error();
  std::vector<Lengths> lengths;
  for (int i = 0; i < num; ++i) {
    auto pick = [&](Range r, uint32_t draw) {
      return r.lo + static_cast<int>(draw_u32({o.seed, 2, i, draw}) %
                                     static_cast<uint32_t>(r.hi - r.lo + 1));
    };
    lengths.push_back({pick(*in, 2), pick(*out, 3)});
  }
  return lengths;
}

// Whether the KV cache holds every padded batch.
Result<void> check_padded(const std::vector<Lengths>& lengths, const SchedulerConfig& c) {
  auto batch = static_cast<size_t>(c.max_seqs);
  for (size_t first = 0; first < lengths.size(); first += batch) {
    int input = 0, output = 0;
    for (size_t k = first; k < std::min(first + batch, lengths.size()); ++k) {
      input = std::max(input, lengths[k].input);
      output = std::max(output, lengths[k].output);
    }
    int64_t blocks = c.max_seqs * Scheduler::most_blocks(input + output, c);
    if (input + output > c.max_len || blocks > c.num_blocks)
      return Error{400, strf("--padded: %d rows of %d + %d tokens do not fit the context of %d and "
                             "the %d KV blocks: lower --max-seqs, or give the KV cache more memory",
                             c.max_seqs, input, output, c.max_len, c.num_blocks)};
  }
  return {};
}

struct Best {
  Measurement run;
  double spread = 0;  // (slowest - fastest) / fastest
};

Result<Best> best_of(Session& s, const BenchOptions& o, const std::vector<Lengths>& lengths) {
  Result<ConstraintPtr> constraint = bench_constraint(s, o);
  if (!constraint) return constraint.error();
  StatusLine status(!o.engine.quiet);
  Best best;
  double slowest = 0;
  auto run = [&](const std::vector<Lengths>& all, uint64_t seed) {
    return measure(s, all, o, *constraint, seed, status);
  };
  // One short request first, so that no run pays for cold code and untouched memory.
  if (auto warm = run({{std::min(lengths[0].input, 16), 2}}, o.seed + 1); !warm)
    return warm.error();
  for (int i = 0; i < o.repeat; ++i) {
    Result<Measurement> m = run(lengths, o.seed + 2 + static_cast<uint64_t>(i));
    if (!m) return m.error();
    slowest = std::max(slowest, m->elapsed);
    if (i == 0 || m->elapsed < best.run.elapsed) best.run = std::move(*m);
  }
  best.spread = (slowest - best.run.elapsed) / best.run.elapsed;
  return best;
}

// Rows of the table that only `bench latency` has.
void add_latency_rows(Measurement& m, size_t num, std::vector<Row>& rows) {
  double prefill = static_cast<double>(m.tokens_in) / m.ttft.mean() / static_cast<double>(num);
  rows.push_back({"time to first token",
                  strf("%s (%.0f prompt tokens/s)", ms(m.ttft.at(0.5)).c_str(), prefill)});
  if (m.itl.count() > 0)
    rows.push_back({"time per output token",
                    strf("%s (%.1f tokens/s)", p50_p99(m.itl).c_str(), 1 / m.itl.mean())});
}

// Rows of the table that only `bench throughput` has.
void add_throughput_rows(Measurement& m, std::vector<Row>& rows) {
  rows.push_back({"throughput", strf("%.1f output tokens/s, %.1f tokens/s in all, %.2f requests/s",
                                     static_cast<double>(m.tokens_out) / m.elapsed,
                                     static_cast<double>(m.tokens_in + m.tokens_out) / m.elapsed,
                                     static_cast<double>(m.e2e.count()) / m.elapsed)});
  rows.push_back({"time to first token", p50_p99(m.ttft)});
  rows.push_back({"inter-token latency", p50_p99(m.itl)});
  rows.push_back({"request latency", p50_p99(m.e2e)});
  rows.push_back({"waiting time", p50_p99(m.waiting)});
  const SlaSummary sla = sla_summary(m.times);
  rows.push_back(
      {"normalised latency", strf("%s per output token (mean)", ms(sla.normalised_mean).c_str())});
  rows.push_back({"worst tenth of gaps", strf("%s (mean)", ms(sla.tbt_worst_decile).c_str())});
  rows.push_back({"FastGen's objective",
                  strf("met by %.0f / %.0f / %.0f %% at 2 / 4 / 6 tokens/s", sla.fastgen[0] * 100,
                       sla.fastgen[1] * 100, sla.fastgen[2] * 100)});
}

void add_step_rows(Measurement& m, size_t num, KvAllocator allocator, std::vector<Row>& rows) {
  rows.push_back(
      {"steps", strf("%llu, %.1f tokens and %.1f requests each, %s",
                     static_cast<unsigned long long>(m.num_steps),
                     static_cast<double>(m.batched_tokens) / static_cast<double>(m.num_steps),
                     static_cast<double>(m.batched_slices) / static_cast<double>(m.num_steps),
                     p50_p99(m.step).c_str())});
  if (m.decode.count() > 0)
    rows.push_back({"steps of decodes alone",
                    strf("%zu of %zu requests each, %s (%.1f tokens/s)", m.decode.count(), num,
                         p50_p99(m.decode).c_str(), static_cast<double>(num) / m.decode.at(0.5))});
  rows.push_back({"host time per step",
                  strf("p50 %.1f us  p99 %.1f us", m.host.at(0.5) * 1e6, m.host.at(0.99) * 1e6)});
  rows.push_back({"scheduling to inference", p50_p99(m.plan_to_begin)});
  if (m.waste.count() > 0)
    rows.push_back(
        {"KV cache", strf("%s, at most %d sequences, %.1f %% wasted (mean)",
                          name_of(kAllocators, allocator), m.most_running, m.waste.mean() * 100)});
  if (m.padding.prompt + m.padding.output > 0)
    rows.push_back({"padding", strf("%llu tokens before prompts, %llu behind outputs: %.1f %% of "
                                    "those computed",
                                    static_cast<unsigned long long>(m.padding.prompt),
                                    static_cast<unsigned long long>(m.padding.output),
                                    padding_share(m) * 100)});
  if (m.preemptions > 0)
    rows.push_back({"preemptions", strf("%llu", static_cast<unsigned long long>(m.preemptions))});
  if (m.tiers.blocks_out + m.tiers.blocks_in > 0)
    rows.push_back(
        {"blocks moved",
         strf("%llu out, %llu in (%s)", static_cast<unsigned long long>(m.tiers.blocks_out),
              static_cast<unsigned long long>(m.tiers.blocks_in),
              human_bytes(m.tiers.bytes_out() + m.tiers.bytes_in()).c_str())});
}

// The run beside the CPU's limits; nothing where there are none (on a GPU).
void add_limit_rows(const Session& s,
                    const BenchOptions& o,
                    Measurement& m,
                    const BenchLimits& limits,
                    bool latency,
                    std::vector<Row>& rows) {
  const double bandwidth = limits.read;
  if (bandwidth > 0 && latency && m.itl.count() > 0) {
    double per_token =
        static_cast<double>(s.step_bytes()) + static_cast<double>(m.kv_positions_read) /
                                                  static_cast<double>(m.itl.count()) *
                                                  static_cast<double>(s.ledger().kv_per_token);
    rows.push_back(
        {"decode, of read bandwidth",
         strf("%.1f %% (%.2f GB/s of %.2f GB/s)", per_token / m.itl.mean() / bandwidth * 100,
              per_token / m.itl.mean() / 1e9, bandwidth / 1e9)});
  } else if (bandwidth > 0) {
    rows.push_back({"of read bandwidth",
                    strf("%.1f %% (of %.2f GB/s)", bytes_needed(s, m) / m.elapsed / bandwidth * 100,
                         bandwidth / 1e9)});
  }
  if (!limits.peaks.empty() && latency && m.ttft.count() == 1) {
    rows.push_back({"prefill, Gop/s", strf("%.0f: %s", prefill_rate(s, m) / 1e9,
                                           of_peaks(prefill_rate(s, m), limits).c_str())});
  }
  if (bandwidth > 0) {
    const LimitShares shares = shares_of(s, m, limits);
    rows.push_back({"MFU, of the speed of light", limit_shares_text(shares)});
  }
  if (bandwidth > 0)
    rows.push_back({"limits", o.limits == LimitsFrom::cache ? "kept by bench machine"
                                                            : "measured in this run"});
}

std::vector<Row> result_rows(
    const Session& s, const BenchOptions& o, Best& best, size_t num, bool latency) {
  Measurement& m = best.run;
  const bool random = o.engine.model.starts_with("random:");
  std::vector<Row> rows = {
      {"model", o.engine.model + (random ? " " + random_format(o.engine) : "")},
      {"backend", s.backend().describe()},
      {"requests",
       strf("%zu, %llu tokens in, %llu out", num, static_cast<unsigned long long>(m.tokens_in),
            static_cast<unsigned long long>(m.tokens_out))},
      {"time",
       strf("%.3f s (best of %d, spread %.1f %%)", m.elapsed, o.repeat, best.spread * 100)}};
  if (!o.engine.record_metrics) {
    rows.push_back({"throughput", strf("%.1f output tokens/s (steps and tokens were not timed)",
                                       static_cast<double>(m.tokens_out) / m.elapsed)});
    return rows;
  }
  if (latency) {
    add_latency_rows(m, num, rows);
  } else {
    add_throughput_rows(m, rows);
  }
  add_step_rows(m, num, s.options().scheduler.allocator, rows);
  rows.push_back({"wde's line",
                  wde_line(s.options().scheduler.budget, num, m.elapsed, step_means(m.samples))});
  return rows;
}

// Nothing on a GPU: `bench gpu` measures its limits.
BenchLimits limits_for(Session& s, const BenchOptions& o) {
  if (s.device_executor()) return {};
  return run_limits(o.engine.threads.value_or(0), o.limits == LimitsFrom::cache, o.engine.quiet);
}

int bench(const BenchOptions& o, int num, bool latency) {
  Result<std::vector<Lengths>> lengths = make_lengths(o, num);
  if (!lengths) return report(lengths.error());
  EngineOptions engine = o.engine;
  if (o.padded && engine.scheduler.batching != Batching::static_)
    return report(Error{400, "--padded pads a static batch: add --preset static"});
  if (o.text != TextWork::none && (o.padded || !o.kv_cache))
    return report(
        Error{400, strf("--text %s does not go with %s: leave one of them out",
                        name_of(kTextWorks, o.text), o.padded ? "--padded" : "--no-kv-cache")});
  if (o.padded && !o.kv_cache)
    return report(Error{400, "--padded does not go with --no-kv-cache: leave one of them out"});
  // Padding is the same in front of every prompt: it would be computed once.
  if (!o.kv_cache || o.padded) engine.scheduler.prefix_cache = false;
  if (o.padded) {  // a batch starts when all its rows are there
    engine.scheduler.max_seqs =
        std::min(engine.scheduler.max_seqs, static_cast<int>(lengths->size()));
    engine.scheduler.fill_wait = std::chrono::seconds(10);
  }
  Result<std::unique_ptr<Session>> session = open_session(engine);
  if (!session) return report(session.error());
  Session& s = **session;
  for (size_t i = 0; i < lengths->size(); ++i) {
    Request r = make_request((*lengths)[i], s.model().shape().vocab, o.seed, i);
    if (auto ok = Scheduler::check(r, s.options().scheduler); !ok) return report(ok.error());
  }
  if (o.padded) {
    if (auto ok = check_padded(*lengths, s.options().scheduler); !ok) return report(ok.error());
  }
  show_ledger(s);
  if (o.engine.record_metrics) s.keep_reports();
  Result<Best> best = best_of(s, o, *lengths);
  if (!best) return report(best.error());
  const BenchLimits limits = o.engine.record_metrics ? limits_for(s, o) : BenchLimits();
  if (o.json) {
    json::object result = result_json(s, o, best->run, lengths->size(), limits, best->spread);
    std::printf("%s\n", plain_json(result).c_str());
  } else {
    std::vector<Row> rows = result_rows(s, o, *best, lengths->size(), latency);
    add_limit_rows(s, o, best->run, limits, latency, rows);
    print_table(rows);
  }
  if (auto ok = s.write_trace(); !ok) return report(ok.error());
  return kExitOk;
}

}  // namespace

int cmd_bench_throughput(const BenchOptions& o) { return bench(o, o.num_requests, false); }

int cmd_bench_latency(const BenchOptions& o) { return bench(o, 1, true); }

}  // namespace sluice

// sluice bench serve: a load generator for any server that speaks the OpenAI API.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>

#include "base/json.h"
#include "base/random.h"
#include "base/str.h"
#include "tools/bench_serve/prompts.h"
#include "tools/bench_serve/result.h"
#include "tools/bench_serve/run.h"
#include "tools/commands.h"
#include "tools/interrupt.h"
#include "tools/bench_serve/report_html.h"
#include "tools/request_headers.h"
#include "tools/run_constraints.h"
#include "tools/terminal.h"

namespace sluice {

namespace {

// Options that have been understood.
struct Plan {
  HttpUrl url;
  HttpHeaders headers;
  LengthRange input, output;
  Slo slo;
  std::vector<RunPoint> points;
  std::vector<TraceEntry> trace;
  std::vector<PromptText> prompts;  // of a file; empty: made up
  json::object extra;
  bool chat = true, ignore_eos = true;
};

Result<void> read_points(const BenchServeOptions& o, Plan& plan) {
  int kinds = !o.concurrency.empty() + !o.rate.empty() + !o.trace.empty();
  if (kinds > 1)
    return Error{400, "--concurrency, --rate and --trace exclude each other: choose one"};
  std::string concurrency = kinds == 0 ? "1" : o.concurrency;
  Result<std::vector<double>> counts = parse_list(concurrency, "--concurrency", true);
  if (!counts) return counts.error();
  Result<std::vector<double>> rates = parse_list(o.rate, "--rate", false);
  if (!rates) return rates.error();
  for (double n : *counts) plan.points.push_back({static_cast<int>(n), 0, false});
  for (double r : *rates) plan.points.push_back({0, r, o.arrivals == Arrivals::poisson});
  if (!o.trace.empty()) {
    Result<std::vector<TraceEntry>> trace = read_trace(o.trace, o.requests);
    if (!trace) return trace.error();
    plan.trace = std::move(*trace);
    plan.points.push_back({0, 0, false});
    for (TraceEntry& e : plan.trace) {
      auto scaled = [&](int n) {
        return std::max(static_cast<int>(std::lround(n * o.length_scale)), 1);
      };
      e.input = scaled(e.input);
      e.output = scaled(e.output);
    }
  }
  return {};
}

Result<Plan> make_plan(const BenchServeOptions& o) {
  Plan plan;
  Result<HttpUrl> url = parse_http_url(o.url);
  if (!url) return url.error();
  plan.url = *url;
  if (!plan.url.tls && (o.insecure || !o.ca_file.empty()))
    return Error{400, "--insecure and --ca are of https:// URLs"};
  if (plan.url.path.ends_with("/v1")) plan.url.path.resize(plan.url.path.size() - 3);
  plan.chat = o.endpoint == Endpoint::chat;
  Result<HttpHeaders> headers = request_headers(o.headers, o.api_key_env);
  if (!headers) return headers.error();
  plan.headers = std::move(*headers);
  if (auto ok = read_points(o, plan); !ok) return ok.error();
  Result<LengthRange> input = parse_length_range(o.input, "--input"),
                      output = parse_length_range(o.output, "--output");
  if (!input) return input.error();
  if (!output) return output.error();
  plan.input = *input;
  plan.output = *output;
  Result<Slo> slo = parse_slo(o.slo);
  if (!slo) return slo.error();
  plan.slo = *slo;
  plan.ignore_eos = !o.no_ignore_eos && o.prompts.empty();
  if (o.token_ids && plan.chat) return Error{400, "--token-ids needs --endpoint completions"};
  if (!o.prompts.empty()) {
    if (!o.trace.empty() || o.token_ids || o.prefix > 0)
      return Error{400, "--prompts goes with neither --trace, --token-ids nor --prefix"};
    Result<std::vector<PromptText>> prompts = read_prompts(o.prompts, plan.chat);
    if (!prompts) return prompts.error();
    plan.prompts = std::move(*prompts);
  }
  if (o.check_text && o.temperature != 0)
    return Error{400, "--check-text needs greedy requests: --temperature 0"};
  if (!o.extra.empty()) {
    Result<json::value> extra = parse_json(o.extra);
    if (!extra || !extra->is_object())
      return Error{400, strf("--extra %s: write a JSON object", quote(o.extra).c_str())};
    plan.extra = extra->as_object();
  }
  if (!o.json_schema.empty()) {
    if (plan.extra.contains("response_format"))
      return Error{400, "--json-schema and the response_format of --extra: give one of them"};
    Result<constrain::ConstraintSource> schema = read_json_schema(o.json_schema);
    if (!schema) return schema.error();
    json::object format{{"name", "answer"}, {"schema", *parse_json(schema->text)}};
    plan.extra["response_format"] = {{"type", "json_schema"}, {"json_schema", std::move(format)}};
    plan.ignore_eos = false;  // an answer ends where its form is complete
  }
  return plan;
}

// The bodies of all requests, as functions of their number.
class Bodies {
 public:
  Bodies(const BenchServeOptions& o, const Plan& plan, const Vocabulary* words, std::string model)
      : o_(o), plan_(plan), words_(words) {
    json::object fields = plan.extra;
    if (!fields.contains("temperature")) fields["temperature"] = o.temperature;
    if (!fields.contains("stream")) fields["stream"] = !o.no_stream;
    if (!o.no_stream && !fields.contains("stream_options"))
      fields["stream_options"] = json::object{{"include_usage", true}};
    if (plan.ignore_eos && !fields.contains("ignore_eos")) fields["ignore_eos"] = true;
    if (o.send_seed && !fields.contains("seed")) fields["seed"] = o.seed;
    std::string rest = json::serialize(fields);
    head_ = "{\"model\":" + json::serialize(json::string(model)) + ",";
    rest_ = "," + rest.substr(1);
  }

  // `salt` differs from run to run, so that one run's prompts are not the next one's cache hits.
  std::string make(uint64_t index, uint64_t salt, LoadRecord& r) const {
    uint64_t number = o_.distinct ? index % static_cast<uint64_t>(*o_.distinct) : index;
    r.prompt = number;
    PromptText p;
    if (!plan_.prompts.empty()) {
      p = plan_.prompts[number % plan_.prompts.size()];
      r.prompt = number % plan_.prompts.size();
    } else {
      p = made_up(number, salt, r);
    }
    if (p.max_tokens > 0) r.max_tokens = p.max_tokens;
    if (r.max_tokens == 0) r.max_tokens = plan_.output.pick(salt, number, 2);
    r.input_asked = p.asked_tokens;
    std::string body = head_;
    body.reserve(head_.size() + p.field.size() + rest_.size() + 32);
    body += p.field;
    body += ",\"max_tokens\":" + std::to_string(r.max_tokens);
    body += rest_;
    return body;
  }

 private:
  PromptText made_up(uint64_t number, uint64_t salt, LoadRecord& r) const {
    PromptShape shape;
    uint64_t key = draw_bits({salt, 1, static_cast<int64_t>(number), 0});
    if (!plan_.trace.empty()) {
      const TraceEntry& e = plan_.trace[number % plan_.trace.size()];
      shape.tokens = e.input;
      shape.blocks = e.blocks;
      shape.block_tokens =
          std::max(static_cast<int>(std::lround(kTraceBlockTokens * o_.length_scale)), 1);
      r.max_tokens = e.output;
    } else {
      shape.tokens = plan_.input.pick(salt, number, 1);
    }
    shape.prefix = o_.prefix;
    auto groups = static_cast<uint64_t>(std::max(o_.prefix_groups, 1));
    shape.group = draw_bits({salt, 2, static_cast<int64_t>(number % groups), 0});
    return make_prompt(*words_, shape, key, plan_.chat, o_.token_ids);
  }

  const BenchServeOptions& o_;
  const Plan& plan_;
  const Vocabulary* words_;
  std::string head_, rest_;
};

Result<std::string> find_model(const Target& target) {
  HttpReply r = target.get("/v1/models");
  if (r.failure != HttpFailure::none)
    return Error{500, strf("no answer from %s port %d: %s (%s)", quote(target.url.host).c_str(),
                           target.url.port, r.detail.c_str(), http_failure_name(r.failure))};
  Result<json::value> v = parse_json(r.body);
  const json::object* o = v ? v->if_object() : nullptr;
  const json::value* data = o ? o->if_contains("data") : nullptr;
  if (r.status == 200 && data && data->is_array() && !data->as_array().empty()) {
    const json::object* first = data->as_array()[0].if_object();
    const json::value* id = first ? first->if_contains("id") : nullptr;
    if (id && id->is_string()) return std::string(id->as_string());
  }
  return Error{500,
               strf("/v1/models answered %d without a model: name one with --model", r.status)};
}

struct ServeBench {
  const BenchServeOptions& o;
  const Plan& plan;
  Target& target;
  const Bodies& bodies;
  CatchInterrupt& interrupt;
  StatusLine status;

  std::string path() const { return plan.chat ? "/v1/chat/completions" : "/v1/completions"; }
  uint64_t salt(size_t run) const { return draw_bits({o.seed, 17, static_cast<int64_t>(run), 0}); }
  RunSetup setup(const RunPoint& point, uint64_t s);
  void warm_up();
  RunResult measure(size_t run);
  void check_text(RunResult& result, uint64_t s);
};

RunSetup ServeBench::setup(const RunPoint& point, uint64_t s) {
  RunSetup r;
  r.point = point;
  r.make_body = [this, s](uint64_t index, LoadRecord& record) {
    return bodies.make(index, s, record);
  };
  r.path = path();
  r.stream = !o.no_stream;
  r.keep_text = o.check_text;
  r.want_all_tokens = plan.ignore_eos;
  r.seed = s;
  r.interrupted = [this] { return interrupt.seen(); };
  return r;
}

void ServeBench::warm_up() {
  if (o.warmup == 0) return;
  status.show("warming up", true);
  RunSetup r = setup({std::min(o.warmup, 8), 0, false}, salt(1'000'000));
  r.limits.requests = static_cast<uint64_t>(o.warmup);
  run_load(target, r);
}

RunResult ServeBench::measure(size_t run) {
  const RunPoint& point = plan.points[run];
  RunSetup r = setup(point, salt(run));
  bool closed = point.concurrency > 0;
  if (o.requests) r.limits.requests = static_cast<uint64_t>(*o.requests);
  r.limits.duration = o.duration;
  if (!o.requests && !o.duration && plan.trace.empty())
    r.limits.requests = closed ? static_cast<uint64_t>(point.concurrency) * kRequestsPerConnection
                               : kOpenLoopRequests;
  if (!plan.trace.empty()) r.trace = &plan.trace;
  r.time_scale = o.time_scale;
  const int connections =
      o.max_connections.value_or(closed ? point.concurrency : kOpenLoopConnections);
  target.client.set_max_connections(static_cast<size_t>(connections));
  const uint64_t total = r.limits.requests.value_or(r.trace ? r.trace->size() : 0);
  r.progress = [&](const RunProgress& p) {
    double t = std::max(p.elapsed, 1e-3);
    double share = total > 0 ? static_cast<double>(p.done) / static_cast<double>(total) : 0;
    if (o.duration) share = std::max(share, std::min(p.elapsed / *o.duration, 1.0));
    status.show(strf(
        "%s %s: %llu sent, %llu done, %zu in flight, %.0f tokens/s%s", progress_bar(share).c_str(),
        point.label().c_str(), static_cast<unsigned long long>(p.sent),
        static_cast<unsigned long long>(p.done), p.in_flight, static_cast<double>(p.tokens) / t,
        p.failed > 0 ? strf(", %llu failed", static_cast<unsigned long long>(p.failed)).c_str()
                     : ""));
  };
  RunResult result = run_load(target, r);
  if (o.check_text && !result.interrupted) check_text(result, r.seed);
  return result;
}

// Every prompt once more, alone; a text that differs is a failure.
void ServeBench::check_text(RunResult& result, uint64_t s) {
  std::map<uint64_t, uint64_t> wanted;  // prompt -> a request that has it
  for (const LoadRecord& r : result.records) {
    if (r.ok()) wanted.emplace(r.prompt, r.index);
  }
  std::map<uint64_t, std::string> alone;
  for (const auto& [prompt, index] : wanted) {
    if (interrupt.seen()) break;
    status.show(strf("checking texts: %zu of %zu alone", alone.size(), wanted.size()));
    RunSetup one = setup({1, 0, false}, s);
    one.limits.requests = 1;
    one.make_body = [&, at = index](uint64_t, LoadRecord& record) {
      return bodies.make(at, s, record);
    };
    RunResult r = run_load(target, one);
    if (r.records[0].ok()) alone[prompt] = std::move(r.records[0].text);
  }
  for (LoadRecord& r : result.records) {
    if (!r.ok()) continue;
    auto it = alone.find(r.prompt);
    if (it == alone.end()) {
      r.fate = Fate::text_differs;
      r.message = "not compared: the request failed when sent alone";
    } else if (it->second != r.text) {
      r.fate = Fate::text_differs;
      size_t at = static_cast<size_t>(
          std::mismatch(r.text.begin(), r.text.end(), it->second.begin(), it->second.end()).first -
          r.text.begin());
      r.message = strf("from byte %zu on: %s, alone %s", at, quote(r.text.substr(at), 40).c_str(),
                       quote(it->second.substr(std::min(at, it->second.size())), 40).c_str());
    }
  }
}

Result<void> write_file(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out) return Error{500, strf("cannot write %s", quote(path, 400).c_str())};
  return {};
}

Result<void> write_results(const BenchServeOptions& o,
                           const Target& target,
                           const std::string& prompts,
                           std::vector<RunResult>& runs,
                           std::vector<Summary>& summaries) {
  json::object j{{"url", o.url},
                 {"model", target.model},
                 {"endpoint", name_of(kEndpoints, o.endpoint)},
                 {"stream", !o.no_stream},
                 {"seed", o.seed},
                 {"prompts", prompts}};
  if (!o.slo.empty()) j["slo"] = o.slo;
  json::array list;
  for (Summary& s : summaries) list.push_back(summary_json(s));
  j["runs"] = std::move(list);
  if (o.json == "-") std::printf("%s\n", plain_json(j).c_str());
  if (!o.json.empty() && o.json != "-") {
    if (auto ok = write_file(o.json, plain_json(j) + "\n"); !ok) return ok;
  }
  if (!o.records.empty()) {
    std::string text;
    for (size_t i = 0; i < runs.size(); ++i) {
      for (const LoadRecord& r : runs[i].records) text += plain_json(record_json(r, i)) + "\n";
    }
    if (auto ok = write_file(o.records, text); !ok) return ok;
  }
  if (!o.report.empty()) {
    ReportInfo info{o.url, target.model, name_of(kEndpoints, o.endpoint), prompts, o.slo};
    if (auto ok = write_file(o.report, html_report(info, runs, summaries)); !ok) return ok;
  }
  return {};
}

// "made up" and how their length is known, or the file's name.
Result<std::string> prompts_in_words(const BenchServeOptions& o,
                                     const Plan& plan,
                                     const Target& target,
                                     Vocabulary& words) {
  if (!plan.prompts.empty())
    return strf("%zu from %s", plan.prompts.size(), quote(o.prompts).c_str());
  Result<Vocabulary> v = Vocabulary::ask(target);
  if (!v) return v.error();
  words = std::move(*v);
  if (o.token_ids && !words.has_ids()) {
    words.take_any_ids();
    return std::string("made up, of ids that every model has: the server has no /tokenize");
  }
  return "made up, lengths " + (o.token_ids ? std::string("exact (token ids)") : words.how());
}

int run_bench(const BenchServeOptions& o, const Plan& plan) {
  auto time = [](double s) { return std::chrono::milliseconds(static_cast<int64_t>(s * 1e3)); };
  HttpClient::Options client_options;
  client_options.url = plan.url;
  if (plan.url.tls) {
    Result<std::shared_ptr<TlsContext>> tls = TlsContext::client({o.ca_file, o.insecure});
    if (!tls) return report(tls.error());
    client_options.tls = std::move(*tls);
  }
  client_options.max_connections = 8;
  client_options.connect = time(o.connect_timeout);
  client_options.request = time(o.timeout);
  client_options.stall = time(o.stall_timeout);
  Result<std::unique_ptr<HttpClient>> client = HttpClient::open(client_options);
  if (!client) return report(client.error());
  Target target{**client, plan.url, plan.headers, o.model, plan.chat};
  Result<std::string> model = o.model.empty() ? find_model(target) : o.model;
  if (!model) return report(model.error());
  target.model = *model;
  Vocabulary words;
  Result<std::string> prompts = prompts_in_words(o, plan, target, words);
  if (!prompts) return report(prompts.error());
  Bodies bodies(o, plan, &words, target.model);
  if (!o.quiet)
    std::fprintf(stderr, "%s at %s, prompts %s\n", quote(target.model).c_str(), o.url.c_str(),
                 prompts->c_str());
  CatchInterrupt interrupt;
  ServeBench job{o, plan, target, bodies, interrupt, StatusLine(!o.quiet)};
  job.warm_up();
  std::vector<RunResult> runs;
  std::vector<Summary> summaries;
  bool failed = false;
  for (size_t i = 0; i < plan.points.size() && !interrupt.seen(); ++i) {
    runs.push_back(job.measure(i));
    summaries.push_back(summarise(runs.back(), plan.slo, !o.no_stream));
    failed |= summaries.back().failed > 0;
  }
  job.status.clear();
  if (o.json != "-") std::printf("%s", summary_table(summaries).c_str());
  if (auto ok = write_results(o, target, *prompts, runs, summaries); !ok) return report(ok.error());
  return failed ? kExitFailure : kExitOk;
}

}  // namespace

int cmd_bench_serve(const BenchServeOptions& given) {
  BenchServeOptions o = given;
  // Prompts of an earlier test would be found in the server's prefix cache.
  if (!o.send_seed) o.seed = std::random_device()();
  Result<Plan> plan = make_plan(o);
  if (!plan) return report(plan.error());
  raise_descriptor_limit();
  return run_bench(o, *plan);
}

}  // namespace sluice

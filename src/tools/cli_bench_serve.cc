#include "tools/cli_bench_serve.h"

#include <CLI/CLI.hpp>

#include "tools/cli_options.h"

namespace sluice {

namespace {

void add_result_options(CLI::App* app, BenchServeOptions& o) {
  const char* group = "Results";
  auto add = [&](const char* name, auto& to, const char* help) {
    app->add_option(name, to, help)->group(group);
  };
  add("--slo", o.slo, "objectives for goodput, like ttft=200ms,tpot=30ms,itl=50ms,e2e=10s");
  add("--json", o.json,
      "the results as one JSON object in a file; - is stdout, without\nthe table");
  add("--records", o.records, "every request as a line of JSON in this file");
  add("--report", o.report, "a page with plots in this .html file");
  app->add_flag("-q,--quiet", o.quiet, "nothing on stderr but errors")->group(group);
}

}  // namespace

void add_bench_serve_options(CLI::App* app, BenchServeOptions& o) {
  const char* group = "Server";
  auto add = [&](const char* name, auto& to, const char* help) {
    return app->add_option(name, to, help)->group(group);
  };
  auto with_default = [&](const char* name, auto& to, const char* help) {
    return add(name, to, help)->capture_default_str();
  };
  auto flag = [&](const char* name, bool& to, const char* help) {
    app->add_flag(name, to, help)->group(group);
  };
  constexpr int kMostRequests = 1'000'000'000;
  CLI::Range count(0, kMostRequests), at_least_one(1, kMostRequests);
  add("--url", o.url, "http[s]://HOST:PORT of any server with the OpenAI API")->required();
  add("--ca", o.ca_file, "certificates to trust instead of the system's (PEM)");
  flag("--insecure", o.insecure, "trust any certificate");
  add("--model", o.model, "its name there (default: the first of /v1/models)");
  add_named(app, "--endpoint", o.endpoint, kEndpoints, "which API")->group(group);
  add("--api-key-env", o.api_key_env, "environment variable that holds the key");
  add("--header", o.headers, "NAME:VALUE of every request (may be repeated)")
      ->allow_extra_args(false);
  with_default("--connect-timeout", o.connect_timeout, "seconds")->check(CLI::PositiveNumber);
  with_default("--timeout", o.timeout, "seconds for a whole request")->check(CLI::PositiveNumber);
  with_default("--stall-timeout", o.stall_timeout, "seconds without a byte")
      ->check(CLI::PositiveNumber);
  add("--max-connections", o.max_connections,
      "at once (default: the concurrency; with --rate and --trace 16384)")
      ->check(CLI::Range(1, 1'000'000));

  group = "Load";
  add("--concurrency", o.concurrency, "so many requests at once; N1,N2,... is one run each [1]");
  add("--rate", o.rate, "so many requests per second, whatever the server does; R1,R2,...");
  add_named(app, "--arrivals", o.arrivals, kArrivals, "of --rate")->group(group);
  add("--trace", o.trace,
      "arrivals and lengths from a file: CSV (TIMESTAMP,ContextTokens,\nGeneratedTokens) or JSONL "
      "(timestamp in ms, input_length,\noutput_length, hash_ids)");
  with_default("--time-scale", o.time_scale, "a trace's clock runs so many times as fast")
      ->check(CLI::PositiveNumber);
  with_default("--length-scale", o.length_scale, "factor of a trace's lengths")
      ->check(CLI::PositiveNumber);
  add("--requests", o.requests,
      "how many in all (default: 10 times the concurrency, or 100, or\nthe trace)")
      ->check(at_least_one);
  add("--duration", o.duration, "seconds to send for")->check(CLI::Range(1e-3, 1e9));
  with_default("--warmup", o.warmup, "requests before, not counted")->check(count);

  group = "Requests";
  with_default("--input", o.input, "prompt tokens: N, LO-HI or lognormal:MEDIAN:MOST");
  with_default("--output", o.output, "tokens to generate: the same");
  add("--prompts", o.prompts,
      "from a JSONL file instead: {\"messages\": [...]}, {\"prompt\": ...} or\n{\"turns\": [...]}, "
      "with max_tokens or without");
  with_default("--prefix", o.prefix, "tokens more at the front, the same within a group")
      ->check(count);
  with_default("--prefix-groups", o.prefix_groups, "how many groups")
      ->check(CLI::Range(1, 1'000'000));
  add("--distinct", o.distinct, "only so many different prompts, again and again")
      ->check(at_least_one);
  flag("--token-ids", o.token_ids, "prompts as token ids (with --endpoint completions)");
  flag("--no-stream", o.no_stream, "whole answers: no time to first token");
  with_default("--temperature", o.temperature, "0 is greedy")->check(CLI::NonNegativeNumber);
  CLI::Option* seed =
      add("--seed", o.seed,
          "of prompts and arrivals, and sent with the requests (default: a\nnew one)");
  flag("--no-ignore-eos", o.no_ignore_eos,
       "do not send ignore_eos, for servers that refuse it: answers may\nbe short");
  add("--extra", o.extra, "further fields of every request, as a JSON object");
  add("--json-schema", o.json_schema,
      "every answer follows this JSON schema (a file, or the schema\nitself); without ignore_eos");
  flag("--check-text", o.check_text,
       "compare every answer with the same prompt sent alone (greedy only)");

  add_result_options(app, o);
  app->parse_complete_callback([&o, seed] { o.send_seed = seed->count() > 0; });
}

}  // namespace sluice

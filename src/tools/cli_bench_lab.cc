#include "tools/cli_bench_lab.h"

#include "tools/cli_options.h"

namespace sluice {

namespace {

void add_lab_options(CLI::App* app, LabOptions& o, const char* out_help) {
  app->add_option("--model", o.model, "a model, or random:SHAPE")->capture_default_str();
  app->add_option("--format", o.format, "weight format of random: models")->capture_default_str();
  app->add_option("-t,--threads", o.threads, "compute threads (default: one per core)")
      ->check(whole_number(1, 1024));
  app->add_option("--seed", o.seed, "of prompts")->capture_default_str();
  app->add_option("--out", o.out, out_help);
  app->add_flag("-q,--quiet", o.quiet, "no progress on stderr");
}

}  // namespace

void add_bench_ablate_options(CLI::App* app, BenchAblateOptions& o) {
  app->add_option("--only", o.only, "these experiments, like continuous,paged")->delimiter(',');
  app->add_flag("--list", o.list, "name the experiments, run none");
  app->add_option("--pairs", o.pairs, "runs of each side, taking turns; the median counts")
      ->check(whole_number(1, 1000))
      ->capture_default_str();
  app->add_flag("--full", o.full, "also the experiments that take longer or show little");
  app->add_flag("--json", o.lab.json, "the result as one JSON object on stdout");
  add_lab_options(app, o.lab, "folder for ablation.md, ablation.json and\nimages/ablation.svg");
  app->footer(
      "Each technique runs on and off where its bottleneck exists: scarce KV memory, arrivals at\n"
      "random, long prompts into decodes. The table is Markdown on stdout. Ten minutes or less on\n"
      "two cores that nobody else uses.");
}

void add_bench_curve_options(CLI::App* app, BenchCurveOptions& o) {
  app->add_option("--budgets", o.budgets,
                  "tokens per step, a point each (default: those of wde's "
                  "curve,\n32,64,128,256,384,512,768,1024,1536)")
      ->delimiter(',')
      ->check(whole_number(1, 1 << 20));
  app->add_option("--lines", o.lines, "pipelines or presets, a line each")
      ->delimiter(',')
      ->capture_default_str();
  add_named(app, "--latency", o.latency, kCurveLatencies,
            "which: latency is finish - scheduled of a step, inference-time\nend - begin, itl the "
            "median between a request's tokens");
  app->add_option("--requests", o.requests, "how many, all there from the start")
      ->check(whole_number(1, 1'000'000))
      ->capture_default_str();
  app->add_option("--input", o.input, "prompt tokens each")
      ->check(whole_number(1, kMaxInt))
      ->capture_default_str();
  app->add_option("--output", o.output, "generated tokens each")
      ->check(whole_number(2, kMaxInt))
      ->capture_default_str();
  app->add_option("--repeat", o.repeat, "runs of a point; the best counts")
      ->check(whole_number(1, 1000))
      ->capture_default_str();
  add_lab_options(app, o.lab, "folder for curve.csv, curve.svg and curve.html");
  app->footer(
      "CSV on stdout, then a regression of step time on tokens, context and pairs of queries and\n"
      "keys. A line per point on stderr.");
}

void add_bench_ladder_options(CLI::App* app, BenchLadderOptions& o) {
  app->add_option("--long-output", o.long_output, "tokens of one request in eight")
      ->check(whole_number(2, 1000))
      ->capture_default_str();
  app->add_option("--short-output", o.short_output, "tokens of the others")
      ->check(whole_number(2, 1000))
      ->capture_default_str();
  app->add_option("--repeat", o.repeat, "runs of each rung; the median counts")
      ->check(whole_number(1, 1000))
      ->capture_default_str();
  app->add_flag("--full", o.full, "outputs of 100 and 10 tokens");
  app->add_flag("--json", o.lab.json, "the result as one JSON object on stdout");
  add_lab_options(app, o.lab, "folder for ladder.svg and ladder.html, with two more plots");
}

void add_bench_slo_options(CLI::App* app, BenchSloOptions& o) {
  app->add_option("model", o.engine.model, kModelOrShapeHelp)->required();
  auto number = [&](const char* name, int& to, int least, const char* help) {
    app->add_option(name, to, help)->check(whole_number(least, kMaxInt))->capture_default_str();
  };
  auto time = [&](const char* name, double& to, const char* help) {
    app->add_option(name, to, help)->check(CLI::Range(0.1, 1e5))->capture_default_str();
  };
  app->add_option("--budgets", o.budgets,
                  "tokens per step that runs prompts and decodes, a run each\n(default: "
                  "64,128,256,512,1024,2048)")
      ->delimiter(',')
      ->check(whole_number(1, 1 << 20));
  number("--users", o.users, 1, "who decode all the time, one request after the other");
  number("--input", o.input, 1, "prompt tokens of a user's request");
  number("--output", o.output, 2, "generated tokens of a user's request");
  number("--prompt", o.prompt, 1, "tokens of a long prompt");
  number("--prompt-output", o.prompt_output, 2, "generated tokens behind a long prompt");
  time("--every", o.every, "seconds between long prompts, whatever the engine does");
  time("--duration", o.duration, "seconds measured in each run");
  time("--warmup", o.warmup, "seconds before that, with one long prompt");
  number("--repeat", o.repeat, 1,
         "rounds of all runs, every other one backwards, so that a machine\nthat gets slower "
         "treats all alike");
  app->add_option("--seed", o.seed, "of prompts")->capture_default_str();
  app->add_flag("--json", o.json, "the result as one JSON object on stdout");
  app->footer(
      "A run for each fixed budget (--mixed-budget), then one with --slo, each on an engine of "
      "its\n"
      "own. Goodput: tokens in time per second; an output token is in time if it comes within the\n"
      "target of the one before it, a long prompt's tokens are if its first token is.");
}

}  // namespace sluice

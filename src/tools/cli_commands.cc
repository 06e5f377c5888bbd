#include "tools/cli_commands.h"

#include <cstdio>

#include "tools/cli_bench_kernels.h"
#include "tools/cli_bench_lab.h"
#include "tools/cli_bench_serve.h"
#include "tools/cli_completion.h"
#include "tools/cli_models.h"
#include "tools/cli_plan.h"
#include "tools/cli_replay.h"
#include "tools/cli_route.h"

namespace sluice {

namespace {

constexpr const char* kForeignFlags =
    "Flags of llama.cpp and vLLM that mean the same are taken too (-c, --temp, --max-model-len,\n"
    "--max-num-seqs, ...); for others the error names what to use.";

void add_quantize_options(CLI::App* app, QuantizeOptions& o) {
  auto format =
      CLI::IsMember({"q8_0", "q4_0", "q4_k", "q6_k", "f16", "bf16", "f32"}, CLI::ignore_case);
  app->add_option("in", o.in,
                  "smollm2, hf:ORG/REPO[:QUANT], a .gguf file, or a Hugging Face\nfolder")
      ->required();
  app->add_option("out", o.out, "the .gguf file to write")->required();
  app->add_option("--type", o.type,
                  "of the matrices; vectors stay f32, and rows that do not divide\ninto blocks "
                  "get the next finer format that fits")
      ->required()
      ->check(format);
  app->add_option("--output-type", o.output_type,
                  "of the output matrix, or of the embedding where that is both\n(default: q6_k "
                  "with a --type of 4 bits, else the --type)")
      ->check(format);
  app->add_flag("--keep-embedding", o.keep_embedding, "leave the token embedding as it is");
  app->add_flag("--overwrite", o.overwrite, "replace the output file if it exists");
  app->add_option("-t,--threads", o.threads, "compute threads (default: one per core)")
      ->check(whole_number(1, 1024));
  app->add_flag("--json", o.json, "the result as one JSON object on stdout");
  app->add_flag("-q,--quiet", o.quiet, "no progress on stderr");
}

void add_bench_options(CLI::App* app, BenchOptions& o, bool throughput) {
  app->add_option("model", o.engine.model,
                  "smollm2, hf:ORG/REPO[:QUANT], a .gguf file, a Hugging Face\ndirectory, or "
                  "random:SHAPE (a config.json, or\n"
                  "qwen2.5-0.5b, llama-3.1-8b, ...)")
      ->required();
  app->add_option("--input", o.input, "prompt tokens per request: N or LO-HI")
      ->capture_default_str();
  app->add_option("--output", o.output, "generated tokens per request: N or LO-HI")
      ->capture_default_str();
  if (throughput) {
    app->add_option("--requests", o.num_requests, "how many requests, all there from the start")
        ->check(whole_number(1, kMaxInt))
        ->capture_default_str();
    app->add_option("--workload", o.workload,
                    "lengths from a trace: CSV (ContextTokens,GeneratedTokens) or JSONL\n"
                    "(input_length, output_length)");
    app->add_option("--json-schema", o.json_schema,
                    "every output follows this JSON schema (a file, or the schema\nitself) and may "
                    "end before --output");
    app->add_option("--vocab", o.vocab,
                    "with --json-schema: the vocabulary of this model, for a random:\none that has "
                    "none");
    app->add_flag("--padded", o.padded,
                  "with --preset static: batches of --max-seqs requests, prompts\npadded on the "
                  "left and rows run to the longest, to see what\npadding costs; without the "
                  "prefix cache");
    add_named(app, "--text", o.text, kTextWorks,
              "also detokenise outputs: pipelined beside the steps that follow,\nor inline on the "
              "engine's thread, to see what that costs");
  }
  app->add_option("--repeat", o.repeat, "runs; the best is reported, with the spread")
      ->check(whole_number(1, kMaxInt))
      ->capture_default_str();
  app->add_option("--seed", o.seed, "of lengths and prompts")->capture_default_str();
  app->add_flag("!--no-kv-cache", o.kv_cache,
                "compute the whole context again for every token, to see what the\nKV cache saves; "
                "without the prefix cache");
  app->add_flag("!--no-record-metrics", o.engine.record_metrics,
                "do not time steps and tokens, to see what that costs: only the\nthroughput is "
                "reported");
  add_named(app, "--limits", o.limits, kLimitsFrom,
            "what the CPU is held against: measured in this run (machines that\nare shared vary by "
            "the minute), or kept by `bench machine`");
  app->add_flag("--json", o.json, "the result as one JSON object on stdout");
}

void add_constraint_options(CLI::App* app, ConstraintFlags& f) {
  const char* group = "Constraints (the answer matches, whatever the model prefers)";
  app->add_option("--json-schema", f.json_schema,
                  "JSON that is valid by this schema: a file, or the schema itself")
      ->group(group);
  app->add_option("--regex", f.regex, "text that matches this pattern (ECMA-262) as a whole")
      ->group(group);
  app->add_option("--choice", f.choices, "this text, or another --choice (may be repeated)")
      ->allow_extra_args(false)
      ->group(group);
  app->add_option(
         "--grammar", f.grammar,
         "text of this grammar, GBNF or Lark: a file, or the grammar itself\n(the lines of "
         "--jsonl may have response_format and such instead)")
      ->group(group);
}

void check_recorded(const EngineOptions& o) {
  if (!o.record_metrics && !o.trace.empty())
    throw CLI::ValidationError(
        "--trace records when things happen, and --no-record-metrics says not to: leave one of "
        "them out");
  if (!o.record_metrics && o.scheduler.slo.any())
    throw CLI::ValidationError(
        "--slo learns from the times of steps, and --no-record-metrics takes none: leave one of "
        "them out");
  if (!o.record_metrics && o.profile_steps > 0)
    throw CLI::ValidationError(
        "--profile-steps says where time goes, and --no-record-metrics takes none: leave one of "
        "them out");
}

void add_run(CLI::App& app, CommandLine& c) {
  CLI::App* r = app.add_subcommand("run", "answer a prompt or a file of prompts, or else converse");
  r->add_option("model", c.run.engine.model, kModelHelp)->required();
  r->add_option("text", c.run.words, "the prompt (default: stdin, where that is no terminal)");
  CLI::Option* prompt = r->add_option("-p,--prompt", c.run.prompt, "the prompt");
  r->add_option("-f,--file", c.run.file, "the prompt from a file (- is stdin)");
  r->add_option("--jsonl", c.run.jsonl,
                "requests from a file, one per line: {\"prompt\": ...}, which is\ncompleted as it "
                "is, or {\"messages\": [...]}; one result per line\non stdout");
  r->add_flag("--raw", c.run.raw,
              "complete the prompt as it is, without the model's chat template");
  r->add_flag("--chat", c.run.chat,
              "insist on the chat template, for the prompts of --jsonl too\n(others get it where "
              "the model has one)");
  r->add_option("--system", c.run.system, "system message");
  r->add_flag("-i,--interactive", c.run.interactive,
              "converse where stdin is no terminal: one message per line (on a\n"
              "terminal that is the default without a prompt; see /help there)");
  r->add_flag("--json", c.run.json, "the result as one JSON object on stdout");
  r->add_flag("--special", c.run.special, "show special tokens in the text");
  add_sampling_options(r, c.run.sampling, c.run.engine);
  add_constraint_options(r, c.run.constraint);
  add_engine_options(r, c.run.engine, c.policy);
  r->footer(kForeignFlags);
  r->callback([&c, prompt] {
    c.run.has_prompt = prompt->count() > 0;
    apply_policy(c.policy, c.run.engine);
    c.resolved = [&c] { return resolved_values(c.run.engine); };
    c.action = [&c] { return cmd_run(c.run); };
  });
}

void add_serve(CLI::App& app, CommandLine& c) {
  CLI::App* sv = app.add_subcommand("serve", "answer the OpenAI API over HTTP");
  add_serve_options(sv, c.serve);
  add_engine_options(sv, c.serve.engine, c.policy);
  sv->footer(kForeignFlags);
  sv->callback([&c] {
    apply_policy(c.policy, c.serve.engine, true);
    c.resolved = [&c] { return resolved_values(c.serve); };
    c.action = [&c] { return cmd_serve(c.serve); };
  });
}

void add_explain(CLI::App& app, CommandLine& c) {
  CLI::App* e = app.add_subcommand("explain", "where the time of a server's requests went");
  ExplainOptions& o = c.explain;
  e->add_option(
      "id", o.id,
      "of an answer (chatcmpl-...), or a request's number (default: list\nthe slowest and "
      "the latest requests)");
  e->add_option("--url", o.url, "http[s]://HOST:PORT of a running `sluice serve`")
      ->capture_default_str();
  e->add_option("--api-key-env", o.api_key_env,
                "environment variable that holds the key; only requests that this\nkey made are "
                "shown");
  e->add_option("--ca", o.ca_file, "of https: a file of certificates to trust");
  e->add_flag("--insecure", o.insecure, "of https: take any certificate");
  e->add_option("--num", o.num, "without an id: so many of each")
      ->check(whole_number(1, 100))
      ->capture_default_str();
  e->add_flag("--json", o.json, "the server's answer as one JSON object on stdout");
  e->callback([&c] { c.action = [&c] { return cmd_explain(c.explain); }; });
}

void add_tokenize(CLI::App& app, CommandLine& c) {
  CLI::App* t = app.add_subcommand("tokenize", "text to token ids, or back");
  t->add_option("model", c.tokenize.model,
                "smollm2, hf:ORG/REPO[:QUANT], a .gguf file, or a Hugging Face\ndirectory "
                "(tokeniser files alone will do)")
      ->required();
  CLI::Option* text = t->add_option("text", c.tokenize.text, "the text (default: stdin)");
  t->add_option("-f,--file", c.tokenize.file, "the text from a file (- is stdin)");
  t->add_flag("--no-special", c.tokenize.no_special,
              "add no BOS or EOS; with --decode, leave special tokens out");
  t->add_flag("--parse-special", c.tokenize.parse_special,
              "special tokens spelled in the text become tokens");
  t->add_flag("--decode", c.tokenize.decode, "ids to text");
  t->add_flag("--json", c.tokenize.json, "ids and pieces as one JSON object");
  t->callback([&c, text] {
    c.tokenize.has_text = text->count() > 0;
    c.action = [&c] { return cmd_tokenize(c.tokenize); };
  });
}

void add_constrain(CLI::App& app, CommandLine& c) {
  CLI::App* t =
      app.add_subcommand("constrain", "compile a schema, regex or grammar, and judge texts by it");
  t->add_option("model", c.constrain.model,
                "smollm2, hf:ORG/REPO[:QUANT], a .gguf file, or a Hugging Face\ndirectory "
                "(tokeniser files alone will do)")
      ->required();
  t->add_option("file", c.constrain.file, "the schema, regex, list or grammar (- is stdin)");
  add_named(t, "--kind", c.constrain.kind, constrain::kConstraintKinds, "what the file is");
  add_named(t, "--space", c.constrain.space, constrain::kJsonSpaces,
            "white space in JSON: as people write it, or none");
  t->add_option("--text", c.constrain.texts,
                "a text to judge (a file, - is stdin); may be repeated. Exit code 2\nif one is "
                "not accepted");
  t->add_option("--samples", c.constrain.samples,
                "print so many random texts that the constraint allows")
      ->check(whole_number(0, 1'000'000));
  t->add_option("--seed", c.constrain.seed, "of --samples")->capture_default_str();
  t->add_option("--jsonl", c.constrain.jsonl,
                "many constraints from a file, one per line: {\"kind\", \"source\",\n"
                "\"texts\": [...], \"samples\"}; one result per line on stdout");
  t->add_flag("--json", c.constrain.json, "the result as one JSON object on stdout");
  t->callback([&c] { c.action = [&c] { return cmd_constrain(c.constrain); }; });
}

void add_inspect(CLI::App& app, CommandLine& c) {
  CLI::App* i = app.add_subcommand("inspect", "what is in a model file, and the memory it needs");
  i->add_option("model", c.inspect.engine.model, kModelOrShapeHelp)->required();
  i->add_flag("--tensors", c.inspect.tensors, "also list metadata and tensors");
  i->add_flag("--json", c.inspect.json, "everything as one JSON object");
  add_engine_options(i, c.inspect.engine, c.policy);
  i->callback([&c] {
    apply_policy(c.policy, c.inspect.engine);
    c.resolved = [&c] { return resolved_values(c.inspect.engine); };
    c.action = [&c] { return cmd_inspect(c.inspect); };
  });
}

void add_template(CLI::App& app, CommandLine& c) {
  CLI::App* t = app.add_subcommand("template", "a conversation through the model's chat template");
  t->add_option("model", c.chat.model, kModelHelp)->required();
  t->add_option("messages", c.chat.messages, "JSON file with a list of messages (- is stdin)")
      ->required();
  t->add_option("--tools", c.chat.tools, "JSON file with a list of tools");
  t->add_flag("--no-generation-prompt", c.chat.no_generation_prompt, "end after the last message");
  t->add_flag("--json", c.chat.json, "the text, and which parts of it the template wrote, as JSON");
  t->callback([&c] { c.action = [&c] { return cmd_template(c.chat); }; });
}

void add_quantize(CLI::App& app, CommandLine& c) {
  CLI::App* qz = app.add_subcommand("quantize", "write a model as a GGUF file of another format");
  add_quantize_options(qz, c.quantize);
  qz->callback([&c] { c.action = [&c] { return cmd_quantize(c.quantize); }; });
}

void add_perplexity(CLI::App& app, CommandLine& c) {
  CLI::App* x = app.add_subcommand("perplexity", "how well a model predicts a text");
  x->add_option("model", c.perplexity.engine.model, kModelHelp)->required();
  x->add_option("file", c.perplexity.file, "the text (- is stdin)")->required();
  x->add_option("--windows", c.perplexity.windows,
                "only the first K windows of --ctx tokens (default 512)")
      ->check(whole_number(1, kMaxInt));
  x->add_flag("--json", c.perplexity.json, "the result as one JSON object on stdout");
  add_engine_options(x, c.perplexity.engine, c.policy);
  x->callback([&c] {
    apply_policy(c.policy, c.perplexity.engine);
    c.resolved = [&c] { return resolved_values(c.perplexity); };
    c.action = [&c] { return cmd_perplexity(c.perplexity); };
  });
}

void add_bench_engine(CLI::App* b, CommandLine& c) {
  CLI::App* bt = b->add_subcommand("throughput", "many requests at once: tokens per second");
  add_bench_options(bt, c.throughput, true);
  add_engine_options(bt, c.throughput.engine, c.policy);
  bt->callback([&c] {
    apply_policy(c.policy, c.throughput.engine);
    check_recorded(c.throughput.engine);
    c.resolved = [&c] { return resolved_values(c.throughput.engine); };
    c.action = [&c] { return cmd_bench_throughput(c.throughput); };
  });
  CLI::App* bl =
      b->add_subcommand("latency", "one request at a time: time to first token, time per token");
  add_bench_options(bl, c.latency, false);
  add_engine_options(bl, c.latency.engine, c.policy);
  bl->callback([&c] {
    apply_policy(c.policy, c.latency.engine);
    check_recorded(c.latency.engine);
    c.resolved = [&c] { return resolved_values(c.latency.engine); };
    c.action = [&c] { return cmd_bench_latency(c.latency); };
  });
}

void add_bench_constraints(CLI::App* b, CommandLine& c) {
  CLI::App* bc =
      b->add_subcommand("constraints", "structured output: time to compile, time per token mask");
  bc->add_option("model", c.constraints.model, "whose vocabulary; as for tokenize")->required();
  bc->add_option("folder", c.constraints.folder,
                 "*.json files: schemas, or {\"schema\", \"tests\": [{\"data\", \"valid\"}]}")
      ->required();
  bc->add_option("--samples", c.constraints.samples, "random outputs of each schema")
      ->check(whole_number(0, 1'000))
      ->capture_default_str();
  bc->add_option("--seed", c.constraints.seed, "of --samples")->capture_default_str();
  bc->add_flag("--json", c.constraints.json, "the result as one JSON object on stdout");
  bc->callback([&c] { c.action = [&c] { return cmd_bench_constraints(c.constraints); }; });
}

void add_bench_machine(CLI::App* b, CommandLine& c) {
  CLI::App* bm =
      b->add_subcommand("machine", "this CPU's limits: memory by threads, peak arithmetic");
  bm->add_flag("--json", c.machine.json, "results as one JSON object on stdout");
  bm->add_flag("-q,--quiet", c.machine.quiet, "no progress on stderr");
  bm->footer(
      "Every figure is the best of several runs. They are kept in the user's cache folder\n"
      "($XDG_CACHE_HOME/sluice or ~/.cache/sluice), a file per CPU model, cores and instruction\n"
      "set, for `bench latency`, `throughput` and `kernels` with --limits cached; each run of\n"
      "`bench machine` measures again.");
  bm->callback([&c] { c.action = [&c] { return cmd_bench_machine(c.machine); }; });
  CLI::App* bk =
      b->add_subcommand("kernels", "the CPU's kernels one by one: time, GB/s, Gop/s, of the limit");
  add_bench_kernels_options(bk, c.kernels);
  bk->callback([&c] { c.action = [&c] { return cmd_bench_kernels(c.kernels); }; });
}

void add_bench_gpu(CLI::App* b, CommandLine& c) {
  CLI::App* bg = b->add_subcommand("gpu", "a GPU: its limits, and how near to them steps come");
  bg->add_option("model", c.gpu.engine.model, "as for run; random:SHAPE for speed alone")
      ->required();
  bg->add_option("--batches", c.gpu.batches, "sequences that decode at once, like 1,8,32")
      ->delimiter(',')
      ->check(whole_number(1, 4096))
      ->capture_default_str();
  bg->add_option("--contexts", c.gpu.contexts, "positions they have, like 128,1024")
      ->delimiter(',')
      ->check(whole_number(1, kMaxInt))
      ->capture_default_str();
  bg->add_option("--steps", c.gpu.steps, "decode steps measured for each")
      ->check(whole_number(4, 100000))
      ->capture_default_str();
  bg->add_option("--shared", c.gpu.shared,
                 "decodes alone, of sequences that have so many positions in common,\nlike a "
                 "system prompt: read once, or by each with --no-cascade")
      ->check(whole_number(0, kMaxInt))
      ->capture_default_str();
  bg->add_option("--rows", c.gpu.rows, "steps of one prompt of so many tokens, like 512,1024")
      ->delimiter(',')
      ->check(whole_number(1, kMaxInt));
  bg->add_flag("--ops", c.gpu.ops, "every op of a decode step, with its kernels and gap");
  bg->add_flag("!--no-workload", c.gpu.workload, "only steps, not the mixed workload");
  bg->add_flag("--json", c.gpu.json, "results as JSON");
  add_engine_options(bg, c.gpu.engine, c.policy);
  bg->callback([&c] {
    apply_policy(c.policy, c.gpu.engine);
    c.resolved = [&c] { return resolved_values(c.gpu.engine); };
    c.action = [&c] { return cmd_bench_gpu(c.gpu); };
  });
}

void add_bench_load(CLI::App* b, CommandLine& c) {
  CLI::App* bs = b->add_subcommand("serve", "a server with the OpenAI API, under load");
  add_bench_serve_options(bs, c.load);
  bs->callback([&c] {
    c.resolved = [&c] { return resolved_values(c.load); };
    c.action = [&c] { return cmd_bench_serve(c.load); };
  });
}

void add_bench_lab(CLI::App* b, CommandLine& c) {
  CLI::App* bo = b->add_subcommand("slo", "long prompts into decodes: --slo against fixed budgets");
  add_bench_slo_options(bo, c.slo);
  add_engine_options(bo, c.slo.engine, c.policy);
  bo->callback([&c] {
    apply_policy(c.policy, c.slo.engine, true);
    c.resolved = [&c] { return resolved_values(c.slo.engine); };
    c.action = [&c] { return cmd_bench_slo(c.slo); };
  });
  CLI::App* ba = b->add_subcommand("ablate", "each technique on and off, where it should matter");
  add_bench_ablate_options(ba, c.ablate);
  ba->callback([&c] { c.action = [&c] { return cmd_bench_ablate(c.ablate); }; });
  CLI::App* bv = b->add_subcommand("curve", "throughput against latency, by tokens per step");
  add_bench_curve_options(bv, c.curve);
  bv->callback([&c] { c.action = [&c] { return cmd_bench_curve(c.curve); }; });
  CLI::App* bd = b->add_subcommand("ladder", "GPT-2 from the naive loop to a quantised server");
  add_bench_ladder_options(bd, c.ladder);
  bd->callback([&c] { c.action = [&c] { return cmd_bench_ladder(c.ladder); }; });
}

void add_bench(CLI::App& app, CommandLine& c) {
  CLI::App* b = app.add_subcommand("bench", "measure the engine, its kernels, the machine");
  b->require_subcommand(1);
  add_bench_engine(b, c);
  add_bench_constraints(b, c);
  add_bench_machine(b, c);
  add_bench_gpu(b, c);
  add_bench_load(b, c);
  add_bench_lab(b, c);
}

void add_batch(CLI::App& app, CommandLine& c) {
  CLI::App* b = app.add_subcommand("batch", "a file of requests through one or more servers");
  BatchOptions& o = c.batch;
  b->add_option("file", o.file,
                "requests in OpenAI's batch format: a line each, with custom_id,\nurl and body")
      ->required();
  b->add_option("--url", o.urls,
                "http[s]://HOST:PORT of a server with the OpenAI API; may be\nrepeated: they share "
                "the requests")
      ->required()
      ->allow_extra_args(false);
  b->add_option("-o,--out", o.out, "file of results (default: FILE.results.jsonl beside it)");
  b->add_option("--model", o.model, "instead of the requests' own model");
  b->add_option("--concurrency", o.concurrency, "requests at once, of each server")
      ->check(whole_number(1, 16'384))
      ->capture_default_str();
  b->add_option("--tries", o.tries,
                "of a request whose connection broke, or that got a status of\n500 or above")
      ->check(whole_number(1, 1000))
      ->capture_default_str();
  b->add_option("--timeout", o.timeout, "seconds for an answer")
      ->check(CLI::Range(1e-3, 1e6))
      ->capture_default_str();
  b->add_option("--patience", o.patience, "seconds without any server after which it stops")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  b->add_option("--api-key-env", o.api_key_env, "environment variable that holds the key");
  b->add_option("--header", o.headers, "NAME:VALUE of every request (may be repeated)")
      ->allow_extra_args(false);
  b->add_option("--ca", o.ca_file, "certificates to trust instead of the system's (PEM)");
  b->add_flag("--json", o.json, "the counts as one JSON object on stdout");
  b->add_flag("-q,--quiet", o.quiet, "no progress on stderr");
  b->footer(
      "A result per request is appended to --out as it comes. Stopped in whatever way, the same\n"
      "command goes on where it stopped: no request has two results. A server that is full (429,\n"
      "503) is asked again when it says so; what a lost server left goes to the others.");
  b->callback([&c] { c.action = [&c] { return cmd_batch(c.batch); }; });
}

void add_sol(CLI::App& app, CommandLine& c) {
  CLI::App* s =
      app.add_subcommand("sol", "the speed of light: limits of hardware one does not have");
  SolOptions& o = c.sol;
  s->add_option("model", o.model, kModelOrShapeHelp)->required();
  s->add_flag("--device-table", o.table, "the known devices, also beside one of your own");
  s->add_option("--format", o.format, "weight format of random: models")->capture_default_str();
  s->add_option("--bits", o.bits, "bits per weight (default: as in the file)")
      ->check(CLI::Range(1.0, 64.0));
  auto number = [&](const char* name, int& to, const char* help) {
    s->add_option(name, to, help)->check(whole_number(1, 1 << 24))->capture_default_str();
  };
  number("--context", o.context, "positions of a sequence that decodes");
  number("--batch", o.batch, "sequences that decode at once, if they fit");
  number("--prompt", o.prompt, "tokens of a prompt");
  auto limit = [&](const char* name, double& to, const char* help) {
    return s->add_option(name, to, help)->check(CLI::Range(1e-3, 1e9));
  };
  CLI::Option* memory = limit("--memory", o.memory, "of a device of your own: GB");
  CLI::Option* bandwidth = limit("--bandwidth", o.bandwidth, "its GB/s");
  CLI::Option* peak = limit("--peak", o.peak, "its TFLOP/s");
  for (CLI::Option* option : {memory, bandwidth, peak})
    option->needs(memory)->needs(bandwidth)->needs(peak);
  s->add_flag("--json", o.json, "the result as one JSON object on stdout");
  s->footer(
      "A step takes at least the larger of weights / bandwidth and operations / peak, and the "
      "same\n"
      "for K and V. Devices are by nominal figures: dense bf16 or f16 with sums in f32. `bench\n"
      "machine` and `bench gpu` measure the limits of what is here.");
  s->callback([&c] { c.action = [&c] { return cmd_sol(c.sol); }; });
}

void add_completion(CLI::App& app, CommandLine& c) {
  CLI::App* cp = app.add_subcommand("completion", "a script that completes commands and options");
  add_named(cp, "shell", c.shell, kShells, "bash, zsh or fish")->required()->default_str("");
  cp->callback([&app, &c] {
    c.action = [&app, &c] {
      std::fputs(completion_script(app, c.shell).c_str(), stdout);
      return kExitOk;
    };
  });
}

void add_config(CLI::App& app) {
  CLI::App* cf = app.add_subcommand("config", "where the values of options come from");
  cf->require_subcommand(1);
  cf->add_subcommand("show",
                     "`config show serve ...`: every option of that command, the value it\n"
                     "comes to, and whether a flag, a SLUICE_* variable, the --config file\n"
                     "or its default says so");
}

}  // namespace

void add_commands(CLI::App& app, CommandLine& c) {
  add_run(app, c);
  add_serve(app, c);
  add_explain(app, c);
  add_tokenize(app, c);
  add_constrain(app, c);
  add_inspect(app, c);
  add_list(app, c);
  add_pull(app, c);
  add_rm(app, c);
  add_template(app, c);
  add_quantize(app, c);
  add_perplexity(app, c);
  add_batch(app, c);
  add_route(app, c);
  add_bench(app, c);
  add_sol(app, c);
  add_plan(app, c);
  add_replay(app, c);
  add_config(app);
  add_completion(app, c);
}

}  // namespace sluice

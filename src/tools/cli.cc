// The command line: options into structs. Only the files cli*.cc and help_format.h know CLI11.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cerrno>
#include <functional>

#include "base/str.h"
#include "tools/cli.h"
#include "tools/cli_bench_serve.h"
#include "tools/cli_completion.h"
#include "tools/cli_config.h"
#include "tools/commands.h"
#include "tools/help_format.h"

namespace sluice {

namespace {

// "512M", "1.5G", "65536": bytes in binary units.
std::string parse_bytes(std::string& text) {
  char* end = nullptr;
  double v = std::strtod(text.c_str(), &end);
  double unit = 1;
  switch (*end) {
    case 'k':
    case 'K':
      unit = 1024;
      ++end;
      break;
    case 'm':
    case 'M':
      unit = 1024.0 * 1024;
      ++end;
      break;
    case 'g':
    case 'G':
      unit = 1024.0 * 1024 * 1024;
      ++end;
      break;
    default:
      break;
  }
  if (end == text.c_str() || *end != 0 || !(v * unit >= 0 && v * unit < 1e18)) {
    return "write a size like 512M or 1.5G";
  }
  text = std::to_string(static_cast<uint64_t>(v * unit));
  return {};
}

CLI::Validator whole(long long lo, long long hi) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        char* end = nullptr;
        errno = 0;
        long long v = std::strtoll(text.c_str(), &end, 10);
        if (end != text.c_str() && *end == 0 && errno == 0 && v >= lo && v <= hi) return {};
        return strf("%s is not a whole number from %lld to %lld", quote(text).c_str(), lo, hi);
      },
      "");
}

constexpr long long kMaxInt = INT32_MAX;

struct PresetChoice {
  std::string preset = "sarathi", batching, prefill, mix, order, admission, pipeline = "overlap";
};

void add_engine_options(CLI::App* app, EngineOptions& o, PresetChoice& p) {
  const char* group = "Engine";
  app->add_option("-t,--threads", o.threads, "compute threads (default: one per core)")
      ->check(whole(1, 1024))
      ->group(group);
  app->add_option("--ctx", o.ctx, "positions per sequence (default: the model's, if memory allows)")
      ->check(whole(1, kMaxInt))
      ->group(group);
  app->add_option("--kv-memory", o.kv_bytes,
                  "of the KV cache, like 2G (default: up to half of what is free)")
      ->transform(CLI::Validator(parse_bytes, "SIZE"))
      ->group(group);
  app->add_option("--kv-blocks", o.kv_blocks, "the same in blocks of --block-size positions")
      ->check(whole(2, kMaxInt / 2))
      ->excludes("--kv-memory")
      ->group(group);
  app->add_option("--kv", o.kv_type, "element type of the KV cache")
      ->check(CLI::IsMember({"f16", "f32"}))
      ->capture_default_str()
      ->group(group);
  app->add_option("--block-size", o.scheduler.block_size, "positions per KV block")
      ->capture_default_str()
      ->group(group);
  app->add_option("--device", o.backend, "ref is naive and slow: the oracle")
      ->check(CLI::IsMember({"cpu", "ref"}))
      ->capture_default_str()
      ->group(group);
  app->add_flag("!--no-fuse", o.fuse, "keep q, k, v and gate, up as separate matmuls")
      ->group(group);
  app->add_flag("!--no-pin", o.pin, "do not bind threads to cores")->group(group);
  app->add_option("--format", o.format, "weight format of random: models")
      ->capture_default_str()
      ->group(group);
  app->add_option("--trace", o.trace, "write a trace for Perfetto or chrome://tracing to this file")
      ->group(group);
  app->add_flag("-q,--quiet", o.quiet, "no progress and no statistics on stderr")->group(group);
  app->add_option("--config", o.config,
                  "YAML file of options, one `name: value` per line; variables\nSLUICE_NAME come "
                  "before it, flags before those")
      ->group(group);

  const char* policy = "Scheduling";
  SchedulerConfig& s = o.scheduler;
  app->add_option("--preset", p.preset, "the policies of these systems")
      ->check(CLI::IsMember({"static", "orca", "vllm", "sarathi"}))
      ->capture_default_str()
      ->group(policy);
  app->add_option("--budget", s.budget, "tokens per step")
      ->check(whole(1, kMaxInt))
      ->capture_default_str()
      ->group(policy);
  app->add_option("--max-seqs", s.max_seqs, "sequences that run at once")
      ->check(whole(1, kMaxInt))
      ->capture_default_str()
      ->group(policy);
  app->add_option("--batching", p.batching,
                  "when requests may join (default: the preset's, as below)")
      ->check(CLI::IsMember({"static", "continuous"}))
      ->group(policy);
  app->add_option("--prefill", p.prefill, "may a prompt be spread over steps")
      ->check(CLI::IsMember({"whole", "chunked"}))
      ->group(policy);
  app->add_option("--mix", p.mix, "may prompts and decodes share a step")
      ->check(CLI::IsMember({"separate", "mixed"}))
      ->group(policy);
  app->add_option("--order", p.order, "who is served first")
      ->check(CLI::IsMember({"fcfs", "priority"}))
      ->group(policy);
  app->add_option("--admission", p.admission, "what must be free before a request starts")
      ->check(CLI::IsMember({"reserve-max", "watermark"}))
      ->group(policy);
  app->add_option("--watermark", s.watermark, "share of the KV blocks that admission leaves free")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str()
      ->group(policy);
  app->add_option("--pipeline", p.pipeline, "overlap plans a step ahead")
      ->check(CLI::IsMember({"sync", "overlap"}))
      ->capture_default_str()
      ->group(policy);
  app->add_flag("!--no-prefix-cache", s.prefix_cache, "do not reuse the KV of common prefixes")
      ->group(policy);
}

void apply_policy(const PresetChoice& p, EngineOptions& o) {
  SchedulerConfig& s = o.scheduler;
  apply_preset(p.preset, s).value();  // the parser admits only known names
  if (!p.batching.empty())
    s.batching = p.batching == "static" ? Batching::static_ : Batching::continuous;
  if (!p.prefill.empty()) s.prefill = p.prefill == "whole" ? Prefill::whole : Prefill::chunked;
  if (!p.mix.empty()) s.mix = p.mix == "separate" ? Mix::separate : Mix::mixed;
  if (!p.order.empty()) s.order = p.order == "priority" ? Order::priority : Order::fcfs;
  if (!p.admission.empty())
    s.admission = p.admission == "reserve-max" ? Admission::reserve_max : Admission::watermark;
  o.pipeline = p.pipeline == "sync" ? Pipeline::sync : Pipeline::overlap;
}

void add_sampling_options(CLI::App* app, SamplingOptions& o) {
  const char* group = "Sampling";
  o.spec.temperature = 0;
  app->add_option("-m,--max-tokens", o.max_tokens, "tokens to generate at most")
      ->capture_default_str()
      ->group(group);
  app->add_option("--temperature", o.spec.temperature, "0 is greedy")
      ->capture_default_str()
      ->group(group);
  app->add_option("--top-k", o.spec.top_k, "only the N most likely tokens; 0 is off")
      ->capture_default_str()
      ->group(group);
  app->add_option("--top-p", o.spec.top_p,
                  "only the most likely tokens that make up X of the probability")
      ->capture_default_str()
      ->group(group);
  app->add_option("--min-p", o.spec.min_p, "only tokens at least X times as likely as the best")
      ->capture_default_str()
      ->group(group);
  app->add_option("--repetition-penalty", o.spec.repetition_penalty, "over prompt and output")
      ->capture_default_str()
      ->group(group);
  app->add_option("--frequency-penalty", o.spec.frequency_penalty,
                  "over the output, per occurrence")
      ->capture_default_str()
      ->group(group);
  app->add_option("--presence-penalty", o.spec.presence_penalty, "over the output, once")
      ->capture_default_str()
      ->group(group);
  app->add_option("--seed", o.spec.seed, "same seed, same text")
      ->capture_default_str()
      ->group(group);
  app->add_option("-n", o.n, "choices per prompt")->capture_default_str()->group(group);
  app->add_option("--stop", o.stop, "stop before this text (may be repeated)")
      ->allow_extra_args(false)
      ->group(group);
  app->add_option("--stop-id", o.stop_ids, "stop at this token id (may be repeated)")
      ->allow_extra_args(false)
      ->group(group);
  app->add_option("--min-tokens", o.spec.min_tokens, "no end before so many tokens")
      ->capture_default_str()
      ->group(group);
  app->add_flag("--ignore-eos", o.ignore_eos, "go on past the end of the text")->group(group);
  app->add_option("--logit-bias", o.logit_bias, "ID=BIAS (may be repeated)")
      ->allow_extra_args(false)
      ->group(group);
  app->add_option("--logprobs", o.spec.num_logprobs,
                  "log-probabilities of each token and of the N best (with --json)")
      ->check(whole(0, 20))
      ->group(group);
  app->add_option("--prompt-logprobs", o.spec.prompt_logprobs, "the same for the prompt")
      ->check(whole(0, 20))
      ->group(group);
}

void add_serve_options(CLI::App* app, ServeOptions& o) {
  app->add_option("model", o.engine.model,
                  "smollm2, a .gguf file, a Hugging Face directory,\nor random:SHAPE")
      ->required();
  const char* server = "Server";
  auto add = [&](const char* name, auto& to, const char* help) {
    return app->add_option(name, to, help)->capture_default_str()->group(server);
  };
  add("--host", o.host, "address to listen on");
  add("--port", o.port, "port to listen on; 0 is any free one")->check(whole(0, 65535));
  add("--served-model-name", o.served_names, "name in the API (may be repeated)")
      ->allow_extra_args(false);
  add("--api-key-file", o.api_key_file, "one key per line; a request must carry one of them");
  app->add_flag("--allow-no-key", o.allow_no_key, "listen beyond this machine without a key")
      ->group(server);
  app->add_flag("--allow-request-template", o.allow_request_template,
                "a request may bring its own chat_template")
      ->group(server);
  add("--ping", o.ping, "seconds of silence until a stream gets a comment; 0 is never")
      ->check(CLI::NonNegativeNumber);
  add("--io-threads", o.io_threads, "threads for connections and text")->check(whole(1, 64));
  add("--grace", o.grace, "seconds that running requests have after SIGTERM")
      ->check(CLI::NonNegativeNumber);
  add("--max-queue", o.max_queue, "requests that may wait for their first token")
      ->check(whole(1, kMaxInt));
  add("--max-queue-tokens", o.max_queue_tokens, "prompt tokens that may wait")
      ->check(CLI::PositiveNumber);
  add("--max-queue-per-key", o.max_queue_per_key, "waiting requests of one key; 0 is no limit")
      ->check(whole(0, kMaxInt));
  add("--request-timeout", o.request_timeout, "seconds a request may take; 0 is no limit")
      ->check(CLI::NonNegativeNumber);
  const char* limits = "Limits of connections";
  server = limits;
  add("--max-body", o.max_body, "size of a request")
      ->transform(CLI::Validator(parse_bytes, "SIZE"));
  add("--max-connections", o.max_connections, "in all")->check(whole(1, kMaxInt));
  add("--max-connections-per-ip", o.max_connections_per_ip, "from one address")
      ->check(whole(1, kMaxInt));
  add("--header-timeout", o.header_timeout, "seconds for a request's header")
      ->check(CLI::PositiveNumber);
  add("--body-timeout", o.body_timeout, "seconds for its body")->check(CLI::PositiveNumber);
  add("--idle-timeout", o.idle_timeout, "seconds between requests")->check(CLI::PositiveNumber);
  add("--send-timeout", o.send_timeout, "seconds a client may not read")
      ->check(CLI::PositiveNumber);
  add("--stall-timeout", o.stall_timeout, "seconds without a step until /health fails")
      ->check(CLI::PositiveNumber);
}

void add_quantize_options(CLI::App* app, QuantizeOptions& o) {
  auto format =
      CLI::IsMember({"q8_0", "q4_0", "q4_k", "q6_k", "f16", "bf16", "f32"}, CLI::ignore_case);
  app->add_option("in", o.in, "smollm2, a .gguf file, or a Hugging Face folder")->required();
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
      ->check(whole(1, 1024));
  app->add_flag("--json", o.json, "the result as one JSON object on stdout");
  app->add_flag("-q,--quiet", o.quiet, "no progress on stderr");
}

void add_bench_options(CLI::App* app, BenchOptions& o, bool throughput) {
  app->add_option(
         "model", o.engine.model,
         "smollm2, a .gguf file, a Hugging Face directory, or\nrandom:SHAPE (a config.json, or\n"
         "qwen2.5-0.5b, llama-3.1-8b, ...)")
      ->required();
  app->add_option("--input", o.input, "prompt tokens per request: N or LO-HI")
      ->capture_default_str();
  app->add_option("--output", o.output, "generated tokens per request: N or LO-HI")
      ->capture_default_str();
  if (throughput) {
    app->add_option("--requests", o.num_requests, "how many requests, all there from the start")
        ->check(whole(1, kMaxInt))
        ->capture_default_str();
    app->add_option("--workload", o.workload,
                    "lengths from a trace: CSV (ContextTokens,GeneratedTokens) or JSONL\n"
                    "(input_length, output_length)");
  }
  app->add_option("--repeat", o.repeat, "runs; the best is reported, with the spread")
      ->check(whole(1, kMaxInt))
      ->capture_default_str();
  app->add_option("--seed", o.seed, "of lengths and prompts")->capture_default_str();
  app->add_flag("--json", o.json, "the result as one JSON object on stdout");
}

}  // namespace

int run_cli(int argc, char** argv) {
  CLI::App app("sluice: serve open-weight language models from one binary", "sluice");
  app.require_subcommand(1);
  app.set_version_flag("--version", SLUICE_VERSION, "show the version");
  app.formatter(std::make_shared<HelpFormat>());
  app.get_formatter()->column_width(34);
  app.set_help_flag("-h,--help", "show this");
  std::function<int()> action;
  PresetChoice policy;

  RunOptions run;
  CLI::App* r =
      app.add_subcommand("run", "complete a prompt or a file of prompts, or else converse");
  r->add_option("model", run.engine.model, "smollm2, a .gguf file, or a Hugging Face directory")
      ->required();
  CLI::Option* prompt = r->add_option("-p,--prompt", run.prompt, "the prompt");
  r->add_option("-f,--file", run.file, "the prompt from a file (- is stdin)");
  r->add_option("--jsonl", run.jsonl,
                "requests from a file, one per line: {\"prompt\": ...} or\n{\"messages\": [...]}; "
                "one result per line on stdout");
  r->add_flag("--chat", run.chat, "apply the model's chat template to the prompt");
  r->add_option("--system", run.system, "system message, with --chat or in a conversation");
  r->add_flag("-i,--interactive", run.interactive,
              "converse where stdin is no terminal: one message per line (on a\n"
              "terminal that is the default without a prompt; see /help there)");
  r->add_flag("--json", run.json, "the result as one JSON object on stdout");
  r->add_flag("--special", run.special, "show special tokens in the text");
  add_sampling_options(r, run.sampling);
  add_engine_options(r, run.engine, policy);
  r->callback([&] {
    run.has_prompt = prompt->count() > 0;
    run.has_temperature = r->get_option("--temperature")->count() > 0;
    run.has_max_tokens = r->get_option("--max-tokens")->count() > 0;
    apply_policy(policy, run.engine);
    action = [&] { return cmd_run(run); };
  });

  ServeOptions serve;
  CLI::App* sv = app.add_subcommand("serve", "answer the OpenAI API over HTTP");
  add_serve_options(sv, serve);
  add_engine_options(sv, serve.engine, policy);
  sv->callback([&] {
    apply_policy(policy, serve.engine);
    action = [&] { return cmd_serve(serve); };
  });

  TokenizeOptions tok;
  CLI::App* t = app.add_subcommand("tokenize", "text to token ids, or back");
  t->add_option(
       "model", tok.model,
       "smollm2, a .gguf file, or a Hugging Face directory (tokeniser\nfiles alone will do)")
      ->required();
  CLI::Option* text = t->add_option("text", tok.text, "the text (default: stdin)");
  t->add_option("-f,--file", tok.file, "the text from a file (- is stdin)");
  t->add_flag("--no-special", tok.no_special,
              "add no BOS or EOS; with --decode, leave special tokens out");
  t->add_flag("--parse-special", tok.parse_special,
              "special tokens spelled in the text become tokens");
  t->add_flag("--decode", tok.decode, "ids to text");
  t->add_flag("--json", tok.json, "ids and pieces as one JSON object");
  t->callback([&] {
    tok.has_text = text->count() > 0;
    action = [&] { return cmd_tokenize(tok); };
  });

  InspectOptions inspect;
  CLI::App* i = app.add_subcommand("inspect", "what is in a model file, and the memory it needs");
  i->add_option("model", inspect.engine.model,
                "smollm2, a .gguf file, a Hugging Face directory,\nor random:SHAPE")
      ->required();
  i->add_flag("--tensors", inspect.tensors, "also list metadata and tensors");
  i->add_flag("--json", inspect.json, "everything as one JSON object");
  add_engine_options(i, inspect.engine, policy);
  i->callback([&] {
    apply_policy(policy, inspect.engine);
    action = [&] { return cmd_inspect(inspect); };
  });

  TemplateOptions chat;
  CLI::App* c = app.add_subcommand("template", "a conversation through the model's chat template");
  c->add_option("model", chat.model, "smollm2, a .gguf file, or a Hugging Face directory")
      ->required();
  c->add_option("messages", chat.messages, "JSON file with a list of messages (- is stdin)")
      ->required();
  c->add_option("--tools", chat.tools, "JSON file with a list of tools");
  c->add_flag("--no-generation-prompt", chat.no_generation_prompt, "end after the last message");
  c->add_flag("--json", chat.json, "the text, and which parts of it the template wrote, as JSON");
  c->callback([&] { action = [&] { return cmd_template(chat); }; });

  QuantizeOptions quantize;
  CLI::App* qz = app.add_subcommand("quantize", "write a model as a GGUF file of another format");
  add_quantize_options(qz, quantize);
  qz->callback([&] { action = [&] { return cmd_quantize(quantize); }; });

  PerplexityOptions ppl;
  CLI::App* x = app.add_subcommand("perplexity", "how well a model predicts a text");
  x->add_option("model", ppl.engine.model, "smollm2, a .gguf file, or a Hugging Face directory")
      ->required();
  x->add_option("file", ppl.file, "the text (- is stdin)")->required();
  x->add_option("--windows", ppl.windows, "only the first K windows of --ctx tokens (default 512)")
      ->check(whole(1, kMaxInt));
  x->add_flag("--json", ppl.json, "the result as one JSON object on stdout");
  add_engine_options(x, ppl.engine, policy);
  x->callback([&] {
    apply_policy(policy, ppl.engine);
    action = [&] { return cmd_perplexity(ppl); };
  });

  BenchOptions throughput, latency;
  CLI::App* b = app.add_subcommand("bench", "measure throughput or latency");
  b->require_subcommand(1);
  CLI::App* bt = b->add_subcommand("throughput", "many requests at once: tokens per second");
  add_bench_options(bt, throughput, true);
  add_engine_options(bt, throughput.engine, policy);
  bt->callback([&] {
    apply_policy(policy, throughput.engine);
    action = [&] { return cmd_bench_throughput(throughput); };
  });
  CLI::App* bl =
      b->add_subcommand("latency", "one request at a time: time to first token, time per token");
  add_bench_options(bl, latency, false);
  add_engine_options(bl, latency.engine, policy);
  bl->callback([&] {
    apply_policy(policy, latency.engine);
    action = [&] { return cmd_bench_latency(latency); };
  });
  BenchServeOptions load;
  CLI::App* bs = b->add_subcommand("serve", "a server with the OpenAI API, under load");
  add_bench_serve_options(bs, load);
  bs->callback([&] { action = [&] { return cmd_bench_serve(load); }; });

  CLI::App* cf = app.add_subcommand("config", "where the values of options come from");
  cf->require_subcommand(1);
  cf->add_subcommand("show",
                     "`config show serve ...`: every option of that command, its value,\n"
                     "and whether a flag, a SLUICE_* variable, the --config file or its\n"
                     "default says so");

  std::string shell;
  CLI::App* cp = app.add_subcommand("completion", "a script that completes commands and options");
  cp->add_option("shell", shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  cp->callback([&] {
    action = [&] {
      Shell kind = shell == "bash" ? Shell::bash : shell == "zsh" ? Shell::zsh : Shell::fish;
      std::fputs(completion_script(app, kind).c_str(), stdout);
      return kExitOk;
    };
  });

  if (argc < 2) {
    std::printf("%s", app.help().c_str());
    return kExitOk;
  }
  std::vector<std::string> words(argv + 1, argv + argc);
  // `config show COMMAND ...` is that command, shown instead of done.
  bool show = words.size() >= 2 && words[0] == "config" && words[1] == "show" &&
              !(words.size() == 3 && (words[2] == "-h" || words[2] == "--help"));
  if (show) {
    words.erase(words.begin(), words.begin() + 2);
    if (words.empty() || words[0][0] == '-') words.insert(words.begin(), "serve");
  }
  // An unknown word in a command's place is that, and not a missing command.
  auto named = [&](const CLI::App* a) { return a->check_name(words[0]); };
  if (words[0][0] != '-' && app.get_subcommands(named).empty()) {
    std::fprintf(stderr, "sluice: no command %s (see sluice --help)\n", quote(words[0]).c_str());
    return kExitUsage;
  }
  CLI::App* command = &app;
  size_t depth = 0;
  while (depth < words.size()) {
    auto next = command->get_subcommands([&](CLI::App* a) { return a->check_name(words[depth]); });
    if (next.empty()) break;
    command = next.front();
    ++depth;
  }
  std::vector<std::string> rest(words.begin() + static_cast<ptrdiff_t>(depth), words.end());
  Result<std::vector<OptionOrigin>> outside = add_outside_options(*command, rest);
  if (!outside) return report(outside.error());
  words.resize(depth);
  words.insert(words.end(), rest.begin(), rest.end());
  std::reverse(words.begin(), words.end());  // as the parser takes them
  try {
    app.parse(words);
  } catch (const CLI::CallForHelp& e) {
    return app.exit(e);
  } catch (const CLI::CallForAllHelp& e) {
    return app.exit(e);
  } catch (const CLI::CallForVersion& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    std::string name = "sluice";
    for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
      at = at->get_subcommands().front();
      name += " " + at->get_name();
    }
    std::string what = e.what();
    std::replace(what.begin(), what.end(), '\n', ' ');
    std::fprintf(stderr, "sluice: %s (see %s --help)\n", what.c_str(), name.c_str());
    return kExitUsage;
  }
  if (show) {
    std::fputs(describe_options(*command, *outside).c_str(), stdout);
    return kExitOk;
  }
  return action();
}

}  // namespace sluice

#include "tools/cli_options.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "base/str.h"
#include "core/policy.h"

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

constexpr float kServeShortShare = 0.25f;

CLI::Validator layers_name() {
  return {[](std::string& text) {
            Result<GpuLayers> layers = parse_gpu_layers(text);
            return layers ? std::string() : layers.error().message;
          },
          ""};
}

CLI::Validator device_name() {
  return {[](std::string& text) {
            Result<DeviceChoice> device = parse_device(text);
            return device ? std::string() : device.error().message;
          },
          ""};
}

}  // namespace

CLI::Validator byte_size() { return {parse_bytes, "SIZE"}; }

CLI::Validator number_in(double lo, double hi) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        char* end = nullptr;
        const double v = std::strtod(text.c_str(), &end);
        if (end != text.c_str() && *end == 0 && v >= lo && v <= hi) return {};
        return strf("%s is not a number from %g to %g", quote(text).c_str(), lo, hi);
      },
      "");
}

CLI::Validator whole_number(long long lo, long long hi) {
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

namespace {

// Threads, context and KV cache.
void add_memory_options(CLI::App* app, EngineOptions& o, const char* group) {
  app->add_option("-t,--threads", o.threads, "compute threads (default: one per core)")
      ->check(whole_number(1, 1024))
      ->group(group);
  app->add_option("--ctx", o.ctx, "positions per sequence (default: the model's, if memory allows)")
      ->check(whole_number(1, kMaxInt))
      ->group(group);
  app->add_option("--kv-memory", o.kv_bytes,
                  "memory of the KV cache, like 2G (default: up to half of what\nis free)")
      ->transform(byte_size())
      ->group(group);
  app->add_option("--kv-blocks", o.kv_blocks, "the same in blocks of --block-size positions")
      ->check(whole_number(2, kMaxInt / 2))
      ->excludes("--kv-memory")
      ->group(group);
  add_named(app, "--kv", o.kv_type, kKvTypes,
            "element type of the KV cache; int8 has a scale per 32, 8 or\n64 dimensions; f8 and "
            "bf16 are for GPUs")
      ->group(group);
  app->add_option("--block-size", o.scheduler.block_size, "positions per KV block")
      ->capture_default_str()
      ->group(group);
}

// Where the model runs, and its weights.
void add_device_options(CLI::App* app, EngineOptions& o, const char* group) {
  app->add_option_function<std::string>(
         "--device", [&o](const std::string& text) { o.device = parse_device(text).value(); },
         "auto, cpu, cuda or cuda:N; auto is a GPU where one is, cuda the\none with the most free "
         "memory; ref is the slow reference\nthat tests compare with")
      ->check(device_name())
      ->default_str(o.device.name())
      ->group(group);
  app->add_option_function<std::string>(
         "--gpu-layers",
         [&o](const std::string& text) { o.gpu_layers = parse_gpu_layers(text).value(); },
         "layers of the model that run on the GPU, the last ones; the\nothers run on the CPU; "
         "auto: as "
         "many as fit (default: all)")
      ->check(layers_name())
      ->group(group);
  app->add_flag("!--no-stream-prompts", o.stream_prompts,
                "with --gpu-layers: the CPU computes its layers for prompts too,\nnot the GPU with "
                "weights that are copied to it")
      ->group(group);
  app->add_option(
         "--gpu-memory", o.gpu_memory,
         "most of the GPU's memory to use, like 8G (default: what is\nfree); inspect: plan "
         "for a GPU that has so much free")
      ->transform(byte_size())
      ->group(group);
  add_named(app, "--dtype", o.dtype, kDtypes,
            "on a GPU: type of weights and activations; auto: the file's")
      ->group(group);
  add_named(app, "--gpu-weights", o.gpu_weights, kGpuWeights,
            "on a GPU: a file's quantised weights decoded to 16 bits (auto),\nor kept as they are "
            "stored")
      ->group(group);
  add_named(app, "--quantize", o.quantize, kQuantizes,
            "weights at load: w8a8 is int8 per row with int8 activations (on a\nGPU the layers'); "
            "on the CPU: w4 is 4 bits in groups of 32, u8 is\nuint8 with a zero point per row, "
            "computed in f32; on a GPU: fp8 is\ne4m3")
      ->group(group);
  app->add_option("--quantize-exclude", o.quantize_exclude,
                  "weights that keep their format, by parts of their names or\npatterns: "
                  "attn_output,blk.0.*")
      ->group(group);
  CLI::Option* deterministic =
      app->add_flag("--deterministic", o.deterministic,
                    "on a GPU: output does not depend on what shares the batch (on\nthe CPU it "
                    "never does; on Hopper models of 5 to 10 billion\nweights in 16 bits or int8 "
                    "have it by default)")
          ->group(group);
  app->add_flag("--fast-products", o.fast_products,
                "on a GPU: the fastest kernels for each number of rows, so that\noutput may depend "
                "on what shares the batch")
      ->group(group)
      ->excludes(deterministic);
  app->add_flag("!--no-graphs", o.capture, "on a GPU: queue decode steps op by op")->group(group);
  app->add_flag(
         "!--no-fuse-layers", o.fuse_layers,
         "on a GPU: no kernel for all layers of a step of few decodes,\nwhich small models have")
      ->group(group);
  app->add_flag(
         "!--no-cascade", o.cascade,
         "on a GPU: attention reads a prompt that sequences share once for\neach, not once for "
         "all of them")
      ->group(group);
  app->add_flag("!--no-fuse", o.fuse, "keep q, k, v and gate, up as separate matmuls")
      ->group(group);
  app->add_flag("--full-sort", o.full_sort,
                "on the CPU: top-k and top-p put the whole vocabulary in order;\nthe same tokens, "
                "to compare with")
      ->group(group);
  add_named(app, "--attention", o.attention, kAttentions,
            "on the CPU: by-head reads K and V once per query head, naive\nholds all scores in "
            "memory; slower, to compare with")
      ->group(group);
  app->add_flag("!--no-forced-tokens", o.forced_tokens,
                "sample every token of a constrained output, also where only\none is allowed")
      ->group(group);
  app->add_flag("!--no-pin", o.pin, "do not bind threads to cores")->group(group);
  app->add_option("--format", o.format, "weight format of random: models")
      ->default_str(kRandomFormat)
      ->group(group);
}

void add_output_options(CLI::App* app, EngineOptions& o, const char* group) {
  app->add_option("--trace", o.trace, "write a trace for Perfetto or chrome://tracing to this file")
      ->group(group);
  app->add_option("--profile-steps", o.profile_steps,
                  "every so many steps a line in the log: what runs and waits, and\nwhere the time "
                  "goes; 0: never")
      ->check(whole_number(0, kMaxInt))
      ->capture_default_str()
      ->group(group);
  app->add_flag("-q,--quiet", o.quiet, "no progress and no statistics on stderr")->group(group);
  app->add_option("--config", o.config,
                  "YAML file of options, one `name: value` per line; SLUICE_NAME\nvariables "
                  "override it, flags override both")
      ->group(group);
}

constexpr const char* kScheduling = "Scheduling";

// What a step may hold.
void add_step_options(CLI::App* app, SchedulerConfig& s, PresetChoice& p) {
  const char* policy = kScheduling;
  app->add_option("--preset", p.preset,
                  "the policies of these systems, or what has steps of its own\nfirst "
                  "(prefill-first is vllm)")
      ->check(CLI::IsMember(preset_names()))
      ->capture_default_str()
      ->group(policy);
  app->add_option("--budget", p.sizes.budget, "tokens per step (default: 512, on a GPU 8192)")
      ->check(whole_number(1, kMaxInt))
      ->group(policy);
  app->add_option("--chunk", p.sizes.chunk,
                  "most prompt tokens in a step that also decodes; 0: no limit\n(default: 0; serve "
                  "on a CPU: 16 per thread, at least 32)")
      ->check(whole_number(0, kMaxInt))
      ->group(policy);
  app->add_option("--short-share", p.short_share,
                  "share of a step's prompt tokens for prompts shorter than the\none in front; 0: "
                  "in order of service (default: 0; serve: 0.25)")
      ->check(CLI::Range(0.0, 0.9))
      ->group(policy);
  app->add_option("--mixed-budget", p.sizes.mixed_budget,
                  "tokens per step that runs prompts and decodes, of which\nprompts keep a "
                  "quarter; 0: --budget\n(default: 0; serve on a GPU: by the model's size)")
      ->check(whole_number(0, kMaxInt))
      ->group(policy);
  app->add_option_function<std::string>(
         "--slo", [&p](const std::string& text) { p.slo = parse_slo_target(text).value(); },
         "latencies to keep, like itl_p99=50ms,ttft_p95=1s: prompt tokens\nbeside decodes are "
         "chosen each step by the time that it will\ntake (default: none)")
      ->check(CLI::Validator(
          [](const std::string& text) {
            auto ok = parse_slo_target(text);
            return ok ? std::string() : ok.error().message;
          },
          ""))
      ->group(policy);
  app->add_option("--max-seqs", s.max_seqs, "sequences that run at once")
      ->check(whole_number(1, kMaxInt))
      ->capture_default_str()
      ->group(policy);
  app->add_option("--prefill-delay", s.prefill_delay,
                  "free slots that new requests wait for; then they start until\nnone is free; 0: "
                  "any")
      ->check(whole_number(0, kMaxInt))
      ->capture_default_str()
      ->group(policy);
  app->add_option("--fill-wait", p.fill_wait,
                  "seconds that new requests wait for others to fill a step while\nnothing runs; "
                  "0: none")
      ->check(CLI::Range(0.0, 60.0))
      ->capture_default_str()
      ->group(policy);
  app->add_option("--prefill-batch", s.prefill_batch, "prompts per step at most; 0: no limit")
      ->check(whole_number(0, kMaxInt))
      ->capture_default_str()
      ->group(policy);
}

// Where KV blocks come from, and where they go.
void add_kv_policy_options(CLI::App* app, EngineOptions& o) {
  const char* policy = kScheduling;
  SchedulerConfig& s = o.scheduler;
  app->add_option("--watermark", s.watermark, "share of the KV blocks that admission leaves free")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str()
      ->group(policy);
  add_named(
      app, "--kv-allocator", s.allocator, kAllocators,
      "where a sequence's KV blocks come from. reserve: a run of\nblocks for --ctx positions, "
      "at admission; range: a run for the\nprompt and the predicted output; paged: any blocks, "
      "as the\nsequence grows; virtual: addresses for --ctx positions, memory\nbehind them page "
      "by page. All but paged share nothing: they need\n--no-prefix-cache, and n is 1")
      ->group(policy);
  add_named(
      app, "--preempt", s.preempt, kPreempts,
      "what becomes of the KV of a preempted request. recompute: it\nis computed again; swap: "
      "it goes to host memory and comes back,\nwhere that is faster")
      ->group(policy);
  app->add_option(
         "--swap-memory", o.swap_bytes,
         "host memory of --preempt swap, like 2G (default: half of the\nKV cache's); when it "
         "is full, KV is computed again")
      ->transform(byte_size())
      ->group(policy);
  app->add_option("--prefix-host", o.prefix_host_bytes,
                  "host memory for prefixes that the KV cache has no room for\n(default: none)")
      ->transform(byte_size())
      ->group(policy);
  app->add_option("--prefix-disk", o.prefix_disk_bytes,
                  "a file of so many bytes for prefixes, like 20G: they are there\nagain after a "
                  "restart (default: none)")
      ->transform(byte_size())
      ->group(policy);
  app->add_option("--prefix-disk-dir", o.prefix_disk_dir,
                  "the file's folder, private to its owner, one process at a time\n(default: "
                  "~/.cache/sluice/prefixes)")
      ->group(policy);
}

void add_policy_options(CLI::App* app, EngineOptions& o, PresetChoice& p) {
  const char* policy = kScheduling;
  SchedulerConfig& s = o.scheduler;
  add_step_options(app, s, p);
  add_named(app, "--batching", p.batching, kBatchings,
            "when requests may join (default: the preset's, as below)")
      ->group(policy);
  add_named(app, "--prefill", p.prefill, kPrefills, "may a prompt be spread over steps")
      ->group(policy);
  add_named(app, "--mix", p.mix, kMixes,
            "may prompts and decodes share a step; separate: prompts first")
      ->group(policy);
  add_named(
      app, "--order", p.order, kOrders,
      "who is served first; outputs as long as predicted; fair: the\nAPI key that has had the "
      "fewest tokens (serve)")
      ->group(policy);
  app->add_option("--aging", p.aging,
                  "seconds of waiting after which a request goes before all\nothers, in any order; "
                  "0: never")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str()
      ->group(policy);
  add_named(app, "--admission", p.admission, kAdmissions,
            "what must be free before a request starts")
      ->group(policy);
  app->add_option_function<std::string>(
         "--predict-output",
         [&p](const std::string& text) { p.predict = parse_predictor(text).value(); },
         "how long outputs get: oracle (max_tokens), constant:TOKENS, or\nlearnt from those "
         "that ended: histogram[:Q] by prompt length,\nquantile[:Q] by API key, survival (default: "
         "oracle; with\npredicted-peak survival)")
      ->check(CLI::Validator(
          [](const std::string& text) {
            auto ok = parse_predictor(text);
            return ok ? std::string() : ok.error().message;
          },
          ""))
      ->group(policy);
  add_kv_policy_options(app, o);
  add_named(
      app, "--pipeline", s.pipeline, kPipelines,
      "what is planned while a step runs. sync: nothing; simple-async:\na step of other "
      "requests, to run after it; interleave: the same,\nto run beside it on a GPU; "
      "double-buffer: one more; overlap: the\nnext step of the same requests. Where --gpu-layers "
      "leaves some to\nthe CPU: sync")
      ->each([&o](const std::string&) { o.pipeline_given = true; })
      ->group(policy);
  app->add_flag("!--no-prefix-cache", s.prefix_cache, "do not reuse the KV of common prefixes")
      ->group(policy);
}

}  // namespace

void add_engine_options(CLI::App* app, EngineOptions& o, PresetChoice& p) {
  const char* group = "Engine";
  add_memory_options(app, o, group);
  add_device_options(app, o, group);
  add_output_options(app, o, group);
  add_policy_options(app, o, p);
}

void apply_policy(const PresetChoice& p, EngineOptions& o, bool serves) {
  SchedulerConfig& s = o.scheduler;
  if (o.kv_bytes == 0) o.kv_bytes.reset();  // --kv-memory 0: the default
  o.step_sizes = p.sizes;
  o.step_sizes->serves = serves;
  s.short_share = p.short_share.value_or(serves ? kServeShortShare : 0.0f);
  s.slo = p.slo;
  if (s.slo.any() && (p.sizes.chunk.value_or(0) > 0 || p.sizes.mixed_budget.value_or(0) > 0))
    throw CLI::ValidationError(
        "--slo chooses what --chunk and --mixed-budget fix: leave those out, or --slo");
  apply_preset(p.preset, s).value();  // the parser admits only known names
  s.batching = p.batching.value_or(s.batching);
  s.prefill = p.prefill.value_or(s.prefill);
  s.mix = p.mix.value_or(s.mix);
  s.order = p.order.value_or(s.order);
  s.aging = Time(static_cast<int64_t>(p.aging * 1e9));
  s.fill_wait = Time(static_cast<int64_t>(p.fill_wait * 1e9));
  s.admission = p.admission.value_or(s.admission);
  const char* predict = s.admission == Admission::predicted_peak ? "survival" : "oracle";
  s.predictor = p.predict ? *p.predict : parse_predictor(predict).value();
  if (auto ok = check_allocator(s); !ok) throw CLI::ValidationError(ok.error().message);
  if (o.swap_bytes && s.preempt != Preempt::swap)
    throw CLI::ValidationError(
        "--swap-memory is for --preempt swap: add that, or leave --swap-memory out");
  if (o.prefix_host_bytes > 0 && !s.prefix_cache)
    throw CLI::ValidationError(
        "--prefix-host keeps prefixes, and --no-prefix-cache says not to: leave one of them out");
  if (o.prefix_disk_bytes > 0 && !s.prefix_cache)
    throw CLI::ValidationError(
        "--prefix-disk keeps prefixes, and --no-prefix-cache says not to: leave one of them out");
  if (!o.prefix_disk_dir.empty() && o.prefix_disk_bytes == 0)
    throw CLI::ValidationError(
        "--prefix-disk-dir is for --prefix-disk: add that, or leave --prefix-disk-dir out");
  if (s.ranged() && (p.admission || s.watermark != SchedulerConfig().watermark)) {
    throw CLI::ValidationError(
        strf("--kv-allocator %s claims all blocks of a sequence when it starts: leave out "
             "--admission and --watermark, or use --kv-allocator paged",
             name_of(kAllocators, s.allocator)));
  }
}

void add_generation_config(CLI::App* app, EngineOptions& o, const char* group) {
  add_named(app, "--generation-config", o.generation_config, kGenerationConfigs,
            "auto: sampling is by default as the model's files say;\nnone: temperature 1 and no "
            "more, as in the OpenAI API")
      ->group(group);
}

void add_sampling_options(CLI::App* app, SamplingOptions& o, EngineOptions& engine) {
  const char* group = "Sampling";
  auto add = [&](const char* name, auto& to, const char* help) {
    return app->add_option(name, to, help)->group(group);
  };
  SamplingSpec& s = o.spec;
  add("-m,--max-tokens", o.max_tokens,
      "tokens to generate at most (default: 1024; 256 without a\nchat template)")
      ->check(whole_number(1, kMaxInt));
  add("--temperature", o.choice.temperature,
      "0 is greedy (default of this and the next six: the model's)");
  add("--top-k", o.choice.top_k, "only the N most likely tokens; 0 is off");
  add("--top-p", o.choice.top_p, "only the most likely tokens that make up X of the probability");
  add("--min-p", o.choice.min_p, "only tokens at least X times as likely as the best");
  add("--repetition-penalty", o.choice.repetition_penalty, "over prompt and output");
  add("--frequency-penalty", o.choice.frequency_penalty, "over the output, per occurrence");
  add("--presence-penalty", o.choice.presence_penalty, "over the output, once");
  add_generation_config(app, engine, group);
  add("--seed", s.seed, "same seed, same text")->capture_default_str();
  add("-n", o.n, "choices per prompt")->capture_default_str();
  add("--beams", o.beams,
      "search with N beams instead of sampling, and show the -n\nbest answers (not with penalties, "
      "--stop, --logprobs or\na constraint)")
      ->check(whole_number(1, 64));
  add("--length-penalty", o.length_penalty,
      "beams compare by log-probability / length^X: above 0\nlonger answers gain")
      ->capture_default_str();
  add("--stop", o.stop, "stop before this text (may be repeated)")->allow_extra_args(false);
  add("--stop-id", o.stop_ids, "stop at this token id (may be repeated)")->allow_extra_args(false);
  add("--min-tokens", s.min_tokens, "no end before so many tokens")->capture_default_str();
  app->add_flag("--ignore-eos", o.ignore_eos, "go on past the end of the text")->group(group);
  add("--logit-bias", o.logit_bias, "ID=BIAS (may be repeated)")->allow_extra_args(false);
  add("--logprobs", s.num_logprobs,
      "log-probabilities of each token and of the N best (with --json)")
      ->check(whole_number(0, 20));
  add("--prompt-logprobs", s.prompt_logprobs, "the same for the prompt")
      ->check(whole_number(0, 20));
}

}  // namespace sluice

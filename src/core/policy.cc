#include "core/policy.h"

#include <algorithm>
#include <cstdlib>

#include "base/str.h"

namespace sluice {

namespace {

struct Preset {
  const char* name;
  Batching batching;
  Prefill prefill;
  Mix mix;
  Admission admission;
};

// The last two name what comes first where prompts and decodes have steps of their own; prompts
// first is what vllm does.
constexpr Preset kPresets[] = {
    {"static", Batching::static_, Prefill::whole, Mix::separate, Admission::reserve_max},
    {"orca", Batching::continuous, Prefill::whole, Mix::mixed, Admission::reserve_max},
    {"vllm", Batching::continuous, Prefill::whole, Mix::separate, Admission::watermark},
    {"sarathi", Batching::continuous, Prefill::chunked, Mix::mixed, Admission::watermark},
    {"prefill-first", Batching::continuous, Prefill::whole, Mix::separate, Admission::watermark},
    {"decode-first", Batching::continuous, Prefill::whole, Mix::decode_first, Admission::watermark},
};

}  // namespace

std::vector<std::string> preset_names() {
  std::vector<std::string> all;
  for (const Preset& p : kPresets) all.emplace_back(p.name);
  return all;
}

Result<void> apply_preset(std::string_view name, SchedulerConfig& c) {
  std::string known;
  for (const Preset& p : kPresets) {
    known += (known.empty() ? "" : ", ") + std::string(p.name);
    if (name != p.name) continue;
    c.batching = p.batching;
    c.prefill = p.prefill;
    c.mix = p.mix;
    c.admission = p.admission;
    return {};
  }
  return Error{400, strf("unknown preset %s: use one of %s", quote(name).c_str(), known.c_str())};
}

Result<PredictorConfig> parse_predictor(std::string_view text) {
  size_t colon = text.find(':');
  std::string_view name = text.substr(0, colon);
  std::string value(colon == std::string_view::npos ? "" : text.substr(colon + 1));
  PredictorConfig p;
  char* end = value.data();
  bool good = false;
  if (name == "oracle") {
    good = colon == std::string_view::npos;
  } else if (name == "survival") {
    p.kind = Predict::survival;
    good = colon == std::string_view::npos;
  } else if (name == "constant") {
    p.kind = Predict::constant;
    long tokens = std::strtol(value.c_str(), &end, 10);
    good = tokens >= 1 && tokens <= (1 << 24);
    p.tokens = static_cast<int>(std::clamp(tokens, 1L, 1L << 24));
  } else if (name == "histogram" || name == "quantile") {
    p.kind = name == "histogram" ? Predict::histogram : Predict::quantile;
    good = colon == std::string_view::npos;
    if (!good) {
      p.quantile = std::strtof(value.c_str(), &end);
      good = p.quantile > 0 && p.quantile < 1;
    }
  }
  if (good && *end == 0) return p;
  return Error{400, strf("%s predicts no output: use oracle, constant:TOKENS, survival, "
                         "histogram[:Q] or quantile[:Q] with Q between 0 and 1",
                         quote(text).c_str())};
}

std::string predictor_name(const PredictorConfig& p) {
  switch (p.kind) {
    case Predict::constant:
      return strf("constant:%d", p.tokens);
    case Predict::histogram:
      return strf("histogram:%g", static_cast<double>(p.quantile));
    case Predict::quantile:
      return strf("quantile:%g", static_cast<double>(p.quantile));
    case Predict::survival:
      return "survival";
    default:
      return "oracle";
  }
}

Result<void> check_allocator(const SchedulerConfig& c) {
  if (!c.contiguous()) return {};
  if (c.preempt == Preempt::swap)
    return Error{400,
                 strf("--preempt swap moves blocks to host memory, and --kv-allocator %s keeps "
                      "a sequence in one range: use --preempt recompute, or --kv-allocator "
                      "paged",
                      name_of(kAllocators, c.allocator))};
  if (c.allocator == KvAllocator::virtual_ && c.admission == Admission::predicted_peak)
    return Error{400,
                 "--admission predicted-peak counts blocks, and --kv-allocator virtual maps pages: "
                 "use --admission watermark or reserve-max, or --kv-allocator paged"};
  if (!c.prefix_cache) return {};
  return Error{400, strf("--kv-allocator %s gives each sequence blocks of its own and has no "
                         "prefix cache: add --no-prefix-cache, or use --kv-allocator paged",
                         name_of(kAllocators, c.allocator))};
}

Result<void> check_policies(const SchedulerConfig& c, bool has_accounts) {
  bool by_output = c.order == Order::longest_output || c.order == Order::shortest_output;
  if (auto ok = check_allocator(c); !ok) return ok;
  if (c.predictor.kind != Predict::oracle && !by_output &&
      c.admission != Admission::predicted_peak && c.allocator != KvAllocator::range)
    return Error{
        400,
        "--predict-output is for --order longest-output and shortest-output, for --admission "
        "predicted-peak and for --kv-allocator range: give one of them, or leave it out"};
  if (c.prefill_delay > c.max_seqs)
    return Error{400, strf("--prefill-delay %d waits for more slots than there are: at most "
                           "--max-seqs %d",
                           c.prefill_delay, c.max_seqs)};
  if (c.prefill_delay > 0 && c.batching == Batching::static_)
    return Error{400, "--prefill-delay is for --batching continuous: static waits for all slots"};
  if (c.slo.any() && (c.prefill != Prefill::chunked || c.mix != Mix::mixed))
    return Error{400,
                 "--slo chooses how much of a prompt runs beside decodes: it needs --prefill "
                 "chunked and --mix mixed, as --preset sarathi has them"};
  if (c.slo.any() && c.pipeline.depth > 0 && !c.pipeline.chained)
    return Error{400, strf("--slo bounds the time of a step, and with --pipeline %s a request is "
                           "not in every step: use overlap or sync",
                           name_of(kPipelines, c.pipeline))};
  if (c.order == Order::fair && !has_accounts)
    return Error{400,
                 "--order fair shares the engine between API keys, and there are none: use `serve` "
                 "with --api-key-file, or another order"};
  return {};
}

}  // namespace sluice

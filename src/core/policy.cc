#include "core/policy.h"

#include <algorithm>
#include <cstdlib>
#include <span>

#include "base/check.h"
#include "base/str.h"

namespace sluice {

namespace {

template <typename T>
struct Named {
  T value;
  const char* name;
};

constexpr Named<Mix> kMixes[] = {
    {Mix::separate, "separate"},
    {Mix::decode_first, "decode-first"},
    {Mix::mixed, "mixed"},
};

constexpr Named<Order> kOrders[] = {
    {Order::fcfs, "fcfs"},
    {Order::priority, "priority"},
    {Order::longest_output, "longest-output"},
    {Order::shortest_output, "shortest-output"},
    {Order::fair, "fair"},
};

constexpr Named<Admission> kAdmissions[] = {
    {Admission::reserve_max, "reserve-max"},
    {Admission::watermark, "watermark"},
    {Admission::predicted_peak, "predicted-peak"},
};

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

template <typename T>
const char* name_of(std::span<const Named<T>> table, T value) {
  for (const Named<T>& row : table) {
    if (row.value == value) return row.name;
  }
  return "?";
}

template <typename T>
T value_of(std::span<const Named<T>> table, std::string_view name) {
  for (const Named<T>& row : table) {
    if (row.name == name) return row.value;
  }
  CHECK(false);
  return table[0].value;
}

template <typename T>
std::vector<std::string> names(std::span<const Named<T>> table) {
  std::vector<std::string> all;
  for (const Named<T>& row : table) all.emplace_back(row.name);
  return all;
}

}  // namespace

const char* order_name(Order order) { return name_of<Order>(kOrders, order); }
const char* admission_name(Admission a) { return name_of<Admission>(kAdmissions, a); }
std::vector<std::string> order_names() { return names<Order>(kOrders); }
std::vector<std::string> admission_names() { return names<Admission>(kAdmissions); }
std::vector<std::string> mix_names() { return names<Mix>(kMixes); }
Mix mix_of(std::string_view name) { return value_of<Mix>(kMixes, name); }
Order order_of(std::string_view name) { return value_of<Order>(kOrders, name); }
Admission admission_of(std::string_view name) { return value_of<Admission>(kAdmissions, name); }

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
  return Error{400, strf("%s predicts no output: use oracle, constant:TOKENS, histogram[:Q] or "
                         "quantile[:Q] with Q between 0 and 1",
                         quote(text).c_str())};
}

Result<void> check_policies(const SchedulerConfig& c, bool has_accounts) {
  bool by_output = c.order == Order::longest_output || c.order == Order::shortest_output;
  if (c.predictor.kind != Predict::oracle && !by_output && c.admission != Admission::predicted_peak)
    return Error{
        400,
        "--predict-output is for --order longest-output and shortest-output and for --admission "
        "predicted-peak: give one of them, or leave it out"};
  if (c.prefill_delay > c.max_seqs)
    return Error{400, strf("--prefill-delay %d waits for more slots than there are: at most "
                           "--max-seqs %d",
                           c.prefill_delay, c.max_seqs)};
  if (c.prefill_delay > 0 && c.batching == Batching::static_)
    return Error{400, "--prefill-delay is for --batching continuous: static waits for all slots"};
  if (c.order == Order::fair && !has_accounts)
    return Error{400,
                 "--order fair shares the engine between API keys, and there are none: use `serve` "
                 "with --api-key-file, or another order"};
  return {};
}

}  // namespace sluice

// Groups of options that commands share, and how their values are checked. For cli*.cc.
#pragma once

#include <CLI/CLI.hpp>

#include <optional>
#include <string>
#include <type_traits>

#include "tools/commands.h"

namespace sluice {

inline constexpr long long kMaxInt = INT32_MAX;

// What a command's `model` may be.
inline constexpr const char* kModelHelp =
    "smollm2, hf:ORG/REPO[:QUANT], a .gguf file, or a Hugging Face\ndirectory";
inline constexpr const char* kModelOrShapeHelp =
    "smollm2, hf:ORG/REPO[:QUANT], a .gguf file, a Hugging Face\ndirectory, or random:SHAPE";

// A whole number in a range; the message names the value.
CLI::Validator whole_number(long long lo, long long hi);
// A number in a range, which NaN is not.
CLI::Validator number_in(double lo, double hi);
// Bytes, like 512M or 1.5G.
CLI::Validator byte_size();

// An option whose values have names; its default is what `to` holds, unless that is absent.
template <typename T, typename V, size_t n>
CLI::Option* add_named(
    CLI::App* app, const char* name, T& to, const NamedValue<V> (&table)[n], const char* help) {
  CLI::Option* option = app->add_option_function<std::string>(
      name, [&to, &table](const std::string& text) { to = *value_named(table, text); }, help);
  option->check(CLI::IsMember(names_in(table)));
  if constexpr (std::is_same_v<T, V>) option->default_str(name_of(table, to));
  return option;
}

// Policies that a flag may choose; what is absent is the preset's.
struct PresetChoice {
  std::string preset = "sarathi";
  std::optional<Batching> batching;
  std::optional<Prefill> prefill;
  std::optional<Mix> mix;
  std::optional<Order> order;
  double aging = 0, fill_wait = 0;  // seconds
  std::optional<Admission> admission;
  std::optional<PredictorConfig> predict;  // absent: learnt where the admission predicts
  std::optional<float> short_share;        // absent: kServeShortShare in a server, else 0
  StepSizes sizes;
  SloTarget slo;  // none: the sizes bound what runs beside decodes
};

void add_engine_options(CLI::App* app, EngineOptions& o, PresetChoice& p);
// Writes the policies into o.scheduler; the step's sizes wait in o.step_sizes for the device.
void apply_policy(const PresetChoice& p, EngineOptions& o, bool serves = false);
void add_generation_config(CLI::App* app, EngineOptions& o, const char* group);
void add_sampling_options(CLI::App* app, SamplingOptions& o, EngineOptions& engine);
void add_serve_options(CLI::App* app, ServeOptions& o);  // cli_serve_options.cc

}  // namespace sluice

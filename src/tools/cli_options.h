// Groups of options that commands share, and how their values are checked. For cli*.cc.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

#include "tools/commands.h"

namespace sluice {

inline constexpr long long kMaxInt = INT32_MAX;

// A whole number in a range; the message names the value.
CLI::Validator whole_number(long long lo, long long hi);
// Bytes, like 512M or 1.5G.
CLI::Validator byte_size();

// Policies by name, before they are a SchedulerConfig.
struct PresetChoice {
  std::string preset = "sarathi", batching, prefill, mix, order, admission, allocator,
              pipeline = "overlap";
};

void add_engine_options(CLI::App* app, EngineOptions& o, PresetChoice& p);
void apply_policy(const PresetChoice& p, EngineOptions& o, bool serves = false);
void add_sampling_options(CLI::App* app, SamplingOptions& o, EngineOptions& engine);
void add_serve_options(CLI::App* app, ServeOptions& o);

}  // namespace sluice

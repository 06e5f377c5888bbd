// The subcommands and their options, as plain data that cli.cc fills.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "core/request.h"
#include "runtime/options.h"

namespace sluice {

// Exit codes: 0 done, 1 the environment failed, 2 the input is at fault.
inline constexpr int kExitOk = 0, kExitFailure = 1, kExitUsage = 2;

struct SamplingOptions {
  SamplingSpec spec;
  std::vector<std::string> stop;
  std::vector<Token> stop_ids;
  std::vector<std::string> logit_bias;  // ID=BIAS
  int max_tokens = 256;
  int n = 1;
  bool ignore_eos = false;
};

struct RunOptions {
  EngineOptions engine;
  SamplingOptions sampling;
  std::string prompt, file, jsonl, system;
  bool has_prompt = false, chat = false, json = false, special = false;
};

struct TokenizeOptions {
  std::string model, text, file;
  bool has_text = false, no_special = false, parse_special = false, decode = false, json = false;
};

struct BenchOptions {
  EngineOptions engine;
  int num_requests = 16;
  std::string input = "128", output = "64";  // N or LO-HI
  std::string workload;                      // file with lengths: CSV or JSONL
  int repeat = 3;
  uint64_t seed = 1;
  bool json = false;
};

struct InspectOptions {
  EngineOptions engine;
  bool tensors = false, json = false;
};

struct TemplateOptions {
  std::string model, messages, tools;
  bool no_generation_prompt = false, json = false;
};

struct PerplexityOptions {
  EngineOptions engine;
  std::string file;
  int windows = 0;  // 0: all
  bool json = false;
};

int cmd_run(const RunOptions& options);
int cmd_inspect(const InspectOptions& options);
int cmd_template(const TemplateOptions& options);
int cmd_perplexity(const PerplexityOptions& options);
int cmd_tokenize(const TokenizeOptions& options);
int cmd_bench_throughput(const BenchOptions& options);
int cmd_bench_latency(const BenchOptions& options);

// Prints "sluice: message" to stderr; the exit code for such an error.
int report(const Error& error);

}  // namespace sluice

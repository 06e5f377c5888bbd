// The subcommands and their options, as plain data that cli.cc fills.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/named.h"
#include "base/result.h"
#include "constrain/constraint.h"
#include "core/request.h"
#include "runtime/options.h"
#include "runtime/sampling_defaults.h"
#include "server/admission_limits.h"
#include "server/format_flags.h"
#include "server/kv_events.h"
#include "tools/etcd_registration.h"
#include "server/kv_transfer.h"
#include "tools/text_work.h"

namespace sluice {

// Exit codes: 0 done, 1 the environment failed, 2 the input is at fault.
inline constexpr int kExitOk = 0, kExitFailure = 1, kExitUsage = 2;

// --limits: what benchmarks hold a CPU's figures against
enum class LimitsFrom : uint8_t { run, cache };  // measured in this run, or kept by `bench machine`
inline constexpr NamedValue<LimitsFrom> kLimitsFrom[] = {{"fresh", LimitsFrom::run},
                                                         {"cached", LimitsFrom::cache}};

// What an answer must be; at most one of them.
struct ConstraintFlags {
  std::optional<std::string> json_schema, regex, grammar;  // json_schema, grammar: file or text
  std::vector<std::string> choices;
};

struct SamplingOptions {
  SamplingSpec spec;      // what `choice` has is filled in when the model is known
  SamplingChoice choice;  // by flags
  std::vector<std::string> stop;
  std::vector<Token> stop_ids;
  std::vector<std::string> logit_bias;  // ID=BIAS
  int max_tokens = 0;                   // 0: by default
  int n = 1;
  int beams = 0;  // 0: tokens are sampled; else n of so many are shown
  float length_penalty = 1;
  int priority = 0;  // under --order priority: lower runs first
  bool ignore_eos = false;
  std::shared_ptr<const constrain::Constraint> constraint;  // null: any text
};

struct RunOptions {
  EngineOptions engine;
  SamplingOptions sampling;
  ConstraintFlags constraint;
  std::string prompt, file, jsonl, system;
  std::vector<std::string> words;  // the prompt as arguments
  bool has_prompt = false, json = false, special = false;
  bool chat = false, raw = false;  // the chat template: always, never; else where the model has one
  bool interactive = false;        // a conversation, whatever stdin is
};

struct TokenizeOptions {
  std::string model, text, file;
  bool has_text = false, no_special = false, parse_special = false, decode = false, json = false;
};

struct ConstrainOptions {
  std::string model, file, jsonl;
  constrain::ConstraintKind kind = constrain::ConstraintKind::json_schema;
  constrain::JsonSpace space = constrain::JsonSpace::flexible;
  std::vector<std::string> texts;  // files to judge
  int samples = 0;                 // random outputs
  uint64_t seed = 1;
  bool json = false;
};

struct BenchConstraintsOptions {
  std::string model, folder;
  int samples = 2;  // random outputs of each schema, besides the instances
  uint64_t seed = 1;
  bool json = false;
};

struct BenchOptions {
  EngineOptions engine;
  int num_requests = 16;
  std::string input = "128", output = "64";  // N or LO-HI
  std::string workload;                      // file with lengths: CSV or JSONL
  std::string json_schema;                   // of every output: a file or the schema
  std::string vocab;                         // the model whose vocabulary it is for
  LimitsFrom limits = LimitsFrom::run;
  int repeat = 3;
  uint64_t seed = 1;
  bool kv_cache = true;
  bool padded = false;  // static batches with padding
  TextWork text = TextWork::none;
  bool json = false;
};

struct BenchMachineOptions {
  bool json = false, quiet = false;
};

struct BatchOptions {
  std::string file, out, model, api_key_env, ca_file;
  std::vector<std::string> urls, headers;
  int concurrency = 32, tries = 3;
  double timeout = 3600, patience = 60;  // seconds
  bool json = false, quiet = false;
};

enum class Endpoint : uint8_t { chat, completions };
inline constexpr NamedValue<Endpoint> kEndpoints[] = {{"chat", Endpoint::chat},
                                                      {"completions", Endpoint::completions}};
enum class Arrivals : uint8_t { poisson, fixed };
inline constexpr NamedValue<Arrivals> kArrivals[] = {{"poisson", Arrivals::poisson},
                                                     {"fixed", Arrivals::fixed}};

struct BenchServeOptions {
  std::string url, ca_file, model, api_key_env;
  Endpoint endpoint = Endpoint::chat;
  bool insecure = false;
  std::vector<std::string> headers;
  std::string concurrency, rate, trace;  // lists: one run each
  Arrivals arrivals = Arrivals::poisson;
  std::string input = "128", output = "64", prompts, extra, json_schema;
  std::string slo, json, records, report;
  double time_scale = 1, length_scale = 1, temperature = 0;
  std::optional<double> duration;                                  // seconds of sending
  double connect_timeout = 5, timeout = 600, stall_timeout = 120;  // seconds
  std::optional<int> requests, distinct, max_connections;
  int warmup = 2, prefix = 0, prefix_groups = 1;
  uint64_t seed = 1;
  bool send_seed = false, token_ids = false, no_stream = false, no_ignore_eos = false;
  bool check_text = false, quiet = false;
};

// Rows of the matmul table: those that models run on this CPU, or all that it can run.
enum class KernelRows : uint8_t { preferred, all };
inline constexpr NamedValue<KernelRows> kKernelRows[] = {{"preferred", KernelRows::preferred},
                                                         {"all", KernelRows::all}};

struct BenchKernelsOptions {
  KernelRows rows = KernelRows::preferred;
  std::vector<std::string> names, formats, products;  // empty: any
  std::vector<std::string> shapes = {"qwen2.5-0.5b", "qwen2.5-1.5b"};
  std::string m = "1,2,4,8,16,32,64,256,512";  // numbers and LO-HI
  LimitsFrom limits = LimitsFrom::run;
  std::string json, compare;  // files
  double tolerance = 0.1;
  int rotate_mb = 600, threads = 0, rounds = 4;
  bool quick = false, add = false, quiet = false;
};

struct BenchGpuOptions {
  EngineOptions engine;
  std::vector<int> batches = {1, 8, 32, 64, 256}, contexts = {1024};
  std::vector<int> rows;  // of one prompt's step, each measured
  int steps = 48;         // decode steps measured per row of the table
  int shared = 0;         // positions that all sequences of a decode step have in common
  bool ops = false;       // print every op of a step
  bool workload = true;   // run the mixed workload too
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

struct QuantizeOptions {
  std::string in, out, type, output_type;  // output_type empty: chosen by type
  int threads = 0;
  bool keep_embedding = false, overwrite = false, json = false, quiet = false;
};

inline constexpr int kPerplexityWindow = 512;  // tokens, without --ctx

struct PerplexityOptions {
  EngineOptions engine;
  std::string file;
  int windows = 0;  // 0: all
  bool json = false;
};

struct ServeOptions {
  EngineOptions engine;
  std::string host = "127.0.0.1", api_key_file, tls_cert, tls_key;
  std::vector<std::string> served_names, allowed_hosts, cors;
  Pooling pooling = Pooling::last;
  FormatFlags formats;
  KvPublisher::Options kv_events;
  KvTransfer::Options transfer;
  EtcdRegistration::Options registration;
  std::string simulate;  // device or file of costs; empty: steps are computed
  std::string cost;      // file of costs or device, for predictions; empty: none are made
  int port = 8080, io_threads = 1;
  std::optional<int> grpc_port;
  bool allow_no_key = false, allow_request_template = false, allow_tokenizer_info = false;
  bool log_requests = true, warm_up = true;
  double ping = 15, resume = 30;  // seconds
  std::string batch_dir;          // empty: no /v1/files and /v1/batches
  int64_t batch_bytes = int64_t{1} << 30;
  AdmissionLimits admission;
  double request_share = 0.75;
  uint64_t max_body = uint64_t{8} << 20;
  int max_connections = 16'384;
  std::optional<int> max_connections_per_ip;  // absent: 256, and no limit from this machine
  std::optional<int> max_queue;  // absent: 512, and no limit where only this machine can connect
  uint64_t max_unread = uint64_t{64} << 20, min_read_rate = 1024;  // bytes; bytes per second
  double grace = 30, request_timeout = 0, stall_timeout = 60;      // seconds, as all below
  double header_timeout = 10, body_timeout = 30, idle_timeout = 60, send_timeout = 30;
};

int cmd_serve(const ServeOptions& options);
int cmd_run(const RunOptions& options);
int cmd_inspect(const InspectOptions& options);
int cmd_template(const TemplateOptions& options);
int cmd_quantize(const QuantizeOptions& options);
int cmd_perplexity(const PerplexityOptions& options);
int cmd_tokenize(const TokenizeOptions& options);
int cmd_constrain(const ConstrainOptions& options);
int cmd_bench_constraints(const BenchConstraintsOptions& options);
int cmd_bench_throughput(const BenchOptions& options);
int cmd_bench_latency(const BenchOptions& options);
int cmd_bench_machine(const BenchMachineOptions& options);
int cmd_bench_kernels(const BenchKernelsOptions& options);
int cmd_bench_gpu(const BenchGpuOptions& options);
int cmd_batch(const BatchOptions& options);
int cmd_bench_serve(const BenchServeOptions& options);

// Prints "sluice: message" to stderr; the exit code for such an error.
int report(const Error& error);

}  // namespace sluice

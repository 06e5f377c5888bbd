// One measured run of a load test: requests sent as planned, each followed to its end. Used by one
// thread. For tools/bench_serve.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "tools/bench_serve/plan.h"
#include "tools/bench_serve/prompts.h"
#include "tools/sla.h"

namespace sluice {

// How a request ended. Everything but ok and cancelled is a failure.
enum class Fate : uint8_t {
  ok,
  connect,       // no connection
  timeout,       // no whole answer in time
  stalled,       // nothing came for too long
  closed,        // the connection ended before the answer began
  broken,        // the connection or the stream ended within the answer
  malformed,     // the answer is not HTTP, not events or not JSON
  http_status,   // an answer other than 200
  error_event,   // an error object within the stream
  short_answer,  // fewer tokens than were asked for, with ignore_eos
  text_differs,  // --check-text
  cancelled,     // by Ctrl-C
};
inline constexpr int kNumFates = 12;
const char* fate_name(Fate fate);

// Times are seconds since the run began; below 0: it did not happen.
struct LoadRecord {
  uint64_t index = 0;
  double due = 0, begin = -1, sent = -1, first = -1, last = -1, end = -1;
  Fate fate = Fate::ok;
  int status = 0;
  double retry_after = -1;  // seconds, of a refusal
  int input_asked = 0, max_tokens = 0;
  bool has_usage = false;
  int64_t input_tokens = 0, output_tokens = 0, cached_tokens = 0;
  int chunks = 0;      // with text
  double max_gap = 0;  // between two of them
  GapAverage gaps;
  std::string finish, message, text;
  uint64_t prompt = 0;  // requests with equal numbers have equal bodies

  bool ok() const { return fate == Fate::ok; }
  bool failed() const { return fate != Fate::ok && fate != Fate::cancelled; }
  double ttft() const { return first - begin; }
  double e2e() const { return end - begin; }
  // Mean time per token after the first.
  double tpot() const {
    return output_tokens > 1 ? (last - first) / static_cast<double>(output_tokens - 1) : 0;
  }
  bool good(const Slo& slo) const;
};

struct RunLimits {
  std::optional<uint64_t> requests;
  std::optional<double> duration;  // seconds of sending
};

// The body of request `index`; fills input_asked, max_tokens and prompt of the record.
using MakeBody = std::function<std::string(uint64_t index, LoadRecord& record)>;

struct RunSetup {
  RunPoint point;
  RunLimits limits;
  MakeBody make_body;
  const std::vector<TraceEntry>* trace = nullptr;
  double time_scale = 1;
  std::string path;  // "/v1/completions"
  bool stream = true, keep_text = false, want_all_tokens = false;
  uint64_t seed = 1;
  std::function<bool()> interrupted;
  std::function<void(const struct RunProgress&)> progress;  // ten times a second
};

struct RunProgress {
  double elapsed = 0;
  uint64_t sent = 0, done = 0, failed = 0, tokens = 0;
  size_t in_flight = 0;
};

inline constexpr double kBinSeconds = 0.1;

struct RunResult {
  RunPoint point;
  std::vector<LoadRecord> records;  // in order of index
  Percentiles gaps;                 // every one between two chunks with text
  Percentiles lateness;             // of each send, behind its due time
  Percentiles lag;                  // of a timer of 20 ms, beside the requests
  std::vector<uint32_t> tokens_per_bin;
  double elapsed = 0;      // first send to last end
  double send_window = 0;  // first send to last send
  double client_cpu = 0;   // share of one core
  uint64_t connections = 0, stale = 0, odd_counts = 0;
  bool interrupted = false;
};

RunResult run_load(const Target& target, const RunSetup& setup);

}  // namespace sluice

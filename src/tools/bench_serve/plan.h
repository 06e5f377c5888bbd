// What a load test is asked to do, read from options and traces: lengths, arrivals, objectives.
// Plain data and pure functions. For tools/bench_serve.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sluice {

struct LengthRange {
  int lo = 0, hi = 0;
  double median = 0;  // > 0: log-normal with sigma 1 and at most hi, else uniform
  int pick(uint64_t seed, uint64_t index, uint32_t draw) const;
};
// "N", "LO-HI" or "lognormal:MEDIAN:MOST"; `what` names the option in the error.
Result<LengthRange> parse_length_range(const std::string& text, const char* what);

// "200ms", "1.5s", "2m"; a bare number is seconds.
Result<double> parse_seconds(std::string_view text);

// Upper limits in seconds; 0: none. A request is good when it keeps all of them.
struct Slo {
  double ttft = 0, tpot = 0, itl = 0, e2e = 0;  // itl: of its longest gap
  bool any() const { return ttft > 0 || tpot > 0 || itl > 0 || e2e > 0; }
};
Result<Slo> parse_slo(const std::string& text);  // "ttft=200ms,itl=50ms"

// "1,2,4" to numbers, each above 0.
Result<std::vector<double>> parse_list(const std::string& text, const char* what, bool whole);

struct TraceEntry {
  double at = 0;  // seconds after the first
  int input = 0, output = 0;
  std::vector<uint64_t> blocks;  // ids of its prompt's blocks: equal ids, equal text
};
inline constexpr int kTraceBlockTokens = 512;

// Azure's CSV (TIMESTAMP,ContextTokens,GeneratedTokens) or Mooncake's JSONL (timestamp in ms,
// input_length, output_length, hash_ids), sorted by time. At most `limit` entries.
Result<std::vector<TraceEntry>> read_trace(const std::string& path, std::optional<int> limit = {});
Result<TraceEntry> parse_trace_line(std::string_view line);  // `at` as written, not yet relative

// One measured run: closed with `concurrency`, else open.
struct RunPoint {
  int concurrency = 0;
  double rate = 0;  // requests per second; 0 with concurrency or a trace
  bool poisson = true;
  std::string label() const;
};

// Defaults of --requests and --max-connections. A closed loop keeps a number of requests running;
// an open loop (--rate, --trace) sends them when they are due.
inline constexpr int kRequestsPerConnection = 10;  // closed loop: times the concurrency
inline constexpr int kOpenLoopRequests = 100, kOpenLoopConnections = 16'384;

// When the requests of an open loop are due, in seconds from the start: the first of a fixed rate
// at 0, of a Poisson process after its first gap.
class ArrivalTimes {
 public:
  ArrivalTimes(const RunPoint& point, uint64_t seed) : point_(point), seed_(seed) {}
  double next();

 private:
  RunPoint point_;
  uint64_t seed_;
  int64_t index_ = 0;
  double at_ = 0;
};

}  // namespace sluice

// The format of a recording: what a scheduler was told and what it planned, as a file that can be
// read though it was cut off anywhere. Pure: no files, no clocks; any thread. The recorder is
// engine/flight_recorder.h, the reader of whole recordings core/replay.h.
//
// A file is one segment: eight bytes (kRecordingMagic, the last of which is the version), then
// records. A record is its payload's length (4 bytes, least significant first), its kind (1), a
// CRC-32C of those five bytes and the payload (4), and the payload. The first record is the header,
// the second the state of the scheduler when the segment begins; so each segment can be read
// without those before it. The plans that were in flight then follow.
//
// Version: any change to records or to what they hold raises it; a build reads its own version
// only, for plans must be equal, and another build may plan otherwise.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "core/byte_io.h"
#include "core/scheduler.h"

namespace sluice {

inline constexpr uint8_t kRecordingVersion = 1;
inline constexpr std::array<char, 8> kRecordingMagic = {
    'S', 'L', 'R', 'E', 'C', '\r', '\n', static_cast<char>(kRecordingVersion)};

enum class RecordKind : uint8_t {
  header,
  state,      // encode_state
  in_flight,  // a plan that was launched before the segment and has no result yet
  arrival,    // a request that the scheduler took
  cancel,
  plan,    // a plan that was launched
  idle,    // plan() had nothing to launch: it still looked at the clock
  result,  // of the oldest step in flight
  append,  // tokens that a constraint left no choice about
  masks,   // of a step; with text only
  end,     // the segment is whole: what follows it
};
inline constexpr int kNumRecordKinds = static_cast<int>(RecordKind::end) + 1;
const char* record_name(RecordKind kind);

struct RecordingHeader {
  uint64_t run = 0;      // drawn when the recording began: its segments have the same
  uint32_t segment = 0;  // from 0
  bool follows = false;  // the segment before it ends where this one begins: nothing is missing
  bool text = false;     // tokens are the model's own, else pseudonyms of this run
  int64_t began = 0;     // Time 0 of the clock, in nanoseconds since 1970
  int32_t vocab = 0;     // tokens of the model; 0: not known
  std::string model, model_hash, build;
  SchedulerConfig config;
  bool operator==(const RecordingHeader&) const = default;
};

// ---- writing: all append to `out`, and throw nothing but std::bad_alloc ----

void begin_segment(const RecordingHeader& header, Bytes& out);
// Between both, `out` gets the payload.
size_t begin_record(RecordKind kind, Bytes& out);
void end_record(size_t begun, Bytes& out);

void record_state(const Scheduler& scheduler, Bytes& out, const TokenMap* map);
void record_arrival(
    const Request& request, const SamplingSpec& asked, Time now, Bytes& out, const TokenMap* map);
void record_cancel(RequestId id, Time now, Bytes& out);
void record_plan(const StepPlan& plan, Time now, Bytes& out, const TokenMap* map);
// `stopped`: sequences whose token ended them by a stop string.
void record_result(const StepResult& result,
                   Time now,
                   std::span<const SeqId> stopped,
                   Bytes& out,
                   const TokenMap* map);
void record_append(SeqId id,
                   std::span<const Token> tokens,
                   bool stopped,
                   Time now,
                   Bytes& out,
                   const TokenMap* map);
void record_masks(const StepMasks& masks, Bytes& out);

// ---- reading ----

struct Record {
  RecordKind kind = RecordKind::end;
  std::span<const std::byte> payload;
  size_t at = 0;  // of the record, in the file
};

// The records of a file, up to the last whole one.
class RecordReader {
 public:
  // The bytes must outlive the reader.
  explicit RecordReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  // Reads the magic bytes and the header (400).
  Result<RecordingHeader> header();
  // None: see tail().
  std::optional<Record> next();
  enum class Tail : uint8_t {
    whole,    // the last record ended the file
    cut,      // the file ends within a record
    damaged,  // a record's checksum is wrong
  };
  Tail tail() const { return tail_; }
  size_t at() const { return at_; }

 private:
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  Tail tail_ = Tail::whole;
};

// Decoded payloads; each refuses bytes that are none (400).
struct RecordedArrival {
  Time now{0};
  Request request;
};
struct RecordedCancel {
  Time now{0};
  RequestId id = 0;
};
struct RecordedPlan {
  Time now{0};
  StepPlan plan;
};
struct RecordedResult {
  Time now{0};
  std::vector<SeqId> stopped;
  StepResult result;
};
struct RecordedAppend {
  Time now{0};
  SeqId id;
  bool stopped = false;
  std::vector<Token> tokens;
};
Result<RecordedArrival> read_arrival(std::span<const std::byte> payload);
Result<RecordedCancel> read_cancel(std::span<const std::byte> payload);
Result<RecordedPlan> read_plan(std::span<const std::byte> payload);
Result<Time> read_idle(std::span<const std::byte> payload);
Result<RecordedResult> read_result(std::span<const std::byte> payload);
Result<RecordedAppend> read_append(std::span<const std::byte> payload);

// CRC-32C (Castagnoli).
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);

}  // namespace sluice

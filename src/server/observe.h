// The engine's recent past: its last steps, requests and seconds, in rings of fixed size. The
// engine thread writes once per step, io threads once per request, the dashboard reads. One mutex,
// held for microseconds; after begin() only the readers' own buffers may allocate.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "constrain/constraint.h"
#include "core/events.h"
#include "core/scheduler.h"
#include "engine/loop.h"
#include "server/turn_log.h"

namespace sluice {

struct StepRecord {
  uint64_t step = 0;
  Time plan_begin{0}, plan_end{0}, begin{0}, end{0}, complete_begin{0}, complete_end{0};
  int32_t num_prefill = 0, num_decode = 0, num_slices = 0;  // prefill, decode: tokens
  int32_t running = 0, waiting = 0, available = 0;          // available: blocks
  uint64_t slice_at = 0;                                    // of its slices, counted from the start
  bool done = false;
};

struct SliceRecord {
  RequestId req = 0;
  int32_t pos = 0, count = 0;
  uint16_t choice = 0;
  bool prefill = false;  // of known tokens: a prompt, or a recomputation
  bool masked = false;   // samples under a mask
};

// A request's steps of one kind. Tokens of others are those of the same steps.
struct StepShare {
  int32_t steps = 0;
  Time time{0};
  Time own_time{0};  // the time by its share of the tokens
  int64_t own = 0, other_prefill = 0, other_decode = 0;
};

enum class RequestState : uint8_t { waiting, prefill, decode, preempted, done, refused };

// What became of a prompt whose KV blocks another server has.
struct FetchedPrompt {
  Time took{0};
  int32_t num_tokens = 0;  // that came
  bool whole = false;      // else the rest was computed here
};

struct RequestRecord {
  RequestId id = 0;  // 0: unused
  RequestState state = RequestState::waiting;
  Finish why = Finish::none;
  bool stream = false;
  int32_t key = -1, n = 1, num_prompt = 0, max_new = 0;
  int32_t num_cached = 0, num_output = 0, num_preemptions = 0, num_open = 0;
  int64_t num_recomputed = 0;
  Time received{0}, arrival{0}, first_scheduled{0}, first_token{0}, last_token{0}, finish{0},
      delivered{0};
  uint64_t first_step = 0, last_step = 0;
  // Steps with a prompt of its own; decodes alone; decodes in steps with prompts of others.
  StepShare prefill, decode, crowded;
  Time preempted{0}, preempt_begin{0}, last_step_end{0};
  Time device_before{0}, device_after{0};  // busy time of the device at its start and at its end
  uint64_t answer = 0;                     // answer_key() of the HTTP answer's id
  std::optional<constrain::ConstraintKind> constraint;  // of its output
  Time compile{0};                                      // to compile it; 0: it was known
  int32_t num_masked = 0;                               // tokens that were sampled under a mask
  std::optional<FetchedPrompt> fetched;                 // of its prompt, from another server
  TurnDifference turn;                                  // of a chat: from the turn before
  std::array<uint64_t, 2> trace{};                      // that the caller named; zero: none
  uint32_t live_at = 0;
  uint32_t done_choices = 0;             // bits
  std::array<Time, 16> last_token_of{};  // by choice
  bool live() const { return state < RequestState::done; }
};

// Durations in buckets of an eighth of an octave, from 8 us to 137 s: percentiles within 6 %.
struct Buckets {
  static constexpr size_t kNum = 192;
  std::array<uint32_t, kNum> counts{};
  uint64_t total = 0;
  void add(Time t);
  void add(const Buckets& other);
  double percentile(double p) const;  // seconds; 0 where empty
};

struct Second {
  int64_t second = -1;  // since the start of the clock
  int64_t output_tokens = 0, prefill_tokens = 0;
  int32_t finished = 0, steps = 0, running = 0, waiting = 0;  // the last two: most at once
  Time busy{0};                                               // of the device
  Buckets ttft, itl;
};

// A fixed-size stand-in for the id of an HTTP answer; never 0.
uint64_t answer_key(std::string_view id);

class Recorder {
 public:
  static constexpr size_t kSteps = 4096, kSlices = size_t{1} << 17, kRequests = 4096,
                          kSeconds = 256, kHits = 1024, kFinished = 64;

  // What begin() allocates, but for two bytes per block of the KV pool.
  static size_t bytes(size_t max_seqs) {
    return kSteps * sizeof(StepRecord) + kSlices * sizeof(SliceRecord) +
           kRequests * (sizeof(RequestRecord) + sizeof(RequestId)) + kSeconds * sizeof(Second) +
           max_seqs * sizeof(SlotInfo) + kFinished * sizeof(RequestId) + kHits * sizeof(BlockId);
  }

  // Records from now on.
  void begin(const SchedulerConfig& config);

  // Engine thread.
  void observe(const StepReport& report,
               const StepPlan& plan,
               const Events& events,
               const Scheduler& scheduler);

  // Io threads. The engine may know the request before on_submit() tells of it.
  struct Submission {
    RequestId id = 0;
    int key = -1, n = 1, num_prompt = 0, max_new = 0;
    bool stream = false;
    Time received{0}, arrival{0};
    uint64_t answer = 0;
    std::optional<constrain::ConstraintKind> constraint{};
    Time compile{0};
    TurnDifference turn{};
    std::array<uint64_t, 2> trace{};
    std::optional<FetchedPrompt> fetched{};
  };
  void on_submit(const Submission& submission);
  void on_refused(RequestId id, Time now);
  void on_delivered(RequestId id, Time now);  // its last event has been written

  // Readers. Blocks are copied only while somebody watches.
  void watch(bool on) { watched_.store(on, std::memory_order_relaxed); }
  struct Cursor {
    uint64_t step = 0, map = 0, hits = 0;
    int64_t second = -1;
  };
  struct Totals {
    uint64_t steps = 0, output_tokens = 0, prefill_tokens = 0, finished = 0;
    SchedulerStats stats;
  };
  struct Snapshot {
    std::vector<StepRecord> steps;      // completed after the cursor
    std::vector<StepRecord> in_flight;  // launched, not completed; without device times
    uint64_t num_skipped = 0;
    std::vector<Second> seconds;          // whole ones after the cursor
    Buckets ttft, itl;                    // of the last minute
    std::vector<RequestRecord> requests;  // live ones, then the last finished, newest first
    size_t num_live = 0;
    std::vector<std::pair<bool, RequestId>> order;  // scratch
    bool map_changed = false;
    std::vector<BlockUse> blocks;
    std::vector<BlockId> hits;  // blocks found in the prefix cache
    Totals totals;
  };
  // At most so many steps (the newest) and live requests. Moves the cursor on.
  struct Limits {
    size_t steps = 512, requests = 200;
  };
  void read(Cursor& cursor, const Limits& limits, Time now, Snapshot& out) const;
  // False: not known, or no longer.
  bool request(RequestId id, RequestRecord& out) const;
  // Known requests that `key` made, with when they began and how long they took until `now`.
  struct Brief {
    RequestId id = 0;
    Time begin{0}, time{0};
  };
  std::vector<Brief> made_by(int key, Time now) const;
  // The request with the lowest id of an answer's; 0: not known, or no longer.
  RequestId find_answer(uint64_t answer) const;
  bool step(uint64_t step, StepRecord& out, std::vector<SliceRecord>& slices) const;
  // Steps [first, last] that are still known, the newest `max` of them, with their slices.
  void steps(uint64_t first,
             uint64_t last,
             size_t max,
             std::vector<StepRecord>& out,
             std::vector<SliceRecord>& slices) const;

 private:
  struct SlotInfo {
    RequestId req = 0;
    int32_t num_prompt = 0;
    uint16_t choice = 0;
    bool fresh = false;  // opened and not yet run
  };
  RequestRecord* find(RequestId id);
  RequestRecord& ensure(RequestId id);
  void open(const RowOp& row, Time now);
  void close(const RowOp& row, Time now);
  void launch(const StepReport& report, const StepPlan& plan);
  void note_hits(const Slice& slice, const StepPlan& plan);
  void complete(const StepReport& report);
  void charge(const StepRecord& step, const SliceRecord& slice);
  void take(const Event& event);
  void retire(RequestRecord& r);
  void copy_blocks(const Scheduler& scheduler, Time now);
  Second& second_of(Time t);
  const StepRecord* known_step(uint64_t step) const;
  void copy_slices(const StepRecord& step, std::vector<SliceRecord>& out) const;
  void read_requests(size_t max, Snapshot& out) const;

  std::atomic<bool> recording_{false}, watched_{false};
  mutable std::mutex mutex_;  // of everything below
  SchedulerConfig config_;
  std::vector<StepRecord> steps_;        // by step number
  std::vector<SliceRecord> slices_;      // by count
  std::vector<RequestRecord> requests_;  // by id
  std::vector<Second> seconds_;          // by second
  std::vector<SlotInfo> slots_;
  std::vector<RequestId> live_, finished_;
  uint64_t num_slices_ = 0, num_finished_ = 0, last_done_ = 0;
  Time device_busy_{0}, copied_at_{0};
  std::vector<BlockUse> blocks_, scratch_;
  uint64_t map_version_ = 0;
  std::vector<BlockId> hits_;
  uint64_t num_hits_ = 0;
  Totals totals_;
};

}  // namespace sluice

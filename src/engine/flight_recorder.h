// The flight recorder: a ring of files with all that the scheduler was told and planned
// (core/recording.h). The engine thread encodes into a bounded buffer and never waits for a disk; a
// thread of its own writes files. When that thread cannot follow, the segment at hand is dropped,
// which is counted and logged. A disk that fails ends the recording, not the serving.
//
// One folder holds the ring: DIR/RUN-SEGMENT.slrec, oldest files first to go; and what was kept out
// of it: DIR/kept-*/, at most kMaxKept of them. Files of earlier runs are part of the ring. A
// folder belongs to one process at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/result.h"
#include "core/executor.h"
#include "core/segment_encoder.h"

namespace sluice {

struct FlightOptions {
  static constexpr uint64_t kMinBytes = uint64_t{4} << 20;
  std::string dir;
  uint64_t bytes = uint64_t{256} << 20;  // of the ring
  bool text = false;                     // tokens as they are, else pseudonyms of this run
  // Of it, vocab, model, model_hash and build are the caller's.
  RecordingHeader header;
};

// Ids for the tokens of a vocabulary in an order that only the key gives away.
std::shared_ptr<const TokenMap> token_pseudonyms(int vocab);

class FlightRecorder final : public SegmentSink {
 public:
  static constexpr int kMaxKept = 8;
  // What the buffers of such a ring take, but for states, which take as much as the ring's file of
  // them while they are written.
  static uint64_t memory(uint64_t ring_bytes) { return 2 * buffer_size(ring_bytes); }

  // Makes the folder where it is not, and locks it (400).
  static Result<std::unique_ptr<FlightRecorder>> open(FlightOptions options);
  ~FlightRecorder() override;  // writes what there is
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  // On the thread that owns the scheduler, before its first request. The scheduler must listen() to
  // what this returns, though it may be moved first.
  SchedulerListener* start(Scheduler& scheduler);
  bool has_text() const { return options_.text; }
  // Masks of a step, with text only. Any thread.
  void masks(const StepMasks& masks) noexcept;

  // Links what the ring holds into a folder of its own, soon, and returns the folder's path. Any
  // thread; never waits for a disk.
  Result<std::string> keep(std::string_view why);

  struct Stats {
    uint64_t bytes = 0;     // written
    uint64_t segments = 0;  // begun
    uint64_t dropped = 0;   // segments that lost their end, for the disk did not follow
    uint64_t kept = 0;
    bool stopped = false;  // by an error
  };
  Stats stats() const;
  const std::string& dir() const { return options_.dir; }

 private:
  struct File {
    std::string name;
    uint64_t size = 0;
  };
  // Where in the buffer a segment begins.
  struct Mark {
    size_t at = 0;
    uint32_t segment = 0;
  };

  explicit FlightRecorder(FlightOptions options);
  static uint64_t buffer_size(uint64_t ring_bytes);
  uint64_t most_state() const { return options_.bytes / 4; }
  bool ready(size_t bytes) override;
  bool begin(uint32_t segment, std::span<const std::byte> first) override;
  size_t beside() const override { return beside_.load(std::memory_order_relaxed); }
  void end() override;
  bool write(std::span<const std::byte> records) override;
  void failed() override;

  void thread_main();
  void write_out(const Bytes& bytes, const std::vector<Mark>& marks);
  bool put(std::span<const std::byte> bytes);
  bool open_segment(uint32_t segment);
  void make_room();
  void stop(const std::string& why);
  void link_all(const std::string& folder);
  std::string path(const std::string& name) const { return options_.dir + "/" + name; }
  Result<void> read_folder();
  void name_run();

  FlightOptions options_;
  std::string run_;  // the first part of names
  uint64_t segment_bytes_, buffer_bytes_;
  std::unique_ptr<SegmentEncoder> encoder_;  // the scheduler's thread
  int lock_ = -1;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  // Records that the writer has not taken: states, and at most buffer_bytes_ of others.
  Bytes pending_;
  size_t states_ = 0;               // bytes of pending_
  size_t too_large_ = 0;            // a state that the ring has no room for
  std::vector<Mark> marks_;         // of pending_
  std::vector<std::string> keeps_;  // folders to make
  bool open_ = false;               // a segment takes records
  bool quit_ = false, stopped_ = false;
  std::atomic<size_t> beside_{0};  // bytes of the segment that are masks
  std::optional<std::chrono::steady_clock::time_point> last_fault_;  // the scheduler's thread
  Stats stats_;
  int num_kept_ = 0;

  // The writer's.
  int file_ = -1;
  std::deque<File> ring_;  // oldest first
  uint64_t ring_bytes_ = 0;
  uint64_t dropped_said_ = 0;
  std::thread thread_;
};

// Records masks on their way to an executor.
class MaskRecorder final : public Executor {
 public:
  MaskRecorder(Executor& inner, FlightRecorder& recorder) : inner_(inner), recorder_(recorder) {}
  void launch(const StepPlan& plan) override { inner_.launch(plan); }
  void masks(StepMasks masks) override {
    recorder_.masks(masks);
    inner_.masks(std::move(masks));
  }
  const StepResult& wait() override { return inner_.wait(); }

 private:
  Executor& inner_;
  FlightRecorder& recorder_;
};

}  // namespace sluice

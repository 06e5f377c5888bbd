// Listens to a scheduler and writes what it is told as segments of a recording: each begins with
// the scheduler's state, so that it can be read alone. Pure: bytes go to a sink, which must not
// block. Owned by whoever owns the scheduler, on its thread. Its memory is reused: a step allocates
// nothing once buffers have grown.
//
// A sink that has no room drops the segment at hand: it ends where it is, and nothing is written
// until the sink has room for a new one, which begins with the state of then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/recording.h"
#include "core/scheduler.h"

namespace sluice {

class SegmentSink {
 public:
  virtual ~SegmentSink() = default;
  // Whether there is room to begin a segment whose first records have about so many bytes.
  virtual bool ready(size_t bytes) = 0;
  // A segment begins with these records: bytes from now on are its own. False: there is no room.
  virtual bool begin(uint32_t segment, std::span<const std::byte> first) = 0;
  // Whole records. False: there is no room, and they are not written.
  virtual bool write(std::span<const std::byte> records) = 0;
  // Bytes of the segment that others wrote beside the encoder.
  virtual size_t beside() const { return 0; }
  // No segment is open until the next begin().
  virtual void end() {}
  // The step at hand failed on the device.
  virtual void failed() {}
};

class SegmentEncoder final : public SchedulerListener {
 public:
  // `map`: tokens are written as it names them, and the scheduler hashes so; null: as they are.
  SegmentEncoder(RecordingHeader header,
                 size_t segment_bytes,
                 std::shared_ptr<const TokenMap> map,
                 SegmentSink& sink);

  // Begins the first segment with what the scheduler knows.
  void start(const Scheduler& by) noexcept;

  void added(const Scheduler& by,
             const Request& request,
             const SamplingSpec& asked,
             Time now) noexcept override;
  void cancelled(const Scheduler& by, RequestId id, Time now) noexcept override;
  void planned(const Scheduler& by, const StepPlan& plan, Time now) noexcept override;
  void completed(const Scheduler& by,
                 const StepResult& result,
                 Time now,
                 std::span<const Event> events) noexcept override;
  void appended(const Scheduler& by,
                SeqId id,
                std::span<const Token> tokens,
                Time now,
                std::span<const Event> events) noexcept override;
  void flushed(const Scheduler& by) noexcept override;
  void reset(const Scheduler& by) noexcept override;

  uint32_t num_segments() const { return header_.segment; }  // begun
  uint64_t num_unwritten() const { return num_unwritten_; }  // records that no segment has

 private:
  void record(const Scheduler& by, auto&& encode) noexcept;
  void write(const Scheduler& by, auto&& encode);
  void begin(const Scheduler& by, bool follows);
  void end() noexcept;
  StepResult& without_text(const StepResult& result);

  RecordingHeader header_;
  size_t segment_bytes_;
  std::shared_ptr<const TokenMap> map_;
  SegmentSink& sink_;
  bool open_ = false;
  // Of searches, before the call at hand: one that it ends needs its scores.
  std::vector<std::pair<Slot, uint32_t>> beam_rows_;
  size_t written_ = 0;     // of the segment
  size_t first_size_ = 0;  // bytes that the last segment began with
  uint64_t num_unwritten_ = 0;
  Bytes scratch_;
  std::vector<SeqId> stopped_;
  StepResult bare_;                                   // a result as it is written without text
  Vector no_vector_;                                  // in place of one that says what a prompt was
  std::vector<std::pair<uint64_t, Bytes>> launched_;  // plans in flight, with text
  size_t num_launched_ = 0;
};

}  // namespace sluice

// A recorded segment, told to the production scheduler once more: the same calls must give the same
// plans. Pure: bytes in, a report out; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "core/recording.h"

namespace sluice {

struct ScheduleReport {
  RecordingHeader header;
  uint64_t num_records = 0;
  uint64_t num_plans = 0, num_idle = 0, num_results = 0, num_failed = 0;
  uint64_t num_arrivals = 0, num_cancels = 0, num_appends = 0;
  int num_live = 0, num_in_flight = 0, num_cached = 0;  // in the state that it began with
  uint64_t first_step = 0, last_step = 0;
  Time first{0}, last{0};  // of its clock
  RecordReader::Tail tail = RecordReader::Tail::whole;
  size_t bytes_read = 0;
  std::string difference;  // the first one, in words; empty: none
};

// Called while a segment is replayed. An empty function is left out.
struct ReplayHooks {
  std::function<void(const RecordedArrival&)> arrival = {};  // before the scheduler takes it
  std::function<void(const RecordedPlan&)> plan = {};        // launched; equal to the recorded one
  std::function<void(const RecordedResult&, const Events&)> result = {};
  // Events of cancels, of plans that found a deadline past, and of appended tokens.
  std::function<void(const Events&, Time)> events = {};
  std::function<void(const Scheduler&)> end = {};  // after the last record; not after a difference
};

// An error: the file is no recording, or holds what no scheduler could have been told.
Result<ScheduleReport> replay_schedule(std::span<const std::byte> file,
                                       const ReplayHooks& hooks = {});

// Where two plans differ first, in words; empty: nowhere.
std::string plan_difference(const StepPlan& recorded, const StepPlan& planned);

}  // namespace sluice

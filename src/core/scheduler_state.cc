#include "core/scheduler_state.h"

#include <utility>

#include "core/scheduler_state_fields.h"

namespace sluice {

void encode_state(const Scheduler& scheduler, Bytes& out, const TokenMap* map) {
  Writer w(out, map);
  SchedulerState::all(w, scheduler);
}

Result<Scheduler> decode_state(std::span<const std::byte> bytes,
                               const SchedulerConfig& config,
                               std::shared_ptr<const TokenText> text) {
  if (auto ok = check_config(config); !ok) return ok.error();
  Reader io(bytes);
  Scheduler s(config, std::move(text));
  SchedulerState::all(io, s);
  if (io.ok() && !io.at_end()) io.fail("bytes follow its end");
  if (io.ok()) {
    if (const char* why = SchedulerState::fault(s)) io.fail(why);
  }
  if (!io.ok()) return io.error("state of the scheduler");
  SchedulerState::derive(s);
  return s;
}

}  // namespace sluice

// Token masks on their way to a device. A step that samples under masks is queued before they are
// known: behind its logits it waits for a flag in pinned memory, then copies the masks, which lie
// beside it. Owned by a DeviceExecutor, whose thread calls everything but put().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "backend/device.h"
#include "core/step_plan.h"

namespace sluice {

class MaskInbox {
 public:
  // For up to `steps` steps in flight, each with up to `rows` masks of `vocab` tokens.
  MaskInbox(Device& device, int steps, int rows, int vocab);
  // Bytes of a step's masks, in pinned memory and on the device.
  static size_t bytes(int rows, int vocab);

  // Step `step` is about to be queued in place `place`, whose last step is done, with `num` masks.
  void expect(size_t place, uint64_t step, int num);
  // Queues the wait for that place's masks, and their copy to `to`.
  void queue(size_t place, void* to);
  // The masks of a step. Any thread; those of a step that has its masks, or is not known, are
  // dropped.
  void put(const StepMasks& masks);
  // Steps that still wait go on with masks that allow nothing.
  void release();

 private:
  struct Place {
    std::mutex mutex;  // held while masks are copied: a step that failed may leave its place early
    uint64_t step = 0;
    uint64_t ticket = 0;  // the flag's value once the masks are there
    int num = 0;
    bool waits = false;
  };
  static constexpr size_t kFlagWords = 8;  // a cache line for each flag
  uint64_t* flag(size_t place) const;
  uint32_t* masks(size_t place) const;
  void fill(size_t place, const StepMasks& from);

  Device& device_;
  size_t words_, step_words_;  // of a mask; of a step's masks
  size_t bytes_;               // of memory_, which the first expect() takes
  Buffer memory_;              // pinned: flags, then masks by place
  std::vector<Place> places_;
  uint64_t num_tickets_ = 0;
};

}  // namespace sluice

// One worker's KV events (docs/kv-events.md) as updates in their order: what is out of order or of
// another run of the worker is left out, and asked for. Pure; one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/kv_picture.h"

namespace sluice {

// The events of one message. Of models with several cache groups only the first counts.
struct KvMessage {
  uint64_t epoch = 0;
  std::vector<KvUpdate> updates;
};
std::optional<KvMessage> decode_kv_message(std::string_view bytes);

class KvFeed {
 public:
  // Of a run of the worker: what others publish at its address is not taken.
  explicit KvFeed(uint64_t epoch = 0) : epoch_(epoch) {}

  // What is to be applied, now that this message came.
  std::vector<KvUpdate> take(uint64_t number, std::string_view bytes);
  // All that the worker told before some message is known.
  bool synced() const { return synced_; }
  // The first message that should be asked for, where some are missing.
  std::optional<uint64_t> missing() const;
  // The one after those that were taken.
  uint64_t next() const { return next_; }
  // What was taken did not arrive.
  void restart() { *this = KvFeed(epoch_); }

 private:
  uint64_t epoch_;
  bool synced_ = false;
  uint64_t next_ = 0;  // where synced
  uint64_t seen_ = 0;  // one more than the highest number so far
};

}  // namespace sluice

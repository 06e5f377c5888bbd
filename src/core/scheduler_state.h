// All that a scheduler knows, as bytes: a scheduler read back plans as the one that was written
// does. For recordings: a segment begins with it. Pure; on the thread that owns the scheduler.
//
// Two things are not kept. Stop strings: a request that has some gets kReplayStop instead, which
// only the token kept for it (replay_text) spells. Constraints: a request that has one is marked,
// and what it allowed is in its results.
//
// Reading trusts nothing: every index, count and enum is checked, and so is that the parts agree
// (references of blocks, places in lists, order of queues), before a scheduler is made of them.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/result.h"
#include "core/byte_io.h"
#include "core/scheduler.h"

namespace sluice {

// A stop string that no text of a model holds.
inline constexpr char kReplayStop[] = "\x01";
// For schedulers that are read back: of all tokens only `vocab`, one beyond the last, has a text,
// kReplayStop.
std::shared_ptr<const TokenText> replay_text(int vocab);

// Appends to `out`. Tokens are written as `map` names them, where it is not null; then the
// scheduler must hash_as() it.
void encode_state(const Scheduler& scheduler, Bytes& out, const TokenMap* map = nullptr);
// `config`: that of the scheduler that was written, which check_config() accepts.
Result<Scheduler> decode_state(std::span<const std::byte> bytes,
                               const SchedulerConfig& config,
                               std::shared_ptr<const TokenText> text);

// A request as it was asked for; its block hashes are left out.
void encode_request(const Request& request,
                    const SamplingSpec& asked,
                    Bytes& out,
                    const TokenMap* map = nullptr);
Result<Request> decode_request(std::span<const std::byte> bytes);

void encode_config(const SchedulerConfig& config, Bytes& out);
Result<SchedulerConfig> decode_config(std::span<const std::byte> bytes);
// Whether a scheduler can be made of it (400).
Result<void> check_config(const SchedulerConfig& config);

}  // namespace sluice

// Memory that a server takes beside the engine, computed from its own limits: what it holds from
// the start, and the most that clients can make it hold. Plain functions; any thread.
#pragma once

#include <cstddef>
#include <optional>

#include "net/http.h"
#include "server/admission_limits.h"

namespace sluice {

struct ServerMemory {
  size_t records = 0;  // of the last steps and requests (Recorder), from the start

  // At most, each at its own limit; nothing of it while no client is there.
  size_t requests = 0;            // being read: headers, bodies, what is pipelined behind them
  size_t unread = 0;              // answers that clients have not taken yet
  size_t streams = 0;             // events of streams that may be resumed
  size_t constraints = 0;         // compiled ones that are kept
  size_t responses = 0;           // stored answers of /v1/responses
  size_t turns = 0;               // tokens of the last turns of conversations
  size_t outbox = 0;              // a step's events on their way to the io threads
  std::optional<size_t> answers;  // kept until they are whole; absent: no limit
  std::optional<size_t> prompts;  // ids of waiting prompts; absent: no limit
};

ServerMemory server_memory(const HttpLimits& http,
                           const AdmissionLimits& admission,
                           int max_sequences);

}  // namespace sluice

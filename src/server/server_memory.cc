#include "server/server_memory.h"

#include "core/request.h"
#include "server/constraint_cache.h"
#include "server/event_log.h"
#include "server/observe.h"
#include "server/outbox.h"
#include "server/response_store.h"
#include "server/turn_log.h"

namespace sluice {

ServerMemory server_memory(const HttpLimits& http,
                           const AdmissionLimits& admission,
                           int max_sequences) {
  const auto limited = [](int64_t limit, size_t bytes_each) -> std::optional<size_t> {
    if (limit == 0) return std::nullopt;
    return static_cast<size_t>(limit) * bytes_each;
  };
  const auto sequences = static_cast<size_t>(max_sequences);
  ServerMemory m;
  m.records = Recorder::bytes(sequences);
  m.requests = http.connections * http.most_request_bytes();
  m.unread = 2 * http.unread_bytes;  // UnreadBytes::allows()
  m.streams = kMaxKeptStreams * kMaxStreamBytes;
  m.constraints = kMaxConstraintBytes;
  m.responses = kMaxResponseBytes;
  m.turns = kMaxTurnBytes;
  m.outbox = sequences * sizeof(Delivery);
  m.answers = limited(admission.total.bytes, 1);
  m.prompts = limited(admission.total.tokens, sizeof(Token));
  return m;
}

}  // namespace sluice

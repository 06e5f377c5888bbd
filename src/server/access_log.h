// One line in the log for each request: method, path, status, tokens, times, ids. Never its text,
// its query or its key. Any thread; neither waits nor allocates.
#pragma once

#include "base/clock.h"

namespace sluice {

struct Call;

// What only a generating request has.
struct CallUsage {
  size_t prompt = 0, output = 0;  // tokens
  Time first{0};                  // when the first token came, by the service's clock; 0: none
};

// `code`: why a stream ended early, or nothing. Probes that succeed (/health, /ready, /metrics) are
// left out.
void log_access(const Call& call, int status, Time now, const char* code = nullptr) noexcept;

}  // namespace sluice

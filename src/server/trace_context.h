// The W3C trace context of a request: the trace that a caller's `traceparent` header names, and our
// span in it. Plain data. Any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

struct TraceContext {
  std::array<uint64_t, 2> trace{};  // all zero: none was given
  uint64_t span = 0;                // ours
  uint8_t flags = 0;                // as the caller sent them
  explicit operator bool() const { return trace[0] != 0 || trace[1] != 0; }
};

// No trace for a header that is not valid by the standard: it is ignored, and so is one of a later
// version that does not begin as version 00 does. The span is left to the caller.
TraceContext parse_traceparent(std::string_view header);
// 32 hexadecimal digits.
std::string trace_id(const std::array<uint64_t, 2>& trace);
// As version 00.
std::string format_traceparent(const TraceContext& context);

}  // namespace sluice

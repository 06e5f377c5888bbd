#include "server/trace_context.h"

#include "base/str.h"

namespace sluice {

namespace {

// 00-TRACE-SPAN-FLAGS: where the parts begin, and where the last one ends.
constexpr size_t kTraceAt = 3, kSpanAt = 36, kFlagsAt = 53, kTraceparentSize = 55;

// Lower case only, as the standard has it; `digits` is at most 16 long.
bool read_hex(std::string_view digits, uint64_t& out) {
  out = 0;
  for (char c : digits) {
    if (c >= '0' && c <= '9') {
      out = out << 4 | static_cast<uint64_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      out = out << 4 | static_cast<uint64_t>(c - 'a' + 10);
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace

TraceContext parse_traceparent(std::string_view header) {
  if (header.size() < kTraceparentSize || header[2] != '-' || header[kSpanAt - 1] != '-' ||
      header[kFlagsAt - 1] != '-')
    return {};
  TraceContext c;
  uint64_t version = 0, parent = 0, flags = 0;
  if (!read_hex(header.substr(0, 2), version) ||
      !read_hex(header.substr(kTraceAt, 16), c.trace[0]) ||
      !read_hex(header.substr(kTraceAt + 16, 16), c.trace[1]) ||
      !read_hex(header.substr(kSpanAt, 16), parent) || !read_hex(header.substr(kFlagsAt, 2), flags))
    return {};
  const bool longer = header.size() > kTraceparentSize;
  if (version == 0xff || parent == 0 || (version == 0 && longer) ||
      (longer && header[kTraceparentSize] != '-'))
    return {};
  // Later versions may mean more by the other flags.
  c.flags = static_cast<uint8_t>(version == 0 ? flags : flags & 1);
  return c;
}

std::string trace_id(const std::array<uint64_t, 2>& trace) {
  return strf("%016llx%016llx", static_cast<unsigned long long>(trace[0]),
              static_cast<unsigned long long>(trace[1]));
}

std::string format_traceparent(const TraceContext& c) {
  return strf("00-%s-%016llx-%02x", trace_id(c.trace).c_str(),
              static_cast<unsigned long long>(c.span), c.flags);
}

}  // namespace sluice

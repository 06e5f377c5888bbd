#include "server/access_log.h"

#include <algorithm>
#include <cstdio>

#include "base/log.h"
#include "server/service.h"

namespace sluice {

namespace {

constexpr size_t kPath = 160;  // bytes shown

// Cut, and without what could end a line or a field.
void copy_path(const std::string& path, char (&out)[kPath + 1]) {
  const size_t size = std::min(path.size(), kPath);
  for (size_t i = 0; i < size; ++i) out[i] = path[i] > ' ' && path[i] < 0x7f ? path[i] : '?';
  out[size] = 0;
}

bool is_probe(const HttpRequest& r) {
  return r.path == "/health" || r.path == "/ready" || r.path == "/metrics" ||
         r.path == "/grpc.health.v1.Health/Check";
}

}  // namespace

void log_access(const Call& call, int status, Time now, const char* code) noexcept {
  if (status == 200 && is_probe(call.http)) return;
  char path[kPath + 1], tokens[96] = "", ends[96] = "", trace[48] = "";
  copy_path(call.http.path, path);
  if (const auto& u = call.usage) {
    int n = std::snprintf(tokens, sizeof tokens, " in=%zu out=%zu", u->prompt, u->output);
    if (u->first.count() > 0 && n > 0)
      std::snprintf(tokens + n, sizeof tokens - static_cast<size_t>(n), " ttft=%.3fs",
                    seconds(u->first - call.received));
  }
  std::snprintf(ends, sizeof ends, "%s%s%s", code ? " error=" : "", code ? code : "",
                call.out->closed() ? " client=gone" : "");
  if (call.trace)
    std::snprintf(trace, sizeof trace, " trace=%016llx%016llx",
                  static_cast<unsigned long long>(call.trace.trace[0]),
                  static_cast<unsigned long long>(call.trace.trace[1]));
  LOG(info, "%s %s %d%s total=%.3fs%s id=%s%s", call.http.method.c_str(), path, status, tokens,
      seconds(now - call.received), ends, call.id.c_str(), trace);
}

}  // namespace sluice

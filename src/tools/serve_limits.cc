#include "tools/serve_limits.h"

#include <chrono>

namespace sluice {

HttpLimits http_limits(const ServeOptions& o) {
  HttpLimits l;
  l.body_bytes = o.max_body;
  l.connections = static_cast<size_t>(o.max_connections);
  if (o.max_connections_per_ip) {
    l.connections_per_ip = static_cast<size_t>(*o.max_connections_per_ip);
    l.connections_from_loopback = l.connections_per_ip;
  }
  auto ms = [](double s) { return std::chrono::milliseconds(static_cast<int64_t>(s * 1e3)); };
  l.header = ms(o.header_timeout);
  l.body = ms(o.body_timeout);
  l.idle = ms(o.idle_timeout);
  l.send = ms(o.send_timeout);
  l.read_rate = o.min_read_rate;
  l.unread_bytes = o.max_unread;
  return l;
}

ServerMemory serving_memory(const ServeOptions& o) {
  return server_memory(http_limits(o), o.admission, o.engine.scheduler.max_seqs);
}

}  // namespace sluice

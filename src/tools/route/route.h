// sluice route: one address for several workers. Options; for cli_route.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/routing_policy.h"

namespace sluice {

struct RouteOptions {
  std::vector<std::string> workers;  // URLs
  std::string workers_dns;           // NAME:PORT; empty: none
  std::vector<std::string> etcd;     // URLs of its servers; empty: none
  std::string etcd_prefix = "/sluice/workers/";
  std::string host = "127.0.0.1", tls_cert, tls_key, ca_file;
  int port = 8090;
  bool allow_others = false;
  Routing policy = Routing::cache_aware;
  std::string slo;   // as bench serve takes it; with it requests are rejected early
  std::string cost;  // file of `plan calibrate`; empty: an assumption, corrected by what is seen
  int budget = 2048;
  std::string session_header = "x-session-id";
  bool kv_events = false;
  bool fetch = true;     // workers fetch prefixes from one another
  bool balance = false;  // workers of role both compute prompts alone or decode
  std::string kv_event_key;
  int tries = 3, max_requests = 8192, max_connections = 16'384;
  uint64_t max_body = uint64_t{8} << 20, max_held = uint64_t{512} << 20;
  double silence = 600, grace = 30;  // seconds
};

int cmd_route(const RouteOptions& options);

}  // namespace sluice

// Sends the requests of a batch to any number of servers and writes what they answer. Every server
// has a thread of its own with as many requests in flight as it takes; all draw from one queue, so
// that what a server leaves undone goes to the others.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "net/http_client.h"
#include "server/batch_file.h"

namespace sluice {

struct BatchRunOptions {
  std::vector<HttpClient::Options> servers;  // with timeouts and certificates
  HttpHeaders headers;
  std::string model;  // instead of the requests' own; empty: theirs
  int concurrency = 32;
  int tries = 3;  // of a request whose answer failed: no answer, or a status of 500 and above
  double patience = 60;  // seconds without any server before the run stops
};

struct BatchProgress {
  size_t done = 0, in_flight = 0, servers = 0;  // servers: that answer
};

struct BatchEnd {
  size_t failed = 0;         // requests whose tries all failed; the next run sends them again
  bool interrupted = false;  // `stop` said so
  std::string error;         // why the run stopped early; empty: it did not
};

// `watch` is called ten times a second on the caller's thread; false: stop.
Result<BatchEnd> run_batch(BatchInput& input,
                           BatchOutput& output,
                           const BatchRunOptions& options,
                           const std::function<bool(const BatchProgress&)>& watch);

}  // namespace sluice

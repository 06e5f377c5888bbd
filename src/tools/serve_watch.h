// The main thread's work once a server runs: watch() until a stop, then drain().
#pragma once

#include "net/grpc_server.h"
#include "net/http.h"
#include "server/grpc_front.h"
#include "server/service.h"
#include "tools/commands.h"
#include "tools/serve_signals.h"

namespace sluice {

struct Serving {
  const ServeOptions& options;
  Service& service;
  HttpServer& http;
  TlsContext* tls;  // null: plain HTTP
  Signals& signals;
  GrpcFront* grpc_front = nullptr;  // null: no gRPC
  GrpcServer* grpc = nullptr;
};

// Until a stop: looks after threads and model files, feeds the service manager's watchdog, reloads
// keys and certificates.
void watch(Serving& s);
// Requests that run finish inside the grace time, or until a second signal.
void drain(Serving& s);

}  // namespace sluice

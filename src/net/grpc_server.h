// A gRPC server, as the shared object libsluice_grpc.so beside the program gives one. It knows
// nothing of messages: they are bytes. Every call has one message in and any number out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "net/responder.h"

namespace sluice {

struct GrpcRequest {
  std::string method;  // "/package.Service/Method"
  HttpHeaders metadata;
  std::string peer;         // address without port
  double seconds_left = 0;  // until the client's deadline; 0: it has none
  std::string message;
};

// A call's way back. All calls of it by one thread at a time; finish() or cut() is the last, and
// must come.
class GrpcReply {
 public:
  virtual ~GrpcReply() = default;
  virtual void add_metadata(const std::string& name,
                            const std::string& value) = 0;   // before write()
  virtual void write(std::string_view message) = 0;          // the next only after on_written()
  virtual void finish(int code, std::string_view text) = 0;  // gRPC's status codes
  virtual void cut() = 0;                                    // drops what was written
};

// The server's side of a call. Called on gRPC's threads; must not throw.
class GrpcCall {
 public:
  virtual ~GrpcCall() = default;
  virtual void on_request(GrpcRequest request) = 0;  // once, or never where the client is gone
  virtual void on_written() = 0;
  virtual void on_gone() = 0;  // the client is; once, also after finish()
};

class GrpcListener {
 public:
  virtual ~GrpcListener() = default;
  // Any thread. Null: there is no memory for it.
  virtual std::shared_ptr<GrpcCall> make_call(std::shared_ptr<GrpcReply> reply) noexcept = 0;
};

struct GrpcOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;              // 0: any free one
  std::string tls_cert, tls_key;  // PEM; empty: plain
  size_t message_bytes = size_t{8} << 20;
  size_t memory_bytes = size_t{64} << 20;  // of gRPC's own buffers
};

class GrpcServer {
 public:
  virtual ~GrpcServer() = default;
  virtual uint16_t port() const = 0;
  // Cancels what runs, and returns when every call has ended. Listener and replies must still work.
  virtual void stop() = 0;
};

// Error 400: there is no such shared object; 500: the environment's (a busy port). The listener
// outlives the server.
Result<std::unique_ptr<GrpcServer>> start_grpc(const GrpcOptions& options, GrpcListener& listener);

// What the shared object exports as sluice_grpc(): checked by its version before use.
struct GrpcExports {
  int version;
  // Null with a message in `error`.
  GrpcServer* (*start)(const GrpcOptions& options,
                       GrpcListener& listener,
                       char* error,
                       size_t error_bytes);
};
// Changed with anything that both sides see; sizes catch what was forgotten.
inline constexpr int kGrpcPluginVersion =
    1 << 16 ^ static_cast<int>(sizeof(GrpcRequest) << 8 ^ sizeof(GrpcOptions));

}  // namespace sluice

// gRPC calls as requests to the service: each is answered on an io thread through a Responder, as
// an HTTP request is, and so by the same rules for keys, admission and slow readers.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "net/grpc_server.h"
#include "net/http.h"
#include "server/service.h"

namespace sluice {

class GrpcExchange;

class GrpcFront final : public GrpcListener {
 public:
  // `http`: the limits of its connections count for calls too.
  GrpcFront(Service& service, const HttpLimits& http);
  ~GrpcFront() override;

  std::shared_ptr<GrpcCall> make_call(std::shared_ptr<GrpcReply> reply) noexcept override;
  // Once a second or so, any thread: tells watchers of a change of health, cuts calls that nobody
  // reads, ends those whose end was lost for want of memory.
  void tick();
  // Calls that are not answered yet, those that watch the health left out.
  size_t busy() const { return busy_.load(); }

 private:
  friend class GrpcExchange;

  Service& service_;
  const HttpLimits limits_;
  std::shared_ptr<UnreadBytes> unread_;
  std::atomic<size_t> next_thread_{0}, busy_{0}, num_watchers_{0};
  std::mutex mutex_;
  std::vector<std::weak_ptr<GrpcExchange>> calls_;  // of mutex_
};

}  // namespace sluice

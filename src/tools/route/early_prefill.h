// A prefill request that runs beside the decode request, which awaits its blocks as they are
// computed. Owned by the worker that computes it; on the router's io thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tools/route/router.h"

namespace sluice {

class EarlyPrefill final : public HttpListener {
 public:
  // Of one worker at a time: each keeps a connection and a thread on both sides.
  static constexpr size_t kMost = 32;

  EarlyPrefill(Router& router,
               std::shared_ptr<RoutedExchange> exchange,
               int worker,
               Conductor::Ticket ticket)
      : router_(router), exchange_(std::move(exchange)), worker_(worker), ticket_(ticket) {}

  // Nobody wants it any more, or its worker does not answer.
  void cancel();

  void on_head(int status, const HttpHeaders&) override { status_ = status; }
  void on_body(std::string_view bytes) override;
  void on_end(HttpFailure failure, const std::string& detail) override;

 private:
  Router& router_;
  std::shared_ptr<RoutedExchange> exchange_;
  const int worker_;
  const Conductor::Ticket ticket_;
  int status_ = 0;
  bool cancelled_ = false;
  std::string body_;
};

}  // namespace sluice

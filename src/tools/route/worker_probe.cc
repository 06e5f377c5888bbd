#include "tools/route/worker_probe.h"

namespace sluice {

Result<void> WorkerProbe::open(HttpClient::Options o) {
  o.max_connections = 1;
  o.connect = o.request = o.stall = kPatience;
  url_ = o.url;
  Result<std::unique_ptr<HttpClient>> client = HttpClient::open(o);
  if (!client) return client.error();
  client_ = std::move(*client);
  return {};
}

void WorkerProbe::run() {
  status_ = 0;
  asked_ = std::chrono::steady_clock::now();
  client_->send(http_request_bytes(url_, "GET", has_ready_ ? "/ready" : "/health", {}, ""), *this);
}

void WorkerProbe::on_end(HttpFailure failure, const std::string&) {
  auto pause = kPause;
  if (failure == HttpFailure::none) {
    num_missed_ = 0;
    if (status_ == 404 && has_ready_) {
      has_ready_ = false;
      pause = std::chrono::milliseconds(0);
    } else {
      router_.set_state(worker_, true, status_ != 200, false, "takes no new requests");
    }
  } else if (failure == HttpFailure::connect &&
             std::chrono::steady_clock::now() - asked_ < kPatience) {
    router_.set_state(worker_, false, false, false, "refuses connections");
  } else if (++num_missed_ >= kMostMissed) {
    router_.set_state(worker_, false, false, true, "does not answer");
  } else {
    pause = std::chrono::milliseconds(0);
  }
  client_->at(std::chrono::steady_clock::now() + pause, [this] { run(); });
}

}  // namespace sluice

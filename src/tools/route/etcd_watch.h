// Asks etcd again and again who the workers are: the values below a prefix, which vanish with their
// leases. While nobody answers nothing is told, so what was known stays. On the router's io thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "net/http_client.h"

namespace sluice {

class EtcdWatch final : public HttpListener {
 public:
  static constexpr std::chrono::milliseconds kPause{1000}, kPatience{1500};

  // `tell`: URLs of workers, at least one.
  using Tell = std::function<void(const std::vector<HttpUrl>& workers)>;
  EtcdWatch(std::string prefix, Tell tell) : prefix_(std::move(prefix)), tell_(std::move(tell)) {}

  // For each of etcd's servers; the next one is asked where one does not answer.
  Result<void> add(HttpClient::Options server);
  void run();  // asks first; the rest follows by itself

  void on_head(int status, const HttpHeaders&) override { status_ = status; }
  void on_body(std::string_view bytes) override;
  void on_end(HttpFailure failure, const std::string& detail) override;

 private:
  struct Server {
    HttpUrl url;
    std::unique_ptr<HttpClient> client;
  };
  Result<std::vector<HttpUrl>> workers_in(std::string_view answer);

  std::string prefix_;
  Tell tell_;
  std::vector<Server> servers_;
  size_t at_ = 0;  // server that is asked
  int status_ = 0;
  std::string body_;
  bool failing_ = false, said_bad_ = false;
};

}  // namespace sluice

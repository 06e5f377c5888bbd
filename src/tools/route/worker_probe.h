// Asks one worker again and again whether it is there and what its role is: /ready, or /health
// where it has none; and where its KV events are followed, what it publishes (/server_info). On the
// router's io thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "net/http_client.h"
#include "tools/route/probe_rule.h"
#include "tools/route/router.h"

namespace sluice {

class WorkerProbe final : public HttpListener {
 public:
  WorkerProbe(Router& router, size_t worker) : router_(router), worker_(worker) {}

  Result<void> open(HttpClient::Options options);
  void run();  // sends the first; the rest follow by themselves
  bool idle() const { return !asking_; }
  // Asks another worker from the next time on; while idle.
  void move_to(const HttpUrl& url);

  void on_head(int status, const HttpHeaders&) override { status_ = status; }
  void on_body(std::string_view bytes) override;
  void on_end(HttpFailure failure, const std::string& detail) override;

 private:
  Router& router_;
  const size_t worker_;
  HttpUrl url_;
  std::unique_ptr<HttpClient> client_;
  void ask(const char* path);
  void on_answer();
  void on_info(HttpFailure failure, const std::string& detail);
  ProbeRule::Outcome outcome(HttpFailure failure, const std::string& detail) const;
  // Asks again when the rule says so, after `verdict` where nothing was answered.
  void ask_again(ProbeRule::Verdict verdict);

  bool has_ready_ = true, asking_ = false, asking_info_ = false;
  std::string body_;  // of the answer
  int status_ = 0;
  ProbeRule rule_;
  std::chrono::steady_clock::time_point asked_;
  Time asked_at_{}, answered_{};  // the same by the router's clock; of the last that was answered
};

}  // namespace sluice

// Requests to the hub over HTTP, retried where that can help; its refusals become errors that say
// what to do. Owned by one thread.
#pragma once

#include <functional>
#include <string>

#include "base/result.h"
#include "hub/hub_name.h"
#include "hub/repository.h"
#include "hub/settings.h"
#include "net/http_get.h"

namespace sluice {

using Say = std::function<void(const std::string& line)>;  // any thread

// Waits between tries: half a second, doubled each time, up to 16 s; longer if the server says so.
class Patience {
 public:
  explicit Patience(Say say) : say_(std::move(say)) {}
  // Waits before the next try after `why`; false: that was the last one. `reply` may ask for a
  // wait.
  bool wait(const std::string& why, const HttpReply& reply);
  void forget() { num_failures_ = 0; }  // there was progress

 private:
  Say say_;
  int num_failures_ = 0;
};

// The server had a bad moment, or is not there: asking again can help.
bool is_passing(const HttpReply& reply);
// "HTTP status 503", "Connection refused".
std::string failure_words(const HttpReply& reply);
// Why an answer is no good, and what to do. `what` is a model's name.
Error refusal(const HttpReply& reply, const std::string& what, const HubSettings& settings);

class HubClient {
 public:
  HubClient(HubSettings settings, Say say) : settings_(std::move(settings)), say_(std::move(say)) {}

  // The newest commit of `main` and its files.
  Result<Repository> repository(const HubName& name);
  HttpGetter::Request file_request(const Repository& repo, const std::string& path) const;
  const HubSettings& settings() const { return settings_; }

 private:
  HubSettings settings_;
  Say say_;
  HttpGetter getter_;
};

}  // namespace sluice

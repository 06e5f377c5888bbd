#include "tools/route/etcd_watch.h"

#include "base/log.h"
#include "base/str.h"
#include "net/etcd.h"
#include "tools/route/router.h"

namespace sluice {

namespace {

constexpr size_t kMostEtcdAnswer = 1 << 20;  // bytes

}  // namespace

Result<void> EtcdWatch::add(HttpClient::Options o) {
  o.max_connections = 1;
  o.connect = o.request = o.stall = kPatience;
  Server& s = servers_.emplace_back();
  s.url = o.url;
  Result<std::unique_ptr<HttpClient>> client = HttpClient::open(std::move(o));
  if (!client) return client.error();
  s.client = std::move(*client);
  return {};
}

void EtcdWatch::run() {
  status_ = 0;
  body_.clear();
  Server& s = servers_[at_];
  s.client->send(http_request_bytes(s.url, "POST", s.url.path + std::string(kEtcdRange),
                                    {{"content-type", "application/json"}},
                                    etcd_range(prefix_, static_cast<int>(kMostWorkers))),
                 *this);
}

void EtcdWatch::on_body(std::string_view bytes) {
  if (body_.size() + bytes.size() <= kMostEtcdAnswer) body_.append(bytes);
}

// Values that are no worker's address are left out, and said once.
Result<std::vector<HttpUrl>> EtcdWatch::workers_in(std::string_view answer) {
  Result<std::vector<std::string>> values = etcd_values(answer);
  if (!values) return values.error();
  std::vector<HttpUrl> out;
  for (const std::string& v : *values) {
    Result<HttpUrl> url = parse_http_url(v);
    if (url && !url->tls && url->path.empty()) {
      out.push_back(std::move(*url));
    } else if (!std::exchange(said_bad_, true)) {
      LOG(warn, "etcd: %s is no worker: http://ADDRESS:PORT is", quote(v).c_str());
    }
  }
  return out;
}

void EtcdWatch::on_end(HttpFailure failure, const std::string& detail) {
  std::string why;
  if (failure != HttpFailure::none) {
    why = std::string(http_failure_name(failure)) + (detail.empty() ? "" : ", " + detail);
  } else if (status_ != 200) {
    why = strf("answers %d", status_);
  } else if (Result<std::vector<HttpUrl>> workers = workers_in(body_); !workers) {
    why = workers.error().message;
  } else if (workers->empty()) {
    why = "it names no worker";
  } else {
    tell_(*workers);
  }
  const HttpUrl& url = servers_[at_].url;
  if (!why.empty() && !failing_)
    LOG(warn, "etcd at %s: %s; the workers known so far stay", http_authority(url).c_str(),
        why.c_str());
  if (why.empty() && failing_) LOG(info, "etcd at %s answers", http_authority(url).c_str());
  failing_ = !why.empty();
  if (failing_) at_ = (at_ + 1) % servers_.size();
  servers_[at_].client->at(std::chrono::steady_clock::now() + kPause, [this] { run(); });
}

}  // namespace sluice

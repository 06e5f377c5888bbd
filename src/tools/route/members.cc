// Who the router's workers are: those given, and those of a name or of etcd as they come and go.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/str.h"
#include "net/stream_socket.h"
#include "tools/route/router.h"
#include "tools/route/worker_probe.h"

namespace sluice {

Result<void> Router::open_worker(size_t worker, HttpClient::Options o) {
  Worker& w = workers_[worker];
  w.url = o.url;
  w.name = http_authority(o.url);
  conductor_.set_rank(static_cast<int>(worker), keyed_hash({}, w.name));
  w.num_requests = w.num_failures = w.num_prefills = 0;
  Result<std::unique_ptr<HttpClient>> client = HttpClient::open(o);
  if (!client) return client.error();
  w.client = std::move(*client);
  w.probe = std::make_unique<WorkerProbe>(*this, worker);
  return w.probe->open(o);
}

// Made for each scrape: addresses come and go, and their series with them.
std::string Router::worker_metrics() const {
  Metrics m;
  for (size_t i = 0; i < workers_.size(); ++i) {
    const Worker& w = workers_[i];
    if (w.name.empty()) continue;
    const int n = static_cast<int>(i);
    const MetricLabels labels = {{"worker", w.name}};
    m.counter("sluice_route_worker_requests_total", "Requests sent to the worker", labels)
        .add(static_cast<double>(w.num_requests));
    m.counter("sluice_route_worker_failures_total",
              "Requests that the worker did not answer to their end", labels)
        .add(static_cast<double>(w.num_failures));
    m.counter("sluice_route_worker_prefills_total", "Of those, prompts for other workers", labels)
        .add(static_cast<double>(w.num_prefills));
    m.gauge("sluice_route_worker_up", "1: it takes requests", labels)
        .set(conductor_.alive(n) && !conductor_.draining(n));
    m.gauge("sluice_route_worker_requests", "Requests that the worker is answering", labels)
        .set(conductor_.num_requests(n));
    m.gauge("sluice_route_worker_pace", "Measured over predicted time to the first token", labels)
        .set(conductor_.pace(n));
    m.gauge("sluice_route_worker_kv_known", "1: its KV events say what it has cached", labels)
        .set(conductor_.kv().known(i));
    m.gauge("sluice_route_worker_kv_blocks", "Blocks that it has cached, by its KV events", labels)
        .set(static_cast<double>(conductor_.kv().num_blocks(i)));
  }
  return m.expose();
}

bool Router::is_gone(size_t worker) const {
  return workers_[worker].leaving && workers_[worker].exchanges.empty() &&
         workers_[worker].early.empty();
}

void Router::set_members(const std::vector<HttpUrl>& members, bool settled) {
  for (size_t i = 0; i < workers_.size(); ++i) {
    Worker& w = workers_[i];
    if (!w.listed || w.leaving) continue;
    const auto is_it = [&](const HttpUrl& m) {
      return m.host == w.url.host && m.port == w.url.port;
    };
    if (std::any_of(members.begin(), members.end(), is_it)) continue;
    if (!settled && conductor_.alive(static_cast<int>(i))) continue;
    w.leaving = true;
    LOG(info, "%s: left %s", w.name.c_str(),
        options_.dns_name.empty() ? "etcd" : options_.dns_name.c_str());
    set_state(i, conductor_.alive(static_cast<int>(i)), true, false, "takes no new requests");
  }
  for (const HttpUrl& m : members) join(m);
}

void Router::join(const HttpUrl& url) {
  if (!is_host_address(url.host)) {
    if (std::exchange(said_no_address_, true)) return;
    return LOG(warn, "%s is no address to connect to", quote(url.host.substr(0, 100)).c_str());
  }
  size_t place = workers_.size();
  for (size_t i = workers_.size(); i-- > 0;) {
    Worker& w = workers_[i];
    if (w.name.empty() || (is_gone(i) && w.probe->idle())) place = i;
    if (w.name.empty() || w.url.host != url.host || w.url.port != url.port) continue;
    w.leaving = false;  // if it was: it came back
    return;
  }
  if (place == workers_.size()) {  // until one that left has finished
    if (std::exchange(said_full_, true)) return;
    return LOG(warn, "%s: more than %zu workers; this one gets no requests",
               http_authority(url).c_str(), workers_.size());
  }
  said_full_ = false;
  if (auto ok = take_place(place, url); !ok) {
    workers_[place].name.clear();
    return LOG(warn, "%s", ok.error().message.c_str());
  }
  LOG(info, "%s: joined", workers_[place].name.c_str());
}

Result<void> Router::take_place(size_t worker, const HttpUrl& url) {
  Worker& w = workers_[worker];
  if (w.name.empty()) {
    HttpClient::Options o = to_;
    o.url = url;
    if (auto ok = open_worker(worker, std::move(o)); !ok) return ok.error();
    w.listed = true;
    w.probe->run();
    return {};
  }
  // Forget the worker that left; its probe may not have said so yet.
  set_state(worker, false, false, false, "is gone");
  set_part(worker, {});
  w.num_requests = w.num_failures = w.num_prefills = 0;
  w.leaving = false;
  w.url = url;
  w.name = http_authority(url);
  conductor_.set_rank(static_cast<int>(worker), keyed_hash({}, w.name));
  w.client->move_to(url);
  w.probe->move_to(url);
  return {};
}

}  // namespace sluice

// A proxy in front of several workers: places requests by core/conductor.h, passes answers on as
// they come, watches the workers. Everything runs on one io thread of the HTTP server but start(),
// stop() and what says otherwise.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/keyed_hash.h"
#include "base/metrics.h"
#include "core/conductor.h"
#include "net/http.h"
#include "net/http_client.h"
#include "tools/route/dns_watch.h"
#include "tools/route/etcd_watch.h"
#include "tools/route/kv_follower.h"
#include "tools/route/request_shape.h"

namespace sluice {

struct RouterLimits {
  size_t requests = 8192;                      // being answered at once
  size_t request_bytes = size_t{512} << 20;    // of their bodies, with copies on their way
  std::chrono::milliseconds silence{600'000};  // of a worker, within an answer
};

struct RouterOptions {
  std::vector<HttpClient::Options> workers;  // at most kMostWorkers
  ConductorWorker worker;                    // what is assumed of each
  RoutingConfig routing;
  RouterLimits limits;
  int tries = 3;  // workers that a request is sent to
  std::string session_header = "x-session-id";
  bool kv_events = false;    // workers that publish what they have cached are followed
  std::string kv_event_key;  // file of CURVE keys; empty: none
  // A name whose addresses are workers too, at this port; empty: none.
  std::string dns_name;
  uint16_t dns_port = 0;
  std::chrono::milliseconds dns_every{2000};
  // Whose entries below the prefix are workers, instead of a name.
  std::optional<EtcdClient> etcd;
  std::string etcd_prefix;
  bool changes() const { return !dns_name.empty() || etcd; }  // workers come and go
  ResolveName resolve = resolve_by_system;
};
inline constexpr size_t kMostWorkers = 64;  // RoutedExchange::avoid_ has a bit for each

// A path that the router passes on to workers.
struct RoutedPath {
  std::string_view method, path;
  bool generates = false;  // its tokens count, and it may be rejected for load
  bool splits = false;     // its prompt may be computed by another worker
  bool prefix = false;     // and all below it
};

// A worker's part in moving KV blocks, as it says itself.
struct KvPart {
  std::string role;   // empty: none
  std::string host;   // where others fetch its blocks
  uint16_t port = 0;  // 0: nowhere
  std::string lease_host;
  uint16_t lease_port = 0;  // where they fetch leases by name; 0: nowhere
  int64_t tokens = 0;       // positions of its pool; 0: unknown
  bool operator==(const KvPart&) const = default;
};

class EarlyPrefill;
class RoutedExchange;
class WorkerProbe;
enum class Leg : uint8_t;

class Router {
 public:
  explicit Router(RouterOptions options);
  ~Router();

  // The HTTP server's callbacks.
  void handle(HttpRequest request, std::shared_ptr<Responder> out);
  static HttpResponse refuse(int status, std::string_view reason);

  // Connects to the workers' io thread and starts to watch them. Before any request.
  Result<void> start(HttpServer& server);
  // From now on /health says 503. Any thread.
  void drain() { draining_ = true; }
  // Drops what is left. After the server was stopped, and before it ends.
  void close();

 private:
  friend class EarlyPrefill;
  friend class RoutedExchange;
  friend class WorkerProbe;
  struct Worker {
    std::string name;                    // for people: the address; empty: a free slot
    bool listed = false;                 // it came from a name or from etcd
    bool leaving = false;                // no longer listed there: it gets no new requests
    WorkerRole role = WorkerRole::both;  // that the log has told of
    HttpUrl url;
    std::unique_ptr<HttpClient> client;
    std::unique_ptr<WorkerProbe> probe;
    uint64_t num_requests = 0, num_failures = 0, num_prefills = 0;  // since it joined
    KvPart kv;
    std::optional<KvFollower::Source> events;
    uint64_t events_turn = 0;
    std::unordered_map<RoutedExchange*, std::shared_ptr<RoutedExchange>> exchanges;
    std::unordered_map<EarlyPrefill*, std::shared_ptr<EarlyPrefill>> early;
  };

  // Members (members.cc).
  Result<void> open_worker(size_t worker, HttpClient::Options options);
  std::string worker_metrics() const;
  // Not `settled`: one that is missing and answers is still one.
  void set_members(const std::vector<HttpUrl>& members, bool settled);
  void join(const HttpUrl& url);
  Result<void> take_place(size_t worker, const HttpUrl& url);
  // It left, and has no requests any more.
  bool is_gone(size_t worker) const;

  void serve_health(Responder& out);
  void serve_metrics(Responder& out);
  // Sends it to a worker, or answers why not.
  void place(const std::shared_ptr<RoutedExchange>& exchange);
  void send_to(int worker,
               const std::shared_ptr<RoutedExchange>& exchange,
               Leg leg,
               const RoutingEstimate& estimate = {});
  // Prefill and decode at once; false: not with this worker, or not now.
  bool send_early(const RoutingChoice& choice, const std::shared_ptr<RoutedExchange>& exchange);
  void left(RoutedExchange& exchange);  // the worker has no more to do with it
  // `silent`: it answers nobody, so what it has in hand is lost too. One that only refuses new
  // connections may still finish, and where it does not, their own connections say so.
  void set_state(size_t worker, bool alive, bool draining, bool silent, const char* why);
  // It has not answered a probe: what it was sent since `answered`, when the last probe that it
  // answered was sent, goes elsewhere; `doubtful`: all that it has not begun to answer. Until
  // set_state().
  void set_suspect(size_t worker, Time answered, bool doubtful);
  // The part that the worker reports; empty: it does whole requests.
  void set_part(size_t worker, KvPart part);
  void tell_roles();
  // Where the worker says that its KV events are; none: it has none, or is gone.
  void set_events(size_t worker, std::optional<KvFollower::Source> source);
  void on_kv_news(const KvFollower::News& news);
  Time now() const { return clock_.now(); }

  RouterOptions options_;
  RealClock clock_;
  HashKey key_;
  uint64_t num_drawn_ = 0;
  std::vector<Worker> workers_;
  std::unique_ptr<KvFollower> follower_;  // null: nobody is followed
  std::unique_ptr<DnsWatch> dns_;         // null: none
  std::unique_ptr<EtcdWatch> etcd_;       // null: none
  bool said_full_ = false;                // that more workers are listed than there are slots
  bool said_no_address_ = false;          // that one of them cannot be connected to
  HttpClient::Options to_;                // of clients that are made later
  Conductor conductor_;
  Metrics metrics_;
  Counter *rejected_, *retried_, *refused_, *prompt_tokens_, *cached_tokens_;
  Counter *prefills_, *fallbacks_, *fetches_, *fetched_tokens_;
  Counter* role_changes_;
  Gauge *held_requests_, *held_bytes_, *transfer_;
  Gauge* up_by_role_[3];  // by WorkerRole
  Histogram* first_byte_;
  bool started_ = false;
  size_t num_requests_ = 0, num_bytes_ = 0;
  std::atomic<bool> draining_{false};
  std::atomic<size_t> num_up_{0};
};

}  // namespace sluice

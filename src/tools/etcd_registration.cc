#include "tools/etcd_registration.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/failure.h"
#include "base/log.h"
#include "base/str.h"
#include "net/etcd.h"
#include "net/stream_socket.h"
#include "tools/etcd_client.h"

namespace sluice {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kEtcdPatience{1000};  // for one answer
constexpr milliseconds kEtcdRetry{1000};
constexpr milliseconds kEtcdLeave{3000};  // that the process waits when it ends

std::string own_address(const EtcdRegistration::Options& o, const std::string& host, int port) {
  if (!o.address.empty()) return o.address;
  const bool six = host.find(':') != std::string::npos;
  return strf(six ? "http://[%s]:%d" : "http://%s:%d", host.c_str(), port);
}

}  // namespace

struct EtcdRegistration::Shared {
  explicit Shared(EtcdClient c) : client(std::move(c)) {}
  std::string key, address;
  int seconds = 0;
  EtcdClient client;      // the thread's, as all up to `mutex`
  int64_t lease = 0;      // 0: none
  bool is_there = false;  // the entry, with this lease, by the last that was heard
  std::mutex mutex;       // of all below
  std::condition_variable changed;
  bool quit = false, done = false;
};

Result<void> EtcdRegistration::check(const Options& o, const std::string& host, bool tls) {
  if (o.servers.empty()) return {};
  if (o.prefix.empty()) return Error{400, "--register-prefix is empty"};
  if (auto client = EtcdClient::make(o.servers, o.ca_file, kEtcdPatience); !client)
    return client.error();
  Result<HttpUrl> own = parse_http_url(own_address(o, host, 1));
  if (!own || own->tls || !own->path.empty() || !is_host_address(own->host))
    return Error{400, strf("--register-as is http://ADDRESS:PORT of this server as routers reach "
                           "it, not %s",
                           quote(own_address(o, host, 0)).c_str())};
  if (tls) return Error{400, "--register does not go with --tls-cert: routers use plain HTTP"};
  return {};
}

Result<std::unique_ptr<EtcdRegistration>> EtcdRegistration::start(const Options& o,
                                                                  const std::string& host,
                                                                  int port) {
  Result<EtcdClient> client = EtcdClient::make(o.servers, o.ca_file, kEtcdPatience);
  if (!client) return client.error();
  auto shared = std::make_shared<Shared>(std::move(*client));
  shared->address = own_address(o, host, port);
  shared->key = o.prefix + http_authority(parse_http_url(shared->address).value());
  shared->seconds = o.seconds;
  return std::unique_ptr<EtcdRegistration>(new EtcdRegistration(std::move(shared)));
}

// Detached: the lookup of a name cannot be interrupted, and may take many seconds.
EtcdRegistration::EtcdRegistration(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {
  std::thread([s = shared_] { thread_main(*s); }).detach();
}

EtcdRegistration::~EtcdRegistration() {
  leave();
  std::unique_lock lock(shared_->mutex);
  shared_->changed.wait_for(lock, kEtcdLeave, [&] { return shared_->done; });
}

void EtcdRegistration::leave() {
  std::lock_guard lock(shared_->mutex);
  shared_->quit = true;
  shared_->changed.notify_all();
}

// Whether the entry is still there: somebody may have deleted it. To put it each time would do too,
// but etcd keeps every put in its history until somebody compacts it.
Result<void> EtcdRegistration::find(Shared& s) {
  Result<std::string> found = s.client.ask(kEtcdRange, etcd_get(s.key));
  if (!found) return found.error();
  Result<std::vector<std::string>> values = etcd_values(*found);
  if (!values) return values.error();
  s.is_there = values->size() == 1 && values->front() == s.address;
  return {};
}

// The entry is there, with a lease that lasts.
Result<void> EtcdRegistration::keep(Shared& s) {
  if (s.lease != 0) {
    Result<std::string> kept = s.client.ask(kEtcdKeepAlive, etcd_lease(s.lease));
    if (!kept) return kept.error();
    Result<EtcdLease> lease = etcd_granted(*kept);
    if (!lease) return lease.error();
    if (lease->seconds <= 0) s.lease = 0;  // it ran out
  }
  if (s.lease == 0) {
    s.is_there = false;
    Result<std::string> granted = s.client.ask(kEtcdGrant, etcd_grant(s.seconds));
    if (!granted) return granted.error();
    Result<EtcdLease> lease = etcd_granted(*granted);
    if (!lease) return lease.error();
    // Without one an entry would stay for ever.
    if (lease->id == 0) return Error{502, "etcd granted no lease"};
    s.lease = lease->id;
  }
  if (s.is_there) {
    if (auto ok = find(s); !ok) return ok;
    if (s.is_there) return {};
  }
  Result<std::string> put = s.client.ask(kEtcdPut, etcd_put(s.key, s.address, s.lease));
  if (!put) return put.error();
  s.is_there = true;
  LOG(info, "etcd: registered %s", quote(s.key).c_str());
  return {};
}

void EtcdRegistration::thread_main(Shared& s) {
  pthread_setname_np(pthread_self(), "etcd");
  bool failing = false;
  for (;;) {
    Result<void> kept;
    try {
      kept = keep(s);
    } catch (...) {
      log_exception("etcd was not told");
      kept = Error{503, "no memory"};
    }
    if (!kept && !failing) LOG(warn, "%s; this server goes on", kept.error().message.c_str());
    failing = !kept;
    if (failing) s.client.move_on();
    const milliseconds pause = kept ? milliseconds(s.seconds * 1000 / 3) : kEtcdRetry;
    std::unique_lock lock(s.mutex);
    if (s.changed.wait_for(lock, pause, [&] { return s.quit; })) break;
  }
  try {
    if (s.lease != 0) static_cast<void>(s.client.ask(kEtcdRevoke, etcd_lease(s.lease)));
  } catch (...) {
    log_exception("etcd was not told");
  }
  std::lock_guard lock(s.mutex);
  s.done = true;
  s.changed.notify_all();
}

}  // namespace sluice

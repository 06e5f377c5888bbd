#include "tools/etcd_registration.h"

#include <pthread.h>

#include <chrono>

#include "base/failure.h"
#include "base/log.h"
#include "base/str.h"
#include "net/etcd.h"
#include "net/stream_socket.h"

namespace sluice {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kEtcdPatience{1000};  // for one answer
constexpr milliseconds kEtcdRetry{1000};

std::string own_address(const EtcdRegistration::Options& o, const std::string& host, int port) {
  if (!o.address.empty()) return o.address;
  const bool six = host.find(':') != std::string::npos;
  return strf(six ? "http://[%s]:%d" : "http://%s:%d", host.c_str(), port);
}

}  // namespace

Result<void> EtcdRegistration::check(const Options& o, const std::string& host, bool tls) {
  if (o.servers.empty()) return {};
  if (o.prefix.empty()) return Error{400, "--register-prefix is empty"};
  for (const std::string& text : o.servers)
    if (Result<HttpUrl> url = parse_http_url(text); !url) return url.error();
  Result<HttpUrl> own = parse_http_url(own_address(o, host, 1));
  if (!own || own->tls || !own->path.empty() || !is_host_address(own->host))
    return Error{400, strf("--register-as is http://ADDRESS:PORT of this server as routers reach "
                           "it, not %s",
                           quote(own_address(o, host, 0)).c_str())};
  if (tls) return Error{400, "--register does not go with --tls-cert: routers use plain HTTP"};
  return {};
}

Result<std::unique_ptr<EtcdRegistration>> EtcdRegistration::start(Options o,
                                                                  const std::string& host,
                                                                  int port) {
  std::unique_ptr<EtcdRegistration> r(new EtcdRegistration);
  r->address_ = own_address(o, host, port);
  r->key_ = o.prefix + http_authority(parse_http_url(r->address_).value());
  r->seconds_ = static_cast<int64_t>(o.seconds);
  for (const std::string& text : o.servers) {
    HttpClient::Options to;
    to.url = parse_http_url(text).value();
    to.max_connections = 1;
    to.connect = to.request = to.stall = kEtcdPatience;
    if (to.url.tls) {
      Result<std::shared_ptr<TlsContext>> tls = TlsContext::client({o.ca_file, false});
      if (!tls) return tls.error();
      to.tls = std::move(*tls);
    }
    Server& s = r->servers_.emplace_back();
    s.url = to.url;
    Result<std::unique_ptr<HttpClient>> client = HttpClient::open(std::move(to));
    if (!client) return client.error();
    s.client = std::move(*client);
  }
  r->thread_ = std::thread([self = r.get()] { self->thread_main(); });
  return r;
}

EtcdRegistration::~EtcdRegistration() {
  leave();
  if (thread_.joinable()) thread_.join();
}

void EtcdRegistration::leave() {
  std::lock_guard lock(mutex_);
  quit_ = true;
  ending_.notify_all();
}

Result<std::string> EtcdRegistration::ask(std::string_view path, const std::string& body) {
  Server& s = servers_[at_];
  const HttpReply reply = s.client->fetch(http_request_bytes(
      s.url, "POST", s.url.path + std::string(path), {{"content-type", "application/json"}}, body));
  std::string why;
  if (reply.failure != HttpFailure::none) why = http_failure_name(reply.failure);
  if (why.empty() && reply.status != 200) why = strf("answers %d", reply.status);
  if (why.empty()) return reply.body;
  const Error error{503, strf("etcd at %s: %s", http_authority(s.url).c_str(), why.c_str())};
  at_ = (at_ + 1) % servers_.size();
  return error;
}

// The entry is there, with a lease that lasts.
Result<void> EtcdRegistration::keep() {
  if (lease_ != 0) {
    Result<std::string> kept = ask(kEtcdKeepAlive, etcd_lease(lease_));
    if (!kept) return kept.error();
    Result<EtcdLease> lease = etcd_granted(*kept);
    if (!lease) return lease.error();
    if (lease->seconds > 0) return {};
    lease_ = 0;  // it ran out
  }
  Result<std::string> granted = ask(kEtcdGrant, etcd_grant(seconds_));
  if (!granted) return granted.error();
  Result<EtcdLease> lease = etcd_granted(*granted);
  if (!lease) return lease.error();
  Result<std::string> put = ask(kEtcdPut, etcd_put(key_, address_, lease->id));
  if (!put) return put.error();
  lease_ = lease->id;
  LOG(info, "etcd: registered %s", quote(key_).c_str());
  return {};
}

void EtcdRegistration::thread_main() {
  pthread_setname_np(pthread_self(), "etcd");
  bool failing = false;
  for (;;) {
    Result<void> kept;
    try {
      kept = keep();
    } catch (...) {
      log_exception("etcd was not told");
      kept = Error{503, "no memory"};
    }
    if (!kept && !failing) LOG(warn, "%s; this server goes on", kept.error().message.c_str());
    failing = !kept;
    const milliseconds pause = kept ? milliseconds(seconds_ * 1000 / 3) : kEtcdRetry;
    std::unique_lock lock(mutex_);
    if (ending_.wait_for(lock, pause, [&] { return quit_; })) break;
  }
  try {
    if (lease_ != 0) static_cast<void>(ask(kEtcdRevoke, etcd_lease(lease_)));
  } catch (...) {
    log_exception("etcd was not told");
  }
}

}  // namespace sluice

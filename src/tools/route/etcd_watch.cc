#include "tools/route/etcd_watch.h"

#include <pthread.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "base/failure.h"
#include "base/log.h"
#include "base/str.h"
#include "net/etcd.h"

namespace sluice {

using std::chrono::steady_clock;

namespace {

constexpr int kMostKeys = 1024;  // that etcd is asked for

}  // namespace

struct EtcdWatch::Shared {
  Shared(EtcdClient c, std::string p, Tell t)
      : client(std::move(c)), prefix(std::move(p)), tell(std::move(t)) {}
  EtcdClient client;  // the thread's, as all up to `mutex`
  std::string prefix;
  bool told = false, failing = false, said_bad = false, said_cut = false;
  steady_clock::time_point settles{};
  std::mutex mutex;  // of all below
  std::condition_variable ending;
  bool quit = false;
  Tell tell;
};

EtcdWatch::EtcdWatch(EtcdClient client, std::string prefix, Tell tell)
    : shared_(std::make_shared<Shared>(std::move(client), std::move(prefix), std::move(tell))) {
  // Detached: the lookup of a name cannot be interrupted, and may take many seconds.
  std::thread([s = shared_] { thread_main(*s); }).detach();
}

EtcdWatch::~EtcdWatch() {
  std::lock_guard lock(shared_->mutex);
  shared_->quit = true;
  shared_->ending.notify_all();
}

// Values that are no worker's address are left out, and said once.
Result<std::vector<HttpUrl>> EtcdWatch::workers_in(Shared& s) {
  Result<std::string> answer = s.client.ask(kEtcdRange, etcd_range(s.prefix, kMostKeys));
  if (!answer) return answer.error();
  Result<std::vector<std::string>> values = etcd_values(*answer);
  if (!values)
    return Error{503,
                 strf("etcd at %s: %s", s.client.name().c_str(), values.error().message.c_str())};
  if (values->size() >= size_t{kMostKeys} && !std::exchange(s.said_cut, true))
    LOG(warn, "etcd at %s has %d workers or more: those behind are not known",
        s.client.name().c_str(), kMostKeys);
  std::vector<HttpUrl> out;
  for (const std::string& v : *values) {
    Result<HttpUrl> url = parse_http_url(v);
    if (url && !url->tls && url->path.empty()) {
      out.push_back(std::move(*url));
    } else if (!std::exchange(s.said_bad, true)) {
      LOG(warn, "etcd: %s is no worker: http://ADDRESS:PORT is", quote(v.substr(0, 100)).c_str());
    }
  }
  if (out.empty()) return Error{404, strf("etcd at %s names no worker", s.client.name().c_str())};
  return out;
}

void EtcdWatch::look(Shared& s) {
  Result<std::vector<HttpUrl>> found = workers_in(s);
  const auto now = steady_clock::now();
  std::lock_guard lock(s.mutex);
  if (s.quit) return;
  if (!found) return fail(s, found.error().message.c_str());
  if (std::exchange(s.failing, false)) LOG(info, "etcd at %s answers", s.client.name().c_str());
  s.told = true;
  s.tell({std::move(*found), now >= s.settles});
}

void EtcdWatch::fail(Shared& s, const char* why) {
  if (s.told) s.settles = steady_clock::now() + kSettle;
  s.client.move_on();
  if (!std::exchange(s.failing, true)) LOG(warn, "%s; the workers known so far stay", why);
}

void EtcdWatch::thread_main(Shared& s) {
  pthread_setname_np(pthread_self(), "etcd");
  for (;;) {
    try {
      look(s);
    } catch (...) {
      std::lock_guard lock(s.mutex);
      if (s.quit) return;
      log_exception("etcd was not asked");
      fail(s, "etcd was not asked");
    }
    std::unique_lock lock(s.mutex);
    if (s.ending.wait_for(lock, kPause, [&] { return s.quit; })) return;
  }
}

}  // namespace sluice

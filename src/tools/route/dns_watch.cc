#include "tools/route/dns_watch.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <pthread.h>

#include <algorithm>
#include <thread>

#include "base/failure.h"
#include "base/log.h"
#include "base/str.h"

namespace sluice {

Result<std::vector<std::string>> resolve_by_system(const std::string& name) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  if (const int failed = getaddrinfo(name.c_str(), nullptr, &hints, &found); failed != 0)
    return Error{503, gai_strerror(failed)};
  std::vector<std::string> out;
  for (const addrinfo* a = found; a; a = a->ai_next) {
    if (a->ai_family != found->ai_family) continue;
    char text[NI_MAXHOST];
    if (getnameinfo(a->ai_addr, a->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0)
      out.emplace_back(text);
  }
  freeaddrinfo(found);
  return out;
}

DnsWatch::DnsWatch(std::string name,
                   std::chrono::milliseconds every,
                   ResolveName resolve,
                   std::function<void(std::vector<std::string>)> tell)
    : shared_(std::make_shared<Shared>()) {
  shared_->name = std::move(name);
  shared_->every = every;
  shared_->resolve = std::move(resolve);
  shared_->tell = std::move(tell);
  // Detached: a lookup cannot be interrupted, and the process must not wait for one when it ends.
  std::thread([shared = shared_] { thread_main(shared); }).detach();
}

DnsWatch::~DnsWatch() {
  std::lock_guard lock(shared_->mutex);
  shared_->quit = true;
  shared_->ending.notify_all();
}

void DnsWatch::look_up(Shared& s, bool& failing) {
  Result<std::vector<std::string>> found = s.resolve(s.name);
  const bool failed = !found || found->empty();
  std::lock_guard lock(s.mutex);
  if (s.quit) return;
  if (failed && !failing)
    LOG(warn, "%s: %s; the addresses known so far stay", quote(s.name).c_str(),
        found ? "no address" : found.error().message.c_str());
  failing = failed;
  if (failed) return;
  std::sort(found->begin(), found->end());
  found->erase(std::unique(found->begin(), found->end()), found->end());
  s.tell(std::move(*found));
}

void DnsWatch::thread_main(const std::shared_ptr<Shared>& shared) {
  pthread_setname_np(pthread_self(), "dns");
  Shared& s = *shared;
  bool failing = false;
  for (;;) {
    try {
      look_up(s, failing);
    } catch (...) {
      std::lock_guard lock(s.mutex);
      if (!s.quit) log_exception("a name was not looked up");
    }
    std::unique_lock lock(s.mutex);
    if (s.ending.wait_for(lock, s.every, [&] { return s.quit; })) return;
  }
}

}  // namespace sluice

// Asks etcd again and again who the workers are: the values below a prefix, which vanish with their
// leases. While nobody answers nothing is told, so what was known stays. A thread of its own.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tools/etcd_client.h"

namespace sluice {

class EtcdWatch {
 public:
  static constexpr std::chrono::milliseconds kPause{1000}, kPatience{1500};
  // After etcd failed, or named nobody, leases may have run out meanwhile: workers get this long to
  // register again. They try every second, or every third of a lease.
  static constexpr std::chrono::seconds kSettle{20};

  // Workers, at least one. Not `settled`: some may be missing that are about to come back.
  struct News {
    std::vector<HttpUrl> workers;
    bool settled = true;
  };
  // `tell` is called on the thread here, and must not block.
  using Tell = std::function<void(News)>;
  EtcdWatch(EtcdClient client, std::string prefix, Tell tell);
  // Nothing is told any more. Does not wait for an answer.
  ~EtcdWatch();

 private:
  struct Shared;
  static void thread_main(Shared& s);
  static void look(Shared& s);
  static void fail(Shared& s, const char* why);
  static Result<std::vector<HttpUrl>> workers_in(Shared& s);

  std::shared_ptr<Shared> shared_;
};

}  // namespace sluice

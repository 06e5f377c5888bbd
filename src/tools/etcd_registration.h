// A server's entry in etcd: its address under a prefix, with a lease that is kept alive. If the
// server dies the entry vanishes with the lease. Without etcd the server goes on, and the entry
// comes back when etcd does. A thread of its own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

namespace sluice {

class EtcdRegistration {
 public:
  struct Options {
    std::vector<std::string> servers;  // URLs of etcd; none: no entry
    std::string prefix = "/sluice/workers/";
    std::string address;  // of this server, http://ADDRESS:PORT; empty: as it listens
    int seconds = 10;     // of the lease
    std::string ca_file;  // of https URLs
  };
  // What is wrong with the options, before anything is loaded. `host`: where the server listens.
  static Result<void> check(const Options& options, const std::string& host, bool tls);
  // `port`: that it listens on. Options that check() has found good.
  static Result<std::unique_ptr<EtcdRegistration>> start(const Options& options,
                                                         const std::string& host,
                                                         int port);
  // Waits for the entry to be taken away, not for long.
  ~EtcdRegistration();
  // Takes the entry away, soon.
  void leave();

 private:
  struct Shared;
  explicit EtcdRegistration(std::shared_ptr<Shared> shared);
  static void thread_main(Shared& s);
  static Result<void> keep(Shared& s);
  static Result<void> find(Shared& s);

  std::shared_ptr<Shared> shared_;
};

}  // namespace sluice

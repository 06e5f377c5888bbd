// A server's entry in etcd: its address under a prefix, with a lease that is kept alive. If the
// server dies the entry vanishes with the lease. Without etcd the server goes on, and the entry
// comes back when etcd does. A thread of its own.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "net/http_client.h"

namespace sluice {

class EtcdRegistration {
 public:
  struct Options {
    std::vector<std::string> servers;  // URLs of etcd; none: no entry
    std::string prefix = "/sluice/workers/";
    std::string address;  // of this server, http://ADDRESS:PORT; empty: as it listens
    double seconds = 10;  // of the lease
    std::string ca_file;  // of https URLs
  };
  // What is wrong with the options, before anything is loaded. `host`: where the server listens.
  static Result<void> check(const Options& options, const std::string& host, bool tls);
  // `port`: that it listens on.
  static Result<std::unique_ptr<EtcdRegistration>> start(Options options,
                                                         const std::string& host,
                                                         int port);
  ~EtcdRegistration();
  // Takes the entry away, soon.
  void leave();

 private:
  struct Server {
    HttpUrl url;
    std::unique_ptr<HttpClient> client;
  };
  EtcdRegistration() = default;
  void thread_main();
  Result<void> keep();
  Result<std::string> ask(std::string_view path, const std::string& body);

  std::string key_, address_;
  int64_t seconds_ = 10;
  std::vector<Server> servers_;  // the thread's, as all up to `mutex_`
  size_t at_ = 0;                // server that is asked
  int64_t lease_ = 0;            // 0: none
  std::mutex mutex_;             // of all below
  std::condition_variable ending_;
  bool quit_ = false;
  std::thread thread_;
};

}  // namespace sluice

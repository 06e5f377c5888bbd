// Looks a name up again and again, on a thread of its own, and tells of its addresses. While nobody
// answers, nothing is told.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/result.h"

namespace sluice {

// Blocks; numeric addresses.
using ResolveName = std::function<Result<std::vector<std::string>>(const std::string& name)>;
// Addresses of one family, that of the first, so that a host with both counts once.
Result<std::vector<std::string>> resolve_by_system(const std::string& name);

class DnsWatch {
 public:
  // `tell` is called on the thread here with addresses in ascending order, at least one; it must
  // not block.
  DnsWatch(std::string name,
           std::chrono::milliseconds every,
           ResolveName resolve,
           std::function<void(std::vector<std::string>)> tell);
  // Nothing is told any more. Does not wait for a lookup, which may take many seconds.
  ~DnsWatch();

 private:
  struct Shared {
    std::string name;
    std::chrono::milliseconds every{0};
    ResolveName resolve;
    std::mutex mutex;  // of all below
    std::condition_variable ending;
    bool quit = false;
    std::function<void(std::vector<std::string>)> tell;
  };
  static void thread_main(const std::shared_ptr<Shared>& shared);
  static void look_up(Shared& s, bool& failing);

  std::shared_ptr<Shared> shared_;
};

}  // namespace sluice

#include "base/check.h"

#include <cstdlib>

#include "base/log.h"

namespace sluice {

void check_failed(const char* condition, const char* file, int line) {
  log_plain("sluice: bug: CHECK(%s) failed at %s:%d", condition, file, line);
  flush_log(std::chrono::milliseconds(100));
  std::abort();
}

}  // namespace sluice

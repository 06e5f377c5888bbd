#include "base/failure.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>

#include "base/log.h"

namespace sluice {

namespace {

// Calls `f` with the text of the exception in hand.
template <typename F>
void with_reason(F f) {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    f("out of memory");
  } catch (const std::exception& e) {
    f(e.what());
  } catch (...) {
    f("unknown exception");
  }
}

[[noreturn]] void on_terminate() {
  char line[512];
  int size = std::snprintf(line, sizeof line, "sluice: terminated\n");
  if (std::current_exception()) {
    with_reason([&](const char* reason) {
      size = std::snprintf(line, sizeof line, "sluice: uncaught exception: %s\n", reason);
    });
  }
  size = std::min(size, static_cast<int>(sizeof line) - 1);
  if (::write(STDERR_FILENO, line, static_cast<size_t>(size)) < 0) ::_exit(1);
  ::_exit(1);
}

}  // namespace

bool is_out_of_memory() noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return true;
  } catch (...) {
    return false;
  }
}

void log_exception(const char* where) noexcept {
  try {
    with_reason([&](const char* reason) { LOG(error, "%s: %s", where, reason); });
  } catch (...) {  // no memory for the log either
  }
}

void exit_on_terminate() noexcept { std::set_terminate(on_terminate); }

}  // namespace sluice

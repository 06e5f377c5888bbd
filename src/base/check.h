// CHECK: our own bugs. User input never reaches one. DCHECK: the same in hot code, debug builds
// only.
#pragma once

namespace sluice {
[[noreturn]] void check_failed(const char* condition, const char* file, int line);
}  // namespace sluice

#define CHECK(cond) \
  ((cond) ? static_cast<void>(0) : ::sluice::check_failed(#cond, __FILE__, __LINE__))
#ifdef NDEBUG
#define DCHECK(cond) static_cast<void>(0)
#else
#define DCHECK(cond) CHECK(cond)
#endif

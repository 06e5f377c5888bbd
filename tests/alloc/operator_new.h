// This test program's operator new: counts what it allocates and fails on request. Tests set the
// variables; those that are not thread_local hold for all threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace sluice::alloc {

// While `counting`, every allocation is added to both counters.
extern std::atomic<bool> counting;
extern std::atomic<uint64_t> num_counted, bytes_counted;

// The allocation after `fail_in` more throws std::bad_alloc (nothrow: returns null), once.
// Negative: none does. Only threads with `may_fail` count down.
extern std::atomic<int64_t> fail_in;
extern std::atomic<int64_t> num_failed;
extern thread_local bool may_fail;

// Allocated minus freed by this thread. Wraps when it frees what another one allocated, so only
// differences mean something. `peak_bytes` is the largest value since a test last set it.
extern thread_local size_t live_bytes, peak_bytes;

}  // namespace sluice::alloc

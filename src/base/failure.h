// Exceptions at the top of a thread or a callback, where they must go no further. Any thread.
#pragma once

namespace sluice {

// Inside a catch block: is it std::bad_alloc?
bool is_out_of_memory() noexcept;
// Inside a catch block: logs "WHERE: REASON", or nothing when even that fails.
void log_exception(const char* where) noexcept;
// From now on std::terminate writes one line and exits with code 1; it does not dump core.
void exit_on_terminate() noexcept;

}  // namespace sluice

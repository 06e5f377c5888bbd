// The log: stderr, one line each, printf-style. Results go to stdout, never here.
// Lines are written at once, in order, by the thread that logs. After log_in_background() a thread
// of its own writes them: then no caller ever waits for a reader of stderr, and lines that do not
// fit into 128 KiB are dropped and counted. Logging neither allocates nor throws.
#pragma once

#include <chrono>
#include <cstdint>

namespace sluice {

enum class LogLevel { info, warn, error };

// "12:34:56.789 W message"
[[gnu::format(printf, 2, 3)]] void log_message(LogLevel level, const char* format, ...);
// The message alone: what a person at the terminal is told.
[[gnu::format(printf, 1, 2)]] void log_plain(const char* format, ...);

void log_in_background();
// Until all lines so far are written, at most so long. False: some are not.
bool flush_log(std::chrono::milliseconds limit);
// Lines lost so far: stderr was closed, or was not read in time.
uint64_t log_dropped();
// Writes what a reader of stderr takes without being waited for, then exits. For a process whose
// other threads hang: runs no destructor.
[[noreturn]] void exit_now(int code);

}  // namespace sluice

#define LOG(level, ...) ::sluice::log_message(::sluice::LogLevel::level, __VA_ARGS__)

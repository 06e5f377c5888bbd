// The log: stderr, one line each, printf-style. Results go to stdout, never here.
#pragma once

namespace sluice {

enum class LogLevel { debug, info, warn, error };

void set_log_level(LogLevel level);
[[gnu::format(printf, 2, 3)]] void log_message(LogLevel level, const char* format, ...);

}  // namespace sluice

#define LOG(level, ...) ::sluice::log_message(::sluice::LogLevel::level, __VA_ARGS__)

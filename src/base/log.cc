#include "base/log.h"

#include <pthread.h>
#include <signal.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace sluice {

namespace {

constexpr size_t kLine = 2048, kPending = 128 << 10;

// Writes all of it; the bytes that could not be written. Waits for a slow reader.
size_t write_all(const char* text, size_t size) {
  while (size > 0) {
    ssize_t n = ::write(STDERR_FILENO, text, size);
    if (n > 0) {
      text += n;
      size -= static_cast<size_t>(n);
    } else if (n < 0 && errno == EAGAIN) {  // somebody else made it non-blocking
      pollfd p{STDERR_FILENO, POLLOUT, 0};
      ::poll(&p, 1, 100);
    } else if (n == 0 || errno != EINTR) {
      break;
    }
  }
  return size;
}

// Lines on their way to stderr. Producers fill one buffer while the writer empties the other.
class Pending {
 public:
  void start() {
    std::lock_guard lock(mutex_);
    if (running_) return;
    for (auto& b : buffers_) b = std::make_unique<char[]>(kPending);
    std::thread([this] { run(); }).detach();  // may hang in write(): nobody waits for it
    running_ = true;
  }

  // False: there is no writer.
  bool push(const char* line, size_t size) {
    {
      std::lock_guard lock(mutex_);
      if (!running_) return false;
      if (fill_ + size > kPending) {
        ++lost_;
        dropped.fetch_add(1);
        return true;
      }
      std::memcpy(buffers_[0].get() + fill_, line, size);
      fill_ += size;
    }
    changed_.notify_one();
    return true;
  }

  bool flush(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    return written_.wait_for(lock, limit, [&] { return fill_ == 0 && !writing_; });
  }

  std::atomic<uint64_t> dropped{0};

 private:
  void run() {
    pthread_setname_np(pthread_self(), "log");
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    std::unique_lock lock(mutex_);
    for (;;) {
      writing_ = false;
      written_.notify_all();
      changed_.wait(lock, [&] { return fill_ > 0; });
      writing_ = true;
      buffers_[0].swap(buffers_[1]);
      size_t size = fill_;
      fill_ = 0;
      uint64_t lost = std::exchange(lost_, 0);  // behind the lines of this buffer
      lock.unlock();
      const char* text = buffers_[1].get();
      size_t left = write_all(text, size);
      auto failed = static_cast<uint64_t>(std::count(text + size - left, text + size, '\n'));
      dropped.fetch_add(failed);
      lost += failed;
      if (left == 0 && lost > 0 && tell(lost)) lost = 0;
      lock.lock();
      lost_ += lost;
    }
  }

  // The buffer went out, and lines after it were lost. False: this line was lost too.
  static bool tell(uint64_t lost) {
    char line[100];
    int n = std::snprintf(line, sizeof line, "sluice: %llu log lines were lost: stderr took none\n",
                          static_cast<unsigned long long>(lost));
    return write_all(line, static_cast<size_t>(n)) == 0;
  }

  std::mutex mutex_;
  std::condition_variable changed_, written_;
  std::unique_ptr<char[]> buffers_[2];  // filled, and being written
  size_t fill_ = 0;
  uint64_t lost_ = 0;  // since the last line that told of it
  bool running_ = false, writing_ = false;
};

// Never destroyed: threads may log while the process ends.
Pending& pending() {
  static Pending* p = new Pending;
  return *p;
}

// Appends to `line`, which holds `at` bytes, and ends it with a newline, cut to fit.
void emit(char (&line)[kLine], size_t at, const char* format, va_list args) {
  int n = std::vsnprintf(line + at, kLine - at, format, args);
  size_t size = std::min(at + static_cast<size_t>(std::max(n, 0)), kLine - 2);
  line[size++] = '\n';
  if (pending().push(line, size)) return;
  if (write_all(line, size) > 0) pending().dropped.fetch_add(1);
}

size_t stamp(char (&line)[kLine], LogLevel level) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm local{};
  localtime_r(&now.tv_sec, &local);
  int n = std::snprintf(line, kLine, "%02d:%02d:%02d.%03d %c ", local.tm_hour, local.tm_min,
                        local.tm_sec, static_cast<int>(now.tv_nsec / 1'000'000),
                        "IWE"[static_cast<int>(level)]);
  return static_cast<size_t>(n);
}

}  // namespace

void log_message(LogLevel level, const char* format, ...) {
  char line[kLine];
  size_t at = stamp(line, level);
  va_list args;
  va_start(args, format);
  emit(line, at, format, args);
  va_end(args);
}

void log_plain(const char* format, ...) {
  char line[kLine];
  va_list args;
  va_start(args, format);
  emit(line, 0, format, args);
  va_end(args);
}

void log_in_background() { pending().start(); }
bool flush_log(std::chrono::milliseconds limit) { return pending().flush(limit); }
uint64_t log_dropped() { return pending().dropped.load(); }

void exit_now(int code) {
  flush_log(std::chrono::milliseconds(100));
  _exit(code);
}

}  // namespace sluice

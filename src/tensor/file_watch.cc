#include "tensor/file_watch.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>

#include "base/str.h"

namespace sluice {
namespace {

constexpr size_t kMaxFiles = 2048;  // more than a checkpoint may have shards

std::mutex mutex;  // of entering, leaving and comparing; the handler only reads atomics
std::array<std::atomic<WatchedFile*>, kMaxFiles> files{};
std::atomic<WatchedFile*> faulted{nullptr};
std::atomic<int> wake{-1};
struct sigaction before {};

int64_t nanoseconds(const timespec& t) { return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec; }

WatchedFile* file_of(uintptr_t address) {
  for (const auto& slot : files) {
    WatchedFile* f = slot.load(std::memory_order_acquire);
    if (f && address >= f->begin.load() && address < f->end.load()) return f;
  }
  return nullptr;
}

void say(const char* text) {
  ssize_t n = ::write(STDERR_FILENO, text, std::strlen(text));
  static_cast<void>(n);
}

// Async-signal-safe: atomics, write, pause, raise, _exit, sigaction.
void on_fault(int, siginfo_t* info, void*) {
  int saved = errno;
  bool sent = info->si_code <= 0;  // by a process, not by an access
  WatchedFile* file = sent ? nullptr : file_of(reinterpret_cast<uintptr_t>(info->si_addr));
  if (!file) {  // comes again when this returns, and ends as it would have without this handler
    sigaction(SIGBUS, &before, nullptr);
    if (sent) raise(SIGBUS);
    errno = saved;
    return;
  }
  WatchedFile* none = nullptr;
  faulted.compare_exchange_strong(none, file);
  int fd = wake.load();
  if (fd < 0) {
    say("sluice: model file ");
    say(file->path.c_str());
    say(" was truncated or cannot be read any more: put it back and start again\n");
    _exit(1);
  }
  uint64_t one = 1;
  ssize_t n = ::write(fd, &one, sizeof one);
  static_cast<void>(n);
  for (;;) pause();
}

std::string difference(const WatchedFile& f, const struct stat& now) {
  if (now.st_size < f.size) return "was truncated";
  if (now.st_size > f.size) return "has grown";
  if (nanoseconds(now.st_mtim) != f.mtime_ns) return "was written to";
  return {};
}

}  // namespace

std::vector<FileChange> changed_files() {
  std::vector<FileChange> changes;
  std::lock_guard lock(mutex);
  for (const auto& slot : files) {
    const WatchedFile* f = slot.load();
    if (!f || f->num_ranges.load() == 0) continue;
    struct stat now {};
    std::string what;
    if (fstat(f->fd, &now) != 0) {
      what = strf("cannot be read any more (%s)", std::strerror(errno));
    } else {
      what = difference(*f, now);
    }
    if (!what.empty()) {
      changes.push_back({f->path, what, true});
    } else if (stat(f->path.c_str(), &now) != 0) {
      changes.push_back({f->path, "was removed", false});
    } else if (now.st_ino != f->inode || now.st_dev != f->device) {
      changes.push_back({f->path, "was replaced", false});
    }
  }
  return changes;
}

void catch_file_faults(int wake_fd) {
  wake = wake_fd;
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigfillset(&action.sa_mask);
  struct sigaction old = {};
  sigaction(SIGBUS, &action, &old);
  if ((old.sa_flags & SA_SIGINFO) == 0 || old.sa_sigaction != on_fault) before = old;
}

std::string faulted_file() {
  const WatchedFile* f = faulted.load();
  return f ? f->path : std::string();
}

std::string fault_message(const std::string& path) {
  return strf("model file %s was truncated or cannot be read any more: put it back and start again",
              path.c_str());
}

WatchedFile* enter_file(const std::string& path, int fd, std::span<const std::byte> mapped) {
  struct stat now {};
  if (fstat(fd, &now) != 0) return nullptr;
  auto f = std::make_unique<WatchedFile>();
  f->path = path;
  f->fd = fd;
  f->size = static_cast<int64_t>(mapped.size());
  f->mtime_ns = nanoseconds(now.st_mtim);
  f->inode = now.st_ino;
  f->device = now.st_dev;
  f->begin = reinterpret_cast<uintptr_t>(mapped.data());
  f->end = f->begin + mapped.size();
  std::lock_guard lock(mutex);
  for (auto& slot : files) {
    if (slot.load()) continue;
    slot.store(f.get(), std::memory_order_release);
    return f.release();
  }
  return nullptr;
}

void leave_file(WatchedFile* file) {
  std::lock_guard lock(mutex);
  for (auto& slot : files) {
    if (slot.load() != file) continue;
    slot.store(nullptr);
    if (faulted.load() != file) delete file;
    return;
  }
}

}  // namespace sluice

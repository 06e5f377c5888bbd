// Preloaded into a server: fails the nth call of one kind, counted from when a test arms it. The
// test arms and reads it through a file that both map ($SLUICE_FAULTS), or has the calls counted
// from main() on ($SLUICE_FAULTS_AT_START, "KIND N").
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>

namespace {

enum Kind : uint64_t { none, memory, input, output, accepting, thread, mapping, num_kinds };

// As faults_test.py lays it out.
struct Control {
  std::atomic<uint64_t> kind;        // what fails; none: not armed
  std::atomic<uint64_t> first;       // the call that fails, from 1
  std::atomic<uint64_t> num;         // and so many in a row
  std::atomic<uint64_t> calls;       // of that kind, since it was armed
  std::atomic<uint64_t> failed;      // since it was armed
  std::atomic<int64_t> live_blocks;  // allocated and not freed
  std::atomic<int64_t> live_bytes;
};

Control fallback;
Control* control = &fallback;

// $SLUICE_FAULTS_TRACE: every failed call's stack goes to stderr, for addr2line.
const bool traced = getenv("SLUICE_FAULTS_TRACE") != nullptr;
thread_local bool showing = false;

void show_stack() {
  showing = true;
  void* frames[40];
  backtrace_symbols_fd(frames, backtrace(frames, 40), STDERR_FILENO);
  showing = false;
}

bool fails(Kind kind) {
  if (traced && showing) return false;
  if (control->kind.load(std::memory_order_relaxed) != kind) return false;
  uint64_t call = control->calls.fetch_add(1) + 1, first = control->first.load();
  if (call < first || call >= first + control->num.load()) return false;
  control->failed.fetch_add(1);
  if (traced) show_stack();
  return true;
}

// The function that this library hides.
template <typename F>
F* next(F*, const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}
#define NEXT(name) static auto* const real = next(&::name, #name)

void* born(void* p) {
  if (p) {
    control->live_blocks.fetch_add(1, std::memory_order_relaxed);
    control->live_bytes.fetch_add(static_cast<int64_t>(malloc_usable_size(p)),
                                  std::memory_order_relaxed);
  }
  return p;
}

void died(void* p) {
  if (!p) return;
  control->live_blocks.fetch_sub(1, std::memory_order_relaxed);
  control->live_bytes.fetch_sub(static_cast<int64_t>(malloc_usable_size(p)),
                                std::memory_order_relaxed);
}

bool no_memory() {
  if (!fails(memory)) return false;
  errno = ENOMEM;
  return true;
}

bool failed_with(Kind kind, int error) {
  if (!fails(kind)) return false;
  errno = error;
  return true;
}

void arm_at_start() {
  const char* text = getenv("SLUICE_FAULTS_AT_START");
  if (!text) return;
  char* end = nullptr;
  uint64_t kind = strtoull(text, &end, 10);
  control->first = strtoull(end, nullptr, 10);
  control->num = 1;
  control->kind = kind;
}

[[gnu::constructor]] void open_control() {
  const char* path = getenv("SLUICE_FAULTS");
  if (!path) return;
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  auto* real = reinterpret_cast<decltype(&::mmap)>(dlsym(RTLD_NEXT, "mmap"));
  void* p = real(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (p == MAP_FAILED) return;
  auto* shared = static_cast<Control*>(p);
  shared->live_blocks = control->live_blocks.load();
  shared->live_bytes = control->live_bytes.load();
  control = shared;
}

int (*real_main)(int, char**, char**);

int armed_main(int argc, char** argv, char** env) {
  arm_at_start();
  return real_main(argc, argv, env);
}

}  // namespace

extern "C" {

// The allocator itself: dlsym() allocates, so malloc cannot ask it.
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);

void* malloc(size_t size) { return no_memory() ? nullptr : born(__libc_malloc(size)); }
void* calloc(size_t n, size_t size) { return no_memory() ? nullptr : born(__libc_calloc(n, size)); }
void* realloc(void* p, size_t size) {
  if (no_memory()) return nullptr;
  died(p);
  void* q = __libc_realloc(p, size);
  born(q ? q : size > 0 ? p : nullptr);
  return q;
}
void* memalign(size_t alignment, size_t size) {
  return no_memory() ? nullptr : born(__libc_memalign(alignment, size));
}
void* aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }
int posix_memalign(void** out, size_t alignment, size_t size) {
  void* p = memalign(alignment, size);
  if (!p) return ENOMEM;
  *out = p;
  return 0;
}
void free(void* p) {
  died(p);
  __libc_free(p);
}

ssize_t read(int fd, void* to, size_t size) {
  NEXT(read);
  return failed_with(input, EIO) ? -1 : real(fd, to, size);
}
ssize_t readv(int fd, const iovec* to, int num) {
  NEXT(readv);
  return failed_with(input, EIO) ? -1 : real(fd, to, num);
}
ssize_t recv(int fd, void* to, size_t size, int flags) {
  NEXT(recv);
  return failed_with(input, ECONNRESET) ? -1 : real(fd, to, size, flags);
}
ssize_t recvmsg(int fd, msghdr* message, int flags) {
  NEXT(recvmsg);
  return failed_with(input, ECONNRESET) ? -1 : real(fd, message, flags);
}
ssize_t write(int fd, const void* from, size_t size) {
  NEXT(write);
  return failed_with(output, EIO) ? -1 : real(fd, from, size);
}
ssize_t writev(int fd, const iovec* from, int num) {
  NEXT(writev);
  return failed_with(output, EIO) ? -1 : real(fd, from, num);
}
ssize_t send(int fd, const void* from, size_t size, int flags) {
  NEXT(send);
  return failed_with(output, ENOBUFS) ? -1 : real(fd, from, size, flags);
}
ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  NEXT(sendmsg);
  return failed_with(output, ENOBUFS) ? -1 : real(fd, message, flags);
}
int accept(int fd, sockaddr* address, socklen_t* size) {
  NEXT(accept);
  return failed_with(accepting, EMFILE) ? -1 : real(fd, address, size);
}
int accept4(int fd, sockaddr* address, socklen_t* size, int flags) {
  NEXT(accept4);
  return failed_with(accepting, EMFILE) ? -1 : real(fd, address, size, flags);
}
int pthread_create(pthread_t* id, const pthread_attr_t* how, void* (*run)(void*), void* with) {
  NEXT(pthread_create);
  return fails(thread) ? EAGAIN : real(id, how, run, with);
}
void* mmap(void* at, size_t size, int protection, int flags, int fd, off_t offset) {
  NEXT(mmap);
  return failed_with(mapping, ENOMEM) ? MAP_FAILED : real(at, size, protection, flags, fd, offset);
}

int __libc_start_main(int (*main)(int, char**, char**),
                      int argc,
                      char** argv,
                      void (*init)(),
                      void (*fini)(),
                      void (*loader_fini)(),
                      void* stack_end) {
  real_main = main;
  auto* real =
      reinterpret_cast<decltype(&__libc_start_main)>(dlsym(RTLD_NEXT, "__libc_start_main"));
  return real(armed_main, argc, argv, init, fini, loader_fini, stack_end);
}

}  // extern "C"

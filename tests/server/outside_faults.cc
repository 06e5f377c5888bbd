// Loaded into a server under test (LD_PRELOAD). A thread that gets SIGUSR2 hangs for good. The wall
// clock runs ahead by the nanoseconds in the file that SLUICE_TEST_CLOCK names.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <ctime>

namespace {

void hang(int) {
  for (;;) pause();
}

std::atomic<int64_t>* offset = nullptr;

[[gnu::constructor]] void begin() {
  struct sigaction action = {};
  action.sa_handler = hang;
  sigfillset(&action.sa_mask);
  sigaction(SIGUSR2, &action, nullptr);
  const char* path = getenv("SLUICE_TEST_CLOCK");
  if (!path) return;
  int fd = open(path, O_RDONLY);
  void* p = mmap(nullptr, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (p != MAP_FAILED) offset = static_cast<std::atomic<int64_t>*>(p);
}

}  // namespace

extern "C" int clock_gettime(clockid_t id, timespec* out) noexcept {
  using Real = int (*)(clockid_t, timespec*);
  static const Real real = reinterpret_cast<Real>(dlsym(RTLD_NEXT, "clock_gettime"));
  int r = real(id, out);
  if (r == 0 && offset && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
    out->tv_sec += offset->load() / 1'000'000'000;
  return r;
}

extern "C" time_t time(time_t* out) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}

extern "C" int gettimeofday(timeval* out, void*) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  *out = {now.tv_sec, now.tv_nsec / 1000};
  return 0;
}

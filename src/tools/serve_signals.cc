#include "tools/serve_signals.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <thread>
#include <utility>

#include "base/failure.h"
#include "base/log.h"
#include "tensor/file_watch.h"
#include "tools/commands.h"

namespace sluice {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// After --grace, or after a second signal. With what writing the last line may take, less than the
// two seconds that are promised.
constexpr milliseconds kForce{1750};
constexpr milliseconds kFaultForce{3000};  // a fault is handled in two seconds, or not at all

// A server started on a terminal ends when that is closed.
bool terminal_is_gone(bool had) {
  termios ignored;
  return had && tcgetattr(STDERR_FILENO, &ignored) != 0;
}

}  // namespace

struct Signals::State {
  int signals = -1, events = -1;
  bool on_terminal = false;
  milliseconds grace{0};
  std::atomic<bool> loading{true}, stopped{false}, over{false};
  Mailbox<Wake> box;
  std::thread thread;
  // The thread's own.
  steady_clock::time_point force = steady_clock::time_point::max();
  const char* reason = "";
  bool faulted = false;

  ~State() {
    close(signals);
    close(events);
  }
  void run();
  void on_signal();
  void on_event();
  void limit(milliseconds time, const char* why) {
    force = std::min(force, steady_clock::now() + time);
    reason = why;
  }
};

void Signals::State::run() {
  pthread_setname_np(pthread_self(), "signals");
  while (!over.load() || stopped.load()) {
    int wait = -1;
    if (force != steady_clock::time_point::max()) {
      auto left = std::chrono::ceil<milliseconds>(force - steady_clock::now());
      if (left.count() <= 0) {
        log_plain("sluice: %s: ended by force", reason);
        exit_now(kExitFailure);
      }
      wait = static_cast<int>(std::min<int64_t>(left.count(), 1 << 30));
    }
    pollfd fds[2] = {{signals, POLLIN, 0}, {events, POLLIN, 0}};
    if (poll(fds, 2, wait) <= 0) continue;
    try {
      if (fds[0].revents & POLLIN) on_signal();
      if (fds[1].revents & POLLIN) on_event();
    } catch (...) {
      log_exception("signal");  // a stop then ends by force
    }
  }
}

void Signals::State::on_signal() {
  signalfd_siginfo info{};
  if (read(signals, &info, sizeof info) != sizeof info) return;
  if (info.ssi_signo == SIGUSR1) return box.push(Wake::keep);
  if (info.ssi_signo == SIGHUP && !terminal_is_gone(on_terminal)) return box.push(Wake::reload);
  if (loading.load()) {
    log_plain("\nsluice: stopped while loading");
    exit_now(kExitOk);
  }
  limit(stopped.exchange(true) ? kForce : grace + kForce, "did not stop in time");
  box.push(Wake::stop);
}

void Signals::State::on_event() {
  uint64_t count = 0;
  if (read(events, &count, sizeof count) != sizeof count) return;
  std::string file = faulted_file();
  if (file.empty() || std::exchange(faulted, true)) return;  // several threads fault, one line
  log_plain("sluice: %s", fault_message(file).c_str());
  if (loading.load()) exit_now(kExitFailure);
  limit(kFaultForce, "the model is lost and requests could not be answered");
  stopped.store(true);
  box.push(Wake::fault);
}

Signals::Signals(double grace_seconds) : state_(std::make_shared<State>()) {
  State& s = *state_;
  s.grace = milliseconds(static_cast<int64_t>(std::min(grace_seconds, 1e6) * 1e3));
  s.on_terminal = isatty(STDERR_FILENO) == 1;
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a file at its size limit: the write fails
  signal(SIGHUP, SIG_DFL);   // nohup ignores it; here it reloads
  sigset_t set;
  sigemptyset(&set);
  for (int n : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) sigaddset(&set, n);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  s.signals = signalfd(-1, &set, SFD_CLOEXEC);
  s.events = eventfd(0, EFD_CLOEXEC);
  if (s.signals < 0 || s.events < 0)
    throw std::system_error(errno, std::generic_category(), "cannot wait for signals");
  catch_file_faults(s.events);
  s.thread = std::thread([state = state_] { state->run(); });
}

Signals::~Signals() {
  State& s = *state_;
  s.over.store(true);
  if (s.stopped.load()) {  // it watches until the process has ended
    s.thread.detach();
    return;
  }
  uint64_t one = 1;
  ssize_t n = write(s.events, &one, sizeof one);
  static_cast<void>(n);
  s.thread.join();
  catch_file_faults();
}

void Signals::loaded() { state_->loading.store(false); }

Wake Signals::wait(std::chrono::nanoseconds time) {
  if (next_ == batch_.size()) {
    state_->box.wait_drain(batch_, time);
    next_ = 0;
  }
  return next_ < batch_.size() ? batch_[next_++] : Wake::none;
}

}  // namespace sluice

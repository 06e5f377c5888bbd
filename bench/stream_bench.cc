// What `sluice route` adds to streams: a worker that computes nothing sends events at a fixed pace,
// a client reads them, with the router between the two and without it, in turns.
//
//   stream_bench SLUICE [STREAMS] [INTERVAL_MS] [BURST] [SECONDS]     default 2000 50 1 4
//
// An event of each stream every INTERVAL_MS; BURST streams get theirs at the same moment, as by a
// step of an engine. Each event carries the time at which it was sent. The router has the last core
// for itself, worker and client share the first. Then small whole answers, one after another.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {

struct Settings {
  const char* sluice = nullptr;
  int streams = 2000, burst = 1;
  double interval = 0.05, seconds = 4;
};

int64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}

void sleep_ns(int64_t ns) {
  timespec t{ns / 1'000'000'000, ns % 1'000'000'000};
  nanosleep(&t, nullptr);
}

[[noreturn]] void give_up(const char* what) {
  std::perror(what);
  std::exit(1);
}

void pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(core), &set);
  sched_setaffinity(0, sizeof set, &set);
}

sockaddr_in loopback(int port) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(static_cast<uint16_t>(port));
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return a;
}

void set_up(int fd) {
  int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

void send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n > 0) bytes.remove_prefix(static_cast<size_t>(n));
    if (n < 0 && errno != EAGAIN) return;
  }
}

// An event as large as one of a chat completion.
std::string event_of(int64_t at) {
  std::string data = "data: {\"t\":" + std::to_string(at) + ",\"pad\":\"";
  data.append(200 - data.size(), 'x').append("\"}\n\n");
  char size[16];
  std::snprintf(size, sizeof size, "%zx\r\n", data.size());
  return size + data + "\r\n";
}

// Answers GET and whole requests at once, and sends events to streams while `paced`.
class FakeWorker {
 public:
  explicit FakeWorker(const Settings& s) : settings_(s) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in a = loopback(0);
    socklen_t size = sizeof a;
    if (::bind(listener_, reinterpret_cast<sockaddr*>(&a), size) != 0 ||
        ::listen(listener_, 4096) != 0)
      give_up("listen");
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&a), &size);
    port = ntohs(a.sin_port);
    set_up(listener_);
    poll_ = epoll_create1(0);
    add(listener_);
    thread_ = std::thread([this] { run(); });
  }
  ~FakeWorker() {
    quit_ = true;
    thread_.join();
  }
  int port = 0;
  std::atomic<bool> paced{false};
  std::atomic<size_t> num_streams{0};
  std::atomic<bool> drop_streams{false};

 private:
  void add(int fd) {
    epoll_event e{};
    e.events = EPOLLIN;
    e.data.fd = fd;
    epoll_ctl(poll_, EPOLL_CTL_ADD, fd, &e);
  }

  void run() {
    pin(0);
    const int64_t gap =
        static_cast<int64_t>(settings_.interval * 1e9 * settings_.burst / settings_.streams);
    int64_t due = now_ns(), polled = 0;
    size_t next = 0;
    while (!quit_) {
      const bool pacing = paced;
      if (!pacing || now_ns() - polled > 1'000'000) poll_once(pacing ? 0 : 1), polled = now_ns();
      if (drop_streams.exchange(false)) end_streams();
      if (!pacing || streams_.empty()) {
        due = now_ns();
        continue;
      }
      for (; due <= now_ns(); due += gap) {
        for (int i = 0; i < settings_.burst; ++i)
          send_all(streams_[next++ % streams_.size()], event_of(now_ns()));
      }
      if (const int64_t wait = due - now_ns(); wait > 0) sleep_ns(wait);
    }
  }

  void poll_once(int timeout) {
    epoll_event events[256];
    const int n = epoll_wait(poll_, events, 256, timeout);
    for (int i = 0; i < n; ++i) {
      const int fd = events[i].data.fd;
      if (fd == listener_) {
        for (int c; (c = ::accept(listener_, nullptr, nullptr)) >= 0;) set_up(c), add(c);
      } else {
        on_readable(fd);
      }
    }
  }

  void on_readable(int fd) {
    char buffer[4096];
    const ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
    if (n == 0 || (n < 0 && errno != EAGAIN)) {
      std::erase(streams_, fd);
      num_streams = streams_.size();
      input_.erase(fd);
      ::close(fd);
      return;
    }
    if (n < 0) return;
    std::string& in = input_[fd];
    in.append(buffer, static_cast<size_t>(n));
    const size_t head = in.find("\r\n\r\n");
    if (head == std::string::npos) return;
    const size_t at = in.find("Content-Length: ");
    const size_t body = at < head ? std::strtoul(in.c_str() + at + 16, nullptr, 10) : 0;
    if (in.size() < head + 4 + body) return;
    const bool stream = in.find("\"stream\"", head) != std::string::npos;
    in.clear();
    if (!stream)
      return send_all(fd,
                      "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                      "Content-Length: 2\r\n\r\n{}");
    send_all(fd,
             "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
             "Transfer-Encoding: chunked\r\n\r\n");
    streams_.push_back(fd);
    num_streams = streams_.size();
  }

  void end_streams() {
    for (int fd : streams_) send_all(fd, "0\r\n\r\n");
    streams_.clear();
    num_streams = 0;
  }

  const Settings& settings_;
  int listener_ = -1, poll_ = -1;
  std::vector<int> streams_;
  std::unordered_map<int, std::string> input_;
  std::atomic<bool> quit_{false};
  std::thread thread_;
};

int connect_to(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in a = loopback(port);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&a), sizeof a) != 0) give_up("connect");
  set_up(fd);
  return fd;
}

std::string request_bytes(bool stream) {
  const std::string body = stream ? R"({"prompt":"x","stream":true})" : R"({"prompt":"x"})";
  return "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
         "Content-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

struct Seen {
  std::vector<double> seconds;  // sorted
  double cpu = 0;               // of the router, per event
  double at(double share) const {
    if (seconds.empty()) return 0;
    return seconds[static_cast<size_t>(share * static_cast<double>(seconds.size() - 1))];
  }
};

// Seconds for which a process has run, over all its threads.
double cpu_of(pid_t pid) {
  double sum = 0;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
    double ns = 0;
    std::ifstream(task.path() / "schedstat") >> ns;
    sum += ns * 1e-9;
  }
  return sum;
}

// Reads events for so long; how old each was.
std::vector<double> read_events(int poll, double seconds) {
  std::vector<double> out;
  static char buffer[1 << 16];
  epoll_event events[256];
  const int64_t end = now_ns() + static_cast<int64_t>(seconds * 1e9);
  while (now_ns() < end) {
    const int n = epoll_wait(poll, events, 256, 10);
    for (int i = 0; i < n; ++i) {
      const ssize_t size = ::recv(events[i].data.fd, buffer, sizeof buffer, 0);
      if (size <= 0) continue;
      const int64_t now = now_ns();
      std::string_view text(buffer, static_cast<size_t>(size));
      for (size_t at = 0; (at = text.find("\"t\":", at)) != std::string_view::npos; at += 4)
        out.push_back(1e-9 * static_cast<double>(now - std::strtoll(&text[at + 4], nullptr, 10)));
    }
  }
  return out;
}

Seen run_streams(const Settings& s, FakeWorker& worker, int port, pid_t router) {
  const int poll = epoll_create1(0);
  std::vector<int> fds;
  for (int i = 0; i < s.streams; ++i) {
    const int fd = connect_to(port);
    epoll_event e{};
    e.events = EPOLLIN;
    e.data.fd = fd;
    epoll_ctl(poll, EPOLL_CTL_ADD, fd, &e);
    send_all(fd, request_bytes(true));
    fds.push_back(fd);
  }
  for (int i = 0; i < 1000 && worker.num_streams < static_cast<size_t>(s.streams); ++i)
    sleep_ns(10'000'000);
  worker.paced = true;
  read_events(poll, 0.5);
  const double before = router ? cpu_of(router) : 0;
  Seen seen;
  seen.seconds = read_events(poll, s.seconds);
  if (router) seen.cpu = (cpu_of(router) - before) / static_cast<double>(seen.seconds.size());
  worker.paced = false;
  worker.drop_streams = true;
  read_events(poll, 0.3);
  for (int fd : fds) ::close(fd);
  ::close(poll);
  std::sort(seen.seconds.begin(), seen.seconds.end());
  return seen;
}

// Small whole answers on one connection, one after another.
Seen run_whole(int port, int num, pid_t router) {
  const int fd = connect_to(port);
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
  const std::string request = request_bytes(false);
  Seen seen;
  const double before = router ? cpu_of(router) : 0;
  for (int i = 0; i < num; ++i) {
    const int64_t begin = now_ns();
    send_all(fd, request);
    char buffer[4096];
    std::string in;
    while (!in.ends_with("{}")) {
      const ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
      if (n <= 0) give_up("answer");
      in.append(buffer, static_cast<size_t>(n));
    }
    seen.seconds.push_back(1e-9 * static_cast<double>(now_ns() - begin));
  }
  if (router) seen.cpu = (cpu_of(router) - before) / num;
  ::close(fd);
  std::sort(seen.seconds.begin(), seen.seconds.end());
  return seen;
}

struct RouterProcess {
  pid_t pid = 0;
  int port = 0;
  FILE* log = nullptr;
};

RouterProcess start_router(const Settings& s, int worker) {
  int pipe_fds[2];
  if (::pipe(pipe_fds) != 0) give_up("pipe");
  RouterProcess r;
  r.pid = ::fork();
  if (r.pid == 0) {
    pin(static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)) - 1);
    ::dup2(pipe_fds[1], 2);
    const std::string url = "http://127.0.0.1:" + std::to_string(worker);
    ::execl(s.sluice, s.sluice, "route", "--port", "0", "--worker", url.c_str(), nullptr);
    std::_Exit(127);
  }
  ::close(pipe_fds[1]);
  r.log = ::fdopen(pipe_fds[0], "r");
  char line[1024];
  while (r.port == 0 && std::fgets(line, sizeof line, r.log))
    if (const char* at = std::strstr(line, "127.0.0.1:"); at && std::strstr(line, "routing on"))
      r.port = std::atoi(at + 10);
  if (r.port == 0) give_up("the router did not start");
  // Somebody reads its log until it ends.
  std::thread([log = r.log] {
    char rest[1024];
    while (std::fgets(rest, sizeof rest, log)) {
    }
  }).detach();
  sleep_ns(1'500'000'000);  // it has found the worker
  return r;
}

void print(const char* name, const Seen& seen) {
  std::printf("%-22s %9zu %9.3f %9.3f %9.3f %9.1f\n", name, seen.seconds.size(), seen.at(0.5) * 1e3,
              seen.at(0.9) * 1e3, seen.at(0.99) * 1e3, seen.cpu * 1e6);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "stream_bench SLUICE [STREAMS] [INTERVAL_MS] [BURST] [SECONDS]\n");
    return 2;
  }
  Settings s;
  s.sluice = argv[1];
  if (argc > 2) s.streams = std::max(1, std::atoi(argv[2]));
  if (argc > 3) s.interval = std::max(1.0, std::atof(argv[3])) / 1e3;
  if (argc > 4) s.burst = std::clamp(std::atoi(argv[4]), 1, s.streams);
  if (argc > 5) s.seconds = std::max(0.1, std::atof(argv[5]));
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  pin(0);
  FakeWorker worker(s);
  const RouterProcess router = start_router(s, worker.port);
  std::printf("%d streams, an event every %.0f ms, bursts of %d; ms\n", s.streams, s.interval * 1e3,
              s.burst);
  std::printf("%-22s %9s %9s %9s %9s %9s\n", "", "number", "p50", "p90", "p99", "cpu us");
  for (int round = 0; round < 3; ++round) {
    print("events, direct", run_streams(s, worker, worker.port, 0));
    print("events, routed", run_streams(s, worker, router.port, router.pid));
  }
  for (int round = 0; round < 3; ++round) {
    print("whole, direct", run_whole(worker.port, 1000, 0));
    print("whole, routed", run_whole(router.port, 1000, router.pid));
  }
  ::kill(router.pid, SIGTERM);
  int status = 0;
  ::waitpid(router.pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

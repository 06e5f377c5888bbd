#include "base/log.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace sluice {
namespace {

using std::chrono::milliseconds;

// A process of its own with a pipe as its stderr: the log belongs to the process.
struct Child {
  template <typename F>
  explicit Child(F f) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    pid = fork();
    if (pid == 0) {
      dup2(ends[1], STDERR_FILENO);
      close(ends[0]);
      close(ends[1]);
      alarm(30);
      f();
      _exit(7);
    }
    close(ends[1]);
    from = ends[0];
  }
  ~Child() {
    if (from >= 0) close(from);
  }
  std::string read_all() {
    std::string text;
    char piece[4096];
    for (ssize_t n; (n = read(from, piece, sizeof piece)) > 0;)
      text.append(piece, static_cast<size_t>(n));
    return text;
  }
  int status() {
    int s = 0;
    waitpid(pid, &s, 0);
    return WIFEXITED(s) ? WEXITSTATUS(s) : -WTERMSIG(s);
  }
  void stop_reading() {
    close(from);
    from = -1;
  }

  pid_t pid = -1;
  int from = -1;
};

TEST(Log, WritesAtOnceAndInOrder) {
  Child child([] {
    LOG(warn, "first %d", 1);
    log_plain("second");
    dprintf(STDERR_FILENO, "third\n");
    LOG(error, "%s", std::string(5000, 'x').c_str());
    log_plain("last");
  });
  std::string text = child.read_all();
  EXPECT_EQ(child.status(), 7);
  EXPECT_EQ(text.substr(12, 10), " W first 1");
  EXPECT_NE(text.find("\nsecond\nthird\n"), std::string::npos) << text;
  EXPECT_NE(text.find("xxx\nlast\n"), std::string::npos);  // cut, and still a line
  EXPECT_EQ(text.find("not shown"), std::string::npos);
}

TEST(Log, InTheBackgroundKeepsOrderAndFlushes) {
  Child child([] {
    log_in_background();
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([t] {
        for (int i = 0; i < 200; ++i) log_plain("%d %d", t, i);
      });
    }
    for (std::thread& t : threads) t.join();
    if (!flush_log(milliseconds(20'000)) || log_dropped() != 0) _exit(1);
  });
  std::string text = child.read_all();
  EXPECT_EQ(child.status(), 7);
  std::vector<int> next(4, 0);
  size_t lines = 0;
  for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos;
       at = end + 1, ++lines) {
    int t = 0, i = 0;
    ASSERT_EQ(std::sscanf(text.c_str() + at, "%d %d", &t, &i), 2);
    EXPECT_EQ(i, next[static_cast<size_t>(t)]++);
  }
  EXPECT_EQ(lines, 800u);
}

// Nobody reads: callers go on, lines are dropped, and one line says so when reading resumes.
TEST(Log, NeverWaitsForAReader) {
  Child child([] {
    log_in_background();
    std::string line(1000, 'x');
    for (int i = 0; i < 2000; ++i) log_plain("%s", line.c_str());  // 2 MB; a pipe takes 64 KiB
    if (log_dropped() < 1000 || flush_log(milliseconds(50))) _exit(1);
    raise(SIGSTOP);
    if (!flush_log(milliseconds(20'000))) _exit(2);
    log_plain("goes on");
    flush_log(milliseconds(20'000));
  });
  int s = 0;
  ASSERT_EQ(waitpid(child.pid, &s, WUNTRACED), child.pid);
  ASSERT_TRUE(WIFSTOPPED(s)) << s;
  kill(child.pid, SIGCONT);
  std::string text = child.read_all();
  EXPECT_EQ(child.status(), 7);
  // Lines that came after the loss, when there was room again, are behind it.
  EXPECT_NE(text.find(" log lines were lost: stderr took none\n"), std::string::npos);
  EXPECT_TRUE(text.ends_with("goes on\n")) << text.substr(text.size() - 200);
}

TEST(Log, LivesOnWithAClosedPipe) {
  Child child([] {
    signal(SIGPIPE, SIG_IGN);
    log_in_background();
    while (log_dropped() == 0) {
      log_plain("anybody?");
      usleep(1000);
    }
  });
  child.stop_reading();
  EXPECT_EQ(child.status(), 7);
}

TEST(Log, ExitsWithAReaderThatStalls) {
  Child child([] {
    log_in_background();
    for (int i = 0; i < 200'000; ++i) log_plain("nobody reads this");
    exit_now(9);
  });
  EXPECT_EQ(child.status(), 9);
}

}  // namespace
}  // namespace sluice

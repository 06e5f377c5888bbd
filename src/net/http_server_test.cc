#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "base/str.h"
#include "net/http.h"

namespace sluice {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// A blocking client's socket.
class Client {
 public:
  explicit Client(uint16_t port, int receive_buffer = 0) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer > 0)
      ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    timeval time{20, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    a.sin_port = htons(port);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&a), sizeof a), 0);
  }
  ~Client() { close(); }
  Client(Client&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  // As far as the peer takes it.
  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
  }
  void end() { ::shutdown(fd_, SHUT_WR); }
  std::string read(size_t most) {
    std::string out(most, '\0');
    ssize_t n = ::recv(fd_, out.data(), most, 0);
    out.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
    return out;
  }
  std::string read_all() {
    std::string out;
    for (std::string piece; !(piece = read(65536)).empty();) out += piece;
    return out;
  }

 private:
  int fd_;
};

// Routes: /echo, /stream (written by the test), /big?N (N bytes in pieces), /never.
class Served {
 public:
  explicit Served(HttpLimits limits = {}, size_t threads = 1) {
    HttpServer::Options o;
    o.limits = limits;
    o.threads = threads;
    o.on_request = [this](HttpRequest r, std::shared_ptr<Responder> out) {
      handle(std::move(r), std::move(out));
    };
    o.refuse = [](int status, std::string_view reason) {
      return HttpResponse{status, "text/plain", std::string(reason), {}};
    };
    server_ = std::move(HttpServer::start(std::move(o)).value());
  }
  HttpServer& operator*() { return *server_; }
  HttpServer* operator->() { return server_.get(); }
  std::vector<std::shared_ptr<Responder>> streams() {
    std::lock_guard lock(mutex_);
    return streams_;
  }
  std::atomic<int> closed{0};

 private:
  void handle(HttpRequest r, std::shared_ptr<Responder> out) {
    out->on_closed([this] { ++closed; });
    if (r.path == "/echo") return out->send({200, "text/plain", r.body, {}});
    if (r.path == "/big") {
      return out->send({200, "text/plain", "", {}},
                       [left = std::strtoul(r.query.c_str(), nullptr, 10) %
                               2'000'000'000](std::string& o) mutable {
                         size_t n = std::min<size_t>(left, 10'000);
                         o.append(n, 'a');
                         left -= n;
                         return left > 0;
                       });
    }
    if (r.path == "/stream") out->start({200, "text/event-stream", "", {}});
    std::lock_guard lock(mutex_);
    streams_.push_back(std::move(out));
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<Responder>> streams_;
  std::unique_ptr<HttpServer> server_;
};

bool until(const std::function<bool()>& condition, milliseconds time = milliseconds(20'000)) {
  auto end = steady_clock::now() + time;
  while (!condition()) {
    if (steady_clock::now() > end) return false;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return true;
}

std::string get(const std::string& target, const std::string& fields = "") {
  return "GET " + target + " HTTP/1.1\r\nHost: x\r\n" + fields + "\r\n";
}

// The body behind the first header, with chunks joined.
std::string body_of(const std::string& answer) {
  size_t at = answer.find("\r\n\r\n") + 4;
  if (answer.find("Transfer-Encoding: chunked") > at) return answer.substr(at);
  std::string out;
  for (size_t size = 1; size > 0;) {
    size_t end = answer.find("\r\n", at);
    if (end == answer.npos) return out + "(cut)";
    size = std::stoul(answer.substr(at, end - at), nullptr, 16);
    out += answer.substr(end + 2, size);
    at = end + 4 + size;
  }
  return out;
}

TEST(HttpServer, LongAnswersAreMadeInPieces) {
  Served s;
  for (size_t size : {1ul, 10'000ul, 60'000ul, 100'000ul, 5'000'000ul}) {
    Client c(s->port());
    c.send(get("/big?" + std::to_string(size)) + get("/big?3", "Connection: close\r\n"));
    std::string all = c.read_all();
    EXPECT_EQ(all.starts_with("HTTP/1.1 200 OK\r\n"), true);
    EXPECT_EQ(all.substr(0, 500).find("Content-Length") != all.npos, size < 64 << 10) << size;
    EXPECT_EQ(body_of(all).substr(0, size), std::string(size, 'a'));
    EXPECT_TRUE(all.ends_with("\r\n\r\naaa"));
    Client old(s->port());
    old.send("GET /big?" + std::to_string(size) + " HTTP/1.0\r\n\r\n");
    all = old.read_all();
    EXPECT_EQ(all.find("chunked"), all.npos);
    EXPECT_EQ(body_of(all), std::string(size, 'a'));
    Client head(s->port());
    head.send("HEAD /big?" + std::to_string(size) +
              " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    EXPECT_TRUE(head.read_all().ends_with("\r\n\r\n"));
  }
  EXPECT_EQ(s.closed, 0);
  EXPECT_TRUE(until([&] { return s->stats().unread == 0; }));
}

// A gigabyte that nobody reads costs a piece of memory, and its reader is cut.
TEST(HttpServer, UnreadLongAnswerIsBounded) {
  HttpLimits limits;
  limits.send = milliseconds(1000);
  Served s(limits);
  Client c(s->port(), 4096);
  c.send(get("/big?1000000000"));
  EXPECT_TRUE(until([&] { return s->stats().unread > 0; }));
  EXPECT_LE(s->stats().unread, limits.stream_bytes);
  EXPECT_TRUE(until([&] { return s.closed == 1; }));
  EXPECT_EQ(s->stats().slow_readers, 1u);
  EXPECT_EQ(s->stats().unread, 0u);
}

// Scoreboard row 19.
TEST(HttpServer, StalledReadersAreBoundedAndCut) {
  HttpLimits limits;
  limits.send = milliseconds(1500);
  Served s(limits, 2);
  constexpr size_t kReaders = 200;
  std::vector<Client> clients;
  for (size_t i = 0; i < kReaders; ++i) {
    clients.emplace_back(s->port(), 4096);
    clients.back().send(get("/stream"));
  }
  ASSERT_TRUE(until([&] { return s.streams().size() == kReaders; }));
  auto begin = steady_clock::now();
  const std::string event(1000, 'e');
  size_t most = 0, written = 0;
  // Slow streams: no reader gets more than max_pending, so that the deadline cuts it.
  for (; s.closed < static_cast<int>(kReaders); written += event.size()) {
    ASSERT_LT(steady_clock::now() - begin, std::chrono::seconds(30));
    for (const auto& r : s.streams()) {
      if (written < 150'000) r->write(event);
    }
    most = std::max(most, s->stats().unread);
    std::this_thread::sleep_for(milliseconds(2));
  }
  EXPECT_GT(most, kReaders * 10'000);
  EXPECT_LE(most, kReaders * limits.stream_bytes);
  EXPECT_EQ(s->stats().slow_readers, kReaders);
  EXPECT_TRUE(until([&] { return s->stats().connections == 0 && s->stats().unread == 0; }));
}

TEST(HttpServer, ReaderOfSingleBytesIsCut) {
  HttpLimits limits;
  limits.send = milliseconds(1000);
  limits.read_rate = 100'000;
  Served s(limits);
  Client trickle(s->port(), 4096), steady(s->port());
  trickle.send(get("/big?100000000"));
  steady.send(get("/big?100000000", "Connection: close\r\n"));
  std::thread reader([&] { EXPECT_EQ(body_of(steady.read_all()).size(), 100'000'000u); });
  auto begin = steady_clock::now();
  while (s.closed == 0 && steady_clock::now() - begin < std::chrono::seconds(20)) {
    trickle.read(1000);  // some 20 KB a second
    std::this_thread::sleep_for(milliseconds(50));
  }
  reader.join();
  EXPECT_EQ(s.closed, 1);
  EXPECT_EQ(s->stats().slow_readers, 1u);
}

// Over the limit of all connections the largest go; those that read stay.
TEST(HttpServer, UnreadBytesOfAllAreBounded) {
  HttpLimits limits;
  limits.unread_bytes = 1 << 20;
  Served s(limits);
  std::vector<Client> stalled;
  for (int i = 0; i < 40; ++i) stalled.emplace_back(s->port(), 4096).send(get("/stream"));
  ASSERT_TRUE(until([&] { return s.streams().size() == 40; }));
  Client reads(s->port());
  reads.send(get("/stream"));
  ASSERT_TRUE(until([&] { return s.streams().size() == 41; }));
  auto good = s.streams().back();
  std::string got;
  const std::string event(4000, 'e');
  for (int i = 0; i < 60; ++i) {
    for (const auto& r : s.streams()) r->write(event);
    EXPECT_LE(s->stats().unread, 2 * limits.unread_bytes);
    while (got.size() < static_cast<size_t>(i + 1) * event.size()) got += reads.read(65536);
  }
  EXPECT_TRUE(until([&] { return s.closed > 20; }));
  EXPECT_FALSE(good->closed());
  good->finish();
  EXPECT_NE((got + reads.read(65536)).find("0\r\n\r\n"), got.npos);
}

TEST(HttpServer, DisconnectBehindPipelinedBytesIsSeen) {
  Served s;
  for (size_t bytes : {0ul, 20'000ul, 100'000ul, 2'000'000ul}) {
    for (bool half : {false, true}) {
      int before = s.closed;
      size_t num = s.streams().size();
      Client c(s->port());
      c.send(get("/never"));
      ASSERT_TRUE(until([&] { return s.streams().size() == num + 1; }));
      for (size_t sent = 0; sent < bytes; sent += 1000) c.send(get("/" + std::string(966, 'x')));
      EXPECT_EQ(s.closed, before);
      half ? c.end() : c.close();
      EXPECT_TRUE(until([&] { return s.closed == before + 1; })) << bytes;
    }
  }
}

// An answer whose client pipelined too much still arrives whole.
TEST(HttpServer, TooMuchPipelinedEndsTheConnectionAfterItsAnswer) {
  Served s;
  Client c(s->port());
  c.send(get("/never"));
  ASSERT_TRUE(until([&] { return s.streams().size() == 1; }));
  c.send(std::string(1'000'000, 'x'));
  std::this_thread::sleep_for(milliseconds(100));
  s.streams()[0]->send({200, "text/plain", std::string(50'000, 'b'), {}});
  std::string all = c.read_all();
  EXPECT_NE(all.find("Connection: close"), all.npos);
  EXPECT_EQ(body_of(all), std::string(50'000, 'b'));
}

// One connection that pipelines without end leaves the others their turns.
TEST(HttpServer, PipeliningIsFair) {
  Served s;
  std::atomic<bool> over{false};
  Client greedy(s->port());
  std::string many;
  for (int i = 0; i < 1000; ++i) many += get("/echo");
  std::thread sender([&] {
    while (!over) greedy.send(many);
    greedy.end();
  });
  std::thread reader([&] { greedy.read_all(); });
  ASSERT_TRUE(until([&] { return s->stats().requests > 5000; }));
  for (int i = 0; i < 20; ++i) {
    Client c(s->port());
    c.send(get("/echo", "Connection: close\r\n"));
    EXPECT_TRUE(c.read_all().starts_with("HTTP/1.1 200"));
  }
  over = true;
  sender.join();
  reader.join();
}

TEST(HttpServer, TinyChunks) {
  Served s;
  const int count = std::getenv("SLUICE_TEST_FULL") ? 1'000'000 : 200'000;
  std::string chunks;
  for (int i = 0; i < count; ++i) chunks += "1\r\na\r\n";
  Client c(s->port());
  std::thread sender([&] {
    c.send(
        "POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: "
        "chunked\r\n\r\n");
    c.send(chunks + "0\r\n\r\n");
  });
  EXPECT_EQ(body_of(c.read_all()).size(), static_cast<size_t>(count));
  sender.join();
}

// Mutants over real connections: each gets answers and an end, and the server lives.
TEST(HttpServer, SurvivesMutants) {
  Served s;
  const int count = std::getenv("SLUICE_TEST_FULL") ? 50'000 : 2'000;
  std::mt19937_64 random(8);
  const std::string seeds[] = {
      get("/echo"), get("/big?100000"),
      "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello" + get("/echo"),
      "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nA: "
      "b\r\n\r\n"};
  for (int i = 0; i < count; ++i) {
    std::string m = seeds[random() % std::size(seeds)];
    for (int n = 0; n < 3; ++n) m[random() % m.size()] = static_cast<char>(random() % 256);
    Client c(s->port());
    c.send(m);
    c.end();
    std::string answer = c.read_all();
    EXPECT_TRUE(answer.empty() || answer.starts_with("HTTP/1.1 ")) << quote(m);
  }
  Client c(s->port());
  c.send(get("/echo", "Connection: close\r\n"));
  EXPECT_TRUE(c.read_all().starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(until([&] { return s->stats().connections == 0; }));
}

TEST(HttpServer, ABusyPortIsTheEnvironments) {
  Served s;
  HttpServer::Options o;
  o.port = s->port();
  auto second = HttpServer::start(std::move(o));
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, 500);
  EXPECT_NE(second.error().message.find("in use"), std::string::npos);
  HttpServer::Options nowhere;
  nowhere.host = "192.0.2.1";  // nobody's address
  auto third = HttpServer::start(std::move(nowhere));
  ASSERT_FALSE(third);
  EXPECT_EQ(third.error().code, 400);
}

}  // namespace
}  // namespace sluice

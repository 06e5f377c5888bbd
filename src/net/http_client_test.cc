#include "net/http_client.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base/str.h"
#include "net/http.h"

namespace sluice {
namespace {

using std::chrono::milliseconds;

TEST(HttpUrl, Parts) {
  auto u = parse_http_url("http://example.org:8080/api/").value();
  EXPECT_EQ(u.host, "example.org");
  EXPECT_EQ(u.port, 8080);
  EXPECT_EQ(u.path, "/api");
  EXPECT_EQ(parse_http_url("http://h").value().port, 80);
  EXPECT_EQ(parse_http_url("http://[::1]:9").value().host, "::1");
  EXPECT_FALSE(u.tls);
  EXPECT_TRUE(parse_http_url("https://h").value().tls);
  EXPECT_EQ(parse_http_url("https://h").value().port, 443);
  EXPECT_EQ(parse_http_url("https://h:8443/v1").value().port, 8443);
  for (const char* bad : {"", "example.org", "ftp://h", "http://", "https://", "http://h:0",
                          "http://h:x", "http://h:70000", "http://h:", "http://[::1",
                          "http://h/a b", "http://h?x", "http://user@h", "http://h:80\r\nX: y"})
    EXPECT_FALSE(parse_http_url(bad)) << bad;
}

TEST(HttpUrl, RequestBytes) {
  HttpUrl u = parse_http_url("http://h:81/api").value();
  EXPECT_EQ(http_request_bytes(u, "POST", "/x", {{"A", "b"}}, "hi"),
            "POST /api/x HTTP/1.1\r\nHost: h:81\r\nA: b\r\nContent-Length: 2\r\n\r\nhi");
  EXPECT_EQ(http_request_bytes(u, "GET", "/", {}, ""), "GET /api/ HTTP/1.1\r\nHost: h:81\r\n\r\n");
}

// A peer that reads one request per connection and answers with what it is told to, then closes or
// keeps the connection open without a word.
class RawPeer {
 public:
  explicit RawPeer(std::vector<std::string> pieces, bool close = true)
      : pieces_(std::move(pieces)), close_(close) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof a;
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&a), size), 0);
    EXPECT_EQ(::listen(listener_, 16), 0);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&a), &size);
    port_ = ntohs(a.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  ~RawPeer() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
    for (int fd : kept_) ::close(fd);
  }
  HttpUrl url() const { return {"127.0.0.1", port_, ""}; }

 private:
  void run() {
    for (int fd; (fd = ::accept(listener_, nullptr, nullptr)) >= 0;) {
      char scrap[4096];
      if (::recv(fd, scrap, sizeof scrap, 0) <= 0) {
        ::close(fd);
        continue;
      }
      for (const std::string& p : pieces_) {
        ssize_t n = ::send(fd, p.data(), p.size(), MSG_NOSIGNAL);
        static_cast<void>(n);
        std::this_thread::sleep_for(milliseconds(2));
      }
      if (close_) {
        ::close(fd);
      } else {
        kept_.push_back(fd);
      }
    }
  }

  std::vector<std::string> pieces_;
  bool close_;
  int listener_ = -1;
  uint16_t port_ = 0;
  std::vector<int> kept_;
  std::thread thread_;
};

HttpReply ask(const HttpUrl& url, HttpClient::Options options = {}) {
  options.url = url;
  auto client = HttpClient::open(options).value();
  return client->fetch(http_request_bytes(url, "GET", "/", {}, ""));
}

TEST(HttpClient, AnswersInAnyPieces) {
  const std::string chunked =
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: b\r\n\r\n"
      "5\r\nhello\r\n1;ext=1\r\n \r\n5\r\nworld\r\n0\r\n\r\n";
  for (size_t at = 0; at < chunked.size(); at += 3) {
    RawPeer peer({chunked.substr(0, at), chunked.substr(at)});
    HttpReply r = ask(peer.url());
    EXPECT_EQ(r.failure, HttpFailure::none) << at << r.detail;
    EXPECT_EQ(r.status, 200);
    EXPECT_EQ(r.body, "hello world") << at;
    ASSERT_EQ(r.headers.size(), 2u);
    EXPECT_EQ(r.headers[1].first, "x-a");
  }
}

TEST(HttpClient, AnswersMayHaveALimit) {
  RawPeer peer({"HTTP/1.1 200 OK\r\n\r\n", "more than ", "is wanted", " goes on"});
  for (size_t most : {27u, 26u, 9u, 0u}) {
    HttpClient::Options options;
    options.url = peer.url();
    auto client = HttpClient::open(options).value();
    const HttpReply r = client->fetch(http_request_bytes(peer.url(), "GET", "/", {}, ""), most);
    EXPECT_EQ(r.failure, most == 27 ? HttpFailure::none : HttpFailure::malformed) << most;
    EXPECT_LE(r.body.size(), most);
  }
}

TEST(HttpClient, ClosedConnectionEndsABodyWithoutLength) {
  RawPeer peer({"HTTP/1.1 200 OK\r\n\r\nto the ", "end"});
  HttpReply r = ask(peer.url());
  EXPECT_EQ(r.failure, HttpFailure::none);
  EXPECT_EQ(r.body, "to the end");
}

TEST(HttpClient, InterimAnswersArePassedOver) {
  RawPeer peer({"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n"});
  HttpReply r = ask(peer.url());
  EXPECT_EQ(r.failure, HttpFailure::none) << r.detail;
  EXPECT_EQ(r.status, 204);
}

TEST(HttpClient, FailuresByKind) {
  {
    RawPeer peer({});
    EXPECT_EQ(ask(peer.url()).failure, HttpFailure::closed);
  }
  for (const char* cut : {"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort", "HTTP/1.1 200",
                          "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"}) {
    RawPeer peer({cut});
    EXPECT_EQ(ask(peer.url()).failure, HttpFailure::broken) << cut;
  }
  {
    RawPeer peer({"SSH-2.0-OpenSSH\r\n\r\n"});
    EXPECT_EQ(ask(peer.url()).failure, HttpFailure::malformed);
  }
  HttpClient::Options hasty;
  hasty.stall = milliseconds(100);
  {
    RawPeer peer({"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nslow"}, false);
    EXPECT_EQ(ask(peer.url(), hasty).failure, HttpFailure::stalled);
  }
  hasty.request = milliseconds(50);
  {
    RawPeer peer({}, false);
    EXPECT_EQ(ask(peer.url(), hasty).failure, HttpFailure::timeout);
  }
  HttpUrl nobody;
  {
    RawPeer peer({});
    nobody = peer.url();
  }
  EXPECT_EQ(ask(nobody).failure, HttpFailure::connect);
}

struct Echo {
  std::unique_ptr<HttpServer> server;
  explicit Echo(milliseconds idle = milliseconds(10'000)) {
    HttpServer::Options o;
    o.limits.idle = idle;
    o.limits.connections_per_ip = 4096;
    o.on_request = [](HttpRequest r, std::shared_ptr<Responder> out) {
      if (r.path == "/stream") {
        out->start({200, "text/plain", "", {}});
        for (int i = 0; i < 3; ++i) out->write(r.body);
        return out->finish();
      }
      out->send({200, "text/plain", r.body, {}});
    };
    o.refuse = [](int status, std::string_view why) {
      return HttpResponse{status, "text/plain", std::string(why), {}};
    };
    server = HttpServer::start(o).value();
  }
  HttpUrl url() const { return {"127.0.0.1", server->port(), ""}; }
};

struct Collect final : HttpListener {
  std::string body;
  HttpFailure failure = HttpFailure::none;
  int begins = 0, ends = 0;
  std::function<void()> then;
  void on_begin() override { ++begins; }
  void on_head(int, const HttpHeaders&) override {}
  void on_body(std::string_view bytes) override { body += bytes; }
  void on_end(HttpFailure f, const std::string&) override {
    failure = f;
    ++ends;
    if (then) then();
  }
};

TEST(HttpClient, ManyAtOnceOverFewConnections) {
  Echo echo;
  HttpClient::Options o;
  o.url = echo.url();
  o.max_connections = 7;
  auto client = HttpClient::open(o).value();
  std::vector<Collect> all(500);
  for (size_t i = 0; i < all.size(); ++i)
    client->send(http_request_bytes(o.url, "POST", "/stream", {}, strf("<%zu>", i)), all[i]);
  EXPECT_EQ(client->stats().in_flight, 7u);
  EXPECT_EQ(client->stats().waiting, 493u);
  client->run_until([&] {
    for (const Collect& c : all) {
      if (c.ends == 0) return false;
    }
    return true;
  });
  for (size_t i = 0; i < all.size(); ++i) {
    std::string one = strf("<%zu>", i);
    EXPECT_EQ(all[i].body, one + one + one);
    EXPECT_EQ(all[i].begins, 1);
    EXPECT_EQ(all[i].ends, 1);
  }
  EXPECT_EQ(client->stats().connections, 7u);
  EXPECT_EQ(client->stats().in_flight, 0u);
}

TEST(HttpClient, AListenerMaySendTheNext) {
  Echo echo;
  HttpClient::Options o;
  o.url = echo.url();
  auto client = HttpClient::open(o).value();
  std::vector<Collect> chain(50);
  auto send = [&](size_t i) {
    client->send(http_request_bytes(o.url, "POST", "/", {}, std::to_string(i)), chain[i]);
  };
  for (size_t i = 0; i + 1 < chain.size(); ++i) chain[i].then = [&, i] { send(i + 1); };
  send(0);
  client->run_until([&] { return chain.back().ends > 0; });
  for (size_t i = 0; i < chain.size(); ++i) EXPECT_EQ(chain[i].body, std::to_string(i));
  EXPECT_EQ(client->stats().connections, 1u);
}

// A connection that the server closed while it was idle costs no request.
TEST(HttpClient, IdleConnectionThatWasClosed) {
  Echo echo(milliseconds(50));
  HttpClient::Options o;
  o.url = echo.url();
  auto client = HttpClient::open(o).value();
  for (int i = 0; i < 3; ++i) {
    HttpReply r = client->fetch(http_request_bytes(o.url, "POST", "/", {}, "x"));
    EXPECT_EQ(r.failure, HttpFailure::none) << r.detail;
    EXPECT_EQ(r.body, "x");
    std::this_thread::sleep_for(milliseconds(150));  // not served meanwhile: found closed when used
  }
  EXPECT_EQ(client->stats().connections, 3u);
}

TEST(HttpClient, CancelAll) {
  RawPeer peer({}, false);
  HttpClient::Options o;
  o.url = peer.url();
  o.max_connections = 1;
  auto client = HttpClient::open(o).value();
  Collect first, second;
  client->send(http_request_bytes(o.url, "GET", "/", {}, ""), first);
  client->send(http_request_bytes(o.url, "GET", "/", {}, ""), second);
  bool later = false;
  client->at(std::chrono::steady_clock::now() + milliseconds(30), [&] {
    later = true;
    client->cancel_all();
  });
  client->run_until([&] { return first.ends > 0 && second.ends > 0; });
  EXPECT_TRUE(later);
  EXPECT_EQ(first.failure, HttpFailure::cancelled);
  EXPECT_EQ(second.failure, HttpFailure::cancelled);
  EXPECT_EQ(second.begins, 0);
}

TEST(HttpClient, CancelOne) {
  RawPeer peer({}, false);
  HttpClient::Options o;
  o.url = peer.url();
  o.max_connections = 1;
  auto client = HttpClient::open(o).value();
  Collect first, second, third;
  for (Collect* c : {&first, &second, &third})
    client->send(http_request_bytes(o.url, "GET", "/", {}, ""), *c);
  client->cancel(second);  // it has no connection yet
  EXPECT_EQ(second.ends, 0);
  client->run_until([&] { return second.ends > 0; });
  client->cancel(first);
  client->cancel(first);  // once is enough
  client->run_until([&] { return third.begins > 0; });
  EXPECT_EQ(first.failure, HttpFailure::cancelled);
  EXPECT_EQ(first.ends, 1);
  EXPECT_EQ(second.failure, HttpFailure::cancelled);
  EXPECT_EQ(third.ends, 0);
  client->cancel(third);
  client->run_until([&] { return third.ends > 0; });
}

TEST(HttpClient, APausedAnswerWaits) {
  // More than a pause may leave in the client: what was read before it.
  const size_t size = size_t{8} << 20;
  RawPeer peer(
      {strf("HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", size), std::string(size, 'x')});
  struct Pausing final : HttpListener {
    HttpClient* client = nullptr;
    size_t got = 0;
    int ends = 0;
    HttpFailure failure = HttpFailure::none;
    void on_head(int, const HttpHeaders&) override { client->pause(*this); }
    void on_body(std::string_view bytes) override { got += bytes.size(); }
    void on_end(HttpFailure f, const std::string&) override { failure = f, ++ends; }
  } listener;
  HttpClient::Options o;
  o.url = peer.url();
  o.stall = milliseconds(100);
  auto client = HttpClient::open(o).value();
  listener.client = client.get();
  client->send(http_request_bytes(o.url, "GET", "/", {}, ""), listener);
  bool later = false;
  client->at(std::chrono::steady_clock::now() + milliseconds(300), [&] { later = true; });
  client->run_until([&] { return later; });
  EXPECT_EQ(listener.ends, 0);  // a pause is no stall
  EXPECT_LE(listener.got, size_t{64} << 10);
  client->resume(listener);
  client->run_until([&] { return listener.ends > 0; });
  EXPECT_EQ(listener.failure, HttpFailure::none);
  EXPECT_EQ(listener.got, size);
}

}  // namespace
}  // namespace sluice

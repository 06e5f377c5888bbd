#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <thread>

#include "base/failure.h"
#include "base/log.h"
#include "base/str.h"
#include "net/connection.h"
#include "net/http.h"
#include "net/http_server_state.h"
#include "net/op_memory.h"

namespace sluice {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

bool HttpServer::State::enter(const std::string& peer, size_t most) {
  std::lock_guard lock(peers_mutex);
  if (connections.load() >= options.limits.connections) return false;
  size_t& n = peers[peer];
  if (most > 0 && n >= most) return false;
  ++n;
  connections.fetch_add(1);
  return true;
}

void HttpServer::State::leave(const std::string& peer) {
  std::lock_guard lock(peers_mutex);
  if (auto it = peers.find(peer); it != peers.end() && --it->second == 0) peers.erase(it);
  connections.fetch_sub(1);
}

namespace {

constexpr int kAcceptAtOnce = 16;
constexpr milliseconds kAcceptPause{100};

void serve_socket(HttpServer::State& s, size_t thread, tcp::socket socket) {
  s.accepted.fetch_add(1);
  error_code ec;
  tcp::endpoint peer = socket.remote_endpoint(ec);
  if (ec) return;
  socket.set_option(tcp::no_delay(true), ec);
  if (size_t size = s.options.limits.send_buffer; size > 0)
    socket.set_option(tcp::socket::send_buffer_size(static_cast<int>(size)), ec);
  std::string address = peer.address().to_string();
  const HttpLimits& limits = s.options.limits;
  bool local = peer.address().is_loopback();
  if (s.enter(address, local ? limits.connections_from_loopback : limits.connections_per_ip)) {
    auto c =
        std::make_shared<Connection>(s, thread, std::move(socket), Place(s, std::move(address)));
    // On its own thread the coroutine begins at once, without memory for a message.
    asio::post(s.ios[thread]->context, [c = std::move(c), &io = *s.ios[thread]]() mutable {
      asio::co_spawn(io.context, Connection::serve(std::move(c)), asio::detached);
    });
    return;
  }
  s.refused.fetch_add(1);
  if (s.options.tls) return;  // nothing that the client could read
  Responder responder({.keep_alive = false, .unread = {}, .wake = {}});
  responder.send(s.options.refuse(503, "too many connections"));
  std::string out;
  responder.take(out);
  ssize_t sent =
      ::send(socket.native_handle(), out.data(), out.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  static_cast<void>(sent);
  socket.shutdown(tcp::socket::shutdown_send, ec);
}

}  // namespace

// Accepts connections on thread 0. In callbacks, because an operation that cannot be started takes
// its coroutine with it; and it waits and accepts in two steps, because async_accept allocates
// while it completes.
class AcceptLoop {
 public:
  explicit AcceptLoop(HttpServer::State& server)
      : server_(server),
        pause_(server.ios[0]->context),
        memory_(std::make_shared<OpMemory>()),
        pause_memory_(std::make_shared<OpMemory>()) {}

  void wait() {
    for (;;) {
      try {
        return server_.acceptor->async_wait(
            tcp::acceptor::wait_read,
            asio::bind_allocator(OpAllocator<void>(memory_), [this](error_code ec) { run(ec); }));
      } catch (...) {
        log_exception("accept");
        std::this_thread::sleep_for(milliseconds(1));
      }
    }
  }

 private:
  void run(error_code ec) {
    if (ec == asio::error::operation_aborted) return;
    try {
      for (int i = 0; i < kAcceptAtOnce && !ec; ++i) {
        size_t thread = next_++ % server_.ios.size();
        tcp::socket socket(server_.ios[thread]->context);
        server_.acceptor->accept(socket, ec);
        if (!ec) serve_socket(server_, thread, std::move(socket));
      }
      if (!ec || ec == asio::error::would_block || ec == asio::error::try_again) return wait();
    } catch (...) {
      log_exception("accept");
    }
    // Out of descriptors or memory: wait for some to come back.
    try {
      pause_.expires_after(kAcceptPause);
      pause_.async_wait(
          asio::bind_allocator(OpAllocator<void>(pause_memory_), [this](error_code e) {
            if (e != asio::error::operation_aborted) wait();
          }));
    } catch (...) {
      wait();
    }
  }

  HttpServer::State& server_;
  size_t next_ = 0;
  asio::steady_timer pause_;
  std::shared_ptr<OpMemory> memory_, pause_memory_;
};

namespace {

// An exception thrown by a callback is logged, and the thread goes on.
void run_io(HttpServer::State& s, size_t index) {
  HttpServer::State::Io& io = *s.ios[index];
  char name[32];
  std::snprintf(name, sizeof name, "io-%zu", index);
  pthread_setname_np(pthread_self(), name);
  auto work = asio::make_work_guard(io.context);
  while (!io.context.stopped()) {
    try {
      io.context.run();
    } catch (...) {
      log_exception("io thread");
    }
  }
}

Result<tcp::endpoint> resolve(asio::io_context& context, const std::string& host, uint16_t port) {
  error_code ec;
  tcp::resolver resolver(context);
  auto found = resolver.resolve(host, std::to_string(port), tcp::resolver::passive, ec);
  if (ec || found.empty())
    return Error{400, strf("cannot resolve --host %s: %s", host.c_str(), ec.message().c_str())};
  return found.begin()->endpoint();
}

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

bool is_loopback(const std::string& host) {
  asio::io_context context;
  Result<tcp::endpoint> e = resolve(context, host, 0);
  return e && e->address().is_loopback();
}

HttpServer::State::State(Options o)
    : options(std::move(o)), unread(std::make_shared<UnreadBytes>(options.limits.unread_bytes)) {}

HttpServer::State::~State() {
  accept_loop.reset();
  acceptor.reset();  // while its context exists
  ios.clear();       // with the last connections, which leave `peers`
}

HttpServer::HttpServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<HttpServer>> HttpServer::start(Options options) {
  auto state = std::make_unique<State>(std::move(options));
  State& s = *state;
  size_t threads = std::clamp<size_t>(s.options.threads, 1, 64);
  for (size_t i = 0; i < threads; ++i) s.ios.push_back(std::make_unique<State::Io>());
  Result<tcp::endpoint> endpoint = resolve(s.ios[0]->context, s.options.host, s.options.port);
  if (!endpoint) return endpoint.error();
  error_code ec;
  s.acceptor.emplace(s.ios[0]->context);
  s.acceptor->open(endpoint->protocol(), ec);
  if (!ec) s.acceptor->set_option(tcp::acceptor::reuse_address(true), ec);
  if (!ec) s.acceptor->bind(*endpoint, ec);
  if (!ec) s.acceptor->listen(4096, ec);
  if (!ec) s.acceptor->non_blocking(true, ec);
  if (ec) {
    int code = ec == boost::system::errc::address_not_available ? 400 : 500;
    return Error{code, strf("cannot listen on %s port %d: %s", s.options.host.c_str(),
                            s.options.port, ec.message().c_str())};
  }
  s.port = s.acceptor->local_endpoint(ec).port();
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(state)));
  s.accept_loop = std::make_unique<AcceptLoop>(s);
  s.accept_loop->wait();
  for (size_t i = 0; i < threads; ++i) s.ios[i]->thread = std::thread([&s, i] { run_io(s, i); });
  return server;
}

HttpServer::~HttpServer() { stop(); }

uint16_t HttpServer::port() const { return state_->port; }
size_t HttpServer::num_threads() const { return state_->ios.size(); }

asio::io_context& HttpServer::context(size_t thread) { return state_->ios[thread]->context; }

void HttpServer::post(size_t thread, std::function<void()> f) {
  asio::post(state_->ios[thread]->context, std::move(f));
}

HttpServer::Stats HttpServer::stats() const {
  const State& s = *state_;
  return {s.connections, s.busy,      s.unread->total(), s.accepted,
          s.refused,     s.timed_out, s.slow_readers,    s.requests};
}

void HttpServer::drain() {
  state_->draining = true;
  for (auto& io : state_->ios) {
    asio::post(io->context, [io = io.get()] {
      std::vector<Connection*> idle;
      for (Connection* c : io->connections) {
        if (c->idle()) idle.push_back(c);
      }
      for (Connection* c : idle) c->shut();
    });
  }
}

void HttpServer::stop() {
  if (state_->stopping.exchange(true)) return;
  for (auto& io : state_->ios) io->context.stop();
  for (auto& io : state_->ios) {
    if (io->thread.joinable()) io->thread.join();
  }
  // Coroutines that never ended go with their contexts; connections leave while `state_` is whole.
  state_->acceptor.reset();
}

}  // namespace sluice

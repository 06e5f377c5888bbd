#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <unordered_set>

#include "base/failure.h"
#include "base/keyed_hash.h"
#include "base/log.h"
#include "base/str.h"
#include "net/http.h"
#include "net/op_memory.h"
#include "net/request_parser.h"
#include "net/wire.h"

namespace sluice {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;
// With asio's default executor each start would allocate.
template <typename T>
using Task = asio::awaitable<T, asio::io_context::executor_type>;

constexpr size_t kPipelined = 64 << 10;  // bytes of next requests kept while one is answered
constexpr size_t kScratch = 64 << 10;
constexpr int kAcceptAtOnce = 16;
constexpr size_t kLingerBytes = 16 << 20;  // read and dropped after a refusal, so that it arrives
constexpr int kTurn = 8;  // reads, or requests from memory, until other connections have their turn
constexpr milliseconds kLinger{2000}, kAcceptPause{100};
constexpr milliseconds kMissedWake{1000};  // without memory nobody can wake a connection

class Connection;
class AcceptLoop;

}  // namespace

struct HttpServer::State {
  explicit State(Options o)
      : options(std::move(o)), unread(std::make_shared<UnreadBytes>(options.limits.unread_bytes)) {}
  ~State();

  struct Io {
    std::unordered_set<Connection*> connections;  // io thread; coroutines leave it as they end
    asio::io_context context{1};
    std::vector<char> scratch = std::vector<char>(kScratch);  // io thread
    std::thread thread;
  };

  Options options;
  std::shared_ptr<UnreadBytes> unread;
  std::vector<std::unique_ptr<Io>> ios;
  std::optional<tcp::acceptor> acceptor;    // thread 0
  std::unique_ptr<AcceptLoop> accept_loop;  // thread 0
  uint16_t port = 0;
  std::atomic<bool> draining{false}, stopping{false};
  std::atomic<size_t> connections{0}, busy{0};
  std::atomic<uint64_t> accepted{0}, refused{0}, timed_out{0}, slow_readers{0}, requests{0};
  std::mutex peers_mutex;
  // Connections by address.
  std::unordered_map<std::string, size_t, KeyedHash, std::equal_to<>> peers;

  bool enter(const std::string& peer);
  void leave(const std::string& peer);
};

namespace {

// A connection's place among those that enter() counted.
class Place {
 public:
  Place(HttpServer::State& server, std::string peer) : server_(&server), peer_(std::move(peer)) {}
  Place(Place&& other) noexcept
      : server_(std::exchange(other.server_, nullptr)), peer_(std::move(other.peer_)) {}
  Place& operator=(Place&&) = delete;
  ~Place() {
    if (server_) server_->leave(peer_);
  }
  const std::string& peer() const { return peer_; }

 private:
  HttpServer::State* server_;
  std::string peer_;
};

}  // namespace

bool HttpServer::State::enter(const std::string& peer) {
  std::lock_guard lock(peers_mutex);
  if (connections.load() >= options.limits.connections) return false;
  size_t& n = peers[peer];
  if (n >= options.limits.connections_per_ip) return false;
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

// One client's connection. Lives on one io thread; kept alive by its coroutine and its callbacks.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(HttpServer::State& server, size_t thread, tcp::socket socket, Place place)
      : server_(server),
        io_(*server.ios[thread]),
        thread_(thread),
        socket_(std::move(socket)),
        deadline_(io_.context),
        wake_(io_.context),
        place_(std::move(place)) {
    wire_.open(socket_.native_handle(), server.options.tls.get());
  }
  ~Connection() {
    if (current_) current_->close(true);  // at the server's end: nobody is there to be told
    if (busy_) server_.busy.fetch_sub(1);
  }

  static Task<void> serve(std::shared_ptr<Connection> self);
  void shut();  // the coroutine then ends by itself
  bool idle() const { return idle_; }

 private:
  class Presence;
  Task<bool> handshake();
  Task<bool> exchange();
  Task<bool> read(RequestParser& parser);
  Task<bool> wait(WireResult r);
  Task<bool> write(std::string_view bytes);
  Task<bool> write_at_rate(std::string_view bytes);
  Task<void> yield();
  Task<void> linger();
  Task<bool> reply(std::shared_ptr<Responder> responder);
  Task<void> refuse(int status, std::string reason);
  std::shared_ptr<Responder> make_responder(const RequestParser& parser);
  std::string_view input() const { return std::string_view(input_).substr(input_at_); }
  void consume(size_t count);
  // For the one operation that the coroutine waits for.
  auto resumed(error_code& ec) {
    return asio::redirect_error(
        asio::bind_allocator(OpAllocator<void>(memory_),
                             asio::use_awaitable_t<asio::io_context::executor_type>()),
        ec);
  }
  void arm(milliseconds time);
  void on_wake();
  void watch();
  void on_readable(error_code ec);

  HttpServer::State& server_;
  HttpServer::State::Io& io_;
  size_t thread_;
  tcp::socket socket_;
  Wire wire_;                    // what is read from and written to socket_
  asio::steady_timer deadline_;  // closes the socket when it passes
  asio::steady_timer wake_;      // cancelled when there is something to write
  std::string input_;            // read and not yet parsed, from input_at_ on
  size_t input_at_ = 0;
  Place place_;
  std::shared_ptr<OpMemory> memory_ = std::make_shared<OpMemory>();
  std::shared_ptr<Responder> current_;
  int turn_ = 0;  // requests answered from memory since others had their turn
  bool watching_ = false, idle_ = false, busy_ = false;
  bool sending_ = false;   // the deadline is the reader's
  bool last_out_ = false;  // the response is whole and only has to be read
  bool dropping_ = false;  // too much was pipelined: the connection ends with its response
};

void Connection::arm(milliseconds time) {
  deadline_.expires_after(time);
  deadline_.async_wait([weak = weak_from_this()](error_code ec) {
    if (ec) return;
    if (auto self = weak.lock()) {
      (self->sending_ ? self->server_.slow_readers : self->server_.timed_out).fetch_add(1);
      self->shut();
    }
  });
}

void Connection::shut() {
  error_code ignored;
  wire_.close();
  socket_.close(ignored);
  wake_.cancel();
}

// Holds while serve() exists: its end may be that of a frame whose operation was lost.
class Connection::Presence {
 public:
  explicit Presence(Connection& c) : c_(c) { c_.io_.connections.insert(&c_); }
  ~Presence() {
    c_.io_.connections.erase(&c_);
    if (c_.server_.stopping) return;
    try {
      if (c_.current_) c_.current_->close(false);
    } catch (...) {
      log_exception("connection");
    }
    c_.current_.reset();
    c_.deadline_.cancel();
    c_.shut();
  }

 private:
  Connection& c_;
};

Task<void> Connection::serve(std::shared_ptr<Connection> self) {
  Presence presence(*self);
  try {
    if (co_await self->handshake()) {
      while (co_await self->exchange()) {
      }
    }
  } catch (...) {
    log_exception("connection");
  }
}

// Until the socket may take or give what `r` waits for. False: it is over.
Task<bool> Connection::wait(WireResult r) {
  error_code ec;
  bool writable = r.kind == WireResult::Kind::want_write;
  co_await socket_.async_wait(writable ? tcp::socket::wait_write : tcp::socket::wait_read,
                              resumed(ec));
  co_return !ec && socket_.is_open();
}

// TLS, if the server speaks it. False: it is over.
Task<bool> Connection::handshake() {
  if (!server_.options.tls) co_return true;
  arm(server_.options.limits.header);
  WireResult r = wire_.handshake();
  while (r.wants()) {
    if (!co_await wait(r)) co_return false;
    r = wire_.handshake();
  }
  if (r.moved()) co_return true;
  server_.refused.fetch_add(1);
  if (wire_.fall_back_to_plain()) co_await refuse(400, "this port speaks TLS: use https://");
  co_return false;
}

void Connection::consume(size_t count) {
  input_at_ += count;
  if (input_at_ < input_.size()) return;
  input_.clear();
  input_at_ = 0;
}

// Lets the other connections of this thread go on.
Task<void> Connection::yield() {
  error_code ec;
  co_await asio::post(io_.context, resumed(ec));
}

// One request and its response. False: the connection is over.
Task<bool> Connection::exchange() {
  error_code ec;
  if (!input_.empty()) {
    if (++turn_ % kTurn == 0) co_await yield();
  } else if (!wire_.buffered()) {
    input_.shrink_to_fit();
    if (server_.draining) co_return false;
    idle_ = true;
    arm(server_.options.limits.idle);
    co_await socket_.async_wait(tcp::socket::wait_read, resumed(ec));
    idle_ = false;
    if (ec) co_return false;
  }
  if (!socket_.is_open()) co_return false;
  std::shared_ptr<Responder> responder;
  {
    RequestParser parser(server_.options.limits);
    if (!co_await read(parser)) co_return false;
    responder = make_responder(parser);
    HttpRequest request = parser.take();
    request.peer = place_.peer();
    deadline_.cancel();
    server_.requests.fetch_add(1);
    server_.busy.fetch_add(1);
    busy_ = true;
    current_ = responder;
    try {
      server_.options.on_request(std::move(request), responder);
    } catch (const std::bad_alloc&) {
      log_exception("request failed");
      responder->send(server_.options.refuse(503, "the server is out of memory: try again later"));
    } catch (const std::system_error&) {  // no thread for it
      log_exception("request failed");
      responder->send(
          server_.options.refuse(503, "the server is out of resources: try again later"));
    } catch (...) {
      log_exception("request failed");
      responder->send(server_.options.refuse(500, "internal error"));
    }
  }
  bool again = co_await reply(responder);
  current_.reset();
  busy_ = false;
  server_.busy.fetch_sub(1);
  co_return again;
}

// A request under its deadlines; answers what is not one. False: the connection is over.
Task<bool> Connection::read(RequestParser& parser) {
  const HttpLimits& limits = server_.options.limits;
  bool in_body = false;
  arm(limits.header);
  for (int reads = 1;; ++reads) {
    if (!input_.empty()) consume(parser.put(input()));
    if (parser.done()) co_return true;
    if (parser.refused()) break;
    if (parser.head_done() && !in_body) {
      in_body = true;
      arm(limits.body);
      static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
      if (parser.expects_continue() && parser.http11() && !co_await write(kContinue))
        co_return false;
    }
    if (reads % kTurn == 0) co_await yield();
    WireResult r = wire_.read(io_.scratch.data(), io_.scratch.size());
    if (r.moved()) {
      std::string_view bytes(io_.scratch.data(), r.count);
      bytes.remove_prefix(parser.put(bytes));
      input_ = bytes;
    } else if (!r.wants() || !co_await wait(r)) {
      co_return false;
    }
  }
  co_await refuse(parser.status(), parser.reason());
  co_return false;
}

// Writes all of it; the deadline stands as it is. False: the client is gone.
Task<bool> Connection::write(std::string_view bytes) {
  while (!bytes.empty()) {
    WireResult r = wire_.write(bytes);
    if (r.moved()) {
      bytes.remove_prefix(r.count);
    } else if (!r.wants() || !co_await wait(r)) {
      co_return false;
    }
  }
  co_return true;
}

// Writes all of it. A client that does not take it at once must take so much per send timeout that
// its rate is kept: single bytes do not extend the deadline. False: the client is gone or cut.
Task<bool> Connection::write_at_rate(std::string_view bytes) {
  const HttpLimits& limits = server_.options.limits;
  const size_t enough = limits.read_rate * static_cast<size_t>(limits.send.count()) / 1000;
  size_t taken = 0;
  while (!bytes.empty()) {
    WireResult r = wire_.write(bytes);
    if (r.moved()) {
      bytes.remove_prefix(r.count);
      taken += r.count;
      continue;
    }
    if (!r.wants()) co_return false;
    if (!sending_ || taken > enough) {
      sending_ = true;
      arm(limits.send);
      taken = 0;
    }
    if (!co_await wait(r)) co_return false;
  }
  if (sending_) deadline_.cancel();
  sending_ = false;
  co_return true;
}

// Answers and ends the connection.
Task<void> Connection::refuse(int status, std::string reason) {
  Responder responder({.thread = thread_, .keep_alive = false, .unread = {}, .wake = {}});
  responder.send(server_.options.refuse(status, reason));
  std::string out;
  responder.take(out);
  arm(kLinger);
  if (co_await write(out)) co_await linger();
}

// Ends what is written and reads what the client still sends, or it might never see the answer.
Task<void> Connection::linger() {
  arm(kLinger);
  wire_.end_writing();
  size_t total = 0;
  for (int reads = 1; total < kLingerBytes; ++reads) {
    if (reads % kTurn == 0) co_await yield();
    WireResult r = wire_.read(io_.scratch.data(), io_.scratch.size());
    total += r.count;
    if (!r.moved() && (!r.wants() || !co_await wait(r))) break;
  }
}

std::shared_ptr<Responder> Connection::make_responder(const RequestParser& parser) {
  Responder::Options o;
  o.thread = thread_;
  o.chunked = parser.http11();
  o.keep_alive = parser.keep_alive() && !server_.draining;
  o.head = parser.request().method == "HEAD";
  o.max_pending = server_.options.limits.stream_bytes;
  o.unread = server_.unread;
  o.wake = [weak = weak_from_this(), this] {
    if (auto self = weak.lock()) asio::dispatch(io_.context, [self] { self->on_wake(); });
  };
  return std::make_shared<Responder>(std::move(o));
}

// There is something to write, or too much of it already: a reader that stalls in the middle of a
// write is cut now, not when its deadline passes.
void Connection::on_wake() {
  if (current_ && current_->broken()) return shut();
  wake_.cancel();
}

// Writes what the responder has until it is done or the client is gone.
Task<bool> Connection::reply(std::shared_ptr<Responder> responder) {
  std::string out;
  error_code ec;
  last_out_ = false;
  watch();
  for (;;) {
    Responder::Progress p = responder->take(out);
    if (p.too_slow) break;
    last_out_ = p.done;
    // The socket nearly always takes it at once; only one that does not gets a wait and a deadline.
    if (!co_await write_at_rate(out)) break;
    responder->wrote();
    if (!socket_.is_open() || responder->closed()) break;
    if (p.done) {
      responder->close(true);
      if (dropping_) {
        co_await linger();
      } else if (!p.keep_alive) {
        wire_.end_writing();
      }
      co_return p.keep_alive && !dropping_;
    }
    if (p.made) co_await yield();
    if (!out.empty()) continue;  // more may have come meanwhile
    wake_.expires_after(kMissedWake);
    co_await wake_.async_wait(resumed(ec));
    ec.clear();  // woken
  }
  if (responder->too_slow()) server_.slow_readers.fetch_add(1);
  responder->close(false);
  co_return false;
}

// While a response is on its way, a client that closes is noticed by the end of what it sends.
void Connection::watch() {
  if (watching_ || !socket_.is_open()) return;
  watching_ = true;
  socket_.async_wait(tcp::socket::wait_read, [weak = weak_from_this()](error_code ec) {
    if (auto self = weak.lock()) self->on_readable(ec);
  });
}

// Keeps what is pipelined, up to a limit. Beyond it a client that only has to read waits for its
// turn; one that still waits for an answer is read on and what it sends is dropped, because its
// disconnect comes behind it.
void Connection::on_readable(error_code ec) {
  watching_ = false;
  if (!current_) return;  // between requests: whoever reads the next one sees it
  for (int reads = 0; !ec; ++reads) {
    if (input_.size() - input_at_ >= kPipelined && !dropping_) {
      if (last_out_) return;  // unwatched until the next request; the write has its deadline
      dropping_ = true;
      current_->close_after();
    }
    if (reads == kTurn) return watch();
    WireResult r = wire_.read(io_.scratch.data(), io_.scratch.size());
    if (r.wants()) return watch();
    if (!r.moved()) break;
    if (!dropping_) input_.append(io_.scratch.data(), r.count);
  }
  current_->close(false);
  shut();
}

void serve_socket(HttpServer::State& s, size_t thread, tcp::socket socket) {
  s.accepted.fetch_add(1);
  error_code ec;
  tcp::endpoint peer = socket.remote_endpoint(ec);
  if (ec) return;
  socket.set_option(tcp::no_delay(true), ec);
  if (size_t size = s.options.limits.send_buffer; size > 0)
    socket.set_option(tcp::socket::send_buffer_size(static_cast<int>(size)), ec);
  std::string address = peer.address().to_string();
  if (s.enter(address)) {
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

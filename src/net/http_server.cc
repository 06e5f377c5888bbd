// With http_client.cc the only file that includes Beast (half a minute and 550 MB to compile).
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/read_size.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <unordered_set>

#include "base/log.h"
#include "base/str.h"
#include "net/http.h"
#include "net/wire.h"

namespace sluice {

namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;
using Parser = http::request_parser<http::string_body>;

constexpr size_t kPipelined = 16 << 10;  // bytes of a next request kept while one is answered
constexpr size_t kUnparsed = 64 << 10;   // read ahead; a chunk's extension or trailer must fit
constexpr size_t kReadAtOnce = 64 << 10;
constexpr size_t kLingerBytes = 16 << 20;  // read and dropped after a refusal, so that it arrives
constexpr milliseconds kLinger{2000}, kAcceptPause{100};

class Connection;

}  // namespace

struct HttpServer::State {
  explicit State(Options o) : options(std::move(o)) {}
  ~State() { ios.clear(); }  // with the last connections, which leave `peers`

  struct Io {
    asio::io_context context{1};
    std::unordered_set<Connection*> connections;  // io thread
    std::thread thread;
  };

  Options options;
  std::vector<std::unique_ptr<Io>> ios;
  std::optional<tcp::acceptor> acceptor;  // thread 0
  uint16_t port = 0;
  std::atomic<bool> draining{false}, stopping{false};
  std::atomic<size_t> connections{0}, busy{0};
  std::atomic<uint64_t> accepted{0}, refused{0}, timed_out{0}, slow_readers{0}, requests{0};
  std::mutex peers_mutex;
  std::unordered_map<std::string, size_t> peers;  // connections by address

  bool enter(const std::string& peer);
  void leave(const std::string& peer);
};

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
  Connection(HttpServer::State& server, size_t thread, tcp::socket socket, std::string peer)
      : server_(server),
        io_(*server.ios[thread]),
        thread_(thread),
        socket_(std::move(socket)),
        deadline_(io_.context),
        wake_(io_.context),
        buffer_(server.options.limits.header_bytes + kUnparsed),
        peer_(std::move(peer)) {
    wire_.open(socket_.native_handle(), server.options.tls.get());
  }
  ~Connection() {
    if (busy_) server_.busy.fetch_sub(1);
    server_.leave(peer_);
  }

  static asio::awaitable<void> serve(std::shared_ptr<Connection> self);
  void shut();  // the coroutine then ends by itself
  bool idle() const { return idle_; }

 private:
  asio::awaitable<bool> handshake();
  asio::awaitable<bool> exchange();
  asio::awaitable<bool> read(Parser& parser);
  asio::awaitable<error_code> parse(Parser& parser, bool whole);
  asio::awaitable<bool> wait(WireResult r);
  asio::awaitable<bool> write(std::string_view bytes, std::optional<milliseconds> patience);
  asio::awaitable<bool> reply(std::shared_ptr<Responder> responder);
  asio::awaitable<void> refuse(int status, std::string reason);
  HttpRequest take_request(Parser& parser) const;
  std::shared_ptr<Responder> make_responder(const Parser& parser);
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
  asio::steady_timer wake_;      // never passes; cancelled when there is something to write
  boost::beast::flat_buffer buffer_;
  std::string peer_;
  std::shared_ptr<Responder> current_;
  bool watching_ = false, idle_ = false, busy_ = false;
};

void Connection::arm(milliseconds time) {
  deadline_.expires_after(time);
  deadline_.async_wait([weak = weak_from_this()](error_code ec) {
    if (ec) return;
    if (auto self = weak.lock()) {
      self->server_.timed_out.fetch_add(1);
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

asio::awaitable<void> Connection::serve(std::shared_ptr<Connection> self) {
  self->io_.connections.insert(self.get());
  try {
    if (co_await self->handshake()) {
      while (co_await self->exchange()) {
      }
    }
  } catch (const std::exception& e) {
    LOG(error, "connection: %s", e.what());
  }
  if (self->current_) self->current_->close(false);
  self->current_.reset();
  self->deadline_.cancel();
  self->shut();
  self->io_.connections.erase(self.get());
}

// Until the socket may take or give what `r` waits for. False: it is over.
asio::awaitable<bool> Connection::wait(WireResult r) {
  error_code ec;
  bool writable = r.kind == WireResult::Kind::want_write;
  co_await socket_.async_wait(writable ? tcp::socket::wait_write : tcp::socket::wait_read,
                              asio::redirect_error(asio::use_awaitable, ec));
  co_return !ec && socket_.is_open();
}

// TLS, if the server speaks it. False: it is over.
asio::awaitable<bool> Connection::handshake() {
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

// One request and its response. False: the connection is over.
asio::awaitable<bool> Connection::exchange() {
  error_code ec;
  if (buffer_.size() == 0 && !wire_.buffered()) {
    buffer_.shrink_to_fit();
    if (server_.draining) co_return false;
    idle_ = true;
    arm(server_.options.limits.idle);
    co_await socket_.async_wait(tcp::socket::wait_read,
                                asio::redirect_error(asio::use_awaitable, ec));
    idle_ = false;
    if (ec || !socket_.is_open()) co_return false;
  }
  std::shared_ptr<Responder> responder;
  {
    Parser parser;
    if (!co_await read(parser)) co_return false;
    responder = make_responder(parser);
    HttpRequest request = take_request(parser);
    deadline_.cancel();
    server_.requests.fetch_add(1);
    server_.busy.fetch_add(1);
    busy_ = true;
    current_ = responder;
    try {
      server_.options.on_request(std::move(request), responder);
    } catch (const std::exception& e) {
      LOG(error, "request failed: %s", e.what());
      responder->send(server_.options.refuse(500, "internal error"));
    }
  }
  bool again = co_await reply(responder);
  current_.reset();
  busy_ = false;
  server_.busy.fetch_sub(1);
  co_return again;
}

// Reads until the header, or the whole request, is there.
asio::awaitable<error_code> Connection::parse(Parser& parser, bool whole) {
  parser.eager(whole);
  for (;;) {
    error_code ec;
    if (buffer_.size() > 0) {
      size_t used = parser.put(buffer_.data(), ec);
      buffer_.consume(used);
      if (ec && ec != http::error::need_more) co_return ec;
      if (whole ? parser.is_done() : parser.is_header_done()) co_return error_code();
      if (!ec && used > 0) continue;
    }
    size_t room = boost::beast::read_size(buffer_, kReadAtOnce);
    if (room == 0) co_return http::error::buffer_overflow;
    auto space = buffer_.prepare(room);
    WireResult r = wire_.read(static_cast<char*>(space.data()), space.size());
    if (r.moved()) {
      buffer_.commit(r.count);
    } else if (!r.wants()) {
      co_return parser.got_some() ? http::error::partial_message : http::error::end_of_stream;
    } else if (!co_await wait(r)) {
      co_return asio::error::operation_aborted;
    }
  }
}

// Writes all of it; `patience` is for each piece that the client takes, else the deadline stands as
// it is. False: the client is gone.
asio::awaitable<bool> Connection::write(std::string_view bytes,
                                        std::optional<milliseconds> patience) {
  while (!bytes.empty()) {
    WireResult r = wire_.write(bytes);
    if (r.moved()) {
      bytes.remove_prefix(r.count);
      continue;
    }
    if (!r.wants()) co_return false;
    if (patience) arm(*patience);
    bool on = co_await wait(r);
    if (patience) deadline_.cancel();
    if (!on) co_return false;
  }
  co_return true;
}

// Header and body under their deadlines; answers what is not a request. False: it is over.
asio::awaitable<bool> Connection::read(Parser& parser) {
  const HttpLimits& limits = server_.options.limits;
  parser.header_limit(static_cast<uint32_t>(limits.header_bytes));
  parser.body_limit(limits.body_bytes);
  arm(limits.header);
  error_code ec = co_await parse(parser, false);
  if (!ec) {
    const auto& head = parser.get();
    auto count = static_cast<size_t>(std::distance(head.begin(), head.end()));
    if (count > limits.num_headers) {
      co_await refuse(431, strf("more than %zu header fields", limits.num_headers));
      co_return false;
    }
    bool length = head.count(http::field::content_length) > 0;
    if (head.count(http::field::transfer_encoding) > 0 && (length || !parser.chunked())) {
      co_await refuse(400, length ? "Content-Length together with Transfer-Encoding"
                                  : "the only transfer encoding understood is chunked");
      co_return false;
    }
    if (head.version() == 11 && head.count(http::field::host) != 1) {
      co_await refuse(400, "exactly one Host header is needed");
      co_return false;
    }
    arm(limits.body);
    if (!parser.is_done()) {
      if (boost::beast::iequals(head[http::field::expect], "100-continue")) {
        static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
        if (!co_await write(kContinue, {})) co_return false;
      }
      ec = co_await parse(parser, true);
    }
  }
  if (!ec) co_return true;
  if (!socket_.is_open() || ec == http::error::end_of_stream || ec == http::error::partial_message)
    co_return false;
  if (ec == http::error::body_limit) {
    co_await refuse(413, strf("the body is larger than %zu bytes", limits.body_bytes));
  } else if (ec == http::error::header_limit) {
    co_await refuse(431, strf("the header is larger than %zu bytes", limits.header_bytes));
  } else if (ec == http::error::bad_version) {
    co_await refuse(505, "HTTP/1.1 or HTTP/1.0 is needed");
  } else if (ec.category() == make_error_code(http::error::bad_method).category()) {
    co_await refuse(400, "malformed HTTP request: " + ec.message());
  }
  co_return false;
}

// Answers and ends the connection; what the client still sends is read, or it might never see the
// answer.
asio::awaitable<void> Connection::refuse(int status, std::string reason) {
  Responder responder({.thread = thread_, .keep_alive = false, .wake = {}});
  responder.send(server_.options.refuse(status, reason));
  std::string out;
  responder.take(out);
  arm(kLinger);
  if (!co_await write(out, {})) co_return;
  wire_.end_writing();
  std::vector<char> scrap(8192);
  for (size_t total = 0; total < kLingerBytes;) {
    WireResult r = wire_.read(scrap.data(), scrap.size());
    total += r.count;
    if (r.moved()) continue;
    if (!r.wants() || !co_await wait(r)) break;
  }
}

HttpRequest Connection::take_request(Parser& parser) const {
  HttpRequest r;
  auto message = parser.release();
  r.method = std::string(message.method_string());
  std::string_view target(message.target().data(), message.target().size());
  size_t question = target.find('?');
  r.path = std::string(target.substr(0, question));
  if (question != std::string_view::npos) r.query = std::string(target.substr(question + 1));
  for (const auto& field : message) {
    std::string name(field.name_string());
    for (char& c : name) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    r.headers.emplace_back(std::move(name), std::string(field.value()));
  }
  r.body = std::move(message.body());
  r.peer = peer_;
  return r;
}

std::shared_ptr<Responder> Connection::make_responder(const Parser& parser) {
  Responder::Options o;
  o.thread = thread_;
  o.chunked = parser.get().version() >= 11;
  o.keep_alive = parser.keep_alive() && !server_.draining;
  o.head = parser.get().method() == http::verb::head;
  o.max_pending = server_.options.limits.stream_bytes;
  o.wake = [weak = weak_from_this(), this] {
    if (auto self = weak.lock()) asio::dispatch(io_.context, [self] { self->on_wake(); });
  };
  return std::make_shared<Responder>(std::move(o));
}

// There is something to write, or too much of it already: a reader that stalls in the middle of a
// write is cut now, not when its deadline passes.
void Connection::on_wake() {
  if (current_ && current_->too_slow()) return shut();
  wake_.cancel();
}

// Writes what the responder has until it is done or the client is gone.
asio::awaitable<bool> Connection::reply(std::shared_ptr<Responder> responder) {
  std::string out;
  error_code ec;
  watch();
  for (;;) {
    Responder::Progress p = responder->take(out);
    if (p.too_slow) break;
    // The socket nearly always takes it at once; only one that does not gets a wait and a deadline.
    if (!co_await write(out, server_.options.limits.send)) break;
    if (!socket_.is_open() || responder->closed()) break;
    if (p.done) {
      responder->close(true);
      if (!p.keep_alive) wire_.end_writing();
      co_return p.keep_alive;
    }
    if (!out.empty()) continue;  // more may have come meanwhile
    wake_.expires_at(asio::steady_timer::time_point::max());
    co_await wake_.async_wait(asio::redirect_error(asio::use_awaitable, ec));
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

void Connection::on_readable(error_code ec) {
  watching_ = false;
  if (!current_) return;  // between requests: whoever reads the next one sees it
  while (!ec) {
    if (buffer_.size() >= kPipelined) return;  // too eager; unwatched until the next request
    auto space = buffer_.prepare(4096);
    WireResult r = wire_.read(static_cast<char*>(space.data()), space.size());
    if (r.wants()) return watch();
    if (!r.moved()) break;
    buffer_.commit(r.count);
  }
  current_->close(false);
  shut();
}

asio::awaitable<void> accept_all(HttpServer::State& s) {
  size_t next = 0;
  asio::steady_timer pause(s.ios[0]->context);
  while (s.acceptor->is_open()) {
    error_code ec;
    size_t thread = next++ % s.ios.size();
    tcp::socket socket = co_await s.acceptor->async_accept(
        s.ios[thread]->context, asio::redirect_error(asio::use_awaitable, ec));
    if (ec == asio::error::operation_aborted) break;
    if (ec) {  // out of descriptors, most likely: let some close
      pause.expires_after(kAcceptPause);
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, ec));
      continue;
    }
    s.accepted.fetch_add(1);
    tcp::endpoint peer = socket.remote_endpoint(ec);
    if (ec) continue;
    socket.set_option(tcp::no_delay(true), ec);
    std::string address = peer.address().to_string();
    if (!s.enter(address)) {
      s.refused.fetch_add(1);
      if (s.options.tls) continue;  // nothing that the client could read
      Responder responder({.keep_alive = false, .wake = {}});
      responder.send(s.options.refuse(503, "too many connections"));
      std::string out;
      responder.take(out);
      ssize_t sent =
          ::send(socket.native_handle(), out.data(), out.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      static_cast<void>(sent);
      socket.shutdown(tcp::socket::shutdown_send, ec);
      continue;
    }
    auto c = std::make_shared<Connection>(s, thread, std::move(socket), std::move(address));
    asio::co_spawn(s.ios[thread]->context, Connection::serve(std::move(c)), asio::detached);
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
  if (ec) {
    return Error{400, strf("cannot listen on %s port %d: %s", s.options.host.c_str(),
                           s.options.port, ec.message().c_str())};
  }
  s.port = s.acceptor->local_endpoint(ec).port();
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(state)));
  asio::co_spawn(s.ios[0]->context, accept_all(s), asio::detached);
  for (size_t i = 0; i < threads; ++i) {
    s.ios[i]->thread = std::thread([io = s.ios[i].get(), i] {
      pthread_setname_np(pthread_self(), strf("io-%zu", i).c_str());
      auto work = asio::make_work_guard(io->context);
      io->context.run();
    });
  }
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
  return {s.connections, s.busy, s.accepted, s.refused, s.timed_out, s.slow_readers, s.requests};
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
  for (auto& io : state_->ios) io->thread.join();
  // Coroutines that never ended go with their contexts; connections leave while `state_` is whole.
  state_->acceptor.reset();
}

}  // namespace sluice

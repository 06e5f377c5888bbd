#include "net/connection.h"

#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>

#include <new>
#include <system_error>

#include "base/failure.h"
#include "base/log.h"

namespace sluice {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;
template <typename T>
using Task = Connection::Task<T>;

namespace {

constexpr size_t kLingerBytes = 16 << 20;  // read and dropped after a refusal, so that it arrives
constexpr int kTurn = 8;  // reads, or requests from memory, until other connections have their turn
constexpr milliseconds kLinger{2000};
constexpr milliseconds kMissedWake{1000};  // without memory nobody can wake a connection

}  // namespace

Connection::Connection(HttpServer::State& server, size_t thread, tcp::socket socket, Place place)
    : server_(server),
      io_(*server.ios[thread]),
      thread_(thread),
      socket_(std::move(socket)),
      deadline_(io_.context),
      wake_(io_.context),
      place_(std::move(place)) {
  wire_.open(socket_.native_handle(), server.options.tls.get());
}

Connection::~Connection() {
  if (current_) current_->close(true);  // at the server's end: nobody is there to be told
  if (busy_) server_.busy.fetch_sub(1);
}

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
    if (input_.size() - input_at_ >= kPipelinedBytes && !dropping_) {
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

}  // namespace sluice

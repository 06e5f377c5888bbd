#include "net/http_client.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/basic_parser.hpp>

#include <poll.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/str.h"
#include "net/wire.h"

namespace sluice {

namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using BeastString = boost::beast::string_view;

constexpr milliseconds kTick{20};
constexpr size_t kReadBytes = 64 << 10;
constexpr size_t kMaxHead = 256 << 10;  // of a response's head or a chunk's
constexpr size_t kMaxProxyAnswer = 16 << 10;

// Beast's parser with the body handed on as it comes.
class ResponseParser final : public http::basic_parser<false> {
 public:
  explicit ResponseParser(HttpListener& listener) : listener_(listener) {
    eager(true);
    body_limit(boost::none);
    header_limit(static_cast<uint32_t>(kMaxHead));
  }
  int status() const { return status_; }
  bool interim() const { return status_ >= 100 && status_ < 200; }

 private:
  void on_request_impl(http::verb, BeastString, BeastString, int, error_code&) override {}
  void on_response_impl(int code, BeastString, int, error_code&) override { status_ = code; }
  void on_field_impl(http::field, BeastString name, BeastString value, error_code&) override {
    std::string key(name.data(), name.size());
    for (char& c : key) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    headers_.emplace_back(std::move(key), std::string(value.data(), value.size()));
  }
  void on_header_impl(error_code&) override {
    if (!interim()) listener_.on_head(status_, headers_);
  }
  void on_body_init_impl(const boost::optional<uint64_t>&, error_code&) override {}
  size_t on_body_impl(BeastString body, error_code&) override {
    listener_.on_body({body.data(), body.size()});
    return body.size();
  }
  void on_chunk_header_impl(uint64_t, BeastString, error_code&) override {}
  size_t on_chunk_body_impl(uint64_t, BeastString body, error_code&) override {
    listener_.on_body({body.data(), body.size()});
    return body.size();
  }
  void on_finish_impl(error_code&) override {}

  HttpListener& listener_;
  int status_ = 0;
  HttpHeaders headers_;
};

struct Job {
  std::string bytes;
  HttpListener* listener = nullptr;
  uint64_t number = 0;  // tells requests of one listener apart
  bool again = false;   // sent once before, on a connection that turned out closed
};

class Connection;
using ConnectionPtr = std::shared_ptr<Connection>;

}  // namespace

struct HttpClient::State {
  explicit State(Options o)
      : options(std::move(o)),
        own(options.context ? nullptr : std::make_unique<asio::io_context>(1)),
        context(options.context ? *options.context : *own),
        tick(context) {}

  Options options;
  std::unique_ptr<asio::io_context> own;
  asio::io_context& context;
  asio::steady_timer tick;
  tcp::endpoint endpoint;
  std::deque<Job> queue;             // requests without a connection
  std::vector<ConnectionPtr> all;    // every open one, at its `place`
  std::vector<ConnectionPtr> spare;  // the idle ones, the latest used at the end
  std::vector<char> buffer = std::vector<char>(kReadBytes);
  std::unordered_map<HttpListener*, Connection*> serving;  // by listener
  uint64_t made = 0, stale = 0, num_sent = 0;
  size_t in_flight = 0;

  void begin(Job job);
  void make_connection(Job job);
  void dispatch();  // queued requests to connections that may be had
  uint64_t number_of(HttpListener* listener) const;  // 0: it has no request
  void cancel(HttpListener* listener, uint64_t number);
  void drop(Connection& c);
  void on_tick();
};

namespace {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  explicit Connection(HttpClient::State& client) : client_(client), socket_(client.context) {}

  void connect(Job job);
  void start(Job job);
  void check_time(HttpClient::TimePoint now);
  void end(HttpFailure failure, const std::string& detail, bool keep);
  void close();
  void pause() { paused_ = true; }
  void resume();
  bool busy() const { return job_.listener != nullptr; }
  uint64_t number() const { return job_.number; }
  size_t place = 0;  // in State::all

 private:
  void begin();
  void ask_proxy();
  void start_tls();
  void shake_hands();
  void write();
  template <typename F>
  void wait(WireResult r, F then);
  void wait_readable();
  void on_readable(error_code ec);
  bool read_once();  // false: no more now, or it is over
  void feed(std::string_view bytes);
  void on_eof();

  HttpClient::State& client_;
  tcp::socket socket_;
  Wire wire_;  // what is read from and written to socket_
  Job job_;
  size_t sent_ = 0;
  std::optional<ResponseParser> parser_;
  std::string tail_;  // not yet parsed
  std::string proxy_request_, proxy_answer_;
  HttpClient::TimePoint begun_, active_;
  bool connecting_ = false, used_ = false, heard_ = false, waiting_ = false;
  bool paused_ = false;
};

void Connection::connect(Job job) {
  job_ = std::move(job);
  connecting_ = true;
  begin();
  error_code ec;
  socket_.open(client_.endpoint.protocol(), ec);
  if (ec) {  // out of descriptors; not from here, or a listener that tries again never returns
    return asio::post(client_.context, [self = shared_from_this(), why = ec.message()] {
      if (self->connecting_) self->end(HttpFailure::connect, why, false);
    });
  }
  socket_.set_option(tcp::no_delay(true), ec);
  socket_.async_connect(client_.endpoint, [self = shared_from_this()](error_code e) {
    if (!self->connecting_ || !self->socket_.is_open()) return;  // timed out meanwhile
    if (e) return self->end(HttpFailure::connect, e.message(), false);
    const HttpClient::Options& o = self->client_.options;
    if (!o.proxy || !o.url.tls) return self->start_tls();
    const std::string to = o.url.host + ":" + std::to_string(o.url.port);
    self->proxy_request_ = "CONNECT " + to + " HTTP/1.1\r\nHost: " + to + "\r\n";
    if (!o.proxy->authorization.empty())
      self->proxy_request_ += "Proxy-Authorization: " + o.proxy->authorization + "\r\n";
    self->proxy_request_ += "\r\n";
    self->wire_.open(self->socket_.native_handle(), nullptr);
    self->ask_proxy();
  });
}

// Asks for a tunnel and reads the answer; the server behind it speaks only after we have.
void Connection::ask_proxy() {
  auto again = [](Connection& c) { c.ask_proxy(); };
  while (!proxy_request_.empty()) {
    WireResult r = wire_.write(proxy_request_);
    if (r.wants()) return wait(r, again);
    if (!r.moved()) return end(HttpFailure::connect, "proxy: " + wire_.reason(), false);
    proxy_request_.erase(0, r.count);
  }
  while (proxy_answer_.find("\r\n\r\n") == std::string::npos) {
    char piece[1024];
    WireResult r = wire_.read(piece, sizeof piece);
    if (r.wants()) return wait(r, again);
    if (!r.moved() || proxy_answer_.size() > kMaxProxyAnswer)
      return end(HttpFailure::connect, "the proxy gave no answer", false);
    proxy_answer_.append(piece, r.count);
  }
  std::string line = proxy_answer_.substr(0, proxy_answer_.find('\r'));
  if (!line.starts_with("HTTP/1.") || line.size() < 12 || line[9] != '2')
    return end(HttpFailure::connect, "the proxy said " + quote(line), false);
  start_tls();
}

void Connection::start_tls() {
  const HttpClient::Options& o = client_.options;
  wire_.open(socket_.native_handle(), o.tls.get(), o.url.host);
  shake_hands();
}

// Calls `then` when the socket may take or give what `r` waits for.
template <typename F>
void Connection::wait(WireResult r, F then) {
  bool writable = r.kind == WireResult::Kind::want_write;
  socket_.async_wait(writable ? tcp::socket::wait_write : tcp::socket::wait_read,
                     [self = shared_from_this(), then](error_code ec) {
                       if (!ec && self->busy() && self->socket_.is_open()) then(*self);
                     });
}

void Connection::shake_hands() {
  WireResult r = wire_.handshake();
  if (r.wants()) return wait(r, [](Connection& c) { c.shake_hands(); });
  if (!r.moved()) return end(HttpFailure::connect, "TLS: " + wire_.reason(), false);
  connecting_ = false;
  active_ = steady_clock::now();
  write();
  if (busy()) wait_readable();
}

void Connection::start(Job job) {
  job_ = std::move(job);
  begin();
  write();
  if (busy()) wait_readable();
}

void Connection::begin() {
  begun_ = active_ = steady_clock::now();
  sent_ = 0;
  heard_ = paused_ = false;
  client_.serving[job_.listener] = this;
  parser_.emplace(*job_.listener);
  ++client_.in_flight;
  if (!job_.again) job_.listener->on_begin();
}

void Connection::write() {
  while (sent_ < job_.bytes.size()) {
    WireResult r = wire_.write(std::string_view(job_.bytes).substr(sent_));
    if (r.moved()) {
      sent_ += r.count;
      continue;
    }
    if (r.wants()) return wait(r, [](Connection& c) { c.write(); });
    // The server may have answered before it stopped reading; what it said is read first.
    return;
  }
  job_.listener->on_sent();
}

void Connection::resume() {
  if (!std::exchange(paused_, false)) return;
  active_ = steady_clock::now();
  // What TLS has read already makes no socket readable; not from inside the listener.
  asio::post(client_.context, [self = shared_from_this()] {
    if (!self->busy() || self->paused_ || self->connecting_) return;
    if (self->wire_.buffered()) return self->on_readable({});
    self->wait_readable();
  });
}

void Connection::wait_readable() {
  if (waiting_ || paused_) return;
  waiting_ = true;
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](error_code ec) {
    self->waiting_ = false;
    self->on_readable(ec);
  });
}

void Connection::on_readable(error_code ec) {
  if (!socket_.is_open()) return;
  if (!busy()) {
    char scrap;  // closed by the server, or words of TLS that are nobody's answer (tickets)
    if (!ec && wire_.read(&scrap, 1).wants()) return wait_readable();
    return client_.drop(*this);
  }
  if (ec) return end(heard_ ? HttpFailure::broken : HttpFailure::closed, ec.message(), false);
  active_ = steady_clock::now();
  ConnectionPtr self = shared_from_this();
  while (busy() && !paused_ && read_once()) {
  }
  if (socket_.is_open()) wait_readable();
}

bool Connection::read_once() {
  std::vector<char>& buffer = client_.buffer;
  WireResult r = wire_.read(buffer.data(), buffer.size());
  if (r.wants()) return false;
  if (r.kind == WireResult::Kind::end) {
    on_eof();
    return false;
  }
  if (!r.moved()) {
    end(heard_ ? HttpFailure::broken : HttpFailure::closed, wire_.reason(), false);
    return false;
  }
  if (!std::exchange(heard_, true) && sent_ == job_.bytes.size()) {
    job_.bytes = {};  // it will not be sent again
    sent_ = 0;
  }
  feed({buffer.data(), r.count});
  return (r.count == buffer.size() || wire_.buffered()) && busy() && socket_.is_open();
}

void Connection::feed(std::string_view bytes) {
  std::string joined;
  if (!tail_.empty()) {
    joined = std::move(tail_);
    tail_.clear();
    joined += bytes;
    bytes = joined;
  }
  while (!bytes.empty()) {
    error_code ec;
    size_t n = parser_->put(asio::const_buffer(bytes.data(), bytes.size()), ec);
    bytes.remove_prefix(n);
    if (ec == http::error::need_more) ec = {};
    if (ec) return end(HttpFailure::malformed, ec.message(), false);
    if (parser_->is_done()) {
      if (parser_->interim()) {
        parser_.emplace(*job_.listener);
        continue;
      }
      bool keep = parser_->keep_alive() && bytes.empty() && sent_ == job_.bytes.size();
      return end(HttpFailure::none, "", keep);
    }
    if (n == 0) break;
  }
  if (bytes.size() > kMaxHead) return end(HttpFailure::malformed, "head without an end", false);
  tail_ = bytes;
}

void Connection::on_eof() {
  if (!heard_) return end(HttpFailure::closed, "closed without an answer", false);
  error_code ec;
  if (parser_->is_header_done()) parser_->put_eof(ec);
  bool whole = parser_->is_header_done() && !ec && parser_->is_done();
  end(whole ? HttpFailure::none : HttpFailure::broken, whole ? "" : "closed within an answer",
      false);
}

// The request is over; the connection stays with `keep`.
void Connection::end(HttpFailure failure, const std::string& detail, bool keep) {
  ConnectionPtr self = shared_from_this();
  Job job = std::move(job_);
  job_ = {};
  parser_.reset();
  tail_.clear();
  connecting_ = paused_ = false;
  client_.serving.erase(job.listener);
  --client_.in_flight;
  if (keep) {
    used_ = true;
    client_.spare.push_back(self);
  } else {
    bool retry = failure == HttpFailure::closed && used_ && !heard_ && !job.again;
    client_.drop(*this);
    if (retry) {  // it was closed between two requests: no fault of this one
      ++client_.stale;
      job.again = true;
      client_.queue.push_front(std::move(job));
      return client_.dispatch();
    }
  }
  client_.dispatch();
  job.listener->on_end(failure, detail);
}

void Connection::check_time(HttpClient::TimePoint now) {
  if (!busy()) return;
  const HttpClient::Options& o = client_.options;
  if (connecting_ && now - begun_ > o.connect)
    return end(HttpFailure::connect, "no connection in time", false);
  if (now - begun_ > o.request) return end(HttpFailure::timeout, "no whole answer in time", false);
  if (paused_) active_ = now;
  if (now - active_ > o.stall) return end(HttpFailure::stalled, "nothing came for too long", false);
}

void Connection::close() {
  error_code ignored;
  wire_.close();
  socket_.close(ignored);
}

}  // namespace

void HttpClient::State::begin(Job job) {
  if (spare.empty()) return make_connection(std::move(job));
  ConnectionPtr c = std::move(spare.back());
  spare.pop_back();
  c->start(std::move(job));
}

void HttpClient::State::make_connection(Job job) {
  auto c = std::make_shared<Connection>(*this);
  c->place = all.size();
  all.push_back(c);
  ++made;
  c->connect(std::move(job));
}

void HttpClient::State::dispatch() {
  while (!queue.empty() && (!spare.empty() || all.size() < options.max_connections)) {
    Job job = std::move(queue.front());
    queue.pop_front();
    if (job.again) {  // the other idle ones may be closed as well
      make_connection(std::move(job));
    } else {
      begin(std::move(job));
    }
  }
}

void HttpClient::State::drop(Connection& c) {
  c.close();
  if (c.place >= all.size() || all[c.place].get() != &c) return;
  std::erase_if(spare, [&](const ConnectionPtr& p) { return p.get() == &c; });
  all.back()->place = c.place;
  ConnectionPtr gone = std::move(all[c.place]);
  if (&all[c.place] != &all.back()) all[c.place] = std::move(all.back());
  all.pop_back();
}

void HttpClient::State::on_tick() {
  tick.expires_after(kTick);  // first: a listener may throw
  tick.async_wait([this](error_code ec) {
    if (!ec) on_tick();
  });
  auto now = steady_clock::now();
  // From the end: one that ends swaps the last into its place.
  for (size_t i = all.size(); i-- > 0;) {
    if (i < all.size()) ConnectionPtr(all[i])->check_time(now);
  }
}

const char* http_failure_name(HttpFailure failure) {
  switch (failure) {
    case HttpFailure::none:
      return "none";
    case HttpFailure::connect:
      return "connect";
    case HttpFailure::timeout:
      return "timeout";
    case HttpFailure::stalled:
      return "stalled";
    case HttpFailure::closed:
      return "closed";
    case HttpFailure::broken:
      return "broken";
    case HttpFailure::malformed:
      return "malformed";
    case HttpFailure::cancelled:
      return "cancelled";
  }
  return "";
}

namespace {

// Whether somebody accepts a connection there in time.
bool answers(const tcp::endpoint& endpoint, milliseconds limit) {
  asio::io_context context;
  tcp::socket probe(context);
  error_code ec;
  probe.open(endpoint.protocol(), ec);
  if (!ec) probe.non_blocking(true, ec);
  if (ec) return false;
  probe.connect(endpoint, ec);
  if (!ec) return true;
  if (ec != asio::error::in_progress && ec != asio::error::would_block) return false;
  pollfd fd{probe.native_handle(), POLLOUT, 0};
  if (::poll(&fd, 1, static_cast<int>(limit.count())) <= 0) return false;
  int error = 0;
  socklen_t size = sizeof error;
  return getsockopt(probe.native_handle(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
}

}  // namespace

HttpClient::HttpClient(std::unique_ptr<State> state) : state_(std::move(state)) {}

HttpClient::~HttpClient() {
  for (const ConnectionPtr& c : state_->all) c->close();
}

Result<std::unique_ptr<HttpClient>> HttpClient::open(Options options) {
  auto state = std::make_unique<State>(std::move(options));
  State& s = *state;
  const HttpUrl& url = s.options.url;
  if (url.tls && !s.options.tls) {
    Result<std::shared_ptr<TlsContext>> tls = TlsContext::client({});
    if (!tls) return tls.error();
    s.options.tls = std::move(*tls);
  }
  if (!url.tls) s.options.tls.reset();
  error_code ec;
  tcp::resolver resolver(s.context);
  const HttpUrl& peer = s.options.proxy ? s.options.proxy->url : url;
  auto found = resolver.resolve(peer.host, std::to_string(peer.port), ec);
  if (ec || found.empty())
    return Error{400, strf("cannot find %s: %s", quote(peer.host).c_str(), ec.message().c_str())};
  s.endpoint = found.begin()->endpoint();
  for (const auto& entry : found) {  // of a name's several addresses, one that answers
    if (found.size() == 1) break;
    if (!answers(entry.endpoint(), s.options.connect)) continue;
    s.endpoint = entry.endpoint();
    break;
  }
  std::unique_ptr<HttpClient> client(new HttpClient(std::move(state)));
  s.on_tick();
  return client;
}

void HttpClient::send(std::string request, HttpListener& listener) {
  state_->queue.push_back({std::move(request), &listener, ++state_->num_sent});
  state_->dispatch();
}

uint64_t HttpClient::State::number_of(HttpListener* listener) const {
  if (auto it = serving.find(listener); it != serving.end()) return it->second->number();
  auto waiting = std::find_if(queue.begin(), queue.end(),
                              [&](const Job& job) { return job.listener == listener; });
  return waiting == queue.end() ? 0 : waiting->number;
}

void HttpClient::State::cancel(HttpListener* listener, uint64_t number) {
  if (number == 0 || number_of(listener) != number) return;  // it ended meanwhile
  if (auto it = serving.find(listener); it != serving.end())
    return it->second->end(HttpFailure::cancelled, "", false);
  auto waiting = std::find_if(queue.begin(), queue.end(),
                              [&](const Job& job) { return job.listener == listener; });
  if (waiting == queue.end()) return;
  queue.erase(waiting);
  listener->on_end(HttpFailure::cancelled, "");
}

void HttpClient::cancel(HttpListener& listener) {
  asio::post(state_->context, [s = state_.get(), l = &listener,
                               number = state_->number_of(&listener)] { s->cancel(l, number); });
}

void HttpClient::pause(HttpListener& listener) {
  auto it = state_->serving.find(&listener);
  if (it != state_->serving.end()) it->second->pause();
}

void HttpClient::resume(HttpListener& listener) {
  auto it = state_->serving.find(&listener);
  if (it != state_->serving.end()) it->second->resume();
}

void HttpClient::at(TimePoint time, std::function<void()> f) {
  auto timer = std::make_shared<asio::steady_timer>(state_->context, time);
  timer->async_wait([timer, f = std::move(f)](error_code ec) {
    if (!ec) f();
  });
}

void HttpClient::run_until(const std::function<bool()>& done) {
  while (!done()) {
    if (state_->context.stopped()) state_->context.restart();
    state_->context.run_one();
  }
}

void HttpClient::cancel_all() {
  std::deque<Job> waiting = std::move(state_->queue);
  state_->queue.clear();
  std::vector<ConnectionPtr> all = state_->all;
  for (const ConnectionPtr& c : all) {
    if (c->busy()) c->end(HttpFailure::cancelled, "", false);
  }
  for (Job& job : waiting) job.listener->on_end(HttpFailure::cancelled, "");
}

void HttpClient::set_max_connections(size_t max) {
  state_->options.max_connections = max;
  while (state_->all.size() > max && !state_->spare.empty())
    state_->drop(*ConnectionPtr(state_->spare.back()));
  state_->dispatch();
}

void HttpClient::move_to(const HttpUrl& url) {
  CHECK(state_->in_flight == 0 && state_->queue.empty());
  error_code ec;
  const asio::ip::address address = asio::ip::make_address(url.host, ec);
  CHECK(!ec);
  while (!state_->all.empty()) state_->drop(*ConnectionPtr(state_->all.back()));
  state_->options.url = url;
  state_->endpoint = {address, url.port};
}

HttpReply HttpClient::fetch(std::string request, size_t max_body) {
  struct Whole final : HttpListener {
    Whole(HttpClient& c, size_t m) : client(c), max_body(m) {}
    HttpClient& client;
    const size_t max_body;
    HttpReply reply;
    bool done = false, too_long = false;
    void on_head(int status, const HttpHeaders& headers) override {
      reply.status = status;
      reply.headers = headers;
    }
    void on_body(std::string_view bytes) override {
      if (too_long) return;
      too_long = bytes.size() > max_body - reply.body.size();
      too_long ? client.cancel(*this) : void(reply.body += bytes);
    }
    void on_end(HttpFailure failure, const std::string& detail) override {
      reply.failure = too_long ? HttpFailure::malformed : failure;
      reply.detail = too_long ? strf("an answer of more than %zu bytes", max_body) : detail;
      done = true;
    }
  } whole(*this, max_body);
  send(std::move(request), whole);
  run_until([&] { return whole.done; });
  return std::move(whole.reply);
}

HttpClient::Stats HttpClient::stats() const {
  return {state_->made, state_->stale, state_->queue.size(), state_->in_flight};
}

}  // namespace sluice

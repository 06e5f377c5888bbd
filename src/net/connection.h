// One client's connection to an HttpServer: reads requests, writes responses, keeps the deadlines.
// Lives on one io thread; kept alive by its coroutine and its callbacks. Private to net/.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "net/http_server_state.h"
#include "net/op_memory.h"
#include "net/request_parser.h"
#include "net/wire.h"

namespace sluice {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // With asio's default executor each start would allocate.
  template <typename T>
  using Task = boost::asio::awaitable<T, boost::asio::io_context::executor_type>;

  Connection(HttpServer::State& server,
             size_t thread,
             boost::asio::ip::tcp::socket socket,
             Place place);
  ~Connection();

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
  auto resumed(boost::system::error_code& ec) {
    return boost::asio::redirect_error(
        boost::asio::bind_allocator(
            OpAllocator<void>(memory_),
            boost::asio::use_awaitable_t<boost::asio::io_context::executor_type>()),
        ec);
  }
  void arm(std::chrono::milliseconds time);
  void on_wake();
  void watch();
  void on_readable(boost::system::error_code ec);

  HttpServer::State& server_;
  HttpServer::State::Io& io_;
  size_t thread_;
  boost::asio::ip::tcp::socket socket_;
  Wire wire_;                           // what is read from and written to socket_
  boost::asio::steady_timer deadline_;  // closes the socket when it passes
  boost::asio::steady_timer wake_;      // cancelled when there is something to write
  std::string input_;                   // read and not yet parsed, from input_at_ on
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

}  // namespace sluice

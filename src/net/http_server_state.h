// What an HttpServer's accept loop and connections share. Private to net/.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/keyed_hash.h"
#include "net/http.h"
#include "net/unread_bytes.h"

namespace sluice {

class AcceptLoop;
class Connection;

struct HttpServer::State {
  explicit State(Options o);
  ~State();

  struct Io {
    std::unordered_set<Connection*> connections;  // io thread; coroutines leave it as they end
    boost::asio::io_context context{1};
    std::vector<char> scratch = std::vector<char>(size_t{64} << 10);  // io thread
    std::thread thread;
  };

  Options options;
  std::shared_ptr<UnreadBytes> unread;
  std::vector<std::unique_ptr<Io>> ios;
  std::optional<boost::asio::ip::tcp::acceptor> acceptor;  // thread 0
  std::unique_ptr<AcceptLoop> accept_loop;                 // thread 0
  uint16_t port = 0;
  std::atomic<bool> draining{false}, stopping{false};
  std::atomic<size_t> connections{0}, busy{0};
  std::atomic<uint64_t> accepted{0}, refused{0}, timed_out{0}, slow_readers{0}, requests{0};
  std::mutex peers_mutex;
  // Connections by address.
  std::unordered_map<std::string, size_t, KeyedHash, std::equal_to<>> peers;

  // False: there are too many, in all or `most` from this peer (0: no limit of its own).
  bool enter(const std::string& peer, size_t most);
  void leave(const std::string& peer);
};

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

}  // namespace sluice

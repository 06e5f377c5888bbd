#include "net/byte_stream.h"

#include <poll.h>

#include <utility>

#include "net/shm_stream.h"
#include "net/stream_socket.h"

namespace sluice {

namespace {

class TcpListener final : public ByteListener {
 public:
  explicit TcpListener(ListenSocket socket) : socket_(std::move(socket)) {}
  uint16_t port() const override { return socket_.port(); }
  std::unique_ptr<ByteStream> accept(std::chrono::milliseconds most) override {
    const int fd = socket_.accept(most);
    if (fd < 0) return nullptr;
    StreamSocket accepted(fd);  // closed also where there is no memory for the next line
    return std::make_unique<StreamSocket>(std::move(accepted));
  }
  int fd() const { return socket_.fd(); }

 private:
  ListenSocket socket_;
};

// TCP, and the socket beside it where others of this machine ask for shared memory.
class ShmListener final : public ByteListener {
 public:
  ShmListener(ListenSocket tcp, OwnedFd local) : tcp_(std::move(tcp)), local_(std::move(local)) {}
  uint16_t port() const override { return tcp_.port(); }
  std::unique_ptr<ByteStream> accept(std::chrono::milliseconds most) override {
    pollfd p[2] = {{tcp_.fd(), POLLIN, 0}, {local_.get(), POLLIN, 0}};
    if (poll(p, 2, static_cast<int>(most.count())) <= 0) return nullptr;
    // By turns, where connections come in by both.
    was_local_ = p[1].revents != 0 && (p[0].revents == 0 || !was_local_);
    return was_local_ ? accept_shm(local_, most) : tcp_.accept(most);
  }

 private:
  TcpListener tcp_;
  OwnedFd local_;
  bool was_local_ = false;
};

}  // namespace

Result<Transport> resolve_transport(Transport asked) {
  if (asked == Transport::tcp || asked == Transport::shm) return asked;
  const Result<void> loaded = load_ucx();
  if (loaded) return Transport::ucx;
  if (asked == Transport::automatic) return Transport::tcp;
  return loaded.error();
}

Result<std::unique_ptr<ByteListener>> listen_bytes(Transport transport,
                                                   const std::string& address,
                                                   uint16_t port) {
  if (transport == Transport::ucx) return listen_ucx(address, port);
  Result<ListenSocket> socket = ListenSocket::open(address, port);
  if (!socket) return socket.error();
  if (transport == Transport::shm) {
    if (OwnedFd local = listen_shm(address, socket->port()))
      return std::unique_ptr<ByteListener>(
          std::make_unique<ShmListener>(std::move(*socket), std::move(local)));
  }
  return std::unique_ptr<ByteListener>(std::make_unique<TcpListener>(std::move(*socket)));
}

Result<std::unique_ptr<ByteStream>> connect_bytes(Transport transport,
                                                  const std::string& address,
                                                  uint16_t port,
                                                  WaitUntil until) {
  if (transport == Transport::ucx) return connect_ucx(address, port);
  if (transport == Transport::shm) {
    if (std::unique_ptr<ByteStream> stream = connect_shm(address, port)) return stream;
  }
  Result<StreamSocket> socket = StreamSocket::connect(address, port, until);
  if (!socket) return socket.error();
  return std::unique_ptr<ByteStream>(std::make_unique<StreamSocket>(std::move(*socket)));
}

}  // namespace sluice

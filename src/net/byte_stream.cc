#include "net/byte_stream.h"

#include <utility>

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

 private:
  ListenSocket socket_;
};

}  // namespace

Result<Transport> resolve_transport(Transport asked) {
  if (asked == Transport::tcp) return asked;
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
  return std::unique_ptr<ByteListener>(std::make_unique<TcpListener>(std::move(*socket)));
}

Result<std::unique_ptr<ByteStream>> connect_bytes(Transport transport,
                                                  const std::string& address,
                                                  uint16_t port,
                                                  WaitUntil until) {
  if (transport == Transport::ucx) return connect_ucx(address, port);
  Result<StreamSocket> socket = StreamSocket::connect(address, port, until);
  if (!socket) return socket.error();
  return std::unique_ptr<ByteStream>(std::make_unique<StreamSocket>(std::move(*socket)));
}

}  // namespace sluice

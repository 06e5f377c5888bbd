// A TCP connection with deadlines, for threads that may wait. Addresses are numbers: no name is
// looked up. Used by one thread, but for shut().
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/result.h"
#include "net/byte_stream.h"

namespace sluice {

class StreamSocket final : public ByteStream {
 public:
  StreamSocket() = default;
  explicit StreamSocket(int fd);
  ~StreamSocket() override;
  StreamSocket(StreamSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  StreamSocket& operator=(StreamSocket&& other) noexcept;

  static Result<StreamSocket> connect(const std::string& address, uint16_t port, WaitUntil until);
  Result<void> send(std::span<const std::byte> bytes,
                    std::chrono::milliseconds idle,
                    WaitUntil until) override;
  Result<void> receive(std::span<std::byte> bytes,
                       std::chrono::milliseconds idle,
                       WaitUntil until) override;
  void shut() noexcept override;

 private:
  Result<void> wait(short events, std::chrono::milliseconds idle, WaitUntil until);
  int fd_ = -1;
};

// Where connections come in.
class ListenSocket {
 public:
  ListenSocket() = default;
  ~ListenSocket();
  ListenSocket(ListenSocket&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), port_(other.port_) {}
  ListenSocket& operator=(ListenSocket&&) = delete;
  // Port 0: any free one.
  static Result<ListenSocket> open(const std::string& address, uint16_t port);
  uint16_t port() const { return port_; }
  int fd() const { return fd_; }
  // The next connection, or one that is not valid after `most`.
  int accept(std::chrono::milliseconds most);

 private:
  int fd_ = -1;
  uint16_t port_ = 0;
};

// The next connection of a socket that listens; -1: none within `most`, or no descriptor for it.
int accept_connection(int listen_fd, std::chrono::milliseconds most);

// Whether the text is an IPv4 or IPv6 address of one host.
bool is_host_address(const std::string& text);

}  // namespace sluice

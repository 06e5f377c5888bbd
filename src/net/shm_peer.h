// The side of a connection by shared memory that connects, as one who may write anything makes it.
// For tests.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "net/byte_stream.h"
#include "net/shm_ring.h"
#include "net/shm_stream.h"

namespace sluice {

class ShmPeer final : public ByteStream {
 public:
  // Connected, and nothing said.
  explicit ShmPeer(uint16_t port, const std::string& address = "127.0.0.1")
      : socket_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const std::optional<ShmSocketName> name = shm_socket_name(address, port);
    const auto* to = reinterpret_cast<const sockaddr*>(&name->address);
    connected_ = ::connect(socket_.get(), to, name->size) == 0;
  }
  bool connected() const { return connected_; }
  int socket_fd() const { return socket_.get(); }
  ShmMemory& memory() { return memory_; }

  // Says hello as it should be said.
  bool greet() {
    OwnedFd fd;
    Result<ShmMemory> made = ShmMemory::create(fd);
    if (!made) return false;
    memory_ = std::move(*made);
    out_ = ShmWriter(memory_, 0), in_ = ShmReader(memory_, 1);
    const int passed[] = {fd.get()};
    return say(std::as_bytes(std::span(&hello_, 1)), passed);
  }
  // Any bytes with any descriptors.
  bool say(std::span<const std::byte> bytes, std::span<const int> fds) {
    std::vector<std::byte> copy(bytes.begin(), bytes.end());
    iovec part{copy.data(), copy.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))]{};
    msghdr message{};
    message.msg_iov = &part, message.msg_iovlen = 1;
    if (!fds.empty()) {
      message.msg_control = control, message.msg_controllen = CMSG_SPACE(fds.size_bytes());
      cmsghdr* head = CMSG_FIRSTHDR(&message);
      head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS;
      head->cmsg_len = CMSG_LEN(fds.size_bytes());
      std::memcpy(CMSG_DATA(head), fds.data(), fds.size_bytes());
    }
    return sendmsg(socket_.get(), &message, MSG_NOSIGNAL) == std::ssize(bytes);
  }
  bool wake() {
    const std::byte one{};
    return ::send(socket_.get(), &one, 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1;
  }

  // Both after greet(). No sleeps: the other side need not wake it.
  Result<void> send(std::span<const std::byte> bytes,
                    std::chrono::milliseconds,
                    WaitUntil until) override {
    return move(out_, bytes, until, [this](auto piece) { out_.write(piece); });
  }
  Result<void> receive(std::span<std::byte> bytes,
                       std::chrono::milliseconds,
                       WaitUntil until) override {
    return move(in_, bytes, until, [this](auto piece) { in_.read(piece); });
  }
  void shut() noexcept override { ::shutdown(socket_.get(), SHUT_RDWR); }

  // Says that no more comes. False: the other side has not closed within a minute.
  bool read_to_the_end() {
    const timeval limit{60, 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ::shutdown(socket_.get(), SHUT_WR);
    std::byte some[4096];
    ssize_t n = 0;
    while ((n = ::recv(socket_.get(), some, sizeof some, 0)) > 0) {
    }
    return n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
  }

 private:
  template <typename End, typename Bytes, typename F>
  Result<void> move(End& end, Bytes bytes, WaitUntil until, F piece) {
    while (!bytes.empty()) {
      Result<size_t> num = end.ready();
      if (!num) return num.error();
      if (std::chrono::steady_clock::now() >= until) return Error{504, "nothing came in time"};
      if (*num == 0) {
        if (!wake()) return Error{503, "it is closed"};
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        continue;
      }
      const size_t size = std::min(*num, bytes.size());
      piece(bytes.first(size));
      wake();
      bytes = bytes.subspan(size);
    }
    return {};
  }

  OwnedFd socket_;
  bool connected_ = false;
  ShmHello hello_{.ring_bytes = kShmRing};
  ShmMemory memory_;
  ShmWriter out_;
  ShmReader in_;
};

}  // namespace sluice

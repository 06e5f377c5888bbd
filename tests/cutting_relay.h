// A TCP relay for tests: each connection through it ends after so many bytes from the server, in
// the middle of whatever they are. One thread, and one for each connection.
#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "net/owned_fd.h"
#include "net/stream_socket.h"

namespace sluice {

class CuttingRelay {
 public:
  CuttingRelay(uint16_t to, size_t most)
      : to_(to),
        most_(most),
        listen_(ListenSocket::open("127.0.0.1", 0).value()),
        thread_([this] { accept_main(); }) {}
  ~CuttingRelay() {
    quit_.store(true);
    thread_.join();
    for (std::thread& t : links_) t.join();
  }
  uint16_t port() const { return listen_.port(); }

 private:
  static constexpr std::chrono::milliseconds kWait{20};

  void accept_main() {
    while (!quit_.load())
      if (OwnedFd client(listen_.accept(kWait)); client)
        links_.emplace_back([this, c = std::move(client)] { pass_on(c.get()); });
  }
  void pass_on(int client) {
    const OwnedFd server(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(to_);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(server.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      return;
    size_t left = most_;
    while (!quit_.load() && left > 0) {
      std::array<pollfd, 2> both{{{client, POLLIN, 0}, {server.get(), POLLIN, 0}}};
      ::poll(both.data(), both.size(), static_cast<int>(kWait.count()));
      size_t any = SIZE_MAX;
      if (both[0].revents != 0 && !move(client, server.get(), any)) return;
      if (both[1].revents != 0 && !move(server.get(), client, left)) return;
    }
  }
  // What is there, `left` bytes at most. False: a side has closed.
  static bool move(int from, int to, size_t& left) {
    std::array<std::byte, 4096> bytes;
    const ssize_t got = ::recv(from, bytes.data(), std::min(bytes.size(), left), 0);
    if (got <= 0) return false;
    left -= static_cast<size_t>(got);
    for (ssize_t sent = 0; sent < got;) {
      const ssize_t n =
          ::send(to, bytes.data() + sent, static_cast<size_t>(got - sent), MSG_NOSIGNAL);
      if (n <= 0) return false;
      sent += n;
    }
    return true;
  }

  uint16_t to_;
  size_t most_;
  ListenSocket listen_;
  std::atomic<bool> quit_{false};
  std::vector<std::thread> links_;  // the accepting thread's
  std::thread thread_;
};

}  // namespace sluice

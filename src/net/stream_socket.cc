#include "net/stream_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>

#include "base/str.h"

namespace sluice {

namespace {

using std::chrono::milliseconds;

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

std::optional<SocketAddress> numeric_address(const std::string& text, uint16_t port) {
  SocketAddress out;
  auto* four = reinterpret_cast<sockaddr_in*>(&out.storage);
  auto* six = reinterpret_cast<sockaddr_in6*>(&out.storage);
  if (inet_pton(AF_INET, text.c_str(), &four->sin_addr) == 1) {
    four->sin_family = AF_INET;
    four->sin_port = htons(port);
    out.size = sizeof(sockaddr_in);
    return out;
  }
  if (inet_pton(AF_INET6, text.c_str(), &six->sin6_addr) == 1) {
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(port);
    out.size = sizeof(sockaddr_in6);
    return out;
  }
  return {};
}

Error socket_error(const char* what, int code) {
  return {503, strf("%s: %s", what, std::strerror(code))};
}

}  // namespace

bool is_host_address(const std::string& text) {
  if (text == "0.0.0.0" || text == "::") return false;
  return numeric_address(text, 0).has_value();
}

StreamSocket::StreamSocket(int fd) : fd_(fd) {
  const int on = 1;
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

StreamSocket::~StreamSocket() {
  if (fd_ >= 0) close(fd_);
}

StreamSocket& StreamSocket::operator=(StreamSocket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

void StreamSocket::shut() noexcept {
  if (fd_ >= 0) ::shutdown(fd_, SHUT_RDWR);
}

Result<StreamSocket> StreamSocket::connect(const std::string& address,
                                           uint16_t port,
                                           WaitUntil until) {
  std::optional<SocketAddress> to = numeric_address(address, port);
  if (!to) return Error{400, strf("%s is no address", quote(address).c_str())};
  const int fd = socket(to->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return socket_error("no socket", errno);
  StreamSocket out(fd);
  if (::connect(fd, to->get(), to->size) != 0 && errno != EINPROGRESS)
    return socket_error("no connection", errno);
  if (auto ok = out.wait(POLLOUT, milliseconds::max(), until); !ok) return ok.error();
  int failed = 0;
  socklen_t size = sizeof failed;
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &size);
  if (failed != 0) return socket_error("no connection", failed);
  return out;
}

Result<void> StreamSocket::wait(short events, milliseconds idle, WaitUntil until) {
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(until - std::chrono::steady_clock::now());
    const auto most = std::clamp<int64_t>(std::min(left, idle).count(), 0, 60'000);
    pollfd p{fd_, events, 0};
    const int num = poll(&p, 1, static_cast<int>(most));
    if (num > 0) return {};
    if (num == 0) return Error{504, "nothing came in time"};
    if (errno != EINTR) return socket_error("no connection", errno);
  }
}

Result<void> StreamSocket::send(std::span<const std::byte> bytes,
                                milliseconds idle,
                                WaitUntil until) {
  while (!bytes.empty()) {
    const ssize_t num = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (num > 0) {
      bytes = bytes.subspan(static_cast<size_t>(num));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return socket_error("the peer is gone", errno);
    if (auto ok = wait(POLLOUT, idle, until); !ok) return ok;
  }
  return {};
}

Result<void> StreamSocket::receive(std::span<std::byte> bytes, milliseconds idle, WaitUntil until) {
  while (!bytes.empty()) {
    const ssize_t num = recv(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (num > 0) {
      bytes = bytes.subspan(static_cast<size_t>(num));
      if (std::chrono::steady_clock::now() >= until && !bytes.empty())
        return Error{504, "nothing came in time"};
      continue;
    }
    if (num == 0) return Error{503, "the peer has closed the connection"};
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return socket_error("the peer is gone", errno);
    if (auto ok = wait(POLLIN, idle, until); !ok) return ok;
  }
  return {};
}

ListenSocket::~ListenSocket() {
  if (fd_ >= 0) close(fd_);
}

Result<ListenSocket> ListenSocket::open(const std::string& address, uint16_t port) {
  std::optional<SocketAddress> at = numeric_address(address, port);
  if (!at) return Error{400, strf("%s is no address", quote(address).c_str())};
  ListenSocket out;
  out.fd_ = socket(at->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int on = 1;
  if (out.fd_ >= 0) setsockopt(out.fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (out.fd_ < 0 || bind(out.fd_, at->get(), at->size) != 0 || listen(out.fd_, 64) != 0) {
    return Error{400, strf("cannot listen on %s port %u: %s", address.c_str(), unsigned{port},
                           std::strerror(errno))};
  }
  at->size = sizeof at->storage;
  getsockname(out.fd_, at->get(), &at->size);
  out.port_ = ntohs(at->storage.ss_family == AF_INET
                        ? reinterpret_cast<sockaddr_in*>(&at->storage)->sin_port
                        : reinterpret_cast<sockaddr_in6*>(&at->storage)->sin6_port);
  return out;
}

int ListenSocket::accept(milliseconds most) { return accept_connection(fd_, most); }

int accept_connection(int listen_fd, milliseconds most) {
  pollfd p{listen_fd, POLLIN, 0};
  if (poll(&p, 1, static_cast<int>(most.count())) <= 0) return -1;
  const int fd = accept4(listen_fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  // No descriptors: it would fail again at once.
  if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS))
    std::this_thread::sleep_for(most);
  return fd;
}

}  // namespace sluice

#include "net/shm_stream.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>
#include <utility>

#include "base/str.h"
#include "net/shm_ring.h"
#include "net/stream_socket.h"

namespace sluice {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr size_t kShmPiece = 64 << 10;  // the other side copies one while the next is written
constexpr std::chrono::microseconds kShmSpin{20};  // before a sleep, which costs about as much
constexpr milliseconds kShmLongest{60'000};        // of one wait, as StreamSocket's

// Then a side that spins keeps the other one from running.
bool has_one_core() {
  static const bool one = std::thread::hardware_concurrency() == 1;
  return one;
}

bool has_our_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

class ShmStream final : public ByteStream {
 public:
  // The side that connects has made the memory; the other one gets it with the hello.
  explicit ShmStream(OwnedFd socket, ShmMemory memory = {}) : socket_(std::move(socket)) {
    if (memory) start(std::move(memory), 0);
  }

  Result<void> send(std::span<const std::byte> bytes, milliseconds idle, WaitUntil until) override {
    if (auto ok = open(idle, until); !ok) return ok;
    take_wakes();  // a ring with room does not show that its reader is gone
    while (!bytes.empty()) {
      if (closed_) return ended();
      Result<size_t> room = await(out_, idle, until);
      if (!room) return room.error();
      const auto piece = bytes.first(std::min({*room, bytes.size(), kShmPiece}));
      if (out_.write(piece)) wake();
      bytes = bytes.subspan(piece.size());
      if (!bytes.empty() && steady_clock::now() >= until) return late();
    }
    return {};
  }

  Result<void> receive(std::span<std::byte> bytes, milliseconds idle, WaitUntil until) override {
    if (auto ok = open(idle, until); !ok) return ok;
    while (!bytes.empty()) {
      Result<size_t> there = await(in_, idle, until);
      if (!there) return there.error();
      const auto piece = bytes.first(std::min({*there, bytes.size(), kShmPiece}));
      if (in_.read(piece)) wake();
      bytes = bytes.subspan(piece.size());
      if (!bytes.empty() && steady_clock::now() >= until) return late();
    }
    return {};
  }

  // Ends a sleep of the other side too, as a connection's end does.
  void shut() noexcept override {
    shut_.store(true);
    ::shutdown(socket_.get(), SHUT_RDWR);
  }

 private:
  static Error late() { return {504, "nothing came in time"}; }
  static Error ended() { return {503, "the peer has closed the connection"}; }

  void start(ShmMemory memory, size_t ring_out) {
    memory_ = std::move(memory);
    out_ = ShmWriter(memory_, ring_out);
    in_ = ShmReader(memory_, 1 - ring_out);
  }

  // The hello of the side that connected.
  Result<void> open(milliseconds idle, WaitUntil until) {
    if (memory_) return {};
    const auto end = std::min(until, steady_clock::now() + std::min(idle, kShmLongest));
    for (;;) {
      Result<ShmMemory> memory = receive_hello();
      if (memory) {
        start(std::move(*memory), 1);
        return {};
      }
      if (memory.error().code != 504) return memory.error();
      if (steady_clock::now() >= end) return late();
      poll_until(end);
    }
  }

  // 504: it is not there yet.
  Result<ShmMemory> receive_hello() {
    ShmHello hello;
    iovec part{&hello, sizeof hello};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    msghdr message{};
    message.msg_iov = &part, message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = CMSG_LEN(sizeof(int));  // there is no room for a second descriptor
    const ssize_t num = recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (num < 0 && (errno == EAGAIN || errno == EINTR)) return late();
    if (num <= 0) return ended();
    OwnedFd fd;
    const cmsghdr* head = CMSG_FIRSTHDR(&message);
    if (head && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS &&
        head->cmsg_len == CMSG_LEN(sizeof(int))) {
      int passed = -1;
      std::memcpy(&passed, CMSG_DATA(head), sizeof passed);
      fd = OwnedFd(passed);
    }
    if (num != ssize_t{sizeof hello} || hello != ShmHello{.ring_bytes = kShmRing})
      return Error{400, "the peer speaks another protocol of shared memory"};
    if (!fd || (message.msg_flags & MSG_CTRUNC) != 0)
      return Error{400, "the peer has passed no shared memory"};
    return ShmMemory::map(fd);
  }

  // Until bytes can be moved at this end of a ring: how many, at least one.
  template <typename End>
  Result<size_t> await(End& ring, milliseconds idle, WaitUntil until) {
    if (shut_.load()) return Error{503, "the connection was ended"};
    Result<size_t> num = ring.ready();
    if (!num || *num > 0) return num;
    const auto begin = steady_clock::now();
    const auto end = std::min(until, begin + std::min(idle, kShmLongest));
    const auto spin_end = has_one_core() ? begin : begin + kShmSpin;
    while (steady_clock::now() < spin_end) {
      num = ring.ready();
      if (!num || *num > 0) return num;
    }
    for (;;) {
      ring.set_waits(true);
      num = ring.ready();
      if (!num || *num > 0) {
        ring.set_waits(false);
        return num;
      }
      if (closed_) return ended();  // and all that it has sent was read
      if (steady_clock::now() >= end) return late();
      poll_until(end);
      take_wakes();
    }
  }

  void poll_until(WaitUntil end) {
    const auto left = std::chrono::ceil<milliseconds>(end - steady_clock::now());
    pollfd p{socket_.get(), POLLIN, 0};
    poll(&p, 1, static_cast<int>(std::clamp<int64_t>(left.count(), 0, kShmLongest.count())));
  }

  // More of them than anybody needs are taken in parts, with a look at the clock after each.
  void take_wakes() {
    std::byte wakes[256];
    const ssize_t num = recv(socket_.get(), wakes, sizeof wakes, MSG_DONTWAIT);
    if (num == 0 || (num < 0 && errno != EAGAIN && errno != EINTR)) closed_ = true;
  }

  // A full socket already holds enough bytes to wake the other side.
  void wake() {
    const std::byte one{};
    const ssize_t num = ::send(socket_.get(), &one, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (num < 0 && (errno == EPIPE || errno == ECONNRESET)) closed_ = true;
  }

  OwnedFd socket_;
  ShmMemory memory_;
  ShmWriter out_;
  ShmReader in_;
  bool closed_ = false;  // by the other side
  std::atomic<bool> shut_{false};
};

bool send_hello(const OwnedFd& socket, const OwnedFd& memory) {
  ShmHello hello{.ring_bytes = kShmRing};
  iovec part{&hello, sizeof hello};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))]{};
  msghdr message{};
  message.msg_iov = &part, message.msg_iovlen = 1;
  message.msg_control = control, message.msg_controllen = sizeof control;
  cmsghdr* head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = memory.get();
  std::memcpy(CMSG_DATA(head), &fd, sizeof fd);
  return sendmsg(socket.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) == ssize_t{sizeof hello};
}

}  // namespace

std::optional<ShmSocketName> shm_socket_name(const std::string& address, uint16_t port) {
  // An address may be written in several ways.
  std::array<std::byte, sizeof(in6_addr)> binary{};
  const int family = address.find(':') == std::string::npos ? AF_INET : AF_INET6;
  char text[INET6_ADDRSTRLEN];
  if (inet_pton(family, address.c_str(), binary.data()) != 1 ||
      !inet_ntop(family, binary.data(), text, sizeof text))
    return {};
  const std::string name = strf("sluice-kv-%u %s %u", ShmHello().version, text, unsigned{port});
  ShmSocketName out;
  out.address.sun_family = AF_UNIX;
  // The first byte is 0: an abstract name, which is in no folder.
  std::memcpy(out.address.sun_path + 1, name.data(), name.size());
  out.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return out;
}

OwnedFd listen_shm(const std::string& address, uint16_t port) {
  const std::optional<ShmSocketName> name = shm_socket_name(address, port);
  OwnedFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!name || !fd) return OwnedFd();
  const auto* to = reinterpret_cast<const sockaddr*>(&name->address);
  if (bind(fd.get(), to, name->size) != 0 || listen(fd.get(), 64) != 0) return OwnedFd();
  return fd;
}

std::unique_ptr<ByteStream> accept_shm(const OwnedFd& listen, milliseconds most) {
  OwnedFd fd(accept_connection(listen.get(), most));
  if (!fd || !has_our_user(fd.get())) return nullptr;
  return std::make_unique<ShmStream>(std::move(fd));
}

std::unique_ptr<ByteStream> connect_shm(const std::string& address, uint16_t port) {
  const std::optional<ShmSocketName> name = shm_socket_name(address, port);
  OwnedFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!name || !fd) return nullptr;
  const auto* to = reinterpret_cast<const sockaddr*>(&name->address);
  // On a machine of their own addresses nobody has the name: refused at once.
  if (::connect(fd.get(), to, name->size) != 0 || !has_our_user(fd.get())) return nullptr;
  OwnedFd shared;
  Result<ShmMemory> memory = ShmMemory::create(shared);
  if (!memory || !send_hello(fd, shared)) return nullptr;
  return std::make_unique<ShmStream>(std::move(fd), std::move(*memory));
}

}  // namespace sluice

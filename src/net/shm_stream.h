// Bytes between two processes of one machine, and of one user, through shared memory (shm_ring.h).
// An abstract Unix socket beside a TCP port, named after its address and port, is where they meet:
// the side that connects makes the memory and passes it on there. From then on that connection
// carries what wakes a side which sleeps, and its end says that the other process is gone.
//
// Abstract names belong to a network namespace, as addresses do, and only who has bound the TCP
// port binds the name: what a name leads to is what the address leads to.
#pragma once

#include <sys/un.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "net/byte_stream.h"
#include "net/owned_fd.h"

namespace sluice {

struct ShmSocketName {
  sockaddr_un address{};
  socklen_t size = 0;
};
// Nothing: no address.
std::optional<ShmSocketName> shm_socket_name(const std::string& address, uint16_t port);

// The first bytes on the socket, and the memory's descriptor with them.
struct ShmHello {
  std::array<char, 8> magic{'s', 'l', 'u', 'i', 'c', 'e', 'S', 'M'};
  uint32_t version = 1;
  uint32_t ring_bytes = 0;
  bool operator==(const ShmHello&) const = default;
};

// Beside the TCP listener of that address and port. Not valid: the name is taken, and others
// connect by TCP.
OwnedFd listen_shm(const std::string& address, uint16_t port);
// The next connection, if there is one and it is of our user. Its hello is awaited by the first
// call that receives or sends.
std::unique_ptr<ByteStream> accept_shm(const OwnedFd& listen, std::chrono::milliseconds most);
// Null: nobody listens there, or another user, or there is no memory. TCP will do.
std::unique_ptr<ByteStream> connect_shm(const std::string& address, uint16_t port);

}  // namespace sluice

// Bytes between two processes, for threads that may wait, by one of several transports: TCP, memory
// that both share, or UCX (TCP, RDMA: by its own choice), which is a library that need not be
// there.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/named.h"
#include "base/result.h"

namespace sluice {

using WaitUntil = std::chrono::steady_clock::time_point;

// Used by one thread, but for shut().
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // All of it, or an error: closed, or nothing moved for `idle`, or the time is up.
  virtual Result<void> send(std::span<const std::byte> bytes,
                            std::chrono::milliseconds idle,
                            WaitUntil until) = 0;
  virtual Result<void> receive(std::span<std::byte> bytes,
                               std::chrono::milliseconds idle,
                               WaitUntil until) = 0;
  // Ends whatever waits; any thread.
  virtual void shut() noexcept = 0;
  // The last call but shut(): may wait a second until what was sent has left.
  virtual void finish() noexcept {}
};

// Where connections come in.
class ByteListener {
 public:
  virtual ~ByteListener() = default;
  virtual uint16_t port() const = 0;
  // The next connection, or null after `most`.
  virtual std::unique_ptr<ByteStream> accept(std::chrono::milliseconds most) = 0;
};

// shm: shared memory where both processes are on one machine and of one user, else TCP. Those that
// use it and those that use TCP alone reach each other.
enum class Transport : uint8_t { tcp, shm, ucx, automatic };
inline constexpr NamedValue<Transport> kTransports[] = {{"tcp", Transport::tcp},
                                                        {"shm", Transport::shm},
                                                        {"ucx", Transport::ucx},
                                                        {"auto", Transport::automatic}};
// Any but automatic, which is UCX where it is there, else TCP. An error: asked for, and not there.
Result<Transport> resolve_transport(Transport asked);

// Both with a transport that was resolved. Addresses are numbers; port 0: any free one.
Result<std::unique_ptr<ByteListener>> listen_bytes(Transport transport,
                                                   const std::string& address,
                                                   uint16_t port);
Result<std::unique_ptr<ByteStream>> connect_bytes(Transport transport,
                                                  const std::string& address,
                                                  uint16_t port,
                                                  WaitUntil until);

// Of UCX: ucx_stream.cc, or ucx_none.cc where a build has none.
Result<void> load_ucx();
Result<std::unique_ptr<ByteListener>> listen_ucx(const std::string& address, uint16_t port);
Result<std::unique_ptr<ByteStream>> connect_ucx(const std::string& address, uint16_t port);

}  // namespace sluice

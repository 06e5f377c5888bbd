// Shared by event_socket_zmq and event_subscriber_zmq: handles that close themselves, and errors.
// Defined in event_socket_zmq.cc, so that no header knows ZeroMQ.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"

namespace sluice {

struct CloseSocket {
  void operator()(void* socket) const;
};
struct EndContext {
  void operator()(void* context) const;
};
using SocketPtr = std::unique_ptr<void, CloseSocket>;
using ContextPtr = std::unique_ptr<void, EndContext>;

Error zmq_error(const std::string& what);  // and why, as ZeroMQ says it

// A number as a frame: big-endian.
inline std::array<char, 8> number_frame(uint64_t v) {
  std::array<char, 8> out;
  for (size_t k = 0; k < out.size(); ++k) out[k] = static_cast<char>(v >> (56 - 8 * k));
  return out;
}

}  // namespace sluice

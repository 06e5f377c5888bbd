// Bytes over a connected socket, plain or through TLS; never waits. The caller owns the socket and
// says when it is closed. One thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "net/tls.h"

namespace sluice {

class Wire {
 public:
  Wire() = default;
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  // `tls` null: plain. `host`: whom a client talks to.
  void open(int fd, const TlsContext* tls, const std::string& host = "");
  void close() { fd_ = -1; }  // whatever is tried from now on fails

  WireResult handshake();
  WireResult read(char* to, size_t size);
  WireResult write(std::string_view bytes);
  // No more will be written; the peer may read on.
  void end_writing();
  // Bytes to read that the socket's readiness does not tell of.
  bool buffered() const { return tls_ && tls_->buffered(); }
  // The peer of a server spoke plain HTTP instead of TLS: from now on so does this.
  bool fall_back_to_plain();
  std::string reason() const;  // of the last failure

 private:
  int fd_ = -1;
  int error_ = 0;
  std::optional<TlsSession> tls_;
};

}  // namespace sluice

// TLS 1.2 and 1.3 without sockets of its own: OpenSSL where the build has it (tls_openssl.cc), else
// a refusal that says so (tls_none.cc). Only net/wire.cc uses sessions.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/result.h"

namespace sluice {

// What one attempt to move bytes came to. Nothing here ever waits.
struct WireResult {
  enum class Kind { bytes, want_read, want_write, end, failed };
  Kind kind = Kind::failed;
  size_t count = 0;  // of bytes moved

  bool moved() const { return kind == Kind::bytes; }
  // Try again, with the same bytes, when the socket is ready.
  bool wants() const { return kind == Kind::want_read || kind == Kind::want_write; }
};

// Certificates and rules, shared by all connections of a server or client; any thread.
class TlsContext {
 public:
  struct ClientOptions {
    std::string ca_file;    // PEM; empty: the system's
    bool insecure = false;  // any certificate will do
  };
  // PEM files: the certificate with its chain, and its key, which must not be encrypted.
  static Result<std::shared_ptr<TlsContext>> server(const std::string& cert_file,
                                                    const std::string& key_file);
  static Result<std::shared_ptr<TlsContext>> client(const ClientOptions& options);
  ~TlsContext();
  bool self_signed() const;  // a client must be told to trust it
  // For a server: reads the same files again, for sessions made from now on. After an error it is
  // as it was.
  Result<void> reload();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

 private:
  friend class TlsSession;
  struct State;
  explicit TlsContext(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// One connection's side of the protocol; the connection's thread. `fd` is read at every use: -1 is
// a closed socket.
class TlsSession {
 public:
  // `host`: whom a client talks to, a name or an address; a server's is empty.
  TlsSession(const TlsContext& context, const int& fd, const std::string& host);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  WireResult handshake();  // Kind::bytes: done
  WireResult read(char* to, size_t size);
  WireResult write(const char* from, size_t size);
  void say_goodbye();     // close_notify, as far as the socket takes it
  bool buffered() const;  // decrypted bytes that no readiness of the socket tells of
  // After a failure: why, in a few words; and whether the peer spoke plain HTTP.
  const std::string& reason() const;
  bool heard_http() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice

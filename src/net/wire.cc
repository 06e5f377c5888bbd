#include "net/wire.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace sluice {

void Wire::open(int fd, const TlsContext* tls, const std::string& host) {
  fd_ = fd;
  if (tls) tls_.emplace(*tls, fd_, host);
}

namespace {

WireResult outcome(ssize_t n, int& error, WireResult::Kind want) {
  if (n > 0) return {WireResult::Kind::bytes, static_cast<size_t>(n)};
  if (n == 0) return {WireResult::Kind::end};
  if (errno == EAGAIN || errno == EWOULDBLOCK) return {want};
  error = errno;
  return {};
}

}  // namespace

WireResult Wire::handshake() {
  return tls_ ? tls_->handshake() : WireResult{WireResult::Kind::bytes};
}

WireResult Wire::read(char* to, size_t size) {
  if (tls_) return tls_->read(to, size);
  ssize_t n;
  do {
    n = ::recv(fd_, to, size, MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  return outcome(n, error_, WireResult::Kind::want_read);
}

WireResult Wire::write(std::string_view bytes) {
  if (bytes.empty()) return {WireResult::Kind::bytes};
  if (tls_) return tls_->write(bytes.data(), bytes.size());
  ssize_t n;
  do {
    n = ::send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (n < 0 && errno == EINTR);
  return outcome(n, error_, WireResult::Kind::want_write);
}

void Wire::end_writing() {
  if (tls_) tls_->say_goodbye();
  ::shutdown(fd_, SHUT_WR);
}

bool Wire::fall_back_to_plain() {
  if (!tls_ || !tls_->heard_http()) return false;
  tls_.reset();
  return true;
}

std::string Wire::reason() const { return tls_ ? tls_->reason() : std::strerror(error_); }

}  // namespace sluice

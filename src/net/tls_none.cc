// The build without OpenSSL: contexts are refused, so that no session is ever made.
#include "base/check.h"
#include "net/tls.h"

namespace sluice {

namespace {

Error no_tls() {
  return {400, "this build has no OpenSSL, so no TLS; install libssl-dev and build again"};
}

}  // namespace

struct TlsContext::State {};
struct TlsSession::State {
  std::string reason;
};

TlsContext::TlsContext(std::unique_ptr<State> state) : state_(std::move(state)) {}
TlsContext::~TlsContext() = default;
bool TlsContext::self_signed() const { return false; }
Result<void> TlsContext::reload() { return no_tls(); }
Result<std::shared_ptr<TlsContext>> TlsContext::server(const std::string&, const std::string&) {
  return no_tls();
}
Result<std::shared_ptr<TlsContext>> TlsContext::client(const ClientOptions&) { return no_tls(); }

TlsSession::TlsSession(const TlsContext&, const int&, const std::string&) { CHECK(false); }
TlsSession::~TlsSession() = default;
WireResult TlsSession::handshake() { return {}; }
WireResult TlsSession::read(char*, size_t) { return {}; }
WireResult TlsSession::write(const char*, size_t) { return {}; }
void TlsSession::say_goodbye() {}
bool TlsSession::buffered() const { return false; }
const std::string& TlsSession::reason() const { return state_->reason; }
bool TlsSession::heard_http() const { return false; }

}  // namespace sluice

// The only file that includes OpenSSL, but for digest_openssl.cc.
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <arpa/inet.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <mutex>

#include "base/str.h"
#include "net/tls.h"

namespace sluice {

namespace {

struct Free {
  void operator()(SSL_CTX* p) const { SSL_CTX_free(p); }
  void operator()(SSL* p) const { SSL_free(p); }
  void operator()(BIO* p) const { BIO_free(p); }
  void operator()(EVP_PKEY* p) const { EVP_PKEY_free(p); }
  void operator()(BIO_METHOD* p) const { BIO_meth_free(p); }
};
template <typename T>
using Owned = std::unique_ptr<T, Free>;

// The first of the errors that this thread has queued, which are forgotten.
std::string take_reason() {
  unsigned long code = ERR_get_error();
  ERR_clear_error();
  const char* text = code != 0 ? ERR_reason_error_string(code) : nullptr;
  return text ? text : "no reason given";
}

// A socket as OpenSSL sees it. Its own kind raises SIGPIPE and relies on a non-blocking descriptor.
int socket_write(BIO* bio, const char* data, int size) {
  BIO_clear_retry_flags(bio);
  int fd = *static_cast<const int*>(BIO_get_data(bio));
  ssize_t n;
  do {
    n = ::send(fd, data, static_cast<size_t>(size), MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (n < 0 && errno == EINTR);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) BIO_set_retry_write(bio);
  return static_cast<int>(n);
}

int socket_read(BIO* bio, char* data, int size) {
  BIO_clear_retry_flags(bio);
  int fd = *static_cast<const int*>(BIO_get_data(bio));
  ssize_t n;
  do {
    n = ::recv(fd, data, static_cast<size_t>(size), MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) BIO_set_retry_read(bio);
  return static_cast<int>(n);
}

long socket_control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

BIO_METHOD* socket_method() {
  static const Owned<BIO_METHOD> method = [] {
    Owned<BIO_METHOD> m(BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket"));
    BIO_meth_set_write(m.get(), socket_write);
    BIO_meth_set_read(m.get(), socket_read);
    BIO_meth_set_ctrl(m.get(), socket_control);
    return m;
  }();
  return method.get();
}

// No prompt on the terminal for an encrypted key.
int no_password(char*, int, int, void* asked) {
  *static_cast<bool*>(asked) = true;
  return -1;
}

Result<void> check_readable(const char* option, const std::string& path) {
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  char c = 0;
  if (in && in.read(&c, 1)) return {};
  const char* why = errno != 0 ? std::strerror(errno) : "it is empty";
  return Error{400, strf("cannot read %s %s: %s", option, quote(path, 400).c_str(), why)};
}

Result<Owned<SSL_CTX>> new_context(const SSL_METHOD* method) {
  ERR_clear_error();
  Owned<SSL_CTX> c(SSL_CTX_new(method));
  if (!c) return Error{500, "cannot set up TLS: " + take_reason()};
  SSL_CTX_set_min_proto_version(c.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(c.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_mode(c.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  // Sessions live in tickets at the client: nothing here grows with clients.
  SSL_CTX_set_session_cache_mode(c.get(), SSL_SESS_CACHE_OFF);
  return c;
}

Result<Owned<EVP_PKEY>> read_key(const std::string& path) {
  if (auto ok = check_readable("--tls-key", path); !ok) return ok.error();
  Owned<BIO> file(BIO_new_file(path.c_str(), "r"));
  bool encrypted = false;
  Owned<EVP_PKEY> key(file ? PEM_read_bio_PrivateKey(file.get(), nullptr, no_password, &encrypted)
                           : nullptr);
  if (key) return key;
  std::string why = take_reason();
  if (encrypted)
    return Error{400, strf("--tls-key %s is encrypted: write it out without a password first",
                           quote(path, 400).c_str())};
  return Error{400, strf("--tls-key %s holds no private key in PEM form (%s)",
                         quote(path, 400).c_str(), why.c_str())};
}

bool is_address(const std::string& host) {
  unsigned char scrap[sizeof(in6_addr)];
  return inet_pton(AF_INET, host.c_str(), scrap) == 1 ||
         inet_pton(AF_INET6, host.c_str(), scrap) == 1;
}

}  // namespace

struct TlsContext::State {
  Owned<SSL_CTX> context;  // of mutex; a session keeps a reference to the one it was made from
  bool server = false;
  std::string cert_file, key_file;
  mutable std::mutex mutex;
};

TlsContext::TlsContext(std::unique_ptr<State> state) : state_(std::move(state)) {}
TlsContext::~TlsContext() = default;

bool TlsContext::self_signed() const {
  std::lock_guard lock(state_->mutex);
  X509* x = SSL_CTX_get0_certificate(state_->context.get());
  return x && X509_check_issued(x, x) == X509_V_OK;
}

namespace {

Result<Owned<SSL_CTX>> server_context(const std::string& cert_file, const std::string& key_file) {
  Result<Owned<SSL_CTX>> c = new_context(TLS_server_method());
  if (!c) return c.error();
  if (auto ok = check_readable("--tls-cert", cert_file); !ok) return ok.error();
  if (SSL_CTX_use_certificate_chain_file(c->get(), cert_file.c_str()) != 1) {
    return Error{400, strf("--tls-cert %s holds no usable certificate in PEM form (%s)",
                           quote(cert_file, 400).c_str(), take_reason().c_str())};
  }
  Result<Owned<EVP_PKEY>> key = read_key(key_file);
  if (!key) return key.error();
  if (X509_check_private_key(SSL_CTX_get0_certificate(c->get()), key->get()) != 1) {
    ERR_clear_error();
    return Error{400, strf("--tls-key %s does not belong to the certificate %s",
                           quote(key_file, 400).c_str(), quote(cert_file, 400).c_str())};
  }
  if (SSL_CTX_use_PrivateKey(c->get(), key->get()) != 1)
    return Error{400, strf("--tls-key %s cannot be used (%s)", quote(key_file, 400).c_str(),
                           take_reason().c_str())};
  return c;
}

}  // namespace

Result<std::shared_ptr<TlsContext>> TlsContext::server(const std::string& cert_file,
                                                       const std::string& key_file) {
  Result<Owned<SSL_CTX>> c = server_context(cert_file, key_file);
  if (!c) return c.error();
  return std::shared_ptr<TlsContext>(new TlsContext(
      std::unique_ptr<State>(new State{std::move(*c), true, cert_file, key_file, {}})));
}

Result<void> TlsContext::reload() {
  Result<Owned<SSL_CTX>> c = server_context(state_->cert_file, state_->key_file);
  if (!c) return c.error();
  std::lock_guard lock(state_->mutex);
  state_->context = std::move(*c);
  return {};
}

Result<std::shared_ptr<TlsContext>> TlsContext::client(const ClientOptions& options) {
  Result<Owned<SSL_CTX>> c = new_context(TLS_client_method());
  if (!c) return c.error();
  if (!options.ca_file.empty()) {
    if (auto ok = check_readable("--ca", options.ca_file); !ok) return ok.error();
    if (SSL_CTX_load_verify_file(c->get(), options.ca_file.c_str()) != 1) {
      return Error{400, strf("--ca %s holds no certificate in PEM form (%s)",
                             quote(options.ca_file, 400).c_str(), take_reason().c_str())};
    }
  } else if (!options.insecure) {
    SSL_CTX_set_default_verify_paths(c->get());
  }
  SSL_CTX_set_verify(c->get(), options.insecure ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, nullptr);
  return std::shared_ptr<TlsContext>(
      new TlsContext(std::unique_ptr<State>(new State{std::move(*c), false, {}, {}, {}})));
}

struct TlsSession::State {
  Owned<SSL> ssl;
  std::string reason;
  bool heard_http = false, broken = false;

  WireResult outcome(int n, size_t moved);
};

TlsSession::TlsSession(const TlsContext& context, const int& fd, const std::string& host)
    : state_(std::make_unique<State>()) {
  Owned<SSL>& ssl = state_->ssl;
  {
    std::lock_guard lock(context.state_->mutex);
    ssl.reset(SSL_new(context.state_->context.get()));
  }
  Owned<BIO> bio(BIO_new(socket_method()));
  if (!ssl || !bio) throw std::bad_alloc();
  BIO_set_data(bio.get(), const_cast<int*>(&fd));
  BIO_set_init(bio.get(), 1);
  SSL_set_bio(ssl.get(), bio.get(), bio.get());
  static_cast<void>(bio.release());
  if (context.state_->server) {
    SSL_set_accept_state(ssl.get());
    return;
  }
  SSL_set_connect_state(ssl.get());
  if (is_address(host)) {
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl.get()), host.c_str());
  } else {
    SSL_set1_host(ssl.get(), host.c_str());
    SSL_set_tlsext_host_name(ssl.get(), host.c_str());
  }
}

TlsSession::~TlsSession() = default;

WireResult TlsSession::State::outcome(int n, size_t moved) {
  if (n > 0) return {WireResult::Kind::bytes, moved};
  int system = errno;
  switch (SSL_get_error(ssl.get(), n)) {
    case SSL_ERROR_WANT_READ:
      return {WireResult::Kind::want_read};
    case SSL_ERROR_WANT_WRITE:
      return {WireResult::Kind::want_write};
    case SSL_ERROR_ZERO_RETURN:
      return {WireResult::Kind::end};
    case SSL_ERROR_SYSCALL:
      broken = true;
      reason = system != 0 ? std::strerror(system) : "closed without a goodbye";
      ERR_clear_error();
      return {};
    default:
      break;
  }
  broken = true;
  heard_http = ERR_GET_REASON(ERR_peek_error()) == SSL_R_HTTP_REQUEST;
  reason = take_reason();
  if (long verdict = SSL_get_verify_result(ssl.get()); verdict != X509_V_OK)
    reason = std::string("certificate: ") + X509_verify_cert_error_string(verdict);
  return {};
}

WireResult TlsSession::handshake() {
  ERR_clear_error();
  errno = 0;
  return state_->outcome(SSL_do_handshake(state_->ssl.get()), 0);
}

WireResult TlsSession::read(char* to, size_t size) {
  ERR_clear_error();
  errno = 0;
  size_t moved = 0;
  int n = SSL_read_ex(state_->ssl.get(), to, size, &moved);
  return state_->outcome(n, moved);
}

WireResult TlsSession::write(const char* from, size_t size) {
  ERR_clear_error();
  errno = 0;
  size_t moved = 0;
  int n = SSL_write_ex(state_->ssl.get(), from, size, &moved);
  return state_->outcome(n, moved);
}

void TlsSession::say_goodbye() {
  if (state_->broken || !SSL_is_init_finished(state_->ssl.get())) return;
  ERR_clear_error();
  SSL_shutdown(state_->ssl.get());
  ERR_clear_error();
}

bool TlsSession::buffered() const { return SSL_pending(state_->ssl.get()) > 0; }
const std::string& TlsSession::reason() const { return state_->reason; }
bool TlsSession::heard_http() const { return state_->heard_http; }

}  // namespace sluice

// Connections over UCX's stream interface. Each has a worker of its own, so that threads share
// nothing but the context.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <utility>

#include "base/str.h"
#include "net/byte_stream.h"
#include "net/stream_socket.h"
#include "net/ucx_library.h"

namespace sluice {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr size_t kUcxPiece = 256 << 10;  // bytes of one operation: what `idle` is measured by
constexpr milliseconds kUcxPoll{200}, kUcxClose{2000};
constexpr milliseconds kUcxFlush{1000};  // for the last bytes to leave
constexpr milliseconds kUcxLinger{300};  // for the peer to read them and to leave first
constexpr int kMostDrained = 10'000;     // calls of progress() before a worker ends

class UcxWorker {
 public:
  explicit UcxWorker(const UcxLibrary& ucx) : ucx_(ucx) {}
  ~UcxWorker() { end(); }
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  Result<void> open() {
    ucp_worker_params_t params{};
    params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    if (auto s = ucx_.worker_create(ucx_.context, &params, &worker_); s != UCS_OK) return fail(s);
    if (auto s = ucx_.worker_get_efd(worker_, &event_); s != UCS_OK) return fail(s);
    return {};
  }
  ucp_worker_h get() const { return worker_; }
  Error fail(ucs_status_t status) const {
    return {503, strf("UCX: %s", ucx_.status_string(status))};
  }
  bool progress() { return ucx_.worker_progress(worker_) != 0; }
  // Sleeps until something happens, at most so long.
  void sleep(milliseconds most) {
    if (ucx_.worker_arm(worker_) != UCS_OK) return;  // something has
    pollfd p{event_, POLLIN, 0};
    poll(&p, 1, static_cast<int>(std::clamp<int64_t>(most.count(), 0, kUcxPoll.count())));
  }
  // Progresses until `done()`; false: not within `most`.
  template <typename F>
  bool run_until(F done, milliseconds most) {
    const auto end = steady_clock::now() + most;
    while (!done()) {
      const bool moved = progress();
      const auto left = std::chrono::ceil<milliseconds>(end - steady_clock::now());
      if (left.count() <= 0) return done();
      if (!moved) sleep(std::min(left, milliseconds(20)));
    }
    return true;
  }
  bool is_done(ucs_status_ptr_t request) const {
    return !UCS_PTR_IS_PTR(request) || ucx_.request_status(request) != UCS_INPROGRESS;
  }
  void free(ucs_status_ptr_t request) const {
    if (UCS_PTR_IS_PTR(request)) ucx_.request_free(request);
  }
  // Ends a sleep; any thread.
  void wake() noexcept {
    std::lock_guard lock(mutex_);
    if (worker_) ucx_.worker_signal(worker_);
  }
  void end() noexcept {
    for (int k = 0; worker_ && k < kMostDrained && progress(); ++k) {
    }
    std::lock_guard lock(mutex_);
    if (worker_) ucx_.worker_destroy(worker_);
    worker_ = nullptr;
  }
  // Never ended nor progressed again: UCX aborts when a worker ends under its operations.
  void abandon() noexcept {
    std::lock_guard lock(mutex_);
    worker_ = nullptr;
  }

 private:
  const UcxLibrary& ucx_;
  ucp_worker_h worker_ = nullptr;
  int event_ = -1;
  std::mutex mutex_;  // of the worker's life, for wake()
};

class UcxStream final : public ByteStream {
 public:
  // `accepted`: it came in by a listener.
  UcxStream(const UcxLibrary& ucx, bool accepted) : ucx_(ucx), worker_(ucx), accepted_(accepted) {}
  ~UcxStream() override { end(); }

  // Sets where it goes to in `params`.
  Result<void> open(ucp_ep_params_t params) {
    if (auto ok = worker_.open(); !ok) return ok;
    params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler.arg = this;
    params.err_handler.cb = [](void* self, ucp_ep_h, ucs_status_t status) {
      static_cast<UcxStream*>(self)->failed_ = status;
    };
    if (auto s = ucx_.ep_create(worker_.get(), &params, &ep_); s != UCS_OK) {
      ep_ = nullptr;
      return worker_.fail(s);
    }
    return {};
  }

  Result<void> send(std::span<const std::byte> bytes, milliseconds idle, WaitUntil until) override {
    while (!bytes.empty()) {
      if (!ep_) return Error{503, "the connection has ended"};
      const auto piece = bytes.first(std::min(bytes.size(), kUcxPiece));
      const ucp_request_param_t params{};
      if (auto ok = wait(ucx_.stream_send(ep_, piece.data(), piece.size(), &params), idle, until);
          !ok)
        return ok;
      bytes = bytes.subspan(piece.size());
    }
    return {};
  }

  Result<void> receive(std::span<std::byte> bytes, milliseconds idle, WaitUntil until) override {
    while (!bytes.empty()) {
      if (!ep_) return Error{503, "the connection has ended"};
      ucp_request_param_t params{};
      params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
      params.cb.recv_stream = [](void*, ucs_status_t, size_t length, void* self) {
        static_cast<UcxStream*>(self)->received_ = length;
      };
      params.user_data = this;
      received_ = 0;
      const size_t most = std::min(bytes.size(), kUcxPiece);
      size_t length = 0;
      const ucs_status_ptr_t request =
          ucx_.stream_receive(ep_, bytes.data(), most, &length, &params);
      if (auto ok = wait(request, idle, until); !ok) return ok;
      bytes = bytes.subspan(std::min(most, request ? received_ : length));
      if (steady_clock::now() >= until && !bytes.empty()) return Error{504, "nothing came in time"};
    }
    return {};
  }

  void shut() noexcept override {
    shut_.store(true);
    worker_.wake();
  }
  void finish() noexcept override { end(); }

 private:
  Result<void> wait(ucs_status_ptr_t request, milliseconds idle, WaitUntil until) {
    if (UCS_PTR_IS_ERR(request)) return gone(UCS_PTR_STATUS(request));
    if (!request) return {};
    const auto end = std::min(until, steady_clock::now() + idle);
    for (;;) {
      const bool moved = worker_.progress();
      if (const ucs_status_t s = ucx_.request_status(request); s != UCS_INPROGRESS) {
        ucx_.request_free(request);
        return s == UCS_OK ? Result<void>() : gone(s);
      }
      const auto left = std::chrono::ceil<milliseconds>(end - steady_clock::now());
      if (shut_.load() || failed_ != UCS_OK || left.count() <= 0) {
        close(request);  // then nothing reads or writes the caller's memory any more
        return failed_ != UCS_OK ? gone(failed_)
               : shut_.load()    ? Error{503, "the connection was ended"}
                                 : Error{504, "nothing came in time"};
      }
      if (!moved) worker_.sleep(left);
    }
  }
  Error gone(ucs_status_t status) const {
    return {503, strf("the peer is gone: %s", ucx_.status_string(status))};
  }

  // The last bytes leave first. UCX drops what the peer has not read when an endpoint closes, so
  // the side that connected closes first: it has read all that it waits for.
  void end() noexcept {
    if (!ep_) return;
    const auto over = [this] { return failed_ != UCS_OK || shut_.load(); };
    const ucp_request_param_t params{};
    const ucs_status_ptr_t flush = over() ? nullptr : ucx_.ep_flush(ep_, &params);
    worker_.run_until([&] { return over() || worker_.is_done(flush); }, kUcxFlush);
    if (accepted_) worker_.run_until(over, kUcxLinger);
    close(flush);
  }

  // By force: a close that flushes waits for the peer's own. The worker ends when `pending` and the
  // close have called back.
  void close(ucs_status_ptr_t pending) noexcept {
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_EP_CLOSE_FLAG_FORCE;
    const ucs_status_ptr_t closing = ucx_.ep_close(std::exchange(ep_, nullptr), &params);
    const bool done = worker_.run_until(
        [&] { return worker_.is_done(closing) && worker_.is_done(pending); }, kUcxClose);
    if (!done) return worker_.abandon();
    worker_.free(closing);
    worker_.free(pending);
    worker_.end();
  }

  const UcxLibrary& ucx_;
  UcxWorker worker_;
  const bool accepted_;
  ucp_ep_h ep_ = nullptr;
  ucs_status_t failed_ = UCS_OK;
  size_t received_ = 0;
  std::atomic<bool> shut_{false};
};

struct UcxAddress {
  sockaddr_storage storage{};
  ucs_sock_addr_t get() {
    const bool six = storage.ss_family == AF_INET6;
    const size_t size = six ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    return {reinterpret_cast<sockaddr*>(&storage), static_cast<socklen_t>(size)};
  }
};

Result<UcxAddress> ucx_address(const std::string& text, uint16_t port) {
  UcxAddress out;
  auto* four = reinterpret_cast<sockaddr_in*>(&out.storage);
  auto* six = reinterpret_cast<sockaddr_in6*>(&out.storage);
  if (inet_pton(AF_INET, text.c_str(), &four->sin_addr) == 1) {
    four->sin_family = AF_INET;
    four->sin_port = htons(port);
  } else if (inet_pton(AF_INET6, text.c_str(), &six->sin6_addr) == 1) {
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(port);
  } else {
    return Error{400, strf("%s is no address", quote(text).c_str())};
  }
  return out;
}

class UcxListener final : public ByteListener {
 public:
  explicit UcxListener(const UcxLibrary& ucx) : ucx_(ucx), worker_(ucx) {}
  ~UcxListener() override {
    for (ucp_conn_request_h r : waiting_) ucx_.listener_reject(listener_, r);
    if (listener_) ucx_.listener_destroy(listener_);
    worker_.end();  // before waiting_, into which it may call
  }

  Result<void> open(const std::string& address, uint16_t port) {
    Result<UcxAddress> at = ucx_address(address, port);
    if (!at) return at.error();
    if (auto ok = worker_.open(); !ok) return ok;
    ucp_listener_params_t params{};
    params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
    params.sockaddr = at->get();
    params.conn_handler.arg = this;
    params.conn_handler.cb = [](ucp_conn_request_h request, void* self) {
      static_cast<UcxListener*>(self)->take(request);
    };
    if (auto s = ucx_.listener_create(worker_.get(), &params, &listener_); s != UCS_OK) {
      listener_ = nullptr;
      return Error{400, strf("cannot listen on %s port %u by UCX: %s", address.c_str(),
                             unsigned{port}, ucx_.status_string(s))};
    }
    ucp_listener_attr_t attr{};
    attr.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
    if (auto s = ucx_.listener_query(listener_, &attr); s != UCS_OK) return worker_.fail(s);
    port_ = ntohs(attr.sockaddr.ss_family == AF_INET
                      ? reinterpret_cast<sockaddr_in*>(&attr.sockaddr)->sin_port
                      : reinterpret_cast<sockaddr_in6*>(&attr.sockaddr)->sin6_port);
    return {};
  }
  uint16_t port() const override { return port_; }

  std::unique_ptr<ByteStream> accept(milliseconds most) override {
    const auto end = steady_clock::now() + most;
    for (;;) {
      const bool moved = worker_.progress();
      if (!waiting_.empty()) break;
      const auto left = std::chrono::ceil<milliseconds>(end - steady_clock::now());
      if (left.count() <= 0) return nullptr;
      if (!moved) worker_.sleep(left);
    }
    auto stream = std::make_unique<UcxStream>(ucx_, true);
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
    params.conn_request = waiting_.front();
    waiting_.pop_front();
    if (!stream->open(params)) return nullptr;
    return stream;
  }

 private:
  // Called by UCX, so it must not throw.
  void take(ucp_conn_request_h request) noexcept {
    constexpr size_t kMostWaiting = 256;
    try {
      if (waiting_.size() < kMostWaiting) return waiting_.push_back(request);
    } catch (const std::bad_alloc&) {
    }
    ucx_.listener_reject(listener_, request);
  }

  const UcxLibrary& ucx_;
  UcxWorker worker_;
  ucp_listener_h listener_ = nullptr;
  uint16_t port_ = 0;
  std::deque<ucp_conn_request_h> waiting_;
};

}  // namespace

Result<void> load_ucx() {
  const Result<const UcxLibrary*> ucx = UcxLibrary::get();
  if (!ucx) return ucx.error();
  return {};
}

Result<std::unique_ptr<ByteListener>> listen_ucx(const std::string& address, uint16_t port) {
  const Result<const UcxLibrary*> ucx = UcxLibrary::get();
  if (!ucx) return ucx.error();
  auto listener = std::make_unique<UcxListener>(**ucx);
  if (auto ok = listener->open(address, port); !ok) return ok.error();
  return std::unique_ptr<ByteListener>(std::move(listener));
}

Result<std::unique_ptr<ByteStream>> connect_ucx(const std::string& address, uint16_t port) {
  const Result<const UcxLibrary*> ucx = UcxLibrary::get();
  if (!ucx) return ucx.error();
  Result<UcxAddress> to = ucx_address(address, port);
  if (!to) return to.error();
  auto stream = std::make_unique<UcxStream>(**ucx, false);
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr = to->get();
  if (auto ok = stream->open(params); !ok) return ok.error();
  return std::unique_ptr<ByteStream>(std::move(stream));
}

}  // namespace sluice

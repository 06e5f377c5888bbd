#include "net/event_subscriber.h"

#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/str.h"
#include "net/event_socket.h"
#include "net/zmq_handles.h"

namespace sluice {

namespace {

constexpr int kReceivedQueue = 20'000;                // messages that wait to be read
constexpr int64_t kMostReceived = int64_t{64} << 20;  // bytes of one
constexpr int kRetryMs = 100, kMostRetryMs = 2000;    // between attempts to connect
constexpr size_t kMostTaken = 256;                    // messages of one wait(), per socket

bool set_int(void* socket, int option, int value) {
  return zmq_setsockopt(socket, option, &value, sizeof value) == 0;
}

// All frames of the next message, at most four, or none.
std::vector<std::string> take_frames(void* socket) {
  std::vector<std::string> frames;
  for (int more = 1; more != 0;) {
    zmq_msg_t message;
    zmq_msg_init(&message);
    if (zmq_msg_recv(&message, socket, ZMQ_DONTWAIT) < 0) {
      zmq_msg_close(&message);
      return {};
    }
    if (frames.size() < 4)
      frames.emplace_back(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
    more = zmq_msg_more(&message);
    zmq_msg_close(&message);
  }
  return frames;
}

}  // namespace

struct EventSubscriber::State {
  struct Sockets {
    SocketPtr sub, dealer;
  };
  ~State() {
    if (wake_fd >= 0) ::close(wake_fd);
  }

  bool set_keys(void* socket) const {
    const auto set = [&](int option, const std::string& key) {
      return zmq_setsockopt(socket, option, key.c_str(), key.size() + 1) == 0;
    };
    return keys.secret.empty() ||
           (set(ZMQ_CURVE_SERVERKEY, keys.server) && set(ZMQ_CURVE_PUBLICKEY, public_key) &&
            set(ZMQ_CURVE_SECRETKEY, keys.secret));
  }

  Result<SocketPtr> connect(int kind, const std::string& address) {
    SocketPtr socket(zmq_socket(context.get(), kind));
    if (!socket) return zmq_error("no socket for events");
    const bool ok =
        set_int(socket.get(), ZMQ_LINGER, 0) && set_int(socket.get(), ZMQ_RCVHWM, kReceivedQueue) &&
        (kind == ZMQ_SUB || set_int(socket.get(), ZMQ_IMMEDIATE, 1)) &&  // no queue of questions
        set_int(socket.get(), ZMQ_RECONNECT_IVL, kRetryMs) &&
        set_int(socket.get(), ZMQ_RECONNECT_IVL_MAX, kMostRetryMs) &&
        set_int(socket.get(), ZMQ_IPV6, address.find('[') != address.npos ? 1 : 0) &&
        zmq_setsockopt(socket.get(), ZMQ_MAXMSGSIZE, &kMostReceived, sizeof kMostReceived) == 0;
    if (!ok || !set_keys(socket.get()) || zmq_connect(socket.get(), address.c_str()) != 0)
      return zmq_error("cannot follow " + quote(address));
    return socket;
  }

  void take(size_t source, bool replayed, std::vector<Message>& out) {
    const Sockets& s = sources[source];
    for (size_t k = 0; k < kMostTaken; ++k) {
      std::vector<std::string> frames = take_frames(replayed ? s.dealer.get() : s.sub.get());
      if (frames.empty()) return;
      if (frames.size() != 3 || frames[1].size() != 8) continue;
      Message m{source, replayed, false, 0, std::move(frames[2])};
      for (char c : frames[1]) m.number = m.number << 8 | static_cast<uint8_t>(c);
      m.end = replayed && m.number == UINT64_MAX;
      out.push_back(std::move(m));
    }
  }

  // Sockets end before their context, which waits for them.
  ContextPtr context{zmq_ctx_new()};
  CurveClientKeys keys;
  std::string public_key;
  std::vector<Sockets> sources;
  std::vector<zmq_pollitem_t> items;
  int wake_fd = -1;
};

EventSubscriber::EventSubscriber(std::unique_ptr<State> state) : state_(std::move(state)) {}
EventSubscriber::~EventSubscriber() = default;

Result<std::unique_ptr<EventSubscriber>> EventSubscriber::open(size_t num_sources,
                                                               const std::string& key_file) {
  auto state = std::make_unique<State>();
  if (!state->context) return zmq_error("no context for events");
  state->sources.resize(num_sources);
  if (!key_file.empty()) {
    Result<CurveClientKeys> keys = read_curve_client_keys(key_file);
    if (!keys) return keys.error();
    if (zmq_has("curve") == 0) return Error{400, "this build's ZeroMQ has no CURVE"};
    std::array<char, 41> own{};
    if (zmq_curve_public(own.data(), keys->secret.c_str()) != 0)
      return Error{400, strf("%s: no secret key", quote(key_file).c_str())};
    state->keys = std::move(*keys);
    state->public_key = own.data();
  }
  state->wake_fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (state->wake_fd < 0) return Error{500, strf("no eventfd: %s", std::strerror(errno))};
  return std::unique_ptr<EventSubscriber>(new EventSubscriber(std::move(state)));
}

void EventSubscriber::wake() noexcept {
  const uint64_t one = 1;
  // It fails only when it is full, and then the waiter wakes anyway.
  [[maybe_unused]] ssize_t n = ::write(state_->wake_fd, &one, sizeof one);
}

Result<void> EventSubscriber::follow(size_t source, const Source& to) {
  State::Sockets& s = state_->sources[source];
  s = {};
  Result<SocketPtr> sub = state_->connect(ZMQ_SUB, to.publish);
  if (!sub) return sub.error();
  if (zmq_setsockopt(sub->get(), ZMQ_SUBSCRIBE, to.topic.data(), to.topic.size()) != 0)
    return zmq_error("cannot subscribe");
  Result<SocketPtr> dealer = state_->connect(ZMQ_DEALER, to.replay);
  if (!dealer) return dealer.error();
  s = {std::move(*sub), std::move(*dealer)};
  return {};
}

void EventSubscriber::forget(size_t source) { state_->sources[source] = {}; }

bool EventSubscriber::ask(size_t source, uint64_t first) {
  void* to = state_->sources[source].dealer.get();
  if (!to) return false;
  const std::array<char, 8> number = number_frame(first);
  return zmq_send(to, "", 0, ZMQ_DONTWAIT | ZMQ_SNDMORE) >= 0 &&
         zmq_send(to, number.data(), number.size(), ZMQ_DONTWAIT) >= 0;
}

std::vector<EventSubscriber::Message> EventSubscriber::wait(std::chrono::milliseconds timeout) {
  State& s = *state_;
  s.items.assign(1, {nullptr, s.wake_fd, ZMQ_POLLIN, 0});
  for (const State::Sockets& source : s.sources) {
    for (void* socket : {source.sub.get(), source.dealer.get()})
      if (socket) s.items.push_back({socket, 0, ZMQ_POLLIN, 0});
  }
  std::vector<Message> out;
  if (zmq_poll(s.items.data(), static_cast<int>(s.items.size()), timeout.count()) <= 0) return out;
  if (s.items[0].revents != 0) {
    uint64_t count = 0;
    [[maybe_unused]] ssize_t n = ::read(s.wake_fd, &count, sizeof count);
  }
  for (size_t k = 0; k < s.sources.size(); ++k) {
    if (!s.sources[k].sub) continue;
    s.take(k, true, out);  // answers first: what is published may follow on them
    s.take(k, false, out);
  }
  return out;
}

}  // namespace sluice

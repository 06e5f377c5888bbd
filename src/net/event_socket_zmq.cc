#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/str.h"
#include "net/event_socket.h"
#include "net/zmq_handles.h"

namespace sluice {

void CloseSocket::operator()(void* socket) const { zmq_close(socket); }
void EndContext::operator()(void* context) const { zmq_ctx_term(context); }

Error zmq_error(const std::string& what) {
  return {500, strf("%s: %s", what.c_str(), zmq_strerror(zmq_errno()))};
}

namespace {

constexpr int kPublishedQueue = 4096;   // messages per subscriber, above which it loses some
constexpr int kAnsweredQueue = 20'000;  // messages of an answer that its client has not read
constexpr int kMostRequest = 64;        // bytes of a frame that we look at
constexpr int64_t kMostSent = 2048;     // bytes of a frame that a client may send, handshakes too
constexpr const char* kZapAddress = "inproc://zeromq.zap.01";

bool set_number(void* socket, int option, int value) {
  return zmq_setsockopt(socket, option, &value, sizeof value) == 0;
}
bool set_text(void* socket, int option, const std::string& value) {
  return zmq_setsockopt(socket, option, value.data(), value.size()) == 0;
}

// All frames of the next message, or none. A frame that is too long is cut: it will not do then.
std::vector<std::string> receive_frames(void* socket) {
  std::vector<std::string> frames;
  for (int more = 1; more != 0;) {
    zmq_msg_t message;
    zmq_msg_init(&message);
    if (zmq_msg_recv(&message, socket, ZMQ_DONTWAIT) < 0) {
      zmq_msg_close(&message);
      return {};
    }
    if (frames.size() < 16) {
      const size_t size = std::min<size_t>(zmq_msg_size(&message), kMostRequest + 1);
      frames.emplace_back(static_cast<const char*>(zmq_msg_data(&message)), size);
    }
    more = zmq_msg_more(&message);
    zmq_msg_close(&message);
  }
  return frames;
}

bool send_frame(void* socket, std::string_view frame, bool more) {
  return zmq_send(socket, frame.data(), frame.size(), ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) >= 0;
}

}  // namespace

struct EventSocket::State {
  ~State() {
    if (wake_fd >= 0) ::close(wake_fd);
  }

  Result<void> bind(const SocketPtr& socket, const std::string& address, std::string& bound) {
    if (zmq_bind(socket.get(), address.c_str()) != 0)
      return zmq_error("cannot listen on " + quote(address));
    std::array<char, 512> text{};
    size_t size = text.size();
    zmq_getsockopt(socket.get(), ZMQ_LAST_ENDPOINT, text.data(), &size);
    bound = text.data();
    return {};
  }

  Result<SocketPtr> make(int kind, int queue, const std::string& address) {
    SocketPtr socket(zmq_socket(context.get(), kind));
    if (!socket) return zmq_error("no socket for events");
    bool ok = set_number(socket.get(), ZMQ_LINGER, 0) &&
              set_number(socket.get(), ZMQ_SNDHWM, queue) &&
              set_number(socket.get(), ZMQ_IPV6, address.find('[') != address.npos ? 1 : 0);
    // Of what clients send we read numbers; to one that does not read, sending fails.
    if (ok && kind == ZMQ_ROUTER) {
      ok = set_number(socket.get(), ZMQ_ROUTER_MANDATORY, 1) &&
           zmq_setsockopt(socket.get(), ZMQ_MAXMSGSIZE, &kMostSent, sizeof kMostSent) == 0;
    }
    if (ok && !keys.secret.empty()) {
      ok = set_number(socket.get(), ZMQ_CURVE_SERVER, 1) &&
           set_text(socket.get(), ZMQ_ZAP_DOMAIN, "sluice") &&
           zmq_setsockopt(socket.get(), ZMQ_CURVE_SECRETKEY, keys.secret.c_str(),
                          keys.secret.size() + 1) == 0;
    }
    if (!ok) return zmq_error("cannot set up the socket for events");
    return socket;
  }

  // ZeroMQ asks us (ZAP, RFC 27) about each client that offers a key.
  void judge_client() {
    std::vector<std::string> asked = receive_frames(zap.get());
    if (asked.size() < 2) return;
    bool known = false;
    if (asked.size() == 7 && asked[5] == "CURVE" && asked[6].size() == 32) {
      std::array<char, 41> key{};
      zmq_z85_encode(key.data(), reinterpret_cast<const uint8_t*>(asked[6].data()), 32);
      known = std::ranges::find(keys.clients, std::string(key.data())) != keys.clients.end();
    }
    const std::string_view answer[] = {
        "1.0", asked[1], known ? "200" : "400", known ? "OK" : "unknown key", "", ""};
    for (size_t k = 0; k < std::size(answer); ++k)
      send_frame(zap.get(), answer[k], k + 1 < std::size(answer));
  }

  // Sockets end before their context, which waits for them.
  ContextPtr context{zmq_ctx_new()};
  CurveKeys keys;
  std::string topic, publish_address, replay_address;
  SocketPtr pub, router, zap;
  int wake_fd = -1;
};

EventSocket::EventSocket(std::unique_ptr<State> state) : state_(std::move(state)) {}
EventSocket::~EventSocket() = default;
const std::string& EventSocket::publish_address() const { return state_->publish_address; }
const std::string& EventSocket::replay_address() const { return state_->replay_address; }

Result<std::unique_ptr<EventSocket>> EventSocket::open(const Options& options) {
  auto state = std::make_unique<State>();
  if (!state->context) return zmq_error("no context for events");
  if (!options.key_file.empty()) {
    Result<CurveKeys> keys = read_curve_keys(options.key_file);
    if (!keys) return keys.error();
    if (zmq_has("curve") == 0)
      return Error{400, "this build's ZeroMQ has no CURVE: publish on 127.0.0.1 without a key"};
    state->keys = std::move(*keys);
    state->zap.reset(zmq_socket(state->context.get(), ZMQ_REP));
    if (!state->zap || zmq_bind(state->zap.get(), kZapAddress) != 0)
      return zmq_error("cannot check the clients of events");
  }
  state->topic = options.topic;
  state->wake_fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (state->wake_fd < 0) return Error{500, strf("no eventfd: %s", std::strerror(errno))};
  struct Wanted {
    int kind, queue;
    const std::string& address;
    SocketPtr& socket;
    std::string& bound;
  };
  State& s = *state;
  const Wanted wanted[] = {
      {ZMQ_PUB, kPublishedQueue, options.publish, s.pub, s.publish_address},
      {ZMQ_ROUTER, kAnsweredQueue, options.replay, s.router, s.replay_address}};
  for (const Wanted& w : wanted) {
    if (w.address.empty()) continue;
    if (auto ok = check_event_address(w.address, !s.keys.secret.empty()); !ok) return ok.error();
    Result<SocketPtr> socket = s.make(w.kind, w.queue, w.address);
    if (!socket) return socket.error();
    w.socket = std::move(*socket);
    if (auto ok = s.bind(w.socket, w.address, w.bound); !ok) return ok.error();
  }
  return std::unique_ptr<EventSocket>(new EventSocket(std::move(state)));
}

void EventSocket::wake() noexcept {
  const uint64_t one = 1;
  // It fails only when it is full, and then the waiter wakes anyway.
  [[maybe_unused]] ssize_t n = ::write(state_->wake_fd, &one, sizeof one);
}

std::optional<EventSocket::Replay> EventSocket::wait(std::chrono::milliseconds timeout) {
  State& s = *state_;
  std::array<zmq_pollitem_t, 3> items{};
  int num = 0;
  items[static_cast<size_t>(num++)] = {nullptr, s.wake_fd, ZMQ_POLLIN, 0};
  if (s.router) items[static_cast<size_t>(num++)] = {s.router.get(), 0, ZMQ_POLLIN, 0};
  if (s.zap) items[static_cast<size_t>(num++)] = {s.zap.get(), 0, ZMQ_POLLIN, 0};
  if (zmq_poll(items.data(), num, timeout.count()) <= 0) return {};
  if (items[0].revents != 0) {
    uint64_t count = 0;
    [[maybe_unused]] ssize_t n = ::read(s.wake_fd, &count, sizeof count);
  }
  if (s.zap && items[static_cast<size_t>(num - 1)].revents != 0) s.judge_client();
  if (!s.router || items[1].revents == 0) return {};
  std::vector<std::string> frames = receive_frames(s.router.get());
  if (frames.size() != 3 || !frames[1].empty() || frames[2].size() != 8) return {};
  Replay asked{frames[0], 0};
  for (char c : frames[2]) asked.first = asked.first << 8 | static_cast<uint8_t>(c);
  return asked;
}

void EventSocket::publish(uint64_t number, std::string_view message) {
  const std::array<char, 8> n = number_frame(number);
  void* to = state_->pub.get();
  if (send_frame(to, state_->topic, true) && send_frame(to, {n.data(), n.size()}, true))
    send_frame(to, message, false);
}

bool EventSocket::answer(const Replay& client, uint64_t number, std::string_view message) {
  const std::array<char, 8> n = number_frame(number);
  void* to = state_->router.get();
  return send_frame(to, client.client, true) && send_frame(to, "", true) &&
         send_frame(to, {n.data(), n.size()}, true) && send_frame(to, message, false);
}

void EventSocket::end_answer(const Replay& client) { answer(client, UINT64_MAX, ""); }

}  // namespace sluice

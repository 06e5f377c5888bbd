// The build without ZeroMQ: nothing is opened.
#include "net/event_socket.h"

namespace sluice {

struct EventSocket::State {
  std::string none;
};

EventSocket::EventSocket(std::unique_ptr<State> state) : state_(std::move(state)) {}
EventSocket::~EventSocket() = default;
Result<std::unique_ptr<EventSocket>> EventSocket::open(const Options&) {
  return Error{400,
               "this build has no ZeroMQ, so no KV events; install libzmq3-dev and build again"};
}
const std::string& EventSocket::publish_address() const { return state_->none; }
const std::string& EventSocket::replay_address() const { return state_->none; }
void EventSocket::wake() noexcept {}
std::optional<EventSocket::Replay> EventSocket::wait(std::chrono::milliseconds) { return {}; }
void EventSocket::publish(uint64_t, std::string_view) {}
bool EventSocket::answer(const Replay&, uint64_t, std::string_view) { return false; }
void EventSocket::end_answer(const Replay&) {}

}  // namespace sluice

// The build without ZeroMQ: nobody is followed.
#include "net/event_subscriber.h"

namespace sluice {

struct EventSubscriber::State {};

EventSubscriber::EventSubscriber(std::unique_ptr<State> state) : state_(std::move(state)) {}
EventSubscriber::~EventSubscriber() = default;
Result<std::unique_ptr<EventSubscriber>> EventSubscriber::open(size_t, const std::string&) {
  return Error{400,
               "this build has no ZeroMQ, so no KV events; install libzmq3-dev and build again"};
}
void EventSubscriber::wake() noexcept {}
Result<void> EventSubscriber::follow(size_t, const Source&) { return {}; }
void EventSubscriber::forget(size_t) {}
bool EventSubscriber::ask(size_t, uint64_t) { return false; }
std::vector<EventSubscriber::Message> EventSubscriber::wait(std::chrono::milliseconds) {
  return {};
}

}  // namespace sluice

// Sockets of somebody who publishes numbered messages: one to which all subscribers connect, and
// optionally one that is asked for old messages. By ZeroMQ (event_socket_zmq.cc) where the build
// has it; event_socket_none.cc refuses. Knows nothing of what is published.
//
// PUB:    [topic, number as 8 bytes big-endian, message]
// ROUTER: asked [client, "", number]; answered [client, "", number, message] each, and last
//         [client, "", -1, ""]
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sluice {

class EventSocket {
 public:
  struct Options {
    std::string publish;   // tcp://ADDRESS:PORT or ipc://PATH
    std::string replay;    // likewise; empty: none
    std::string key_file;  // CURVE: our secret key and the clients' public ones; empty: none
    std::string topic;
  };
  // 400: an address or a key file that will not do; 500: the environment's fault.
  static Result<std::unique_ptr<EventSocket>> open(const Options& options);
  ~EventSocket();

  // With the ports that were chosen where they were left open.
  const std::string& publish_address() const;
  const std::string& replay_address() const;

  // Ends wait(), now or the next time. Any thread; needs no memory.
  void wake() noexcept;

  // All below: one thread.
  struct Replay {
    std::string client;
    uint64_t first = 0;  // the messages from this one on
  };
  // Waits for wake() or for somebody who asks. Lets in and keeps out new clients, if there are
  // keys.
  std::optional<Replay> wait(std::chrono::milliseconds timeout);
  // A subscriber that does not keep up loses messages, and sees it by their numbers.
  void publish(uint64_t number, std::string_view message);
  // False: the client is gone or does not read.
  bool answer(const Replay& to, uint64_t number, std::string_view message);
  void end_answer(const Replay& to);

 private:
  struct State;
  explicit EventSocket(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Whether an address can be used, and by whom: 400 unless it is loopback, a path, or `keyed`.
Result<void> check_event_address(const std::string& address, bool keyed);

struct CurveKeys {
  std::string secret;                // Z85, 40 characters
  std::vector<std::string> clients;  // likewise
};
// Of a subscriber: lines "secret KEY", its own, and "server KEY", the publishers' public one.
struct CurveClientKeys {
  std::string secret, server;
};
Result<CurveClientKeys> read_curve_client_keys(const std::string& path);

// Lines "secret KEY" (one) and "client KEY" (at least one); # begins a comment.
Result<CurveKeys> read_curve_keys(const std::string& path);

}  // namespace sluice

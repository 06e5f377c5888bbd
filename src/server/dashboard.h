// Streams the engine's state to dashboards: one thread sends each watcher what is new, as server-
// sent events, at the watcher's interval. It sleeps while nobody watches. Any thread may call.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "net/responder.h"
#include "runtime/session.h"
#include "server/observe.h"

namespace sluice {

class Dashboard {
 public:
  static constexpr size_t kMaxWatchers = 16;
  static constexpr size_t kMaxCells = 4096;  // of the block map; beyond, a cell is several blocks

  explicit Dashboard(Recorder& recorder) : recorder_(recorder) {}
  ~Dashboard();

  void attach(Session& session);
  // Begins the stream with `head` and then `hello`. False: there are too many already, or the
  // server is stopping.
  bool add(std::shared_ptr<Responder> out,
           HttpResponse head,
           std::string_view hello,
           std::chrono::milliseconds interval);
  // Ends all streams; none begins after it.
  void drain();

 private:
  struct Watcher {
    std::shared_ptr<Responder> out;
    std::chrono::milliseconds interval;
    std::chrono::steady_clock::time_point due;
    Recorder::Cursor cursor;
    bool begun = false;
  };
  void run();
  void forget_closed();
  void send(Watcher& watcher);

  Recorder& recorder_;
  Session* session_ = nullptr;
  std::mutex mutex_;  // of everything below
  std::condition_variable changed_;
  std::vector<Watcher> watchers_;
  bool draining_ = false, stopping_ = false;
  Recorder::Snapshot snapshot_;
  std::string text_;
  std::thread thread_;
};

// What stays: the model, the configuration, the memory. As JSON.
std::string hello_json(const Session& session, const std::string& name, const std::string& version);
// One event's JSON. `first`: what was hit before does not matter.
void append_frame(std::string& out, const Recorder::Snapshot& snapshot, Time now, bool first);

}  // namespace sluice

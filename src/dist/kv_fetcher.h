// Fetches the blocks of leases, or of a prefix that another server has cached, into places of the
// host tier, where requests find them as any prefix. Threads of its own, as many as jobs need up to
// a limit, which wait for peers and never for long: what has not come when the time is up is
// computed here. Only for a prompt that the peer still computes they wait as long as it says so.
// Any thread may call.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "dist/kv_link.h"
#include "dist/kv_places.h"
#include "engine/engine.h"

namespace sluice {

struct KvPeer {
  std::string address;
  uint16_t port = 0;
  auto operator<=>(const KvPeer&) const = default;
};

class KvFetcher {
 public:
  struct Options {
    size_t threads = 64;  // at most
    size_t most_waiting = 1024;
    std::chrono::milliseconds time{2500};           // for one lease, its wait for a thread included
    std::chrono::milliseconds await_time{600'000};  // the same of one that is pending
    Transport transport = Transport::tcp;           // one that resolve_transport() gives
    std::chrono::milliseconds rest{1000};           // no attempt after one that came to nothing
  };
  struct Outcome {
    int num_wanted = 0, num_came = 0;  // blocks
    std::string error;                 // empty: all is well
    std::chrono::nanoseconds took{0};
    int num_positions = 0;  // blocks of the prompt of which some came, in any group
  };
  struct Job {
    KvPeer peer;
    std::optional<LeaseName> lease;            // none: whatever the peer has cached of the prompt
    bool pending = false;                      // the peer computes the lease's prompt, or will
    PromptBlocks prompt;                       // its hashes: of the blocks that are wanted
    std::function<void(const Outcome&)> done;  // on a thread of the fetcher; must not throw
    WaitUntil until = WaitUntil::max();        // Options::time from now on at most
  };

  // All outlive this.
  KvFetcher(Options options, Engine& engine, KvPlaces& places, const KvIdentity& identity);
  ~KvFetcher();
  // False: too many wait; `done` is not called.
  bool push(Job job);
  void stop();

  struct Stats {
    uint64_t whole = 0, part = 0, failed = 0, blocks = 0, bytes = 0;
    double seconds = 0;
    int64_t places = 0;  // set aside at the moment
  };
  Stats stats() const;

 private:
  // Places for the blocks of a job, from the engine and back to it. All memory is there from the
  // start, so that none of them can be lost for want of it. The engine fills in `generation`,
  // `list` and `came` until `done`; then they are the fetching thread's until it gives them back.
  struct Places {
    PromptBlocks prompt;
    std::mutex mutex;  // of `done` and `abandoned`
    std::condition_variable ready;
    bool done = false, abandoned = false;
    uint64_t generation = 0;
    std::vector<PlacedBlock> list;
    std::vector<size_t> filled;    // bytes of each that are there
    std::vector<bool> came;        // all of them
    bool greeted = false;          // the peer is one of ours
    std::shared_ptr<Places> next;  // in owed_
  };
  void thread_main();
  void run(Job& job);
  void run_reserved(Job& job,
                    const std::shared_ptr<Places>& places,
                    Outcome& outcome,
                    WaitUntil job_begin,
                    std::optional<KvLink>& link);
  static bool is_peers_fault(const Error& error,
                             const Places& places,
                             WaitUntil begin,
                             WaitUntil until);
  static int num_positions(const Places& places);
  void finish(Job& job, Outcome& outcome, WaitUntil begin);
  Result<std::shared_ptr<Places>> reserve(const Job& job);
  Result<void> connect(const Job& job, std::optional<KvLink>& link);
  WaitUntil frame_until(const Job& job) const;
  Result<void> await(const Job& job, KvLink& link) const;
  void run_pending(Job& job, Outcome& outcome, WaitUntil& begin);
  void start_thread();
  Result<void> fetch(const Job& job, Places& places, std::optional<KvLink>& link);
  Result<void> ask(const Job& job, const Places& places, KvLink& link) const;
  void release(const Job& job, KvLink& link) const;
  Result<void> take(const KvLayers& part, std::span<const Digest256> keys, Places& places) const;
  void give_back(std::shared_ptr<Places> places) noexcept;
  void give_back_owed();
  bool rests(const KvPeer& peer);
  void put_to_rest(const KvPeer& peer);

  Options options_;
  Engine& engine_;
  KvPlaces& places_;
  const KvIdentity& identity_;
  std::atomic<uint64_t> whole_{0}, part_{0}, failed_{0}, blocks_{0}, nanoseconds_{0};
  std::shared_ptr<std::atomic<int64_t>> held_ = std::make_shared<std::atomic<int64_t>>(0);
  std::mutex mutex_;  // of all below
  std::condition_variable wanted_;
  std::deque<Job> jobs_;
  size_t num_idle_ = 0;  // threads
  std::map<KvPeer, WaitUntil> resting_;
  std::shared_ptr<Places> owed_;    // that the engine could not be told of yet
  std::atomic<bool> stop_ = false;  // set with the lock
  std::vector<std::thread> threads_;
};

}  // namespace sluice

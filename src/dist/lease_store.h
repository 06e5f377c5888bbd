// Leases: prompts whose blocks another server may fetch. A lease holds a reference to each of its
// blocks' places in host memory, from the time when they are there until the other server is done,
// or the time is up. Blocks that leave while their step computes are read before that, as far as
// their step has written them; whoever reads gets their last bytes when the step has ended well.
// Any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/kv_exporter.h"
#include "dist/kv_frame.h"
#include "dist/kv_places.h"

namespace sluice {

class LeaseStore final : public KvExporter {
 public:
  using Clock = std::chrono::steady_clock;
  // Hands places back to the engine; may throw, and is then called again with all of them.
  using GiveBack = std::function<void(std::vector<PlacedBlock>, uint64_t generation)>;

  LeaseStore(KvPlaces& places, std::chrono::milliseconds time) : places_(places), time_(time) {}
  // Before the first lease.
  void attach(GiveBack give_back) { give_back_ = std::move(give_back); }

  struct Opened {
    LeaseId id = 0;
    LeaseName name{};
  };
  // `keys`: prompt_keys() of its prompt. `name`: as others call it already; none: a new one.
  // Nothing: there is a lease of that name.
  std::optional<Opened> open(std::vector<Digest256> keys,
                             int num_groups,
                             std::optional<LeaseName> name);
  Opened open(std::vector<Digest256> keys, int num_groups) {
    return *open(std::move(keys), num_groups, std::nullopt);
  }
  // Its prompt is done: no more blocks than those on their way, and its time begins.
  void seal(LeaseId id);
  void drop(LeaseId id);
  bool is_open(LeaseId id) const;
  void release(const LeaseName& name);
  // Now and then: ends leases whose time is up, and gives back what could not be before.
  void tend();

  // Whether it is there, and has a block or will get none; waits for that at most so long.
  enum class Begun { no, unknown, yes };
  Begun begun(const LeaseName& name, std::chrono::milliseconds most);
  enum class Next { bytes, wait, done, gone };
  // How far one reader is.
  struct Cursor {
    int first = 0;             // blocks of the prompt before this one are not asked for
    std::vector<size_t> read;  // bytes of each block of the lease
    size_t next = 0;           // whose turn it is
  };
  // Bytes of a block.
  struct Taken {
    PlacedBlock block;
    size_t at = 0;
    bool last = false;  // the block's
    Digest256 key{};
  };
  // Copies what is there of a block and was not read before, waiting for it at most so long.
  Next read(const LeaseName& name,
            Cursor& cursor,
            std::chrono::milliseconds most,
            Taken& out,
            FrameBytes& to);

  struct Stats {
    size_t leases = 0, places = 0;
    uint64_t opened = 0, expired = 0;
  };
  Stats stats() const;

  void offered(LeaseId lease) noexcept override;
  bool exported(LeaseId lease, const PlacedBlock& block) noexcept override;
  void lost(LeaseId lease, const PlacedBlock& block) noexcept override;
  void leaving(LeaseId lease, const PlacedBlock& block, uint64_t step) noexcept override;
  void written(uint64_t step, size_t num_bytes) noexcept override;
  void cleared() noexcept override;

 private:
  struct Leased {
    enum class State : uint8_t { leaving, there, lost };
    PlacedBlock block;
    State state = State::there;
    uint64_t step = 0;    // leaving: in which
    int num_readers = 0;  // copy it just now
  };
  struct Lease {
    LeaseName name{};
    std::vector<Digest256> keys;
    std::vector<Leased> blocks;
    uint64_t generation = 0;  // of those
    int num_offered = 0;      // on their way
    int num_readers = 0;      // copy a block just now
    bool sealed = false, ended = false;
    Clock::time_point until = Clock::time_point::max();
  };
  using Leases = std::unordered_map<LeaseId, Lease>;
  static constexpr size_t kNoEntry = SIZE_MAX;
  static Leased* find_leaving(Lease& lease, const PlacedBlock& block);
  void await_readers(std::unique_lock<std::mutex>& lock, LeaseId id, const PlacedBlock& block);
  size_t num_ready(const Leased& entry) const;
  size_t next_entry(const Lease& lease, const Cursor& cursor) const;
  void end(Leases::iterator lease);
  void settle(std::unique_lock<std::mutex>& lock);

  KvPlaces& places_;
  std::chrono::milliseconds time_;
  GiveBack give_back_;
  mutable std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  Leases leases_;
  std::map<LeaseName, LeaseId> names_;
  std::vector<PlacedBlock> freed_;  // to be given back
  uint64_t freed_generation_ = 0;
  uint64_t written_step_ = 0;  // how far this step has filled the places of blocks that leave
  size_t written_bytes_ = 0;
  LeaseId next_ = 1;
  size_t num_places_ = 0;
  size_t most_places_ = 0;  // that all leases may come to hold
  uint64_t num_opened_ = 0, num_expired_ = 0;
};

}  // namespace sluice

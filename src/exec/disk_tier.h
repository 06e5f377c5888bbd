// The disk as a tier for KV blocks: a thread of its own reads and writes a BlockFile, so that no
// step waits for it. Called by one thread, an executor's, which copies blocks to and from staging
// memory. A device copies asynchronously, so writes are begun and ended, and reads held and
// returned. Writes and reads happen in the order in which they were asked for. When the disk fails
// or is full, a line in the log says so, and from then on nothing is kept or found.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "core/step_plan.h"
#include "exec/block_file.h"

namespace sluice {

class DiskTier {
 public:
  // How long a step with nothing else to do waits for it.
  static constexpr std::chrono::milliseconds kWait{10};

  // `staging`: staging_bytes() that a device can copy to and from; none: memory of its own.
  explicit DiskTier(BlockFile file, Buffer staging = {});
  ~DiskTier();  // writes what was asked for

  // Memory that it takes for blocks on their way.
  static size_t staging_bytes(size_t block_bytes);
  int num_places() const { return file_.config().num_places; }
  // Writes a block that `fill(memory)` copies, unless the disk is behind or off. False: it is not
  // written.
  bool write(int place, const BlockLabel& label, auto&& fill) {
    Job job{Job::to_disk, place, 0, kNullBlock, stored(place, label), take_staging()};
    if (!job.memory) return false;
    fill(job.memory);
    push(std::move(job));
    return true;
  }
  // A write whose memory is filled between begin_write() and end_write() or drop_write(); null: the
  // disk is behind or off, and it is not written.
  struct Write {
    StoredBlock block;
    std::byte* memory = nullptr;
  };
  void begin_write(int place, const BlockLabel& label, Write& write) {
    write.block = stored(place, label);
    write.memory = take_staging();
  }
  // Takes the memory, also when it throws.
  void end_write(Write& write) {
    int place = write.block.place;
    push({Job::to_disk, place, 0, kNullBlock, std::move(write.block),
          std::exchange(write.memory, nullptr)});
  }
  void drop_write(std::byte* memory) noexcept;
  // A read for collect() or collect_held().
  void read(int place, const BlockLabel& label, TransferId id, BlockId block) {
    push({Job::from_disk, place, id, block, stored(place, label), nullptr});
  }
  // Calls `take(id, block, memory)` for every read that is done; null: its content is not there.
  // Reads with ids below `oldest` are dropped.
  void collect(TransferId oldest, auto&& take) {
    Taken rest(*this);
    for (Job& job : taken_) {
      if (job.id >= oldest) take(job.id, job.block, job.memory);
    }
  }
  // The same, but the memory of a read is the caller's until return_read(), unless `take` throws.
  void collect_held(TransferId oldest, auto&& take) {
    Taken rest(*this);
    for (Job& job : taken_) {
      if (job.id < oldest) continue;
      take(job.id, job.block, job.memory);
      job.memory = nullptr;
    }
  }
  void return_read(std::byte* memory) noexcept;
  // Until a read is done, or there is none, at most so long.
  void wait(std::chrono::milliseconds most);
  // Until all that was asked for is done.
  void flush();

 private:
  struct Job {
    enum Kind : uint8_t { to_disk, from_disk } kind = to_disk;
    int place = 0;
    TransferId id = 0;
    BlockId block = kNullBlock;
    StoredBlock label;
    std::byte* memory = nullptr;  // of a read: when it has been read
  };

  // Reads that are done, in taken_; what is left of their memory goes back at the end.
  struct Taken {
    explicit Taken(DiskTier& disk) : disk_(disk) { disk.take_done(); }
    ~Taken() { disk_.give_back(); }
    DiskTier& disk_;
  };

  static StoredBlock stored(int place, const BlockLabel& label) {
    return {place, label.key, {label.tokens.begin(), label.tokens.end()}};
  }
  std::byte* take_staging();
  void push(Job job);
  void take_done();
  void give_back() noexcept;
  void run();
  void perform(Job& job);
  void turn_off(const Error& error);

  BlockFile file_;
  std::vector<std::byte> memory_;
  Buffer staging_;
  bool failed_ = false;     // disk thread
  std::vector<Job> taken_;  // caller's thread

  std::mutex mutex_;
  std::condition_variable wanted_, done_;
  std::deque<Job> jobs_;
  std::vector<Job> read_;                           // done
  std::vector<std::byte*> for_writes_, for_reads_;  // free staging memory
  size_t num_reads_ = 0;                            // asked for and not collected
  bool busy_ = false, off_ = false, stop_ = false;
  std::thread thread_;
};

}  // namespace sluice

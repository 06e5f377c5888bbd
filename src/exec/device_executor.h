// Runs plans on a device with a queue of its own. launch() writes the step into one packet, queues
// everything the step does, and returns; wait() waits for the end of the oldest step and reads what
// it sampled. Nothing else waits, but for a launch() with nothing to compute that needs blocks from
// the disk: up to DiskTier::kWait. Steps of decodes alone replay a captured sequence of their batch
// size; others are queued op by op. With several lanes steps take turns on them; what a step
// computes in, and its captured sequences, are its lane's. A step that samples under masks is
// queued up to its logits; the rest, with a wait of the queue for the masks, follows when the next
// step is launched or this one is waited for. By then the masks depend on nothing that this thread
// has still to do, so that it may be held up by the device without holding up the masks. Engine
// thread, but for masks().
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/device.h"
#include "base/clock.h"
#include "core/executor.h"
#include "exec/disk_tier.h"
#include "exec/executor_config.h"
#include "exec/host_tier.h"
#include "exec/kv_cache.h"
#include "exec/mask_inbox.h"
#include "exec/plan_reader.h"
#include "exec/pooler.h"
#include "exec/prefix_groups.h"
#include "model/model.h"

namespace sluice {

// One kind of op of a decode step: its cost where kernels overlap, as in a captured step, and
// alone.
struct OpProfile {
  std::string op;              // with rows and cols the key
  int64_t rows = 0, cols = 0;  // a matmul's weight
  int calls = 0;               // per step
  double alone = 0;            // seconds of all calls, each between two events
  double in_step = 0;          // by which the step is longer than without them
  double boundary = 0;         // of it: what empty kernels in their place cost
  std::string kernels;         // of the first call
};
struct StepProfile {
  double step = 0;  // seconds of a replay; 0: steps are not captured, ops have `alone` only
  std::vector<OpProfile> ops;  // in the order of their first calls
};

class DeviceExecutor final : public Executor, private KvWatch {
 public:
  static constexpr int kMostMarks = 64;  // of the device: those from here on are others'
  // Device, model and clock outlive the executor. With `capture` off every step is queued op by op.
  // `disk` holds config.num_disk places in memory that the device can copy to, and outlives it too;
  // null: none.
  DeviceExecutor(Device& device,
                 Model& model,
                 ExecutorConfig config,
                 const Clock& clock,
                 bool capture,
                 DiskTier* disk = nullptr);
  ~DeviceExecutor() override;

  void launch(const StepPlan& plan) override;
  void masks(StepMasks masks) override { mask_inbox_.put(masks); }
  const StepResult& wait() override;

  size_t kv_bytes() const { return cache_.bytes(); }
  // Places that no transfer names may be read and written by any thread.
  const HostTier& host_tier() const { return tier_; }
  // Positions that rows of decode steps did not read on their own, over all steps; any thread.
  uint64_t positions_shared() const { return positions_shared_.load(std::memory_order_relaxed); }
  // Times every op of the next step that decodes exactly `rows` sequences; any thread.
  void profile_decode(int rows) { profile_rows_.store(rows); }
  // Timings of that step; empty until it has run.
  StepProfile take_profile();
  // Bytes of one lane's activations.
  static size_t activation_bytes(const Model& model, const ExecutorConfig& config);
  // Bytes that this executor and the model allocate on the device besides weights and the KV pool.
  static size_t workspace_bytes(const Model& model, const ExecutorConfig& config);
  // The same with what the device allocates for attention and sampling.
  static size_t workspace_bytes(const Device& device,
                                const Model& model,
                                const ExecutorConfig& config);
  // The batch size whose sequence serves n decodes.
  static int bucket_of(int n);

 private:
  // How much of a step of decodes a captured sequence does. Under masks sampling is not in it: it
  // starts later.
  enum class Captured : uint8_t { all, with_top, up_to_logits };
  // A captured sequence: its bucket, what it does, whether attention reads shared prefixes once.
  using SequenceKey = std::tuple<int, Captured, bool>;
  // What a step computes in, on the device.
  struct Lane {
    Buffer packet, arrays_memory, logits, results, top, masks;
    StepArrays arrays;  // their tables are the same for all lanes
    std::map<SequenceKey, int> sequences;
  };
  // Parts of a step in the order of its queue, each up to its mark: with a trace only. The last one
  // ends with the step.
  enum Part : uint8_t { kPrepare, kCopies, kForward, kSample, kResults };
  static constexpr int kPartMarks = kResults;
  // A step on its way: what the host needs to make a result of what comes back.
  struct Job {
    uint64_t step = 0;
    StepWork work;  // with an output for every pooled row, behind the sampled ones
    size_t num_sampled() const { return work.outputs.size() - work.pool.size(); }
    bool top = false;
    bool decodes = false;  // the step decodes alone, padded to its bucket
    bool shares = false;   // some of its decodes read a prefix together
    bool sampled = false;  // sampling is queued
    size_t lane = 0;
    std::string failure;
    // Blocks to and from the disk: what the step copies to staging memory goes there when the step
    // is done; what was read is copied to its block by the step that finds it, and the memory is
    // given back when that is done.
    std::vector<DiskTier::Write> writes;
    struct Read {
      TransferId id;
      BlockId block;
      std::byte* memory;
    };
    std::vector<Read> reads;
    std::vector<TransferId> lost;  // reads that found nothing
    // Blocks that the step sends as it writes them, beside its lane, and what is said of them when
    // copies are done.
    struct Written {
      KvExporter* to;
      uint64_t step;
      size_t bytes;
    };
    std::vector<Transfer> sends;
    std::vector<Written> written;  // does not move: there is memory for all from the start
    size_t num_sent_planes = 0;
    uint8_t parts = 0;  // bits of Part: marks that the step has
    Time launched{0};
    Buffer packet;   // pinned
    Buffer results;  // pinned: SampleResult by output, then TopEntry, then hidden states
  };

  void attach();
  size_t place_of(const Job& job) const { return static_cast<size_t>(&job - jobs_.data()); }
  void reserve_lane(Lane& lane);
  void use_lane(const Job& job, const StepPlan& plan);
  void set_lane(size_t lane);
  void drain();
  void drain_quietly() noexcept;
  void write_packet(Job& job, const StepPlan& plan);
  void queue_step(Job& job, const StepPlan& plan);
  void queue_rest(Job& job);
  void queue_unfinished();
  void upload_states(int num_tokens, int rows);
  void queue_transfers(Job& job, const StepPlan& plan);
  void queue_disk(Job& job, const StepPlan& plan, const Transfer& t);
  void collect_disk(Job& job, const StepPlan& plan);
  void end_disk(Job& job);
  void release_disk(Job& job) noexcept;
  void wrote(int layer) override;
  void send_planes(Job& job, size_t end);
  void queue_decodes(Job& job);
  template <typename Run>
  void run_captured(SequenceKey key, const Run& run);
  StepProfile profile_step(const std::function<void()>& run);
  void time_in_step(const std::function<void()>& run, StepProfile& profile);
  void queue_ragged(const Job& job, const StepPlan& plan);
  BatchView view(const Job& job, int num_tokens, int num_decode) const;
  void run_logits(size_t at, size_t num);
  void run_sampling(const Job& job, size_t at, size_t num);
  void sample_outputs(const Job& job);
  void run_hidden(const Job& job, std::byte* to);
  void read_outputs(const Job& job);
  void read_pooled(const Job& job);
  void grow_packet(Job& job, size_t bytes);
  int num_jobs() const { return static_cast<int>(jobs_.size()); }
  Time device_time(int index);
  int part_mark(int index, Part part) const { return 2 * num_jobs() + kPartMarks * index + part; }
  void mark_part(Job& job, Part part);
  void trace_parts(const Job& job, Time begin, Time end);

  Device& device_;
  Model& model_;
  ExecutorConfig config_;
  const Clock& clock_;
  bool capture_;
  KvCache cache_;
  HostTier tier_;  // pinned
  DiskTier* disk_;
  int max_rows_;
  int held_logits_;
  Buffer no_states_;  // pinned zeros: states of padding, with config.states

  std::vector<Lane> lanes_;
  Lane* lane_ = nullptr;  // of the step being launched
  Buffer tables_;         // on the device: [slots + 1, table_stride]
  // Of several lanes: by slot, the launch that used it last, counted from 1; and the last one of
  // each lane that the step being launched has to wait for, 0: none.
  std::vector<uint64_t> last_touch_, latest_in_lane_;
  uint64_t last_move_ = 0;  // the last step that moved blocks between tiers

  MaskInbox mask_inbox_;
  PlanReader reader_;
  PrefixGroups prefix_groups_;
  std::vector<Job> jobs_;  // those in flight, the one that wait() read, and its predecessor's marks
  uint64_t num_launched_ = 0, num_waited_ = 0;
  Job* unfinished_ = nullptr;  // the last step launched, where it samples under masks
  bool lost_ = false;          // a launch failed, and steps behind it are not done
  Job* sending_ = nullptr;     // the step whose layers are being queued, where it sends blocks
  std::vector<HostCopy> copies_;
  std::thread::id attached_;

  // The packet being written.
  Packet header_;
  std::vector<RowSpec> specs_;
  std::vector<PacketEdit> edits_;
  std::vector<PacketSlice> slices_;
  std::vector<int32_t> words_;

  Pooler pooler_;
  std::atomic<uint64_t> positions_shared_{0};
  std::atomic<int> profile_rows_{0};
  std::mutex profile_mutex_;
  StepProfile profile_;
  StepResult result_;
  Time last_end_{0};
};

}  // namespace sluice

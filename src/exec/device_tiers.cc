// Blocks between the pool and the tiers behind it, in the order of the queue.
#include "exec/device_executor.h"

namespace sluice {

// In the order of the queue: a block that goes out is read behind the steps that wrote it, and
// before this step writes to it; a place is read behind the transfer that filled it.
void DeviceExecutor::queue_transfers(Job& job, const StepPlan& plan) {
  for (const Job::Read& r : job.reads) {
    for_pieces(
        cache_.planes(), r.block, r.memory,
        [&](std::byte* block, std::byte* from, size_t n) { device_.upload(block, from, n); });
  }
  for_runs(plan.transfers, [&](Transfer::Kind kind, std::span<const Transfer> run) {
    if (kind == Transfer::send) {  // as the step writes them
      job.sends.insert(job.sends.end(), run.begin(), run.end());
      job.num_sent_planes = 0;
      return;
    }
    if (kind == Transfer::copy) {
      job.work.copies.clear();
      for (const Transfer& t : run) job.work.copies.push_back({t.from, t.to});
      return device_.copy_blocks(cache_.planes(), job.work.copies);
    }
    for (const Transfer& t : run) {
      if (t.key != kNoKey) {
        queue_disk(job, plan, t);
      } else if (kind == Transfer::out) {
        for_pieces(
            cache_.planes(), t.from, tier_.at(t.to),
            [&](std::byte* block, std::byte* to, size_t n) { device_.download(to, block, n); });
      } else {
        for_pieces(
            cache_.planes(), t.to, tier_.at(t.from),
            [&](std::byte* block, std::byte* from, size_t n) { device_.upload(block, from, n); });
      }
    }
  });
}

// With one cache group, layers are planes.
void DeviceExecutor::wrote(int layer) {
  const size_t end = static_cast<size_t>(layer) + 1;
  if (sends_behind(end, cache_.planes().size())) send_planes(*sending_, end);
}

// Queues copies of planes up to `end` of the blocks that leave, beside the lane.
void DeviceExecutor::send_planes(Job& job, size_t end) {
  const std::span<const KvLayer> planes = cache_.planes();
  const size_t first = job.num_sent_planes, plane_bytes = 2 * planes[0].block_bytes();
  copies_.clear();
  for (const Transfer& t : job.sends) {
    for_pieces(planes.subspan(first, end - first), t.from, tier_.at(t.to) + first * plane_bytes,
               [&](std::byte* block, std::byte* to, size_t n) {
                 copies_.push_back({to, block, n});
               });
  }
  job.num_sent_planes = end;
  if (end == planes.size()) return device_.download_beside(copies_, nullptr, nullptr);
  job.written.push_back({config_.sender, job.step, end * plane_bytes});
  const auto tell = [](void* p) {
    const auto* w = static_cast<const Job::Written*>(p);
    w->to->written(w->step, w->bytes);
  };
  device_.download_beside(copies_, tell, &job.written.back());
}

// A block on its way to the disk's thread, or a question to it.
void DeviceExecutor::queue_disk(Job& job, const StepPlan& plan, const Transfer& t) {
  const BlockKey& key = plan.keys[static_cast<size_t>(t.key)];
  BlockLabel label{{key.hash, static_cast<int>(key.group), key.tenant},
                   std::span(plan.tokens).subspan(key.token_at, key.num_tokens)};
  if (t.kind == Transfer::in) return disk_->read(t.from - config_.num_places, label, t.id, t.to);
  DiskTier::Write& write = job.writes.emplace_back();  // the job has it before it has memory
  disk_->begin_write(t.to - config_.num_places, label, write);
  if (!write.memory) {  // the disk is behind
    job.writes.pop_back();
    std::erase(job.work.completed, t.id);
    job.work.lost.push_back(t.id);
    return;
  }
  for_pieces(cache_.planes(), t.from, write.memory,
             [&](std::byte* block, std::byte* to, size_t n) { device_.download(to, block, n); });
}

// Blocks that the disk's thread has read since the last step: this one copies them in.
void DeviceExecutor::collect_disk(Job& job, const StepPlan& plan) {
  if (plan.awaits) disk_->wait(DiskTier::kWait);
  disk_->collect_held(plan.oldest, [&](TransferId id, BlockId block, std::byte* memory) {
    if (memory) {
      job.reads.push_back({id, block, memory});
    } else {
      job.lost.push_back(id);
    }
  });
}

// The step is over and did not fail: what it copied counts.
void DeviceExecutor::end_disk(Job& job) {
  for (DiskTier::Write& w : job.writes) disk_->end_write(w);
  for (const Job::Read& r : job.reads) result_.transfers.push_back(r.id);
  result_.lost.insert(result_.lost.end(), job.lost.begin(), job.lost.end());
}

// Gives back the staging memory that the step still holds. Every step ends so, whatever it threw:
// memory that came back late or twice would hold a wrong block under a valid label.
void DeviceExecutor::release_disk(Job& job) noexcept {
  for (const DiskTier::Write& w : job.writes) {
    if (w.memory) disk_->drop_write(w.memory);
  }
  for (const Job::Read& r : job.reads) disk_->return_read(r.memory);
  job.writes.clear(), job.reads.clear(), job.lost.clear();
}

}  // namespace sluice

#include "dist/lease_store.h"

#include <algorithm>
#include <new>
#include <random>

#include "base/failure.h"

namespace sluice {

std::optional<LeaseStore::Opened> LeaseStore::open(std::vector<Digest256> keys,
                                                   int num_groups,
                                                   std::optional<LeaseName> name) {
  Opened out;
  std::random_device random;
  for (std::byte& b : out.name) b = static_cast<std::byte>(random() & 255);
  if (name) out.name = *name;
  Lease lease;
  lease.name = out.name;
  lease.blocks.reserve(keys.size() * static_cast<size_t>(num_groups));
  lease.keys = std::move(keys);
  std::lock_guard lock(mutex_);
  if (names_.contains(out.name)) return {};
  // What ends a lease must not need memory.
  freed_.reserve(freed_.size() + most_places_ + lease.blocks.capacity());
  const size_t most = lease.blocks.capacity();
  out.id = next_++;
  leases_.emplace(out.id, std::move(lease));
  try {
    names_.emplace(out.name, out.id);
  } catch (...) {
    leases_.erase(out.id);
    throw;
  }
  ++num_opened_;
  most_places_ += most;
  changed_.notify_all();  // somebody may await it
  return out;
}

void LeaseStore::seal(LeaseId id) {
  std::lock_guard lock(mutex_);
  auto it = leases_.find(id);
  if (it == leases_.end()) return;
  it->second.sealed = true;
  it->second.until = Clock::now() + time_;
  changed_.notify_all();
}

void LeaseStore::drop(LeaseId id) {
  std::unique_lock lock(mutex_);
  if (auto it = leases_.find(id); it != leases_.end()) end(it);
  settle(lock);
}

bool LeaseStore::is_open(LeaseId id) const {
  std::lock_guard lock(mutex_);
  auto it = leases_.find(id);
  return it != leases_.end() && !it->second.ended;
}

void LeaseStore::release(const LeaseName& name) {
  std::unique_lock lock(mutex_);
  if (auto it = names_.find(name); it != names_.end()) end(leases_.find(it->second));
  settle(lock);
}

// Nobody finds it any more; its places are free when nobody reads them.
void LeaseStore::end(Leases::iterator it) {
  Lease& lease = it->second;
  if (!lease.ended) names_.erase(lease.name);
  lease.ended = true;
  changed_.notify_all();
  if (lease.num_readers > 0) return;
  most_places_ -= lease.blocks.capacity();
  for (const Leased& b : lease.blocks) {
    if (b.state != Leased::State::there) continue;
    --num_places_;
    freed_.push_back(b.block);
    freed_generation_ = lease.generation;
  }
  leases_.erase(it);
}

// Gives back what is free, without the lock.
void LeaseStore::settle(std::unique_lock<std::mutex>& lock) {
  if (freed_.empty() || !give_back_) return;
  const uint64_t generation = freed_generation_;
  std::vector<PlacedBlock> list;
  try {
    list = freed_;  // which keeps its memory
  } catch (const std::bad_alloc&) {
    return;  // later
  }
  freed_.clear();
  lock.unlock();
  try {
    give_back_(list, generation);
  } catch (...) {
    log_exception("places of KV blocks are given back later");
    lock.lock();
    if (freed_.empty()) freed_generation_ = generation;
    if (freed_generation_ == generation) freed_.insert(freed_.end(), list.begin(), list.end());
  }
}

void LeaseStore::tend() {
  std::unique_lock lock(mutex_);
  const Clock::time_point now = Clock::now();
  for (auto it = leases_.begin(); it != leases_.end();) {
    auto next = std::next(it);
    if (it->second.until <= now && !it->second.ended) {
      ++num_expired_;
      end(it);
    }
    it = next;
  }
  settle(lock);
}

LeaseStore::Begun LeaseStore::begun(const LeaseName& name, std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  const auto look = [&] {
    auto named = names_.find(name);
    if (named == names_.end()) return Begun::unknown;
    const Lease& l = leases_.find(named->second)->second;
    return !l.blocks.empty() || l.sealed ? Begun::yes : Begun::no;
  };
  changed_.wait_for(lock, most, [&] { return look() == Begun::yes; });
  return look();
}

// Bytes that may be read. The last ones of a block that leaves wait for the end of its step.
size_t LeaseStore::num_ready(const Leased& entry) const {
  if (entry.state == Leased::State::there) return places_.block_bytes();
  if (entry.state == Leased::State::lost || entry.step != written_step_) return 0;
  return std::min(written_bytes_, places_.block_bytes() - 1);
}

// The next of the lease's blocks of which there is something to read; each has its turn.
size_t LeaseStore::next_entry(const Lease& lease, const Cursor& cursor) const {
  const size_t num = cursor.read.size();
  for (size_t k = 0; k < num; ++k) {
    const size_t at = (cursor.next + k) % num;
    const Leased& entry = lease.blocks[at];
    if (entry.block.index >= cursor.first && num_ready(entry) > cursor.read[at]) return at;
  }
  return kNoEntry;
}

LeaseStore::Next LeaseStore::read(const LeaseName& name,
                                  Cursor& cursor,
                                  std::chrono::milliseconds most,
                                  Taken& out,
                                  FrameBytes& to) {
  to.reserve(places_.block_bytes());
  std::unique_lock lock(mutex_);
  auto named = names_.find(name);
  if (named == names_.end()) return Next::gone;
  const LeaseId id = named->second;
  size_t at = kNoEntry;
  auto there = [&] {
    auto it = leases_.find(id);
    if (it == leases_.end() || it->second.ended) return true;
    const Lease& l = it->second;
    cursor.read.resize(l.blocks.size());
    at = next_entry(l, cursor);
    return at != kNoEntry || (l.sealed && l.num_offered == 0);
  };
  if (!changed_.wait_for(lock, most, there)) return Next::wait;
  auto it = leases_.find(id);
  if (it == leases_.end() || it->second.ended) return Next::gone;
  Lease& lease = it->second;  // stays while it has readers
  if (at == kNoEntry) return Next::done;
  const size_t first = cursor.read[at], ready = num_ready(lease.blocks[at]);
  const PlacedBlock block = lease.blocks[at].block;
  out = {block, first, ready == places_.block_bytes(),
         lease.keys[static_cast<size_t>(block.index)]};
  to.resize(ready - first);
  const uint64_t generation = lease.generation;
  ++lease.num_readers, ++lease.blocks[at].num_readers;
  lock.unlock();
  const bool good = places_.read(generation, block.place, first, to);
  lock.lock();
  --lease.num_readers;
  if (at < lease.blocks.size()) {  // else all places are void
    --lease.blocks[at].num_readers;
    if (lease.blocks[at].state == Leased::State::lost) changed_.notify_all();
  }
  if (lease.ended) {
    end(leases_.find(id));
    settle(lock);
    return Next::gone;
  }
  if (!good) return Next::gone;
  cursor.next = at + 1;
  if (lease.blocks[at].state == Leased::State::lost) return Next::wait;
  cursor.read[at] = ready;
  return Next::bytes;
}

LeaseStore::Stats LeaseStore::stats() const {
  std::lock_guard lock(mutex_);
  return {leases_.size(), num_places_ + freed_.size(), num_opened_, num_expired_};
}

void LeaseStore::offered(LeaseId id) noexcept {
  std::lock_guard lock(mutex_);
  if (auto it = leases_.find(id); it != leases_.end()) ++it->second.num_offered;
}

bool LeaseStore::exported(LeaseId id, const PlacedBlock& block) noexcept {
  std::unique_lock lock(mutex_);
  auto it = leases_.find(id);
  if (it == leases_.end()) return false;
  Lease& lease = it->second;
  --lease.num_offered;
  changed_.notify_all();
  if (Leased* entry = find_leaving(lease, block)) {
    const bool wanted = !lease.ended;
    entry->state = wanted ? Leased::State::there : Leased::State::lost;
    num_places_ += wanted;
    if (!wanted) await_readers(lock, id, block);
    return wanted;
  }
  // Room was made for all of them when it was opened.
  if (lease.ended || lease.blocks.size() == lease.blocks.capacity() ||
      static_cast<size_t>(block.index) >= lease.keys.size())
    return false;
  lease.generation = places_.generation();
  lease.blocks.push_back({block});
  ++num_places_;
  return true;
}

void LeaseStore::lost(LeaseId id, const PlacedBlock& block) noexcept {
  std::unique_lock lock(mutex_);
  auto it = leases_.find(id);
  if (it == leases_.end()) return;
  --it->second.num_offered;
  changed_.notify_all();
  Leased* entry = find_leaving(it->second, block);
  if (!entry) return;
  entry->state = Leased::State::lost;
  await_readers(lock, id, block);
}

// The place of a lost block is another's soon: a copy of it ends first.
void LeaseStore::await_readers(std::unique_lock<std::mutex>& lock,
                               LeaseId id,
                               const PlacedBlock& block) {
  changed_.wait(lock, [&] {
    auto it = leases_.find(id);
    return it == leases_.end() || std::ranges::none_of(it->second.blocks, [&](const Leased& b) {
             return b.state == Leased::State::lost && b.block == block && b.num_readers > 0;
           });
  });
}

void LeaseStore::leaving(LeaseId id, const PlacedBlock& block, uint64_t step) noexcept {
  std::lock_guard lock(mutex_);
  auto it = leases_.find(id);
  if (it == leases_.end()) return;
  Lease& lease = it->second;
  ++lease.num_offered;
  if (lease.ended || lease.blocks.size() == lease.blocks.capacity() ||
      static_cast<size_t>(block.index) >= lease.keys.size())
    return;
  lease.generation = places_.generation();
  lease.blocks.push_back({block, Leased::State::leaving, step});
  changed_.notify_all();
}

void LeaseStore::written(uint64_t step, size_t num_bytes) noexcept {
  std::lock_guard lock(mutex_);
  written_step_ = step;
  written_bytes_ = num_bytes;
  changed_.notify_all();
}

LeaseStore::Leased* LeaseStore::find_leaving(Lease& lease, const PlacedBlock& block) {
  auto at = std::ranges::find_if(lease.blocks, [&](const Leased& b) {
    return b.state == Leased::State::leaving && b.block == block;
  });
  return at == lease.blocks.end() ? nullptr : &*at;
}

void LeaseStore::cleared() noexcept {
  places_.clear();
  std::lock_guard lock(mutex_);
  freed_.clear();
  num_places_ = 0;
  for (auto it = leases_.begin(); it != leases_.end();) {
    auto next = std::next(it);
    it->second.blocks.clear();
    end(it);
    it = next;
  }
}

}  // namespace sluice

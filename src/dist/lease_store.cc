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
  num_places_ -= lease.blocks.size();
  most_places_ -= lease.blocks.capacity();
  if (!lease.blocks.empty()) {
    freed_.insert(freed_.end(), lease.blocks.begin(), lease.blocks.end());
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

LeaseStore::Next LeaseStore::read(const LeaseName& name,
                                  size_t cursor,
                                  std::chrono::milliseconds most,
                                  Taken& out,
                                  std::span<std::byte> to) {
  std::unique_lock lock(mutex_);
  auto named = names_.find(name);
  if (named == names_.end()) return Next::gone;
  const LeaseId id = named->second;
  auto there = [&] {
    auto it = leases_.find(id);
    if (it == leases_.end() || it->second.ended) return true;
    const Lease& l = it->second;
    return cursor < l.blocks.size() || (l.sealed && l.num_offered == 0);
  };
  if (!changed_.wait_for(lock, most, there)) return Next::wait;
  auto it = leases_.find(id);
  if (it == leases_.end() || it->second.ended) return Next::gone;
  Lease& lease = it->second;  // stays while it has readers
  if (cursor >= lease.blocks.size()) return Next::done;
  out.block = lease.blocks[cursor];
  out.key = lease.keys[static_cast<size_t>(out.block.index)];
  const uint64_t generation = lease.generation;
  ++lease.num_readers;
  lock.unlock();
  const bool good = places_.read(generation, out.block.place, to);
  lock.lock();
  --lease.num_readers;
  if (lease.ended) {
    end(leases_.find(id));
    settle(lock);
    return Next::gone;
  }
  return good ? Next::block : Next::gone;
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
  std::lock_guard lock(mutex_);
  auto it = leases_.find(id);
  if (it == leases_.end()) return false;
  Lease& lease = it->second;
  --lease.num_offered;
  changed_.notify_all();
  // Room was made for all of them when it was opened.
  if (lease.ended || lease.blocks.size() == lease.blocks.capacity() ||
      static_cast<size_t>(block.index) >= lease.keys.size())
    return false;
  lease.generation = places_.generation();
  lease.blocks.push_back(block);
  ++num_places_;
  return true;
}

void LeaseStore::lost(LeaseId id) noexcept {
  std::lock_guard lock(mutex_);
  auto it = leases_.find(id);
  if (it == leases_.end()) return;
  --it->second.num_offered;
  changed_.notify_all();
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

#include "exec/disk_tier.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "base/failure.h"
#include "base/log.h"

namespace sluice {

namespace {

// Blocks on their way to the disk, and on their way back: what a step or two of prompts make.
constexpr size_t kStagingBytes = size_t{16} << 20;

size_t num_staged(size_t block_bytes) {
  return std::clamp<size_t>(kStagingBytes / std::max<size_t>(block_bytes, 1), 32, 256);
}

}  // namespace

size_t DiskTier::staging_bytes(size_t block_bytes) {
  return 2 * num_staged(block_bytes) * block_bytes;
}

DiskTier::DiskTier(BlockFile file, Buffer staging)
    : file_(std::move(file)), staging_(std::move(staging)) {
  size_t bytes = file_.config().block_bytes, num = num_staged(bytes);
  auto* memory = static_cast<std::byte*>(staging_.data());
  if (!memory) {
    memory_.resize(staging_bytes(bytes));
    memory = memory_.data();
  }
  for (size_t k = 0; k < 2 * num; ++k)
    (k < num ? for_writes_ : for_reads_).push_back(memory + k * bytes);
  thread_ = std::thread([this] { run(); });
}

DiskTier::~DiskTier() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    std::erase_if(jobs_, [](const Job& job) { return job.kind == Job::from_disk; });
  }
  wanted_.notify_one();
  thread_.join();
}

std::byte* DiskTier::take_staging() {
  std::lock_guard lock(mutex_);
  if (off_ || for_writes_.empty()) return nullptr;
  std::byte* memory = for_writes_.back();
  for_writes_.pop_back();
  return memory;
}

// Lists of free memory never grow beyond their first size, so returning to them cannot fail.
void DiskTier::drop_write(std::byte* memory) noexcept {
  std::lock_guard lock(mutex_);
  for_writes_.push_back(memory);
}

void DiskTier::return_read(std::byte* memory) noexcept {
  {
    std::lock_guard lock(mutex_);
    for_reads_.push_back(memory);
  }
  wanted_.notify_one();
}

void DiskTier::push(Job job) {
  {
    std::lock_guard lock(mutex_);
    const bool reads = job.kind == Job::from_disk;
    std::byte* memory = job.memory;
    try {
      if (reads) read_.reserve(num_reads_ + 1);  // the disk thread allocates nothing for it
      jobs_.push_back(std::move(job));
    } catch (...) {
      if (memory) for_writes_.push_back(memory);
      throw;
    }
    num_reads_ += reads;
  }
  wanted_.notify_one();
}

void DiskTier::take_done() {
  std::lock_guard lock(mutex_);
  if (read_.empty()) return;
  taken_.reserve(num_reads_);  // it takes the place of read_
  taken_.swap(read_);
  num_reads_ -= taken_.size();
}

void DiskTier::give_back() noexcept {
  if (taken_.empty()) return;
  {
    std::lock_guard lock(mutex_);
    for (const Job& job : taken_) {
      if (job.memory) for_reads_.push_back(job.memory);
    }
  }
  taken_.clear();
  wanted_.notify_one();
}

void DiskTier::wait(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  done_.wait_for(lock, most, [&] { return num_reads_ == 0 || !read_.empty(); });
}

void DiskTier::flush() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return jobs_.empty() && !busy_; });
}

void DiskTier::run() {
  pthread_setname_np(pthread_self(), "disk");
  std::unique_lock lock(mutex_);
  for (;;) {
    wanted_.wait(lock, [&] {
      if (jobs_.empty()) return stop_;
      return stop_ || jobs_.front().kind == Job::to_disk || !for_reads_.empty();
    });
    if (jobs_.empty()) return;  // stopped
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    if (job.kind == Job::from_disk && stop_) continue;
    if (job.kind == Job::from_disk) {
      job.memory = for_reads_.back();
      for_reads_.pop_back();
    }
    busy_ = true;
    lock.unlock();
    std::byte* memory = job.memory;
    try {
      perform(job);
    } catch (...) {  // out of memory: a miss
      log_exception("the disk tier");
      job.memory = nullptr;
    }
    lock.lock();
    busy_ = false;
    off_ = failed_;
    if (job.kind == Job::to_disk) {
      for_writes_.push_back(memory);
    } else {
      if (!job.memory) for_reads_.push_back(memory);
      read_.push_back(std::move(job));
    }
    done_.notify_all();
  }
}

// A read without its content is left without memory.
void DiskTier::perform(Job& job) {
  std::span<std::byte> block(job.memory, file_.config().block_bytes);
  BlockLabel label{job.label.key, job.label.tokens};
  if (job.kind == Job::to_disk) {
    if (failed_) return;
    if (auto ok = file_.write(job.place, label, block); !ok) turn_off(ok.error());
    return;
  }
  Result<bool> found = failed_ ? Result<bool>(false) : file_.read(job.place, label, block);
  if (!found) turn_off(found.error());
  if (!found || !*found) job.memory = nullptr;
}

void DiskTier::turn_off(const Error& error) {
  failed_ = true;
  LOG(error, "the disk tier is off, serving goes on without it: %s", error.message.c_str());
}

}  // namespace sluice

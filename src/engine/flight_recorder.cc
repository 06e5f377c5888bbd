#include "engine/flight_recorder.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <numeric>
#include <system_error>
#include <utility>

#include "base/failure.h"
#include "base/log.h"
#include "base/str.h"

namespace sluice {

namespace {

namespace fs = std::filesystem;

constexpr const char* kSuffix = ".slrec";
constexpr std::chrono::milliseconds kWriteEvery{50};
constexpr uint64_t kMiB = uint64_t{1} << 20;

// From the kernel: nobody guesses a run's pseudonyms.
uint64_t draw64() {
  uint64_t x = 0;
  if (getrandom(&x, sizeof x, 0) != static_cast<ssize_t>(sizeof x))
    throw std::system_error(errno, std::generic_category(), "getrandom");
  return x;
}

std::string utc_now() {
  std::time_t now = std::time(nullptr);
  std::tm t{};
  gmtime_r(&now, &t);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%dT%H%M%SZ", &t);
  return text;
}

std::string system_error_text() { return std::strerror(errno); }

}  // namespace

std::shared_ptr<const TokenMap> token_pseudonyms(int vocab) {
  auto map = std::make_shared<TokenMap>(static_cast<size_t>(std::max(vocab, 0)));
  std::iota(map->begin(), map->end(), Token{0});
  // Fisher and Yates, with bits that a cipher's key would have: all of them from the kernel.
  for (size_t k = map->size(); k > 1; --k) {
    uint64_t limit = UINT64_MAX - UINT64_MAX % k, x = draw64();
    while (x >= limit) x = draw64();
    std::swap((*map)[k - 1], (*map)[x % k]);
  }
  return map;
}

FlightRecorder::FlightRecorder(FlightOptions options)
    : options_(std::move(options)),
      segment_bytes_(std::clamp<uint64_t>(options_.bytes / 16, kMiB / 2, 64 * kMiB)),
      buffer_bytes_(buffer_size(options_.bytes)) {}

uint64_t FlightRecorder::buffer_size(uint64_t ring_bytes) {
  return std::clamp<uint64_t>(ring_bytes / 8, 2 * kMiB, 64 * kMiB);
}

Result<std::unique_ptr<FlightRecorder>> FlightRecorder::open(FlightOptions options) {
  if (options.bytes < FlightOptions::kMinBytes)
    return Error{400, strf("--record-size: a ring has at least %llu MiB",
                           static_cast<unsigned long long>(FlightOptions::kMinBytes / kMiB))};
  std::unique_ptr<FlightRecorder> r(new FlightRecorder(std::move(options)));
  if (auto ok = r->read_folder(); !ok) return ok.error();
  r->name_run();
  r->pending_.reserve(r->buffer_bytes_);
  r->thread_ = std::thread([p = r.get()] { p->thread_main(); });
  return r;
}

void FlightRecorder::name_run() {
  options_.header.run = draw64();
  run_ = utc_now() + strf("-%08llx", static_cast<unsigned long long>(options_.header.run >> 32));
}

// What is there already: the ring of earlier runs, and what was kept.
Result<void> FlightRecorder::read_folder() {
  const std::string& dir = options_.dir;
  auto bad = [&](const std::string& why) {
    return Error{400, strf("--record %s: %s", dir.c_str(), why.c_str())};
  };
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) return bad(error.message());
  lock_ = ::open(path("lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_ < 0) return bad(system_error_text());
  if (flock(lock_, LOCK_EX | LOCK_NB) != 0)
    return bad(errno == EWOULDBLOCK ? "another process records there" : system_error_text());
  for (fs::directory_iterator at(dir, error), end; !error && at != end; at.increment(error)) {
    std::string name = at->path().filename().string();
    if (name.starts_with("kept-")) ++num_kept_;
    if (!name.ends_with(kSuffix)) continue;
    uint64_t size = at->file_size(error);
    if (!error) ring_.push_back({name, size}), ring_bytes_ += size;
  }
  if (error) return bad(error.message());
  std::ranges::sort(ring_, {}, &File::name);  // names begin with the time
  return {};
}

FlightRecorder::~FlightRecorder() {
  if (thread_.joinable()) {
    {
      std::lock_guard lock(mutex_);
      quit_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  if (file_ >= 0) close(file_);
  if (lock_ >= 0) close(lock_);
}

SchedulerListener* FlightRecorder::start(Scheduler& scheduler) {
  std::shared_ptr<const TokenMap> map;
  if (!options_.text) map = token_pseudonyms(options_.header.vocab);
  if (map) scheduler.hash_as(map);
  encoder_ = std::make_unique<SegmentEncoder>(options_.header, segment_bytes_, map, *this);
  encoder_->start(scheduler);
  return encoder_.get();
}

// ---- the scheduler's thread ----

bool FlightRecorder::ready(size_t bytes) {
  std::lock_guard lock(mutex_);
  return !stopped_ && too_large_ == 0 && states_ + bytes <= most_state() &&
         pending_.size() - states_ <= buffer_bytes_ / 2;
}

bool FlightRecorder::begin(uint32_t segment, std::span<const std::byte> first) {
  {
    std::lock_guard lock(mutex_);
    open_ = false;
    if (stopped_) return false;
    if (first.size() > most_state()) too_large_ = first.size();
    if (states_ + first.size() > most_state()) return ++stats_.dropped, false;
    marks_.reserve(marks_.size() + 1);
    const size_t at = pending_.size();
    pending_.insert(pending_.end(), first.begin(), first.end());
    marks_.push_back({at, segment});
    states_ += first.size();
    ++stats_.segments;
    beside_.store(0, std::memory_order_relaxed);
    open_ = true;
  }
  wake_.notify_one();
  return true;
}

void FlightRecorder::end() {
  std::lock_guard lock(mutex_);
  open_ = false;
}

bool FlightRecorder::write(std::span<const std::byte> records) {
  bool half = false;
  {
    std::lock_guard lock(mutex_);
    const size_t before = pending_.size() - states_;
    if (!open_ || stopped_ || before + records.size() > buffer_bytes_) {
      stats_.dropped += open_ && !stopped_;
      return open_ = false;
    }
    pending_.insert(pending_.end(), records.begin(), records.end());
    half = before < buffer_bytes_ / 4 && before + records.size() >= buffer_bytes_ / 4;
  }
  if (half) wake_.notify_one();
  return true;
}

void FlightRecorder::masks(const StepMasks& masks) noexcept {
  if (!options_.text) return;
  try {
    Bytes bytes;
    record_masks(masks, bytes);
    if (write(bytes)) beside_.fetch_add(bytes.size(), std::memory_order_relaxed);
  } catch (...) {
    log_exception("recording of masks");
  }
}

void FlightRecorder::failed() {
  const auto now = std::chrono::steady_clock::now();  // a device that fails on and on is kept once
  if (last_fault_ && now - *last_fault_ < std::chrono::minutes(1)) return;
  last_fault_ = now;
  try {
    Result<std::string> folder = keep("fault");
    if (!folder) LOG(warn, "%s", folder.error().message.c_str());
  } catch (...) {
    log_exception("recording");
  }
}

// ---- any thread ----

Result<std::string> FlightRecorder::keep(std::string_view why) {
  std::string folder;
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return Error{503, "the recording has stopped: see the log"};
    if (num_kept_ >= kMaxKept)
      return Error{409, strf("the recording is not kept: %s has %d kept ones already, remove some "
                             "and restart",
                             options_.dir.c_str(), num_kept_)};
    folder = path(strf("kept-%s-%d-%.*s", utc_now().c_str(), ++num_kept_,
                       static_cast<int>(why.size()), why.data()));
    keeps_.push_back(folder);
  }
  wake_.notify_one();
  return folder;
}

FlightRecorder::Stats FlightRecorder::stats() const {
  std::lock_guard lock(mutex_);
  Stats s = stats_;
  s.stopped = stopped_;
  return s;
}

// ---- the writer's thread ----

void FlightRecorder::thread_main() {
  pthread_setname_np(pthread_self(), "recorder");
  Bytes bytes;
  bytes.reserve(buffer_bytes_);
  std::vector<Mark> marks;
  std::vector<std::string> keeps;
  for (bool quit = false; !quit;) {
    uint64_t dropped = 0;
    size_t too_large = 0;
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, kWriteEvery, [&] {
        return quit_ || !keeps_.empty() || states_ > 0 || pending_.size() >= buffer_bytes_ / 4;
      });
      quit = quit_;
      bytes.clear(), marks.clear(), keeps.clear();
      bytes.swap(pending_);
      marks.swap(marks_);
      keeps.swap(keeps_);
      states_ = 0;
      dropped = stats_.dropped;
      too_large = too_large_;
    }
    try {
      write_out(bytes, marks);
      for (const std::string& folder : keeps) link_all(folder);
    } catch (const std::exception& e) {
      stop(e.what());
    }
    if (too_large > 0) {
      stop(
          strf("the scheduler's state has %zu MiB and may have a quarter of the ring: give "
               "--record-size %zuM or more",
               too_large / kMiB + 1, 4 * (too_large / kMiB + 1) + 4));
    } else if (dropped > dropped_said_) {
      LOG(warn, "the recording lost the end of %llu segments: the disk does not follow",
          static_cast<unsigned long long>(dropped - dropped_said_));
      dropped_said_ = dropped;
    }
  }
}

void FlightRecorder::write_out(const Bytes& bytes, const std::vector<Mark>& marks) {
  size_t at = 0;
  for (size_t k = 0; k <= marks.size(); ++k) {
    size_t end = k < marks.size() ? marks[k].at : bytes.size();
    if (end > at && !put(std::span(bytes).subspan(at, end - at))) return;
    at = end;
    if (k < marks.size() && !open_segment(marks[k].segment)) return;
  }
}

bool FlightRecorder::put(std::span<const std::byte> bytes) {
  const size_t size = bytes.size();
  while (!bytes.empty()) {
    if (file_ < 0) return false;
    ssize_t n = ::write(file_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return stop(system_error_text()), false;
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  ring_.back().size += size;
  ring_bytes_ += size;
  std::lock_guard lock(mutex_);
  stats_.bytes += size;
  return true;
}

bool FlightRecorder::open_segment(uint32_t segment) {
  if (file_ >= 0) close(std::exchange(file_, -1));
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return false;
  }
  make_room();
  std::string name = run_ + strf("-%06u%s", segment, kSuffix);
  file_ = ::open(path(name).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
  if (file_ < 0) return stop(name + ": " + system_error_text()), false;
  ring_.push_back({name, 0});
  return true;
}

// The segment that begins may get as long as one, and a state more.
void FlightRecorder::make_room() {
  uint64_t room = segment_bytes_;
  for (const File& f : ring_) room = std::max(room, std::min(f.size, options_.bytes / 2));
  while (!ring_.empty() && ring_bytes_ + room > options_.bytes) {
    unlink(path(ring_.front().name).c_str());
    ring_bytes_ -= ring_.front().size;
    ring_.pop_front();
  }
}

void FlightRecorder::stop(const std::string& why) {
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(stopped_, true)) return;
    open_ = false;
  }
  if (file_ >= 0) close(std::exchange(file_, -1));
  LOG(error, "the recording in %s stops, serving goes on: %s", options_.dir.c_str(), why.c_str());
}

// Links cost no space until the ring drops its files; where there are none, files are copied.
void FlightRecorder::link_all(const std::string& folder) {
  std::error_code error;
  fs::create_directory(folder, error);
  int num = 0;
  for (const File& f : ring_) {
    if (error) break;
    fs::create_hard_link(path(f.name), folder + "/" + f.name, error);
    if (error) {
      error.clear();
      fs::copy_file(path(f.name), folder + "/" + f.name, error);
    }
    num += !error;
  }
  if (error) {
    LOG(error, "the recording could not be kept in %s: %s", folder.c_str(),
        error.message().c_str());
    return;
  }
  LOG(info, "the recording is kept: %d segments in %s", num, folder.c_str());
  std::lock_guard lock(mutex_);
  ++stats_.kept;
}

}  // namespace sluice

#include "dist/kv_fetcher.h"

#include <pthread.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/failure.h"

namespace sluice {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kCallRetry{5};  // between attempts to reach the engine without memory
constexpr int kCallAttempts = 200;

// What the engine thread sets aside for a thread that may have given up.
struct Reserved {
  std::mutex mutex;
  std::condition_variable ready;
  bool done = false, abandoned = false;
  uint64_t generation = 0;
  std::vector<PlacedBlock> list;
};

void call_engine(Engine& engine, const std::function<void(Scheduler&)>& f) {
  for (int k = 0; k < kCallAttempts; ++k) {
    try {
      return engine.call(f);
    } catch (const std::bad_alloc&) {
      std::this_thread::sleep_for(kCallRetry);
    }
  }
}

}  // namespace

KvFetcher::KvFetcher(Options options, Engine& engine, KvPlaces& places, const KvIdentity& identity)
    : options_(options), engine_(engine), places_(places), identity_(identity) {
  for (int k = 0; k < options_.threads; ++k) threads_.emplace_back([this] { thread_main(); });
}

KvFetcher::~KvFetcher() { stop(); }

void KvFetcher::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wanted_.notify_all();
  for (std::thread& t : threads_) {
    if (t.joinable()) t.join();
  }
}

bool KvFetcher::push(Job job) {
  {
    std::lock_guard lock(mutex_);
    if (stop_ || jobs_.size() >= options_.most_waiting) return false;
    job.until = steady_clock::now() + options_.time;
    jobs_.push_back(std::move(job));
  }
  wanted_.notify_one();
  return true;
}

void KvFetcher::thread_main() {
  pthread_setname_np(pthread_self(), "kv-fetch");
  std::unique_lock lock(mutex_);
  for (;;) {
    wanted_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    const bool stops = stop_;
    lock.unlock();
    if (stops) {
      job.done({0, 0, "the server stops", {}});
    } else {
      run(job);
    }
    lock.lock();
  }
}

// A peer that just failed is not asked again at once: others would wait for it.
bool KvFetcher::rests(const KvPeer& peer) {
  std::lock_guard lock(mutex_);
  const auto now = steady_clock::now();
  std::erase_if(resting_, [&](const auto& r) { return r.second <= now; });
  return resting_.contains(peer);
}

void KvFetcher::run(Job& job) {
  const auto begin = steady_clock::now();
  Outcome outcome;
  try {
    if (rests(job.peer)) {
      outcome.error = "the peer failed a moment ago";
    } else if (Result<Places> places = reserve(job); !places) {
      outcome.error = places.error().message;
    } else {
      outcome.num_wanted = static_cast<int>(places->list.size());
      if (places->list.empty()) finish(job, outcome, begin);  // what follows ends the lease
      Result<void> fetched;
      try {
        fetched = fetch(job, *places);
      } catch (...) {
        log_exception("KV blocks are not fetched");
        fetched = Error{500, "internal error"};
      }
      if (!fetched) outcome.error = fetched.error().message;
      outcome.num_came = static_cast<int>(std::ranges::count(places->came, true));
      outcome.num_positions = num_positions(*places);
      const bool peer_failed = places->peer_failed;
      import(job, std::move(*places));
      if (peer_failed) {
        std::lock_guard lock(mutex_);
        resting_[job.peer] = steady_clock::now() + options_.rest;
      }
    }
  } catch (...) {
    log_exception("KV blocks are not fetched");
    outcome.error = "internal error";
  }
  finish(job, outcome, begin);
}

// They are sorted by their number in the prompt.
int KvFetcher::num_positions(const Places& places) {
  int num = 0, last = -1;
  for (size_t k = 0; k < places.list.size(); ++k) {
    if (!places.came[k] || places.list[k].index == last) continue;
    last = places.list[k].index;
    ++num;
  }
  return num;
}

// Once for each job.
void KvFetcher::finish(Job& job, Outcome& outcome, WaitUntil begin) {
  if (!job.done) return;
  outcome.took = steady_clock::now() - begin;
  (outcome.error.empty() ? whole_ : outcome.num_came > 0 ? part_ : failed_).fetch_add(1);
  blocks_.fetch_add(static_cast<uint64_t>(outcome.num_came));
  nanoseconds_.fetch_add(static_cast<uint64_t>(outcome.took.count()));
  std::exchange(job.done, nullptr)(outcome);
}

// Places for what is not here yet.
Result<KvFetcher::Places> KvFetcher::reserve(const Job& job) {
  auto state = std::make_shared<Reserved>();
  engine_.call([this, state, prompt = job.prompt, held = held_](Scheduler& s) {
    std::lock_guard lock(state->mutex);
    if (state->abandoned) return;
    try {
      state->list.reserve(prompt.hashes.size() * s.config().group_windows.size());
      s.reserve_blocks(prompt, state->list);
    } catch (const std::bad_alloc&) {  // nothing was reserved
    }
    held->fetch_add(static_cast<int64_t>(state->list.size()));
    state->generation = places_.generation();
    state->done = true;
    state->ready.notify_one();
  });
  std::unique_lock lock(state->mutex);
  if (!state->ready.wait_until(lock, job.until, [&] { return state->done; })) {
    state->abandoned = true;
    return Error{504, "the engine had no time for it"};
  }
  Places out{state->generation, std::move(state->list), {}};
  out.came.resize(out.list.size());
  return out;
}

Result<void> KvFetcher::fetch(const Job& job, Places& places) {
  const std::vector<Digest256> keys = prompt_keys(*job.prompt.prompt, engine_.config().block_size);
  Result<StreamSocket> socket = StreamSocket::connect(
      job.peer.address, job.peer.port, std::min(job.until, steady_clock::now() + KvLink::kIdle));
  places.peer_failed = steady_clock::now() < job.until;  // else it had no time
  if (!socket) return socket.error();
  KvLink link(std::move(*socket), identity_);
  if (auto ok = link.greet(true, job.until); !ok) return ok;
  places.peer_failed = false;
  if (!places.list.empty()) {
    const auto first = static_cast<uint32_t>(places.list.front().index);
    if (auto ok = link.send(KvGet{job.lease, first}, {}, job.until); !ok) return ok;
    for (;;) {
      if (steady_clock::now() >= job.until) return Error{504, "not all came in time"};
      Result<KvFrame> frame = link.receive(job.until);
      if (!frame) {
        const int code = frame.error().code;
        places.peer_failed = (code == 503 || code == 504) && steady_clock::now() < job.until;
        return frame.error();
      }
      if (std::holds_alternative<KvGone>(*frame)) return Error{404, "the lease is gone"};
      if (std::holds_alternative<KvDone>(*frame)) break;
      const auto* block = std::get_if<KvBlock>(&*frame);
      if (!block) return Error{400, "a server sent what only clients send"};
      if (auto ok = take(*block, keys, places); !ok) return ok;
    }
  }
  static_cast<void>(link.send(KvRelease{job.lease}, {}, job.until));
  const auto missing = std::ranges::count(places.came, false);
  if (missing > 0) return Error{404, "the peer did not have all blocks"};
  return {};
}

// Blocks of another prompt are an error; those that are here already are dropped.
Result<void> KvFetcher::take(const KvBlock& block,
                             std::span<const Digest256> keys,
                             Places& places) const {
  if (block.index >= keys.size() || !same_digest(block.key, keys[block.index]))
    return Error{409, "the lease is of another prompt"};
  const PlacedBlock wanted{static_cast<int>(block.index), static_cast<int>(block.group), 0};
  auto at = std::ranges::lower_bound(places.list, wanted, [](const auto& a, const auto& b) {
    return std::pair(a.index, a.group) < std::pair(b.index, b.group);
  });
  if (at == places.list.end() || at->index != wanted.index || at->group != wanted.group) return {};
  if (places.came[static_cast<size_t>(at - places.list.begin())])
    return Error{400, "a block came twice"};
  if (!places_.write(places.generation, at->place, block.bytes))
    return Error{503, "the engine lost its state"};
  places.came[static_cast<size_t>(at - places.list.begin())] = true;
  return {};
}

// What came is a prefix from now on, the other places are free again.
void KvFetcher::import(const Job& job, Places places) {
  if (places.list.empty()) return;
  std::vector<PlacedBlock> came, lost;
  for (size_t k = 0; k < places.list.size(); ++k)
    (places.came[k] ? came : lost).push_back(places.list[k]);
  call_engine(engine_,
              [this, generation = places.generation, prompt = job.prompt, came = std::move(came),
               lost = std::move(lost), held = held_](Scheduler& s) {
                held->fetch_sub(static_cast<int64_t>(came.size() + lost.size()));
                if (places_.generation() != generation) return;
                s.import_blocks(prompt, came);
                s.release_places(lost);
              });
}

KvFetcher::Stats KvFetcher::stats() const {
  return {whole_.load(),
          part_.load(),
          failed_.load(),
          blocks_.load(),
          blocks_.load() * identity_.block_bytes,
          static_cast<double>(nanoseconds_.load()) * 1e-9,
          held_->load()};
}

}  // namespace sluice

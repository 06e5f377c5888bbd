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

constexpr milliseconds kOwedRetry{20};  // between attempts to reach the engine without memory

// The bytes of a block that a frame has, if any.
std::optional<KvLayers> layers_of(const KvFrame& frame) {
  if (const auto* part = std::get_if<KvLayers>(&frame)) return *part;
  const auto* block = std::get_if<KvBlock>(&frame);
  if (!block) return {};
  return KvLayers{block->index, block->group, 0, block->key, block->bytes};
}

}  // namespace

KvFetcher::KvFetcher(Options options, Engine& engine, KvPlaces& places, const KvIdentity& identity)
    : options_(options), engine_(engine), places_(places), identity_(identity) {
  threads_.reserve(options_.threads);
  threads_.emplace_back([this] { thread_main(); });
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
    const milliseconds time = job.pending ? options_.await_time : options_.time;
    job.until = std::min(job.until, steady_clock::now() + time);
    jobs_.push_back(std::move(job));
    start_thread();
  }
  wanted_.notify_one();
  return true;
}

// With the lock: one more where all are busy. Without memory for it the job waits for one of them.
void KvFetcher::start_thread() {
  if (jobs_.size() <= num_idle_ || threads_.size() >= options_.threads) return;
  try {
    threads_.emplace_back([this] { thread_main(); });
  } catch (const std::exception&) {
    log_exception("one thread less fetches KV blocks");
  }
}

void KvFetcher::thread_main() {
  pthread_setname_np(pthread_self(), "kv-fetch");
  std::unique_lock lock(mutex_);
  for (;;) {
    auto wake = [&] { return stop_ || !jobs_.empty(); };
    if (!owed_) {
      ++num_idle_;
      wanted_.wait(lock, wake);
      --num_idle_;
    } else {  // before any job: their places are missed
      lock.unlock();
      give_back_owed();
      lock.lock();
      if (owed_ && !wanted_.wait_for(lock, kOwedRetry, wake)) continue;
      if (!wake()) continue;
    }
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

void KvFetcher::put_to_rest(const KvPeer& peer) {
  std::lock_guard lock(mutex_);
  resting_[peer] = steady_clock::now() + options_.rest;
}

void KvFetcher::run(Job& job) {
  auto begin = steady_clock::now();
  Outcome outcome;
  try {
    if (!job.lease && !identity_.moves_prefixes()) {
      outcome.error = identity_.key.empty() ? "cached prefixes need a key (--kv-key)"
                                            : "the model's cache has windows";
    } else if (rests(job.peer)) {
      outcome.error = "the peer failed a moment ago";
    } else if (job.pending) {
      run_pending(job, outcome, begin);
    } else if (Result<std::shared_ptr<Places>> places = reserve(job); !places) {
      outcome.error = places.error().message;
    } else {
      outcome.num_wanted = static_cast<int>((*places)->list.size());
      if ((*places)->list.empty()) finish(job, outcome, begin);  // what follows ends the lease
      std::optional<KvLink> link;
      run_reserved(job, *places, outcome, begin, link);
    }
  } catch (...) {
    log_exception("KV blocks are not fetched");
    outcome.error = "internal error";
  }
  finish(job, outcome, begin);
}

// Connects first: there are no places for it until the peer has begun with the prompt, nor does its
// time begin before.
void KvFetcher::run_pending(Job& job, Outcome& outcome, WaitUntil& begin) {
  std::optional<KvLink> link;
  Result<void> begun = connect(job, link);
  if (begun) begun = await(job, *link);
  begin = steady_clock::now();
  if (!begun) {
    outcome.error = begun.error().message;
    if (begun.error().code == 404) return;
    put_to_rest(job.peer);
    return;
  }
  Result<std::shared_ptr<Places>> places = reserve(job);
  if (!places) {
    outcome.error = places.error().message;
    return;
  }
  outcome.num_wanted = static_cast<int>((*places)->list.size());
  if ((*places)->list.empty()) finish(job, outcome, begin);
  run_reserved(job, *places, outcome, begin, link);
}

// The lease ends behind the request's start: its answer would cost a round trip.
void KvFetcher::run_reserved(Job& job,
                             const std::shared_ptr<Places>& places,
                             Outcome& outcome,
                             WaitUntil job_begin,
                             std::optional<KvLink>& link) {
  const auto begin = steady_clock::now();
  bool peer_failed = false, answered = false;
  try {
    const Result<void> fetched = fetch(job, *places, link);
    answered = fetched.has_value();
    if (!answered)
      outcome.error = fetched.error().message;
    else if (job.lease && std::ranges::count(places->came, false) > 0)
      outcome.error = "the peer did not have all blocks";  // of a prefix it has sent what it has
    peer_failed = !answered && is_peers_fault(fetched.error(), *places, begin, job.until);
  } catch (...) {
    log_exception("KV blocks are not fetched");
    outcome.error = "no memory";  // short: needs none
  }
  outcome.num_came = static_cast<int>(std::ranges::count(places->came, true));
  outcome.num_positions = num_positions(*places);
  give_back(places);
  if (peer_failed) put_to_rest(job.peer);  // who is told of it may ask again at once
  finish(job, outcome, job_begin);
  if (answered && job.lease) release(job, *link);
}

// Whether others should not wait for this peer too. One that has sent no block when the time is up
// is to blame if it had as long as silence is borne; else the time was spent before.
bool KvFetcher::is_peers_fault(const Error& e,
                               const Places& places,
                               WaitUntil begin,
                               WaitUntil until) {
  if (places.greeted && e.code != 503 && e.code != 504) return false;
  const auto now = steady_clock::now();
  if (now < until) return true;
  return now - begin >= KvLink::kIdle && std::ranges::count(places.came, true) == 0;
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
  const bool ended_well = outcome.error.empty();
  const bool is_whole = ended_well && outcome.num_came == outcome.num_wanted;
  (is_whole ? whole_ : ended_well || outcome.num_came > 0 ? part_ : failed_).fetch_add(1);
  blocks_.fetch_add(static_cast<uint64_t>(outcome.num_came));
  nanoseconds_.fetch_add(static_cast<uint64_t>(outcome.took.count()));
  std::exchange(job.done, nullptr)(outcome);
}

// Places for what is not here yet.
Result<std::shared_ptr<KvFetcher::Places>> KvFetcher::reserve(const Job& job) {
  auto places = std::make_shared<Places>();
  const size_t most = job.prompt.hashes.size() * engine_.config().group_windows.size();
  places->prompt = job.prompt;
  places->list.reserve(most);
  places->filled.reserve(most);
  places->came.reserve(most);
  engine_.call([this, places, held = held_](Scheduler& s) {
    std::lock_guard lock(places->mutex);
    if (places->abandoned) return;
    s.reserve_blocks(places->prompt, places->list);
    places->filled.resize(places->list.size());
    places->came.resize(places->list.size());
    held->fetch_add(static_cast<int64_t>(places->list.size()));
    places->generation = places_.generation();
    places->done = true;
    places->ready.notify_one();
  });
  std::unique_lock lock(places->mutex);
  if (!places->ready.wait_until(lock, job.until, [&] { return places->done; })) {
    places->abandoned = true;
    return Error{504, "the engine had no time for it"};
  }
  return places;
}

Result<void> KvFetcher::connect(const Job& job, std::optional<KvLink>& link) {
  Result<std::unique_ptr<ByteStream>> stream =
      connect_bytes(options_.transport, job.peer.address, job.peer.port,
                    std::min(job.until, steady_clock::now() + KvLink::kIdle));
  if (!stream) return stream.error();
  link.emplace(std::move(*stream), identity_);
  return link->greet(true, frame_until(job));
}

// A pending job has minutes, but no single frame has: whoever stops waits for it.
WaitUntil KvFetcher::frame_until(const Job& job) const {
  return std::min(job.until, steady_clock::now() + options_.time);
}

// Until the first block of a prompt is there.
Result<void> KvFetcher::await(const Job& job, KvLink& link) const {
  if (auto ok = link.send(KvAwait{*job.lease}, job.until); !ok) return ok;
  for (;;) {
    Result<KvFrame> frame = link.receive(frame_until(job));
    if (!frame) return frame.error();
    if (std::holds_alternative<KvReady>(*frame)) return {};
    if (std::holds_alternative<KvGone>(*frame)) return Error{404, "the lease is gone"};
    if (stop_.load()) return Error{404, "the server stops"};
    if (!std::holds_alternative<KvWait>(*frame))
      return Error{400, "a server sent what nobody asked for"};
    if (steady_clock::now() >= job.until) return Error{404, "the prompt was not computed in time"};
  }
}

// `link`: the connection, where there is one already.
Result<void> KvFetcher::fetch(const Job& job, Places& places, std::optional<KvLink>& link) {
  if (places.list.empty() && !job.lease) return {};
  const std::vector<Digest256> keys = prompt_keys(*job.prompt.prompt, engine_.config().block_size);
  if (!link) {
    if (auto ok = connect(job, link); !ok) return ok;
  }
  places.greeted = true;
  if (places.list.empty()) return {};
  if (auto ok = ask(job, places, *link); !ok) return ok;
  for (;;) {
    if (steady_clock::now() >= job.until) return Error{504, "not all came in time"};
    if (stop_.load()) return Error{404, "the server stops"};
    Result<KvFrame> frame = link->receive(frame_until(job));
    if (!frame) return frame.error();
    if (std::holds_alternative<KvGone>(*frame)) return Error{404, "the lease is gone"};
    if (std::holds_alternative<KvDone>(*frame)) return {};
    if (std::holds_alternative<KvWait>(*frame) && job.pending) continue;
    const std::optional<KvLayers> part = layers_of(*frame);
    if (!part) return Error{400, "a server sent what only clients send"};
    if (auto ok = take(*part, keys, places); !ok) return ok;
  }
}

// The answer is awaited: a connection that ends before may take the message with it.
void KvFetcher::release(const Job& job, KvLink& link) const {
  if (link.send(KvRelease{*job.lease}, job.until))
    static_cast<void>(link.receive(frame_until(job)));
}

// For the blocks of the lease, or for those of the prompt by their tokens.
Result<void> KvFetcher::ask(const Job& job, const Places& places, KvLink& link) const {
  const auto first = static_cast<uint32_t>(places.list.front().index);
  if (job.lease) return link.send(KvGet{*job.lease, first}, job.until);
  const auto num_blocks = static_cast<size_t>(places.list.back().index) + 1;
  KvFind find{job.prompt.tenant, first, static_cast<uint32_t>(num_blocks)};
  if (auto ok = link.send(find, job.until); !ok) return ok;
  const size_t num_tokens = num_blocks * static_cast<size_t>(identity_.block_size);
  const FrameBytes tokens = pack_tokens(std::span(*job.prompt.prompt).first(num_tokens));
  constexpr size_t kPart = 4 * kFrameTokens;
  for (size_t at = 0; at < tokens.size(); at += kPart)
    if (auto ok = link.send(KvTokens{std::span(tokens).subspan(at, kPart)}, job.until); !ok)
      return ok;
  return {};
}

// Blocks of another prompt are an error; those that are here already are dropped. A block has come
// with its last bytes.
Result<void> KvFetcher::take(const KvLayers& part,
                             std::span<const Digest256> keys,
                             Places& places) const {
  if (part.index >= keys.size() || !same_digest(part.key, keys[part.index]))
    return Error{409, "the lease is of another prompt"};
  const PlacedBlock wanted{static_cast<int>(part.index), static_cast<int>(part.group), 0};
  auto at = std::ranges::lower_bound(places.list, wanted, [](const auto& a, const auto& b) {
    return std::pair(a.index, a.group) < std::pair(b.index, b.group);
  });
  if (at == places.list.end() || at->index != wanted.index || at->group != wanted.group) return {};
  const auto k = static_cast<size_t>(at - places.list.begin());
  if (places.came[k]) return Error{400, "a block came twice"};
  size_t& filled = places.filled[k];
  if (part.at != filled || part.bytes.size() > identity_.block_bytes - filled)
    return Error{400, "the parts of a block came out of order"};
  if (!places_.write(places.generation, at->place, filled, part.bytes))
    return Error{503, "the engine lost its state"};
  filled += part.bytes.size();
  places.came[k] = filled == identity_.block_bytes;
  return {};
}

// What came is a prefix from now on, the other places are free again.
void KvFetcher::give_back(std::shared_ptr<Places> places) noexcept {
  if (places->list.empty()) return;
  try {
    engine_.call([this, places, held = held_](Scheduler& s) {
      held->fetch_sub(static_cast<int64_t>(places->list.size()));
      if (places_.generation() != places->generation) return;
      for (size_t k = 0; k < places->list.size(); ++k) {
        const std::span<const PlacedBlock> one(&places->list[k], 1);
        places->came[k] ? s.import_blocks(places->prompt, one) : s.release_places(one);
      }
    });
  } catch (const std::bad_alloc&) {  // later
    std::lock_guard lock(mutex_);
    places->next = std::move(owed_);
    owed_ = std::move(places);
  }
}

void KvFetcher::give_back_owed() {
  std::shared_ptr<Places> list;
  {
    std::lock_guard lock(mutex_);
    list = std::move(owed_);
  }
  while (list) {
    std::shared_ptr<Places> one = std::move(list);
    list = std::move(one->next);
    give_back(std::move(one));
  }
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

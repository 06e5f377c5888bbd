#include "server/kv_events.h"

#include <pthread.h>

#include <chrono>
#include <random>
#include <unordered_map>

#include "base/failure.h"
#include "base/msgpack.h"

namespace sluice {

namespace {

constexpr size_t kPartChanges = 4096;  // of one message
constexpr std::chrono::seconds kSnapshotEvery{1};

// As vLLM names them: the pool is what a request reads, whatever the device.
const char* medium_name(KvTier tier) {
  switch (tier) {
    case KvTier::device:
      return "GPU";
    case KvTier::host:
      return "CPU";
    case KvTier::disk:
      return "DISK";
  }
  return "";
}

// Whether `b` goes on in the event that `a` ends.
bool joins(const KvChange& a, const KvChange& b) {
  if (a.kind != b.kind || a.tier != b.tier || a.key.group != b.key.group) return false;
  if (a.kind == KvChange::removed) return true;
  return a.kind == KvChange::stored && b.parent == a.key.hash && b.key.tenant == a.key.tenant &&
         b.num_tokens == a.num_tokens;
}

void encode_hashes(std::span<const KvChange> run, MsgpackWriter& w) {
  w.text("block_hashes");
  w.array(static_cast<uint32_t>(run.size()));
  for (const KvChange& c : run) w.natural(c.key.hash.a);
}

void encode_stored(const KvChanges& changes, std::span<const KvChange> run, MsgpackWriter& w) {
  const KvChange& first = run.front();
  encode_hashes(run, w);
  w.text("parent_block_hash");
  if (first.parent == root_hash(first.key.tenant)) {
    w.nil();
  } else {
    w.natural(first.parent.a);
  }
  w.text("token_ids");
  w.array(static_cast<uint32_t>(run.size() * first.num_tokens));
  for (const KvChange& c : run) {
    for (uint32_t k = 0; k < c.num_tokens; ++k) w.integer(changes.tokens[c.token_at + k]);
  }
  w.text("block_size"), w.natural(first.num_tokens);
  w.text("lora_id"), w.nil();
  w.text("medium"), w.text(medium_name(first.tier));
  w.text("lora_name"), w.nil();
}

void encode_event(const KvChanges& changes,
                  std::span<const KvChange> run,
                  const KvEncoding& encoding,
                  MsgpackWriter& w) {
  const KvChange& first = run.front();
  const bool grouped = encoding.num_groups > 1 && first.kind != KvChange::cleared;
  w.map((first.kind == KvChange::stored    ? 9
         : first.kind == KvChange::removed ? 4
                                           : 2) +
        (grouped ? 1 : 0));
  w.text("type");
  switch (first.kind) {
    case KvChange::stored:
      w.text("BlockStored");
      encode_stored(changes, run, w);
      break;
    case KvChange::removed:
      w.text("BlockRemoved");
      encode_hashes(run, w);
      w.text("medium"), w.text(medium_name(first.tier));
      break;
    case KvChange::cleared:
      w.text("AllBlocksCleared");
      break;
  }
  if (grouped) w.text("group_idx"), w.integer(first.key.group);
  w.text("epoch"), w.natural(encoding.epoch);
}

struct BlockName {
  KvTier tier;
  int group;
  BlockHash hash;
  bool operator==(const BlockName&) const = default;
};
struct BlockNameHash {
  size_t operator()(const BlockName& n) const {
    return static_cast<size_t>(n.hash.a ^ (static_cast<uint64_t>(n.group) << 2) ^
                               static_cast<uint64_t>(n.tier));
  }
};

}  // namespace

void order_by_parent(std::span<KvChange> blocks) {
  std::unordered_map<BlockName, std::vector<size_t>, BlockNameHash> children;
  std::unordered_map<BlockName, size_t, BlockNameHash> at;
  auto name = [](const KvChange& c, BlockHash hash) {
    return BlockName{c.tier, c.key.group, hash};
  };
  for (size_t k = 0; k < blocks.size(); ++k) at[name(blocks[k], blocks[k].key.hash)] = k;
  std::vector<size_t> next;  // a stack: chains stay together
  for (size_t k = blocks.size(); k-- > 0;) {
    BlockName parent = name(blocks[k], blocks[k].parent);
    if (at.contains(parent)) {
      children[parent].push_back(k);
    } else {
      next.push_back(k);
    }
  }
  std::vector<KvChange> sorted;
  sorted.reserve(blocks.size());
  while (!next.empty()) {
    const KvChange& c = blocks[next.back()];
    next.pop_back();
    sorted.push_back(c);
    auto it = children.find(name(c, c.key.hash));
    if (it != children.end()) next.insert(next.end(), it->second.begin(), it->second.end());
  }
  // A hash names its predecessors, so that no block comes before itself: all were reached.
  std::ranges::copy(sorted, blocks.begin());
}

void encode_kv_events(const KvChanges& changes,
                      std::span<const KvChange> part,
                      const KvEncoding& encoding,
                      double now,
                      std::string& out) {
  uint32_t num_events = 0;
  for (size_t k = 0; k < part.size(); ++k) num_events += k == 0 || !joins(part[k - 1], part[k]);
  MsgpackWriter w(out);
  w.array(3);
  w.real(now);
  w.array(num_events);
  for (size_t k = 0; k < part.size();) {
    size_t end = k + 1;
    while (end < part.size() && joins(part[end - 1], part[end])) ++end;
    encode_event(changes, part.subspan(k, end - k), encoding, w);
    k = end;
  }
  w.natural(0);  // the rank: there is one
}

KvPublisher::KvPublisher(std::unique_ptr<EventSocket> socket, const Options& options)
    : socket_(std::move(socket)),
      topic_(options.sockets.topic),
      most_kept_(static_cast<size_t>(options.kept)),
      log_([s = socket_.get()] { s->wake(); }) {
  std::random_device random;
  encoding_.epoch = uint64_t{random()} << 32 | random();
}

Result<std::unique_ptr<KvPublisher>> KvPublisher::open(const Options& options) {
  Result<std::unique_ptr<EventSocket>> socket = EventSocket::open(options.sockets);
  if (!socket) return socket.error();
  return std::unique_ptr<KvPublisher>(new KvPublisher(std::move(*socket), options));
}

KvPublisher::~KvPublisher() { stop(); }

void KvPublisher::start(int num_groups, std::function<void()> poke) {
  encoding_.num_groups = num_groups;
  poke_ = std::move(poke);
  // The first message of a run says that nothing is known of others.
  log_.ask_snapshot();
  poke_();
  thread_ = std::thread([this] { thread_main(); });
}

void KvPublisher::stop() {
  if (!thread_.joinable()) return;
  quit_.store(true);
  socket_->wake();
  thread_.join();
}

KvPublisher::Stats KvPublisher::stats() const {
  return {num_events_.load(std::memory_order_relaxed), log_.num_dropped(), log_.num_snapshots()};
}

void KvPublisher::thread_main() {
  pthread_setname_np(pthread_self(), "kv-events");
  KvChanges changes;
  while (!quit_.load()) {
    try {
      // Bounded: an exception may have cost a wake-up.
      auto asked = socket_->wait(std::chrono::seconds(1));
      while (log_.take(changes)) send(changes);
      if (asked) answer(*asked);
    } catch (...) {
      log_exception("KV events were lost, a snapshot follows");
      log_.ask_snapshot();
      poke_();
    }
  }
}

void KvPublisher::send(KvChanges& changes) {
  // A snapshot's first is the `cleared`.
  if (changes.snapshot_size > 1)
    order_by_parent(std::span(changes.list).first(changes.snapshot_size).subspan(1));
  std::span<const KvChange> list = changes.list;
  for (size_t at = 0; at < list.size(); at += kPartChanges)
    send_part(changes, list.subspan(at, std::min(kPartChanges, list.size() - at)));
}

void KvPublisher::send_part(const KvChanges& changes, std::span<const KvChange> part) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  Kept k{next_number_++, {}};
  encode_kv_events(changes, part, encoding_, std::chrono::duration<double>(now).count(), k.message);
  socket_->publish(k.number, k.message);
  num_events_.fetch_add(part.size(), std::memory_order_relaxed);
  if (replay_address().empty()) return;
  kept_bytes_ += k.message.size();
  kept_.push_back(std::move(k));
  while (kept_.size() > most_kept_ || kept_bytes_ > kKeptBytes) {
    kept_bytes_ -= kept_.front().message.size();
    kept_.pop_front();
  }
}

// What was missed, or if it is not kept any more nothing but a snapshot, which all subscribers get.
void KvPublisher::answer(const EventSocket::Replay& asked) {
  const uint64_t oldest = kept_.empty() ? next_number_ : kept_.front().number;
  if (asked.first < oldest) {
    const Time now = clock_.now();
    if (last_snapshot_ == Time{0} || now - last_snapshot_ >= kSnapshotEvery) {
      last_snapshot_ = now;
      log_.ask_snapshot();
      poke_();
    }
  } else {
    for (const Kept& k : kept_) {
      if (k.number >= asked.first && !socket_->answer(asked, k.number, k.message)) return;
    }
  }
  socket_->end_answer(asked);
}

}  // namespace sluice

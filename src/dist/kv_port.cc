#include "dist/kv_port.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>

#include "base/failure.h"
#include "base/log.h"
#include "core/prefix_index.h"

namespace sluice {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kAcceptWait{100};
constexpr std::chrono::seconds kGreetTime{2};
constexpr std::chrono::seconds kLeaseWait{5};   // for the next block of a lease
constexpr std::chrono::seconds kLinkTime{600};  // a connection's most
constexpr std::chrono::seconds kNextRequest{5};
constexpr std::chrono::seconds kOpenWait{5};    // for a lease that nobody has opened yet
constexpr std::chrono::seconds kPromptTime{4};  // for the tokens of a prefix

// A whole block, or some of its layers.
KvFrame frame_of(const LeaseStore::Taken& t, std::span<const std::byte> bytes) {
  const auto index = static_cast<uint32_t>(t.block.index);
  const auto group = static_cast<uint32_t>(t.block.group);
  if (t.at == 0 && t.last) return KvBlock{index, group, t.key, bytes};
  return KvLayers{index, group, t.at, t.key, bytes};
}

WaitUntil in_time(std::chrono::seconds s) { return std::chrono::steady_clock::now() + s; }

}  // namespace

void offer_prefix(
    Engine& engine, LeaseStore& leases, PromptBlocks prompt, int first, LeaseId lease, int most) {
  engine.call(
      [&engine, &leases, prompt = std::move(prompt), first, lease, most](Scheduler& s) mutable {
        const int next = s.export_prefix(prompt, first, most, lease);
        try {
          if (next < static_cast<int>(prompt.hashes.size()) && leases.is_open(lease))
            return offer_prefix(engine, leases, std::move(prompt), next, lease, most);
        } catch (const std::bad_alloc&) {  // what was offered is all
        }
        leases.seal(lease);
      });
}

Result<std::unique_ptr<KvPort>> KvPort::open(const std::string& address,
                                             uint16_t port,
                                             Transport transport) {
  Result<std::unique_ptr<ByteListener>> listen = listen_bytes(transport, address, port);
  if (!listen) return listen.error();
  return std::unique_ptr<KvPort>(new KvPort(address, std::move(*listen)));
}

KvPort::~KvPort() { stop(); }

void KvPort::start(LeaseStore& leases, const KvIdentity& identity, Offer offer) {
  leases_ = &leases;
  identity_ = &identity;
  offer_ = std::move(offer);
  thread_ = std::thread([this] { accept_main(); });
}

void KvPort::stop() {
  if (!thread_.joinable()) return;
  quit_.store(true);
  thread_.join();
}

void KvPort::accept_main() {
  pthread_setname_np(pthread_self(), "kv-port");
  while (!quit_.load()) {
    try {
      std::unique_ptr<ByteStream> stream = listen_->accept(kAcceptWait);
      reap(false);
      if (stream) begin(std::move(stream));
      leases_->tend();
    } catch (...) {
      log_exception("the port of KV blocks");
      std::this_thread::sleep_for(kAcceptWait);
    }
  }
  for (Client& c : clients_) c.link->shut();
  reap(true);
}

void KvPort::begin(std::unique_ptr<ByteStream> stream) {
  if (clients_.size() >= kMaxLinks) return stream->shut();  // its end is not waited for
  Client& c = clients_.emplace_back();
  try {
    c.link = std::make_unique<KvLink>(std::move(stream), *identity_);
    c.thread = std::thread([this, &c] { serve(c); });
  } catch (...) {
    clients_.pop_back();
    throw;
  }
}

void KvPort::reap(bool all) {
  for (auto c = clients_.begin(); c != clients_.end();) {
    if (!all && !c->over.load()) {
      ++c;
      continue;
    }
    c->thread.join();
    c = clients_.erase(c);
  }
}

void KvPort::serve(Client& client) {
  pthread_setname_np(pthread_self(), "kv-link");
  try {
    if (auto ok = talk(*client.link); !ok && ok.error().code != 503) {
      // Of a flood one line in a hundred.
      if (num_refused_.fetch_add(1) % 100 == 0)
        LOG(warn, "a connection for KV blocks ends: %s", ok.error().message.c_str());
    }
  } catch (...) {
    log_exception("a connection for KV blocks");
  }
  client.link->finish();  // here: whoever accepts must not wait
  client.link->shut();
  client.over.store(true);
}

Result<void> KvPort::talk(KvLink& link) {
  if (auto ok = link.greet(false, in_time(kGreetTime)); !ok) return ok;
  bool awaited = false;
  while (!quit_.load()) {
    Result<KvFrame> frame = link.receive(in_time(kNextRequest), kNextRequest);
    if (!frame) return frame.error();
    if (const auto* get = std::get_if<KvGet>(&*frame)) {
      if (auto ok = send_lease(link, *get, awaited); !ok) return ok;
    } else if (const auto* await = std::get_if<KvAwait>(&*frame)) {
      awaited = true;
      if (auto ok = await_lease(link, await->lease); !ok) return ok;
    } else if (const auto* release = std::get_if<KvRelease>(&*frame)) {
      leases_->release(release->lease);
      if (auto ok = link.send(KvDone{0}, in_time(kNextRequest)); !ok) return ok;
    } else if (const auto* find = std::get_if<KvFind>(&*frame)) {
      if (auto ok = send_prefix(link, *find); !ok) return ok;
    } else {
      return Error{400, "a client sent what only servers send"};
    }
  }
  return {};
}

Result<PromptBlocks> KvPort::receive_prompt(KvLink& link, const KvFind& find) {
  if (find.first >= find.num_blocks || find.num_blocks > identity_->max_blocks)
    return Error{400, "a prefix of no blocks, or of too many"};
  const size_t num = size_t{find.num_blocks} * static_cast<size_t>(identity_->block_size);
  auto tokens = std::make_shared<std::vector<Token>>();
  tokens->reserve(num);
  const WaitUntil until = in_time(kPromptTime);
  while (tokens->size() < num) {
    Result<KvFrame> frame = link.receive(until);
    if (!frame) return frame.error();
    const auto* part = std::get_if<KvTokens>(&*frame);
    if (!part) return Error{400, "not the tokens of a prefix"};
    unpack_tokens(part->bytes, num - tokens->size(), *tokens);
  }
  std::vector<BlockHash> hashes = hash_blocks(*tokens, identity_->block_size, find.tenant);
  return PromptBlocks{std::move(tokens), std::move(hashes), find.tenant};
}

// Cached blocks by their tokens. The lease ends with the answer.
Result<void> KvPort::send_prefix(KvLink& link, const KvFind& find) {
  if (identity_->key.empty())
    return Error{403, "cached prefixes are for servers with a key (--kv-key)"};
  Result<PromptBlocks> prompt = receive_prompt(link, find);
  if (!prompt) return prompt.error();
  num_prefixes_.fetch_add(1, std::memory_order_relaxed);
  const LeaseStore::Opened lease =
      leases_->open(prompt_keys(*prompt->prompt, identity_->block_size), identity_->num_groups);
  Result<void> sent;
  try {
    offer_(std::move(*prompt), static_cast<int>(find.first), lease.id);
    sent = send_lease(link, {lease.name, find.first}, false);
  } catch (...) {
    leases_->drop(lease.id);
    throw;
  }
  leases_->drop(lease.id);
  return sent;
}

// Until its first block is there. The request that opens it may come after the one that asks.
Result<void> KvPort::await_lease(KvLink& link, const LeaseName& lease) {
  const WaitUntil until = in_time(kLinkTime);
  WaitUntil open_until = in_time(kOpenWait);
  bool seen = false;
  while (!quit_.load() && std::chrono::steady_clock::now() < until) {
    const LeaseStore::Begun begun = leases_->begun(lease, kAcceptWait);
    if (begun == LeaseStore::Begun::yes) return link.send(KvReady{}, until);
    seen = seen || begun == LeaseStore::Begun::no;
    const bool late = std::chrono::steady_clock::now() >= open_until;
    if (begun == LeaseStore::Begun::unknown && (seen || late)) break;
    if (auto ok = link.send(KvWait{}, until); !ok) return ok;
  }
  return link.send(KvGone{}, in_time(kNextRequest));
}

// Blocks as they come, in parts where their step still writes them, until there are no more.
// `awaited`: its prompt may still be computed, for as long as that takes; the lease goes with its
// request.
Result<void> KvPort::send_lease(KvLink& link, const KvGet& get, bool awaited) {
  const WaitUntil until = in_time(kLinkTime);
  WaitUntil next_until = in_time(kLeaseWait);
  FrameBytes bytes;
  uint32_t num_sent = 0;
  LeaseStore::Cursor cursor;
  // A number that no block has is behind them all.
  cursor.first = static_cast<int>(std::min(get.first, identity_->max_blocks));
  while (!quit_.load()) {
    LeaseStore::Taken taken;
    switch (leases_->read(get.lease, cursor, kAcceptWait, taken, bytes)) {
      case LeaseStore::Next::gone:
        return link.send(KvGone{}, until);
      case LeaseStore::Next::done:
        return link.send(KvDone{num_sent}, until);
      case LeaseStore::Next::wait:
        if (std::chrono::steady_clock::now() >= (awaited ? until : next_until))
          return link.send(KvGone{}, until);
        if (awaited)
          if (auto ok = link.send(KvWait{}, until); !ok) return ok;
        continue;
      case LeaseStore::Next::bytes:
        break;
    }
    next_until = in_time(kLeaseWait);
    if (auto ok = link.send(frame_of(taken, bytes), until); !ok) return ok;
    num_bytes_.fetch_add(bytes.size(), std::memory_order_relaxed);
    if (!taken.last) continue;
    ++num_sent;
    num_blocks_.fetch_add(1, std::memory_order_relaxed);
  }
  return {};
}

}  // namespace sluice

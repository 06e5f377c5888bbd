#include "server/kv_transfer.h"

#include <algorithm>
#include <random>

#include "base/json.h"
#include "base/str.h"
#include "net/http.h"
#include "net/stream_socket.h"

namespace sluice {

Result<std::unique_ptr<KvTransfer>> KvTransfer::open(const Options& asked) {
  Options options = asked;
  const Result<Transport> transport = resolve_transport(asked.transport);
  if (!transport) return transport.error();
  options.transport = *transport;
  std::string key;
  if (!options.key_file.empty()) {
    Result<std::string> read = read_kv_key(options.key_file);
    if (!read) return read.error();
    key = std::move(*read);
  }
  const bool sends = options.role != KvRole::decode;
  std::unique_ptr<KvPort> port;
  if (sends) {
    if (!is_host_address(options.host))
      return Error{400, strf("--kv-host is the address that other servers connect to, like "
                             "10.0.0.1, not %s",
                             quote(options.host).c_str())};
    if (key.empty() && !is_loopback(options.host))
      return Error{400, strf("%s can be reached by others, and KV blocks tell of prompts: give "
                             "--kv-key, or a --kv-host of 127.0.0.1",
                             quote(options.host).c_str())};
    auto opened = KvPort::open(options.host, static_cast<uint16_t>(options.port), *transport);
    if (!opened) return opened.error();
    port = std::move(*opened);
  }
  return std::unique_ptr<KvTransfer>(new KvTransfer(options, std::move(key), std::move(port)));
}

KvTransfer::KvTransfer(Options options, std::string key, std::unique_ptr<KvPort> port)
    : options_(std::move(options)),
      leases_(places_,
              std::chrono::milliseconds(static_cast<int64_t>(options_.lease_seconds * 1e3))),
      port_(std::move(port)) {
  identity_.key = std::move(key);
  std::random_device random;
  engine_id_ = strf("%08x%08x", random(), random());
}

KvTransfer::~KvTransfer() { stop(); }

void KvTransfer::attach(Session& session) {
  engine_ = &session.engine();
  const SchedulerConfig& c = engine_->config();
  identity_.block_bytes = c.tiers.block_bytes;
  identity_.block_size = c.block_size;
  identity_.max_blocks = static_cast<uint32_t>(c.max_len / c.block_size);
  identity_.num_groups = static_cast<int>(c.group_windows.size());
  identity_.windowed = std::ranges::any_of(c.group_windows, [](int w) { return w > 0; });
  // What a simulated server hands out is nobody else's.
  identity_.content =
      sha256(session.shared_content() + (session.is_simulated() ? " simulated" : ""));
  places_.attach(session.host_tier(), identity_.block_bytes);
  leases_.attach([this](std::vector<PlacedBlock> list, uint64_t generation) {
    engine_->call([this, list = std::move(list), generation](Scheduler& s) {
      if (places_.generation() == generation) s.release_places(list);
    });
  });
  if (port_) {
    port_->start(leases_, identity_, [this](PromptBlocks prompt, int first, LeaseId lease) {
      offer_prefix(*engine_, leases_, std::move(prompt), first, lease);
    });
  }
  if (fetches()) {
    KvFetcher::Options o;
    o.transport = options_.transport;
    fetcher_ = std::make_unique<KvFetcher>(o, *engine_, places_, identity_);
  }
  attached_.store(true);
}

void KvTransfer::stop() {
  if (fetcher_) fetcher_->stop();
  if (port_) port_->stop();
}

std::optional<LeaseStore::Opened> KvTransfer::lease(std::span<const Token> prompt,
                                                    std::optional<LeaseName> name) {
  const SchedulerConfig& c = engine_->config();
  return leases_.open(prompt_keys(prompt, c.block_size), static_cast<int>(c.group_windows.size()),
                      name);
}

std::string KvTransfer::params(const LeaseName& lease, size_t num_tokens) const {
  return json::serialize(json::object{{"do_remote_prefill", true},
                                      {"do_remote_decode", false},
                                      {"remote_engine_id", engine_id_},
                                      {"remote_request_id", lease_text(lease)},
                                      {"remote_block_ids", json::array{}},
                                      {"remote_host", port_->address()},
                                      {"remote_port", port_->port()},
                                      {"remote_num_tokens", num_tokens},
                                      {"tp_size", 1}});
}

bool KvTransfer::fetch(const RemotePrefill& from,
                       PromptBlocks prompt,
                       WaitUntil until,
                       std::function<void(const KvFetcher::Outcome&)> done) {
  // A number: looking up a name could take seconds, and whoever asks would choose the name.
  if (!is_host_address(from.peer.address)) return false;
  // Without a key nobody proves that they are not somebody else.
  if (identity_.key.empty() && !is_loopback(from.peer.address)) return false;
  KvFetcher::Job job;
  job.peer = from.peer;
  job.lease = from.lease;
  job.pending = from.pending;
  job.prompt = std::move(prompt);
  job.until = until;
  job.done = std::move(done);
  return fetcher_->push(std::move(job));
}

KvTransfer::Stats KvTransfer::stats() const {
  return {leases_.stats(), port_ ? port_->stats() : KvPort::Stats{},
          attached_.load() && fetcher_ ? fetcher_->stats() : KvFetcher::Stats{}};
}

}  // namespace sluice

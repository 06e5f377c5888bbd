// Prefill and decode on different servers (docs/cluster.md): this server's part in it. Leases for
// prompts that were computed here, blocks of those that were computed elsewhere. Any thread.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/named.h"
#include "dist/kv_fetcher.h"
#include "dist/kv_port.h"
#include "dist/lease_store.h"
#include "runtime/session.h"

namespace sluice {

enum class KvRole : uint8_t { none, prefill, decode, both };
inline constexpr NamedValue<KvRole> kKvRoles[] = {{"none", KvRole::none},
                                                  {"prefill", KvRole::prefill},
                                                  {"decode", KvRole::decode},
                                                  {"both", KvRole::both}};

// When K and V leave: as layers are computed, or as steps end.
enum class KvLeave : uint8_t { automatic, layers, steps };
inline constexpr NamedValue<KvLeave> kKvLeaves[] = {
    {"auto", KvLeave::automatic}, {"layers", KvLeave::layers}, {"steps", KvLeave::steps}};

// Of answers whose prompt was fetched: which share of it came, and in how many seconds. For
// routers.
inline constexpr std::string_view kKvFetchedHeader = "x-kv-fetched";

// Where a prompt was computed, as a request says.
struct RemotePrefill {
  KvPeer peer;
  std::optional<LeaseName> lease;  // none: its prefix cache is asked
  bool pending = false;            // the lease's prompt is not computed yet
};

class KvTransfer {
 public:
  static constexpr uint64_t kHostBytes = uint64_t{1} << 30;  // --prefix-host unless given

  struct Options {
    KvRole role = KvRole::none;
    std::string host = "127.0.0.1";  // that others connect to
    int port = 0;                    // 0: any free one
    std::string key_file;
    double lease_seconds = 30;
    Transport transport = Transport::tcp;
    KvLeave leave = KvLeave::automatic;
  };

  // Listens from now on, so that an address that will not do is known before the model is loaded.
  static Result<std::unique_ptr<KvTransfer>> open(const Options& asked);
  ~KvTransfer();
  KvExporter* exporter() { return &leases_; }
  void attach(Session& session);
  // While the engine still exists.
  void stop();

  KvRole role() const { return options_.role; }
  bool sends() const { return options_.role == KvRole::prefill || options_.role == KvRole::both; }
  bool fetches() const { return options_.role == KvRole::decode || options_.role == KvRole::both; }
  Transport transport() const { return options_.transport; }
  // Where others fetch; null: nowhere.
  const KvPort* port() const { return port_.get(); }
  // Cached prefixes too, not only leases. After attach().
  bool moves_prefixes() const { return identity_.moves_prefixes(); }
  bool has_key() const { return !identity_.key.empty(); }
  // By which all servers with the same key number their tenants alike; none without a key: then
  // nobody may know the numbers.
  std::optional<std::array<uint64_t, 2>> tenant_key() const {
    if (!has_key()) return {};
    return shared_tenant_key(identity_.key);
  }

  // Nothing: there is a lease of that name.
  std::optional<LeaseStore::Opened> lease(std::span<const Token> prompt,
                                          std::optional<LeaseName> name);
  void seal(LeaseId id) { leases_.seal(id); }
  void drop(LeaseId id) { leases_.drop(id); }
  // The kv_transfer_params of an answer, as JSON.
  std::string params(const LeaseName& lease, size_t num_tokens) const;

  // Calls `done` soon, on another thread, and not long after `until`; it must not throw. False: it
  // is not called.
  bool fetch(const RemotePrefill& from,
             PromptBlocks prompt,
             WaitUntil until,
             std::function<void(const KvFetcher::Outcome&)> done);

  struct Stats {
    LeaseStore::Stats leases;
    KvPort::Stats sent;
    KvFetcher::Stats fetched;
  };
  Stats stats() const;

 private:
  KvTransfer(Options options, std::string key, std::unique_ptr<KvPort> port);

  Options options_;
  KvIdentity identity_;
  std::string engine_id_;
  KvPlaces places_;
  LeaseStore leases_;
  Engine* engine_ = nullptr;
  std::unique_ptr<KvPort> port_;        // null: it sends nothing
  std::unique_ptr<KvFetcher> fetcher_;  // null: it fetches nothing
  std::atomic<bool> attached_{false};   // /metrics is asked before
};

}  // namespace sluice

// Where other servers fetch the blocks of leases, and those of cached prefixes: a thread that
// accepts, and one for each connection. Owned by the server.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "dist/kv_link.h"
#include "dist/lease_store.h"
#include "engine/engine.h"
#include "net/byte_stream.h"

namespace sluice {

// Has the engine export a prompt's cached blocks from number `first` on under a lease, and seal it:
// soon, on its own thread. A part with each step, so that no step waits for a copy of all. Both
// outlive the engine's calls. May throw.
inline constexpr int kMostOffered = 512;  // blocks in one step: 1 GB of an 8B model
void offer_prefix(Engine& engine,
                  LeaseStore& leases,
                  PromptBlocks prompt,
                  int first,
                  LeaseId lease,
                  int most = kMostOffered);

class KvPort {
 public:
  static constexpr size_t kMaxLinks = 128;  // connections at a time

  static Result<std::unique_ptr<KvPort>> open(const std::string& address,
                                              uint16_t port,
                                              Transport transport = Transport::tcp);
  ~KvPort();

  const std::string& address() const { return address_; }
  uint16_t port() const { return listen_->port(); }
  // offer_prefix() with all that it needs.
  using Offer = std::function<void(PromptBlocks prompt, int first, LeaseId lease)>;
  // Both outlive this. Begins to accept.
  void start(LeaseStore& leases, const KvIdentity& identity, Offer offer);
  void stop();

  struct Stats {
    uint64_t blocks = 0, bytes = 0, refused = 0;
    uint64_t prefixes = 0;  // that others asked for
  };
  Stats stats() const {
    return {num_blocks_.load(), num_bytes_.load(), num_refused_.load(), num_prefixes_.load()};
  }

 private:
  struct Client {
    std::unique_ptr<KvLink> link;
    std::thread thread;
    std::atomic<bool> over{false};
  };
  KvPort(std::string address, std::unique_ptr<ByteListener> listen)
      : address_(std::move(address)), listen_(std::move(listen)) {}
  void accept_main();
  void begin(std::unique_ptr<ByteStream> stream);
  void reap(bool all);
  void serve(Client& client);
  Result<void> talk(KvLink& link);
  Result<void> await_lease(KvLink& link, const LeaseName& lease);
  Result<void> send_lease(KvLink& link, const KvGet& get, bool awaited);
  Result<void> send_prefix(KvLink& link, const KvFind& find);
  Result<PromptBlocks> receive_prompt(KvLink& link, const KvFind& find);

  std::string address_;
  std::unique_ptr<ByteListener> listen_;
  LeaseStore* leases_ = nullptr;
  const KvIdentity* identity_ = nullptr;
  Offer offer_;
  std::atomic<bool> quit_{false};
  std::atomic<uint64_t> num_blocks_{0}, num_bytes_{0}, num_refused_{0}, num_prefixes_{0};
  std::list<Client> clients_;  // the accepting thread's
  std::thread thread_;
};

}  // namespace sluice

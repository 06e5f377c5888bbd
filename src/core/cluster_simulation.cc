#include "core/cluster_simulation.h"

#include <algorithm>
#include <deque>
#include <memory>

#include "base/check.h"
#include "base/random.h"
#include "core/conductor.h"
#include "core/simulated_worker.h"

namespace sluice {

namespace {

// A run in progress.
class ClusterRunner {
 public:
  ClusterRunner(const ClusterSetup& setup, std::span<const SimRequest> workload)
      : setup_(setup), workload_(workload), conductor_(setup.routing, conducted(setup, workload)) {
    for (int i = 0; i < setup.num_workers; ++i) nodes_.emplace_back(setup.worker);
  }

  ClusterRun run() {
    for (size_t i = 0; i < workload_.size(); ++i) {
      const Time now = workload_[i].at;
      for (size_t n = 0; n < nodes_.size(); ++n) {
        nodes_[n].worker.run_until(now);
        tell(nodes_[n], now);
      }
      place(i, now);
    }
    for (Node& n : nodes_) {
      n.worker.run_until(kNever);
      out_.workers.push_back(n.worker.finish());
    }
    return std::move(out_);
  }

 private:
  struct Node {
    explicit Node(const SimSetup& setup) : worker(setup, true) {}
    SimulatedWorker worker;
    std::vector<Conductor::Ticket> tickets;      // by the worker's number of the request
    std::deque<SimulatedWorker::Notice> untold;  // the conductor hears of them later
  };

  static std::vector<ConductorWorker> conducted(const ClusterSetup& setup,
                                                std::span<const SimRequest> workload) {
    const SchedulerConfig& s = setup.worker.scheduler;
    ConductorWorker w;
    w.cost = setup.worker.cost;
    w.budget = std::max(1, s.budget);
    w.kv_tokens = static_cast<int64_t>(s.num_blocks) * s.block_size;
    const int block = workload.empty() ? 1 : std::max(1, workload[0].block_tokens);
    w.prefix_blocks = static_cast<size_t>(std::max<int64_t>(1, w.kv_tokens / block));
    return std::vector<ConductorWorker>(static_cast<size_t>(setup.num_workers), w);
  }

  // Tells the conductor which tokens the worker made by now. A step that still runs tells nothing.
  void tell(Node& n, Time now) {
    std::vector<SimulatedWorker::Notice>& fresh = n.worker.notices();
    n.untold.insert(n.untold.end(), fresh.begin(), fresh.end());
    fresh.clear();
    for (; !n.untold.empty() && n.untold.front().at <= now; n.untold.pop_front()) {
      const SimulatedWorker::Notice& notice = n.untold.front();
      const Conductor::Ticket t = n.tickets[notice.request];
      if (notice.tokens > 0) conductor_.tokens(t, notice.tokens, notice.at);
      if (notice.ended) conductor_.ended(t, true, notice.at);
    }
  }

  void place(size_t i, Time now) {
    const SimRequest& r = workload_[i];
    const std::vector<uint64_t> blocks = sim_block_hashes(r);
    Conductor::Ask ask;
    ask.tokens = std::max(1, r.input);
    ask.blocks = blocks;
    ask.block_tokens = std::max(1, r.block_tokens);
    ask.draw = draw_bits({.seed = setup_.seed, .position = static_cast<int64_t>(i)});
    const RoutingChoice choice = conductor_.choose(ask, now);
    out_.placed.push_back(choice.worker);
    if (choice.worker < 0) {
      CHECK(choice.rejected);  // all are alive
      ++out_.num_rejected;
      out_.retry_after.push_back(choice.retry_after);
      return;
    }
    Node& n = nodes_[static_cast<size_t>(choice.worker)];
    n.worker.push(r, i);
    n.tickets.push_back(conductor_.sent(choice.worker, ask, now));
  }

  const ClusterSetup& setup_;
  std::span<const SimRequest> workload_;
  Conductor conductor_;
  std::deque<Node> nodes_;
  ClusterRun out_;
};

}  // namespace

std::vector<uint64_t> sim_block_hashes(const SimRequest& r) {
  std::vector<uint64_t> out;
  uint64_t hash = 0;
  const auto size = static_cast<int64_t>(std::max(1, r.block_tokens));
  for (size_t b = 0; b < r.blocks.size(); ++b) {
    if (static_cast<int64_t>(b + 1) * size > r.input) break;  // not full
    hash = mix_bits(hash + mix_bits(r.blocks[b] + 1));
    out.push_back(hash);
  }
  return out;
}

ClusterRun simulate_cluster(const ClusterSetup& setup, std::span<const SimRequest> workload) {
  CHECK(setup.num_workers > 0);
  return ClusterRunner(setup, workload).run();
}

}  // namespace sluice

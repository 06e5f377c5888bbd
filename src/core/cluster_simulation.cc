#include "core/cluster_simulation.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>

#include "base/check.h"
#include "base/random.h"
#include "core/conductor.h"
#include "core/simulated_worker.h"

namespace sluice {

namespace {

bool fetches(const ClusterSetup& s, size_t worker) {
  if (s.roles.empty()) return s.routing.fetch || s.routing.balance;
  return s.roles[worker] != WorkerRole::prefill;
}

// A run in progress.
class ClusterRunner {
 public:
  ClusterRunner(const ClusterSetup& setup, std::span<const SimRequest> workload)
      : setup_(setup),
        decode_(with_places(setup.worker)),
        workload_(workload),
        conductor_(setup.routing, conducted(setup, workload)) {
    for (size_t i = 0; i < static_cast<size_t>(setup.num_workers); ++i)
      nodes_.emplace_back(fetches(setup, i) ? decode_ : setup.worker);
  }

  ClusterRun run() {
    size_t next = 0;  // to arrive
    for (;;) {
      Time now = next < workload_.size() ? workload_[next].at : kNever;
      // Workers that compute prompts for others run first: what they finish before `now` is sent
      // on before.
      for (size_t n = 0; n < nodes_.size(); ++n)
        if (nodes_[n].num_for_others > 0) advance(n, now);
      const bool handing = !handovers_.empty() && handovers_.begin()->first <= now;
      if (handing) now = handovers_.begin()->first;
      for (size_t n = 0; n < nodes_.size(); ++n) {
        advance(n, now);
        if (now != kNever) tell(nodes_[n], now);
      }
      if (handing) {
        const Handover h = handovers_.begin()->second;
        handovers_.erase(handovers_.begin());
        h.decoder < 0 ? hand_over(h, now) : land(h, now);
      } else if (next < workload_.size()) {
        place(next++, now);
      } else {
        return finish();
      }
    }
  }

 private:
  struct Node {
    explicit Node(const SimSetup& setup) : worker(setup, true) {}
    SimulatedWorker worker;
    std::vector<Conductor::Ticket> tickets;      // by the worker's number of the request
    std::vector<size_t> requests;                // likewise, of the workload
    std::vector<bool> for_others;                // likewise: it computes the prompt alone
    int num_for_others = 0;                      // of those that have not ended
    std::deque<SimulatedWorker::Notice> untold;  // the conductor hears of them later
    Time link_free{0};
  };
  // A prompt between two workers: it is computed, or (with a decoder) has arrived.
  struct Handover {
    size_t request = 0;
    int decoder = -1;
    Conductor::Ticket ticket = 0;
    size_t from = 0;
    bool fetched = false;  // a prefix; else the whole prompt is handed over
    int prefix = 0;        // its tokens
    int moved = 0;         // of those, what the decoder did not have
    Time sent{0};
  };

  static std::vector<ConductorWorker> conducted(const ClusterSetup& setup,
                                                std::span<const SimRequest> workload) {
    const SchedulerConfig& s = setup.worker.scheduler;
    ConductorWorker w;
    w.cost = setup.worker.cost;
    w.budget = std::max(1, s.budget);
    w.kv_tokens = s.num_positions();
    const int block = workload.empty() ? 1 : std::max(1, workload[0].block_tokens);
    w.prefix_blocks = static_cast<size_t>(std::max<int64_t>(1, w.kv_tokens / block));
    std::vector<ConductorWorker> out(static_cast<size_t>(setup.num_workers), w);
    for (size_t i = 0; i < out.size(); ++i) {
      if (!setup.roles.empty()) out[i].role = setup.roles[i];
      out[i].fetches = setup.routing.fetch || setup.routing.balance;
      out[i].lends = setup.routing.fetch;
    }
    return out;
  }

  // Runs it until then, and notes the prompts that it has computed for others.
  void advance(size_t node, Time until) {
    Node& n = nodes_[node];
    n.worker.run_until(until);
    std::vector<SimulatedWorker::Notice>& fresh = n.worker.notices();
    for (const SimulatedWorker::Notice& notice : fresh) {
      if (!n.for_others[notice.request]) continue;
      if (notice.tokens > 0)
        handovers_.emplace(notice.at, Handover{n.requests[notice.request], -1, 0, node});
      n.num_for_others -= notice.ended;
    }
    n.untold.insert(n.untold.end(), fresh.begin(), fresh.end());
    fresh.clear();
  }

  // Tells the conductor which tokens the worker made by now. A step that still runs tells nothing.
  void tell(Node& n, Time now) {
    for (; !n.untold.empty() && n.untold.front().at <= now; n.untold.pop_front()) {
      const SimulatedWorker::Notice& notice = n.untold.front();
      const Conductor::Ticket t = n.tickets[notice.request];
      if (notice.tokens > 0) conductor_.tokens(t, notice.tokens, notice.at);
      if (notice.ended) conductor_.ended(t, !n.for_others[notice.request], notice.at);
    }
  }

  Conductor::Ask ask_for(size_t i) {
    const SimRequest& r = workload_[i];
    blocks_ = sim_block_hashes(r);
    Conductor::Ask ask;
    ask.tokens = std::max(1, r.input);
    ask.blocks = blocks_;
    ask.block_tokens = std::max(1, r.block_tokens);
    ask.fetches = true;
    ask.draw = draw_bits({.seed = setup_.seed, .position = static_cast<int64_t>(i)});
    return ask;
  }

  void place(size_t i, Time now) {
    Conductor::Ask ask = ask_for(i);
    const RoutingChoice choice = conductor_.choose(ask, now);
    out_.placed.push_back(choice.worker);
    if (choice.worker < 0) {
      CHECK(choice.rejected);  // all are alive
      ++out_.num_rejected;
      out_.retry_after.push_back(choice.retry_after);
      return;
    }
    if (choice.decoder < 0 && choice.estimate.fetch_from >= 0) return fetch(i, choice, ask, now);
    const Conductor::Ticket ticket = conductor_.sent(choice.worker, ask, now);
    if (choice.decoder < 0) return push(choice.worker, workload_[i], i, ticket, 0);
    SimRequest& prompt = copies_.emplace_back(workload_[i]);
    prompt.output = 1;
    push(choice.worker, prompt, i, ticket, 0, true);
  }

  // What the holder has by now leaves it with the end of its step; the request waits for it.
  void fetch(size_t i, const RoutingChoice& choice, Conductor::Ask& ask, Time now) {
    ask.fetch_from = choice.estimate.fetch_from;
    ask.fetch_tokens = choice.estimate.fetch_tokens;
    ask.fetch_wait = choice.estimate.fetch_wait;
    Handover h;
    h.request = i;
    h.decoder = choice.worker;
    h.from = static_cast<size_t>(ask.fetch_from);
    h.sent = now;
    h.fetched = true;
    Node &from = nodes_[h.from], &to = nodes_[static_cast<size_t>(h.decoder)];
    const int here = to.worker.num_cached(workload_[i], i);
    h.prefix = std::min(static_cast<int>(choice.estimate.fetch_end),
                        from.worker.num_cached(workload_[i], i));
    h.moved = std::max(0, h.prefix - here);
    h.ticket = conductor_.sent(h.decoder, ask, now);
    ++out_.num_fetches;
    out_.num_fetched_tokens += static_cast<uint64_t>(h.moved);
    const Time start = std::max({now, from.worker.busy_until(), to.worker.busy_until()});
    handovers_.emplace(send(from, to, h.moved, start), h);
  }

  // When so many tokens' K and V have arrived: they leave by one link and arrive by another, in
  // their turns.
  Time send(Node& from, Node& to, int64_t tokens, Time now) {
    const Time takes(
        static_cast<int64_t>(setup_.routing.transfer * static_cast<double>(tokens) * 1e9));
    from.link_free = std::max(now, from.link_free) + takes;
    to.link_free = std::max(from.link_free, to.link_free + takes);  // as it is sent
    return to.link_free;
  }

  void push(int worker,
            const SimRequest& r,
            size_t i,
            Conductor::Ticket ticket,
            int brought,
            bool for_others = false) {
    Node& n = nodes_[static_cast<size_t>(worker)];
    n.worker.push(r, i, brought);
    n.tickets.push_back(ticket);
    n.requests.push_back(i);
    n.for_others.push_back(for_others);
    n.num_for_others += for_others;
  }

  // The prompt is computed: its K and V are sent.
  void hand_over(Handover h, Time now) {
    Conductor::Ask ask = ask_for(h.request);
    ask.handed_over = true;
    h.decoder = conductor_.choose_decoder(ask, now);
    CHECK(h.decoder >= 0);  // all are alive
    Node &from = nodes_[h.from], &to = nodes_[static_cast<size_t>(h.decoder)];
    const int64_t missing =
        std::max<int64_t>(0, ask.tokens - conductor_.view(h.decoder, ask, now).cached);
    h.ticket = conductor_.sent(h.decoder, ask, now);
    ++out_.num_handed_over;
    handovers_.emplace(send(from, to, missing, now), h);
  }

  void land(const Handover& h, Time now) {
    SimRequest& r = copies_.emplace_back(workload_[h.request]);
    r.at = now;
    landed_.push_back({static_cast<size_t>(h.decoder),
                       nodes_[static_cast<size_t>(h.decoder)].requests.size(), h.request,
                       h.fetched});
    if (h.fetched)
      conductor_.fetched(h.ticket, static_cast<double>(h.moved) / std::max(1, r.input),
                         seconds(now - h.sent));
    push(h.decoder, r, h.request, h.ticket, h.fetched ? h.prefix : r.input);
  }

  ClusterRun finish() {
    for (Node& n : nodes_) out_.workers.push_back(n.worker.finish());
    out_.num_role_changes = conductor_.num_role_changes();
    for (const Landed& l : landed_) {
      SimRun& run = out_.workers[l.worker];
      SimAnswer& a = run.answers[l.number];
      a.arrival = workload_[l.request].at;
      if (l.fetched) continue;
      // Blocks handed over are not prefix hits.
      const auto cached = static_cast<uint64_t>(a.num_cached);
      run.prefix_hits -= std::min(run.prefix_hits, cached);
      run.prefix_queries -= std::min(run.prefix_queries, static_cast<uint64_t>(a.input));
    }
    for (size_t n = 0; n < nodes_.size(); ++n) drop_answers(nodes_[n], out_.workers[n]);
    return std::move(out_);
  }

  // Those of prompts for others are not answers to anybody, unless nobody goes on with them.
  static void drop_answers(const Node& n, SimRun& run) {
    size_t number = 0;
    std::erase_if(run.answers, [&](const SimAnswer& a) {
      return n.for_others[number++] && !a.refused && !(a.expired && a.num_tokens == 0);
    });
  }

  struct Landed {
    size_t worker = 0, number = 0, request = 0;
    bool fetched = false;
  };
  const ClusterSetup& setup_;
  const SimSetup decode_;
  std::span<const SimRequest> workload_;
  Conductor conductor_;
  std::deque<Node> nodes_;
  std::deque<SimRequest> copies_;  // of requests that go to two workers
  std::multimap<Time, Handover> handovers_;
  std::vector<Landed> landed_;
  std::vector<uint64_t> blocks_;
  ClusterRun out_;
};

}  // namespace

SimSetup with_places(SimSetup worker) {
  constexpr int kPrompts = 4;
  SchedulerConfig& c = worker.scheduler;
  c.tiers.host = std::max(c.tiers.host, kPrompts * (c.max_len / c.block_size + 1));
  return worker;
}

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
  CHECK(setup.roles.empty() || setup.roles.size() == static_cast<size_t>(setup.num_workers));
  return ClusterRunner(setup, workload).run();
}

}  // namespace sluice

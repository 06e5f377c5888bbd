// Workers that can do both compute prompts alone, or decode, as the mix of requests asks for: the
// first so many of them by rank, so that conductors side by side and those that start again choose
// the same ones. A worker that begins or stops to compute prompts first ends what it has.
#include <algorithm>
#include <tuple>

#include "core/conductor.h"

namespace sluice {

namespace {

// At most one movable worker in so many changes at a time; the others take its requests.
constexpr int kShareAtOnce = 8;

}  // namespace

void Conductor::set_role(int worker, WorkerRole role, bool fetches, bool lends) {
  Worker& w = at(worker);
  const bool same = w.config.role == role && w.config.fetches == fetches;
  w.config.role = role;
  w.config.fetches = fetches;
  w.config.lends = lends;
  if (!same || !config_.balance) give_role(w, role);
}

// Changes the role at once.
void Conductor::give_role(Worker& w, WorkerRole role) {
  num_role_changes_ += config_.balance && w.role != role;
  w.role = w.next_role = role;
}

// Learns how long the prompt takes on a worker that does nothing else.
void Conductor::learn_mix(WorkerView alone, int64_t tokens) {
  alone.queued = alone.decode = {};
  const RoutingEstimate e = estimate_request({}, {.tokens = tokens}, std::span(&alone, 1), 0, -1);
  mix_.learn(e.own, tokens);
}

SplitWorkers Conductor::count_split(std::vector<int>& movable) const {
  SplitWorkers out;
  for (size_t i = 0; i < workers_.size(); ++i) {
    const Worker& w = workers_[i];
    if (!w.alive || w.draining) continue;
    if (w.config.role == WorkerRole::both && w.config.fetches) {
      movable.push_back(static_cast<int>(i));
      out.moved += w.role == WorkerRole::prefill;
    } else {
      ++(w.config.role == WorkerRole::prefill ? out.prefill : out.decode);
    }
  }
  out.movable = static_cast<int>(movable.size());
  std::ranges::sort(movable, {}, [&](int i) { return std::tuple(at(i).config.rank, i); });
  return out;
}

SplitSetup Conductor::split_setup(std::span<const int> movable) const {
  const Worker& first = at(movable[0]);
  SplitSetup s;
  s.cost = &first.config.cost;
  s.budget = first.config.budget;
  s.kv_tokens = first.config.kv_tokens;
  s.pace = 0;
  for (int i : movable) s.pace += at(i).pace / static_cast<double>(movable.size());
  s.decode_pace = decode_pace_;
  s.ttft = config_.ttft;
  s.tpot = config_.tpot;
  s.transfer = config_.transfer;
  s.output = output_;
  return s;
}

// One change at a time; a change that no longer pays is called off.
void Conductor::balance_roles() {
  std::vector<int> movable;
  const SplitWorkers now = count_split(movable);
  if (now.movable == 0) return;
  const int best = best_split(split_setup(movable), mix_, now);
  const auto changes = [&](int i) { return at(i).role != at(i).next_role; };
  if (std::ranges::any_of(movable, changes)) {
    if (best == now.moved)
      for (int i : movable) at(i).next_role = at(i).role;
    return;
  }
  const int most = std::max(1, now.movable / kShareAtOnce);
  const int moved = now.moved + std::clamp(best - now.moved, -most, most);
  const bool split = now.prefill + moved > 0;
  for (int i = 0; i < now.movable; ++i)
    at(movable[static_cast<size_t>(i)]).next_role = i < moved ? WorkerRole::prefill
                                                    : split   ? WorkerRole::decode
                                                              : WorkerRole::both;
  change_roles();
}

void Conductor::change_roles() {
  if (!config_.balance) return;
  for (Worker& w : workers_) {
    if (w.role == w.next_role) continue;
    const bool prompts = w.role == WorkerRole::prefill || w.next_role == WorkerRole::prefill;
    if (!prompts || w.num_requests == 0) give_role(w, w.next_role);
  }
}

}  // namespace sluice

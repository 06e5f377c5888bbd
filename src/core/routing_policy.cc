#include "core/routing_policy.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace sluice {

namespace {

// A request that cannot meet its objective even alone may wait this share of its own time.
constexpr double kSlack = 0.25;
// Each rejection doubles the wait that is accepted the next time, so that no request is rejected
// for ever; more do not count.
constexpr int kMostAttempts = 10;
// Tokens of a prompt that the worker computes that goes on with it: at most a block.
constexpr int64_t kHandoverTail = 16;
// A holder copies at most so many tokens with each step (kMostOffered blocks of 16 in dist/).
constexpr double kFetchStep = 8192;
// Seconds to begin a fetch, and for which a holder may be silent before one is given up.
constexpr double kFetchStart = 2e-3, kMostFetchWait = 0.8;

int64_t scaled(int64_t n, double by) {
  return static_cast<int64_t>(std::llround(static_cast<double>(n) * by));
}

double prompt_steps(const WorkerView& w, int64_t tokens) {
  return std::ceil(static_cast<double>(tokens) / std::max(1, w.budget - w.decode.tokens));
}

// Prompts in as few steps as the budget allows, beside all that decodes.
double prompt_seconds(const WorkerView& w, const StepLoad& prompts) {
  if (prompts.tokens <= 0) return 0;
  const double steps = prompt_steps(w, prompts.tokens);
  const double share = 1 / steps;
  StepLoad one = w.decode;
  one.tokens += static_cast<int>(scaled(prompts.tokens, share));
  one.sampled += 1;
  one.context += prompts.context / std::max(1, prompts.sampled);
  one.attended += scaled(prompts.attended, share);
  return steps * w.cost->seconds(one) * w.pace;
}

double own_seconds(const WorkerView& w, int64_t tokens, int64_t cached) {
  // The last token of a prompt is always computed.
  const int64_t from = std::clamp<int64_t>(cached, 0, tokens - 1);
  return prompt_seconds(w, chunk_load(from, static_cast<int>(tokens - from)));
}

// By which a prompt delays all that decodes beside it, added up.
double delay_seconds(const WorkerView& w, int64_t tokens, int64_t cached) {
  if (w.decode.tokens == 0) return 0;
  const int64_t left = tokens - std::clamp<int64_t>(cached, 0, tokens - 1);
  const double without = prompt_steps(w, left) * w.cost->seconds(w.decode) * w.pace;
  return std::max(0.0, own_seconds(w, tokens, cached) - without) * w.decode.tokens;
}

// A decode step with the request in it, when its prompt is done: prompts that wait now decode
// then, and some of what decodes now has ended.
double decode_seconds(const WorkerView& w, const RoutedRequest& r, double until) {
  const double now = w.decode.tokens > 0 ? w.cost->seconds(w.decode) * w.decode_pace : 0;
  const double whole = now * std::max(r.output, 1.0);
  const double left = whole > 0 ? std::max(0.0, 1 - until / whole) : 0;
  const int64_t positions = scaled(w.decode.context, left) + w.queued.context + r.tokens;
  const int rows = static_cast<int>(scaled(w.decode.tokens, left)) + w.queued.sampled + 1;
  return w.cost->seconds(
             {.tokens = rows, .sampled = rows, .context = positions, .attended = positions}) *
         w.decode_pace;
}

// Until others have released what the request needs. Steps with the prompts before it decode too.
// Sequences of which it is not known when they end do so evenly over an output's time.
double memory_seconds(const WorkerView& w, const RoutedRequest& r) {
  if (w.room_steps != WorkerView::kUnknown) {
    const double more = static_cast<double>(w.room_steps) - prompt_steps(w, w.queued.tokens);
    return more > 0 ? more * w.cost->seconds(w.decode) * w.decode_pace : 0;
  }
  const int64_t need = r.tokens - std::min(w.cached, r.tokens - 1);
  if (w.free_tokens >= need || w.decode.tokens == 0) return 0;
  const double held = static_cast<double>(std::max<int64_t>(1, w.decode.context));
  const double share = std::min(1.0, static_cast<double>(need - w.free_tokens) / held);
  return share * r.output * w.cost->seconds(w.decode) * w.decode_pace;
}

bool takes_requests(const WorkerView& w) { return w.alive && !w.draining; }

bool takes_over(const WorkerView& w) {
  return takes_requests(w) &&
         (w.role == WorkerRole::decode || (w.role == WorkerRole::both && w.fetches));
}

// One step of all that the worker has to do.
double step_seconds(const WorkerView& w) {
  StepLoad one = w.decode;
  one.tokens += std::clamp(w.queued.tokens, 0, std::max(0, w.budget - w.decode.tokens));
  return one.tokens > 0 ? w.cost->seconds(one) * w.pace : 0;
}

// Until a holder sends: its blocks leave the pool with a step behind the one that runs.
double holder_seconds(const WorkerView& holder) { return 2 * step_seconds(holder); }

// Those who fetch from a holder at once share its link.
double link_seconds(const RoutingConfig& c, const WorkerView& holder, int64_t tokens) {
  return c.transfer * static_cast<double>(tokens) * (1 + holder.lending);
}

// Until the first block of a prefix comes, and until what came is used.
double fetch_wait(const WorkerView& holder, const WorkerView& w) {
  return kFetchStart + holder_seconds(holder) + step_seconds(w);
}

// For the blocks themselves, `more` tokens: by the holder's link, or its further steps.
double blocks_seconds(const RoutingConfig& c, const WorkerView& holder, int64_t more) {
  const double further = std::ceil(static_cast<double>(more) / kFetchStep) - 1;
  return std::max(link_seconds(c, holder, more), further * step_seconds(holder));
}

int64_t fetched_tokens(const WorkerView& w, const RoutedRequest& r) {
  return std::max<int64_t>(0, r.tokens - kHandoverTail - w.cached);
}

// From the end of a prompt elsewhere to its first token here.
double handover_seconds(const RoutingConfig& c, const RoutedRequest& r, const WorkerView& w) {
  return c.transfer * static_cast<double>(fetched_tokens(w, r)) + prompt_seconds(w, w.queued) +
         own_seconds(w, r.tokens, r.tokens - kHandoverTail) + memory_seconds(w, r);
}

// Seconds that decoding costs on this worker: the request's own, and the delay of its neighbours.
double decoder_score(const RoutingConfig& c,
                     const RoutedRequest& r,
                     const WorkerView& w,
                     double until) {
  return handover_seconds(c, r, w) + decode_seconds(w, r, until) * r.output +
         delay_seconds(w, r.tokens, r.tokens - kHandoverTail);
}

int pick_decoder(const RoutingConfig& c,
                 const RoutedRequest& r,
                 std::span<const WorkerView> workers,
                 double until) {
  int best = -1;
  double least = 0;
  for (size_t i = 0; i < workers.size(); ++i) {
    if (!takes_over(workers[i])) continue;
    const double s = decoder_score(c, r, workers[i], until);
    if (best < 0 || s < least) best = static_cast<int>(i), least = s;
  }
  return best;
}

// Who may get a request first.
struct Candidates {
  std::span<const WorkerView> workers;
  bool split = false;    // prefill workers compute prompts
  bool last = false;     // nobody is left but prefill workers: they do all
  bool decoders = true;  // decode workers may do all

  bool takes(size_t i) const {
    const WorkerView& w = workers[i];
    if (!takes_requests(w)) return false;
    return w.role == WorkerRole::prefill  ? split || last
           : w.role == WorkerRole::decode ? decoders
                                          : true;
  }
};

// Only a prediction tells when it is better not to split a request: other policies always do.
Candidates find_candidates(const RoutingConfig& c,
                           const RoutedRequest& r,
                           std::span<const WorkerView> workers) {
  bool any_prefill = false, any_other = false, any_decoder = false;
  for (const WorkerView& w : workers) {
    any_decoder |= takes_over(w);
    if (takes_requests(w)) (w.role == WorkerRole::prefill ? any_prefill : any_other) = true;
  }
  const bool split = any_prefill && any_decoder && !r.whole;
  return {workers, split, !any_other, !split || c.policy == Routing::cache_aware};
}

// Of those that lend; one that takes no new requests may, one that is busy for longer than anybody
// waits for it does not. Of equal ones the least busy.
int longest_prefix(const RoutingConfig& c, std::span<const WorkerView> workers) {
  int best = -1;
  int64_t longest = 0;
  double least = 0;
  for (size_t i = 0; i < workers.size(); ++i) {
    const WorkerView& w = workers[i];
    if (!w.alive || !w.lends || w.lendable == 0 || w.lendable < longest) continue;
    const double wait = holder_seconds(w);
    if (wait > kMostFetchWait) continue;
    const double takes = wait + link_seconds(c, w, w.lendable);
    if (w.lendable == longest && takes >= least) continue;
    best = static_cast<int>(i), longest = w.lendable, least = takes;
  }
  return best;
}

// The first of the candidates from `turn` on, in a circle.
template <typename Better>
int best_from(const Candidates& c, uint64_t turn, Better better) {
  int best = -1;
  for (size_t n = 0; n < c.workers.size(); ++n) {
    const size_t i = (turn + n) % c.workers.size();
    if (c.takes(i) && (best < 0 || better(i, static_cast<size_t>(best))))
      best = static_cast<int>(i);
  }
  return best;
}

int pick_random(const Candidates& c, uint64_t draw) {
  uint64_t num = 0;
  for (size_t i = 0; i < c.workers.size(); ++i) num += c.takes(i);
  if (num == 0) return -1;
  uint64_t skip = draw % num;
  for (size_t i = 0; i < c.workers.size(); ++i)
    if (c.takes(i) && skip-- == 0) return static_cast<int>(i);
  return -1;
}

int pick_least_loaded(const Candidates& c, uint64_t turn) {
  const auto load = [&](size_t i) {
    return c.workers[i].queued.tokens + c.workers[i].decode.context;
  };
  return best_from(c, turn, [&](size_t a, size_t b) { return load(a) < load(b); });
}

// Mooncake's rule: the least of transfer or recompute + queue + prefill; here with the time of the
// output too, of whoever decodes. A decode worker's own outputs wait while it computes a prompt.
int pick_cache_aware(const RoutingConfig& c,
                     const RoutedRequest& r,
                     const Candidates& candidates,
                     uint64_t turn) {
  const std::span<const WorkerView> workers = candidates.workers;
  const int prefix = longest_prefix(c, workers);
  const auto score = [&](size_t i) {
    const WorkerView& w = workers[i];
    const RoutingEstimate e = estimate_request(c, r, workers, i, prefix);
    if (w.role == WorkerRole::prefill && candidates.split) {
      const int decoder = pick_decoder(c, r, workers, e.ttft());
      return e.ttft() + decoder_score(c, r, workers[static_cast<size_t>(decoder)], e.ttft());
    }
    const int64_t there = e.fetch_from >= 0 ? e.fetch_end : w.cached;
    const double others = w.role == WorkerRole::decode ? delay_seconds(w, r.tokens, there) : 0;
    return e.ttft() + e.tpot * r.output + others;
  };
  double least = 0;
  int best = -1;
  for (size_t n = 0; n < workers.size(); ++n) {
    const size_t i = (turn + n) % workers.size();
    if (!candidates.takes(i)) continue;
    const double s = score(i);
    if (best < 0 || s < least) best = static_cast<int>(i), least = s;
  }
  const bool has_home = r.home >= 0 && static_cast<size_t>(r.home) < workers.size() &&
                        candidates.takes(static_cast<size_t>(r.home));
  if (best < 0 || !has_home || best == r.home) return best;
  const double stay = score(static_cast<size_t>(r.home));
  return stay <= least * (1 + c.stay_share) + c.stay_seconds ? r.home : best;
}

int pick_worker(const RoutingConfig& c,
                const RoutedRequest& r,
                const Candidates& candidates,
                uint64_t turn) {
  switch (c.policy) {
    case Routing::random:
      return pick_random(candidates, r.draw);
    case Routing::round_robin:
      return best_from(candidates, turn, [](size_t, size_t) { return false; });
    case Routing::least_loaded:
      return pick_least_loaded(candidates, turn);
    case Routing::cache_aware:
      return pick_cache_aware(c, r, candidates, turn);
  }
  return -1;
}

// Seconds by which the request comes too early; 0: it is taken.
double too_early(const RoutingConfig& c,
                 const RoutedRequest& r,
                 const WorkerView& decoder,
                 const RoutingEstimate& e,
                 bool rejecting) {
  const double part = rejecting ? c.resume : 1;
  const double more = std::exp2(std::clamp(r.attempts, 0, kMostAttempts));
  double early = 0;
  if (c.ttft > 0) {
    const double allowed = std::max(c.ttft - e.own, kSlack * e.own) * more;
    if (e.wait > allowed * part) early = e.wait - allowed * c.resume;
  }
  const bool alone = decoder.decode.tokens + decoder.queued.sampled == 0;
  if (c.tpot > 0 && !alone && e.tpot > c.tpot * part * more) {
    // Sequences end evenly over an output's time, and a step gets shorter with each.
    const double over = std::min(1.0, 1 - c.tpot * c.resume * more / e.tpot);
    early = std::max(early, over * r.output * e.tpot);
  }
  return early;
}

}  // namespace

RoutingEstimate estimate_request(const RoutingConfig& c,
                                 const RoutedRequest& r,
                                 std::span<const WorkerView> workers,
                                 size_t worker,
                                 int best) {
  const WorkerView& w = workers[worker];
  CHECK(w.cost != nullptr);
  RoutingEstimate e;
  const double queue = prompt_seconds(w, w.queued);
  e.wait = std::max(0.0, queue - w.progress) + memory_seconds(w, r);
  e.own = own_seconds(w, r.tokens, w.cached);
  const bool fetches = w.role == WorkerRole::decode || (w.role == WorkerRole::both && w.fetches);
  if (c.fetch && r.fetches && fetches && best >= 0 && static_cast<size_t>(best) != worker) {
    const WorkerView& holder = workers[static_cast<size_t>(best)];
    const int64_t there = std::min(holder.lendable, r.tokens), more = there - w.cached;
    const double wait = fetch_wait(holder, w);
    const double fetched =
        more > 0 ? wait + blocks_seconds(c, holder, more) + own_seconds(w, r.tokens, there) : e.own;
    if (fetched < e.own) {
      e.own = fetched;
      e.fetch_wait = wait;
      e.fetch_from = best;
      e.fetch_tokens = more;
      e.fetch_end = there;
    }
  }
  e.tpot = decode_seconds(w, r, e.ttft());
  return e;
}

RoutingChoice choose_worker(const RoutingConfig& c,
                            const RoutedRequest& r,
                            std::span<const WorkerView> workers,
                            RoutingState& state) {
  RoutingChoice out;
  const Candidates candidates = find_candidates(c, r, workers);
  out.worker = pick_worker(c, r, candidates, state.turn);
  if (out.worker < 0) return out;
  const auto at = static_cast<size_t>(out.worker);
  // Only a prediction tells when it is better to fetch.
  const int prefix = c.policy == Routing::cache_aware ? longest_prefix(c, workers) : -1;
  out.estimate = estimate_request(c, r, workers, at, prefix);
  size_t decoder = at;
  if (workers[at].role == WorkerRole::prefill && candidates.split) {
    const double until = out.estimate.ttft();
    out.decoder = pick_decoder(c, r, workers, until);
    decoder = static_cast<size_t>(out.decoder);
    out.estimate.own += handover_seconds(c, r, workers[decoder]);
    out.estimate.tpot = decode_seconds(workers[decoder], r, until);
  }
  if (c.reject) {
    out.retry_after = too_early(c, r, workers[decoder], out.estimate, state.rejecting);
    out.rejected = state.rejecting = out.retry_after > 0;
    if (out.rejected) {
      out.worker = out.decoder = -1;
      return out;
    }
  }
  state.turn = at + 1;
  return out;
}

int choose_decoder(const RoutingConfig& c,
                   const RoutedRequest& r,
                   std::span<const WorkerView> workers) {
  return pick_decoder(c, r, workers, 0);
}

}  // namespace sluice

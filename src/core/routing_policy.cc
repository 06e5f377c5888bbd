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

int64_t scaled(int64_t n, double by) {
  return static_cast<int64_t>(std::llround(static_cast<double>(n) * by));
}

// Prompts in as few steps as the budget allows, beside all that decodes.
double prompt_seconds(const WorkerView& w, const StepLoad& prompts) {
  if (prompts.tokens <= 0) return 0;
  const int room = std::max(1, w.budget - w.decode.tokens);
  const double steps = std::ceil(static_cast<double>(prompts.tokens) / room);
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

// Until others have released what the request needs: sequences end evenly over an output's time.
double memory_seconds(const WorkerView& w, const RoutedRequest& r) {
  const int64_t need = r.tokens - std::min(w.cached, r.tokens - 1);
  if (w.free_tokens >= need || w.decode.tokens == 0) return 0;
  const double held = static_cast<double>(std::max<int64_t>(1, w.decode.context));
  const double share = std::min(1.0, static_cast<double>(need - w.free_tokens) / held);
  return share * r.output * w.cost->seconds(w.decode) * w.decode_pace;
}

bool takes_prompts(const WorkerView& w) {
  return w.alive && !w.draining && w.role != WorkerRole::decode;
}

int longest_prefix(std::span<const WorkerView> workers) {
  int best = -1;
  for (size_t i = 0; i < workers.size(); ++i) {
    if (!workers[i].alive || workers[i].cached == 0) continue;
    if (best < 0 || workers[i].cached > workers[static_cast<size_t>(best)].cached)
      best = static_cast<int>(i);
  }
  return best;
}

// The first of the candidates from `turn` on, in a circle.
template <typename Better>
int best_from(std::span<const WorkerView> workers, uint64_t turn, Better better) {
  int best = -1;
  for (size_t n = 0; n < workers.size(); ++n) {
    const size_t i = (turn + n) % workers.size();
    if (takes_prompts(workers[i]) && (best < 0 || better(i, static_cast<size_t>(best))))
      best = static_cast<int>(i);
  }
  return best;
}

int pick_random(std::span<const WorkerView> workers, uint64_t draw) {
  uint64_t num = 0;
  for (const WorkerView& w : workers) num += takes_prompts(w);
  if (num == 0) return -1;
  uint64_t skip = draw % num;
  for (size_t i = 0; i < workers.size(); ++i)
    if (takes_prompts(workers[i]) && skip-- == 0) return static_cast<int>(i);
  return -1;
}

int pick_least_loaded(std::span<const WorkerView> workers, uint64_t turn) {
  const auto load = [&](size_t i) { return workers[i].queued.tokens + workers[i].decode.context; };
  return best_from(workers, turn, [&](size_t a, size_t b) { return load(a) < load(b); });
}

// Mooncake's rule: the least of transfer or recompute + queue + prefill; here with the time of the
// output too, since the same worker decodes.
int pick_cache_aware(const RoutingConfig& c,
                     const RoutedRequest& r,
                     std::span<const WorkerView> workers,
                     uint64_t turn) {
  const int prefix = longest_prefix(workers);
  const auto score = [&](size_t i) {
    const RoutingEstimate e = estimate_request(c, r, workers, i, prefix);
    return e.ttft() + (workers[i].role == WorkerRole::both ? e.tpot * r.output : 0);
  };
  double least = 0;
  int best = -1;
  for (size_t n = 0; n < workers.size(); ++n) {
    const size_t i = (turn + n) % workers.size();
    if (!takes_prompts(workers[i])) continue;
    const double s = score(i);
    if (best < 0 || s < least) best = static_cast<int>(i), least = s;
  }
  const bool has_home = r.home >= 0 && static_cast<size_t>(r.home) < workers.size() &&
                        takes_prompts(workers[static_cast<size_t>(r.home)]);
  if (best < 0 || !has_home || best == r.home) return best;
  const double stay = score(static_cast<size_t>(r.home));
  return stay <= least * (1 + c.stay_share) + c.stay_seconds ? r.home : best;
}

int pick_decoder(const RoutedRequest& r, std::span<const WorkerView> workers, double until) {
  int best = -1;
  double least = 0;
  for (size_t i = 0; i < workers.size(); ++i) {
    const WorkerView& w = workers[i];
    if (!w.alive || w.draining || w.role == WorkerRole::prefill) continue;
    const double s = decode_seconds(w, r, until) * r.output + memory_seconds(w, r);
    if (best < 0 || s < least) best = static_cast<int>(i), least = s;
  }
  return best;
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
  if (c.transfer > 0 && best >= 0 && static_cast<size_t>(best) != worker) {
    const int64_t there = std::min(workers[static_cast<size_t>(best)].cached, r.tokens);
    const int64_t more = there - w.cached;
    const double fetched =
        more > 0 ? c.transfer * static_cast<double>(more) + own_seconds(w, r.tokens, there) : e.own;
    if (fetched < e.own) {
      e.own = fetched;
      e.fetch_from = best;
      e.fetch_tokens = more;
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
  const uint64_t turn = state.turn;
  switch (c.policy) {
    case Routing::random:
      out.worker = pick_random(workers, r.draw);
      break;
    case Routing::round_robin:
      out.worker = best_from(workers, turn, [](size_t, size_t) { return false; });
      break;
    case Routing::least_loaded:
      out.worker = pick_least_loaded(workers, turn);
      break;
    case Routing::cache_aware:
      out.worker = pick_cache_aware(c, r, workers, turn);
      break;
  }
  if (out.worker < 0) return out;
  const auto at = static_cast<size_t>(out.worker);
  out.estimate = estimate_request(c, r, workers, at, longest_prefix(workers));
  size_t decoder = at;
  if (workers[at].role == WorkerRole::prefill) {
    out.decoder = pick_decoder(r, workers, out.estimate.ttft());
    if (out.decoder < 0) return {};  // nobody to decode
    decoder = static_cast<size_t>(out.decoder);
    out.estimate.tpot = decode_seconds(workers[decoder], r, out.estimate.ttft());
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

}  // namespace sluice

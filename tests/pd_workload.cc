#include "pd_workload.h"

#include <algorithm>
#include <memory>
#include <random>
#include <utility>

namespace sluice {

Request prefill_request(const Request& r) {
  Request p = r;
  p.n = 1;
  p.beams.reset();
  p.max_new = 1;
  auto spec = std::make_shared<SamplingSpec>(*r.sampling);
  spec->min_tokens = 0;
  spec->num_logprobs = -1;
  spec->logprob_ids.clear();
  p.sampling = std::move(spec);
  return p;
}

namespace {

struct Draw {
  std::mt19937_64& rng;
  int pick(int lo, int hi) const {
    return lo + static_cast<int>(rng() % static_cast<uint64_t>(hi - lo + 1));
  }
  bool chance(int percent) const { return pick(1, 100) <= percent; }
};

// Those that a router hands over: one prompt of which not every position is scored.
bool can_be_handed_over(const Request& r) {
  return r.pooling == Pooling::none && r.sampling->prompt_logprobs < 0;
}

PdRequest make_request(const Draw& draw, Request r, bool longer, const PdWorkload& w) {
  using Way = PdRequest::Way;
  PdRequest out;
  const int way = draw.pick(1, 100);
  const bool windowed = std::ranges::any_of(w.to.groups.windows, [](int n) { return n > 0; });
  if (way <= 14) out.way = Way::prefill_side;
  if (way > 22 && can_be_handed_over(r)) out.way = Way::handed_over;
  if (way > 85 && w.keyed && !windowed) out.way = Way::prefix;
  out.pending = draw.chance(65);
  out.prefill_cancelled = draw.chance(4);
  if (draw.chance(6)) out.cancel_after = draw.pick(1, 8);
  if (longer && r.pooling == Pooling::none) r.max_new += draw.pick(5, 30);
  out.request = std::move(r);
  return out;
}

// Prefixes that the other engine has computed for a request of its own.
void ask_for_known_prompts(const Draw& draw, PdWorkload& w) {
  std::vector<const Request*> known;
  for (PdRequest& p : w.requests) {
    if (p.way == PdRequest::Way::prefill_side) known.push_back(&p.request);
    if (p.way != PdRequest::Way::prefix || known.empty()) continue;
    const Request& from =
        *known[static_cast<size_t>(draw.pick(0, static_cast<int>(known.size()) - 1))];
    p.request.prompt = from.prompt;
    p.request.tenant = from.tenant;
  }
}

// What a server with a role has: a prefix cache, with places in host memory, over a pool that
// shares blocks. The pool holds the largest of the requests that run here, and little more.
void set_up(const Draw& draw, bool prefills, PdWorkload& w) {
  Setup& setup = prefills ? w.from : w.to;
  SchedulerConfig& c = setup.scheduler;
  c.allocator = KvAllocator::paged;
  c.prefix_cache = true;
  c.block_size = w.from.scheduler.block_size;
  setup.groups = w.from.groups;
  c.group_windows = setup.groups.windows;
  c.tiers.disk = 0;
  c.tiers.host = draw.chance(80) ? 400 : draw.pick(1, 12);
  if (draw.chance(70)) {  // so that much is preempted
    c.batching = Batching::continuous;
    c.admission = Admission::watermark;
    c.watermark = 0;
    c.max_seqs = 8;
    c.preempt = draw.chance(50) ? Preempt::swap : Preempt::recompute;
    c.swap_cost = {};
  }
  c.tiers.swap = c.preempt == Preempt::swap ? 40 : 0;
  c.max_seqs = std::max(c.max_seqs, 4);  // beams
  c.budget = std::max(c.budget, 4);
  c.num_blocks = 0;
  for (const PdRequest& p : w.requests) {
    const bool handed_over = p.way == PdRequest::Way::handed_over;
    if (!handed_over && prefills != (p.way == PdRequest::Way::prefill_side)) continue;
    const Request r = handed_over && prefills ? prefill_request(p.request) : p.request;
    const int positions = static_cast<int>(r.prompt->size()) + r.max_new;
    const int rows = (positions + c.block_size - 1) / c.block_size;
    c.num_blocks = std::max({c.num_blocks, r.beams ? r.n * rows * setup.groups.num_groups() : 0,
                             static_cast<int>(Scheduler::most_blocks(positions, c))});
  }
  c.num_blocks += draw.chance(80) ? draw.pick(0, setup.groups.num_groups()) : 200;
}

}  // namespace

PdWorkload make_pd_workload(uint64_t seed, const Subject& subject) {
  std::mt19937_64 rng(seed);
  const Draw draw{rng};
  Workload a = make_workload(rng, subject), b = make_workload(rng, subject);
  if (draw.chance(15)) search_with_beams(rng, a);
  const int vocab = subject.models[0]->shape().vocab;
  bound_thinking(seed, vocab, a);
  bound_thinking(seed + 1, vocab, b);

  PdWorkload w;
  w.from = a.setup, w.to = b.setup;
  w.to.groups = w.from.groups;
  w.keyed = draw.chance(50);
  w.transport = seed % 2 == 0 ? Transport::tcp : Transport::shm;
  // As a session decides it.
  w.by_layers = draw.chance(65) && w.from.groups.windows == std::vector<int>{0};
  if (draw.chance(30)) {
    w.loss = draw.chance(33) ? PdWorkload::Loss::expired : PdWorkload::Loss::cut;
    w.cut_after = w.transport == Transport::shm ? static_cast<size_t>(draw.pick(1, 8))
                                                : static_cast<size_t>(draw.pick(1, 16'000));
  }
  const bool longer = draw.chance(70);
  for (Workload* part : {&a, &b})
    for (Request& r : part->requests)
      w.requests.push_back(make_request(draw, std::move(r), longer, w));
  std::shuffle(w.requests.begin(), w.requests.end(), rng);
  for (size_t k = 0; k < w.requests.size(); ++k) w.requests[k].request.id = k + 1;
  ask_for_known_prompts(draw, w);
  w.width = draw.chance(50) ? w.requests.size() : static_cast<size_t>(draw.pick(1, 12));
  set_up(draw, true, w);
  set_up(draw, false, w);
  // Another model each. More threads than cores wait for each other, so three are rare.
  w.from.threads = draw.chance(10) ? 3 : draw.pick(1, 2);
  w.to.threads = w.from.threads == 1 ? 2 : 1;
  return w;
}

}  // namespace sluice

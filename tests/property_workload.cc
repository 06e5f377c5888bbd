#include "property_workload.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "core/policy.h"
#include "engine/masks.h"
#include "tiny_constraints.h"

namespace sluice {

namespace {

// The model's own groups, or any that keep as much: a layer with a window may be kept in full.
CacheGroups pick_groups(std::mt19937_64& rng, const ModelShape& shape) {
  if (rng() % 2) return cache_groups(shape);
  std::vector<int> windows = shape.windows;
  for (int& w : windows) w = rng() % 3 ? w : 0;
  int planes = 1 + static_cast<int>(rng() % static_cast<uint64_t>(shape.num_layers));
  return split_layers(windows, planes);
}

}  // namespace

Workload make_workload(std::mt19937_64& rng, const Subject& subject) {
  const ModelShape& shape = subject.models[0]->shape();
  int vocab = shape.vocab;
  auto pick = [&](int lo, int hi) {
    return lo + static_cast<int>(rng() % static_cast<uint64_t>(hi - lo + 1));
  };
  auto chance = [&](int percent) { return pick(1, 100) <= percent; };
  Workload w;
  std::vector<Token> family;
  for (int i = 0; i < 64; ++i) family.push_back(pick(0, vocab - 1));
  int num = pick(1, 9), longest = 0;
  for (int i = 0; i < num; ++i) {
    Request r;
    r.id = static_cast<RequestId>(i + 1);
    auto prompt = std::make_shared<std::vector<Token>>();
    int len = chance(10) ? 1 : pick(1, 70), shared = chance(50) ? pick(0, std::min(len, 64)) : 0;
    for (int p = 0; p < len; ++p)
      prompt->push_back(p < shared ? family[static_cast<size_t>(p)] : pick(0, vocab - 1));
    r.prompt = prompt;
    auto spec = std::make_shared<SamplingSpec>();
    spec->temperature = chance(50) ? 0 : 0.8f;
    spec->seed = rng();
    if (chance(30)) spec->top_k = pick(1, 20);
    if (chance(30)) spec->top_p = 0.9f;
    if (chance(20)) spec->repetition_penalty = 1.2f;
    if (chance(20)) spec->frequency_penalty = 0.5f;
    if (chance(20)) spec->min_tokens = pick(1, 8);
    if (chance(50)) spec->num_logprobs = pick(0, 3);
    if (chance(20)) spec->prompt_logprobs = pick(0, 2);
    if (chance(40)) r.stop.tokens = {pick(0, vocab - 1), pick(0, vocab - 1), pick(0, vocab - 1)};
    spec->banned_until_min = r.stop.tokens;
    r.sampling = spec;
    r.max_new = pick(1, 24);
    r.n = chance(20) ? pick(2, 4) : 1;
    if (chance(30)) {
      r.constraint = tiny_constraint(pick(0, kNumTinyConstraints - 1), vocab);
      if (chance(60)) {  // what tokens may be forced under
        spec->repetition_penalty = 1, spec->frequency_penalty = 0;
        spec->num_logprobs = -1, spec->min_tokens = 0;
      }
      add_end_tokens(r);
    }
    if (chance(20)) {
      r.constraint = nullptr;
      r.pooling = chance(50) ? Pooling::mean : Pooling::last;
      r.max_new = 0;
      r.n = 1;
      r.sampling = std::make_shared<const SamplingSpec>();
    }
    r.priority = pick(0, 2);
    r.tenant = chance(20) ? 1 : 0;
    r.account = static_cast<TenantId>(pick(0, 2));
    longest = std::max(longest, len + r.max_new);
    if (chance(10)) w.cancel_at[r.id] = pick(0, 30);
    w.requests.push_back(std::move(r));
  }
  SchedulerConfig& c = w.setup.scheduler;
  auto any = [&](const std::vector<std::string>& names) {
    return names[static_cast<size_t>(pick(0, static_cast<int>(names.size()) - 1))];
  };
  apply_preset(any(preset_names()), c).value();
  c.order = *value_named(kOrders, any(names_in(kOrders)));
  if (chance(40)) c.admission = *value_named(kAdmissions, any(names_in(kAdmissions)));
  c.predictor = {static_cast<Predict>(pick(0, 4)), pick(1, 24), 0.5f};
  c.block_size = 8 << pick(0, 2);
  c.max_len = 128;
  c.budget = pick(1, 4) == 1 ? pick(4, 12) : pick(16, 100);
  c.chunk = chance(50) ? pick(1, 20) : 0;
  c.short_share = chance(50) ? 0.25f : 0;
  c.mixed_budget = chance(30) ? pick(1, 30) : 0;
  c.max_seqs = pick(1, 8);
  c.prefix_cache = chance(60);
  c.prefill_delay = chance(20) ? pick(1, 8) : 0;
  c.prefill_batch = chance(20) ? pick(1, 3) : 0;
  c.watermark = chance(50) ? 0.0f : 0.1f;
  if (chance(60)) {
    c.preempt = chance(70) ? Preempt::swap : Preempt::recompute;
    if (chance(20)) c.swap_cost = {1, 1, 8};
    c.tiers.swap = c.preempt == Preempt::swap ? pick(1, 40) : 0;
    c.tiers.host = c.prefix_cache && chance(60) ? pick(1, 40) : 0;
  }
  w.setup.groups = pick_groups(rng, shape);
  c.group_windows = w.setup.groups.windows;
  if (int draw = pick(0, 5); draw < 3) {
    c.allocator = draw == 0   ? KvAllocator::reserve
                  : draw == 1 ? KvAllocator::range
                              : KvAllocator::virtual_;
    c.prefix_cache = false;
    c.preempt = Preempt::recompute;
    c.tiers = {};
    for (Request& r : w.requests) {
      r.n = 1;
      r.predicted_output = chance(30) ? 0 : pick(1, 24);
    }
    if (c.allocator == KvAllocator::reserve) longest = c.max_len;
    if (c.mapped() && c.admission == Admission::predicted_peak) c.admission = Admission::watermark;
    c.pages.block_bytes = static_cast<int64_t>(shape.num_kv_heads) *
                          static_cast<int64_t>(subject.kv.head_bytes(shape.head_dim, c.block_size));
    c.pages.page_bytes = static_cast<int64_t>(subject.backends[0]->page_bytes());
  }
  c.pipeline = *value_named(kPipelines, any(names_in(kPipelines)));
  auto least = static_cast<int>(Scheduler::most_blocks(longest, c));
  c.num_blocks = least + (chance(60) ? pick(0, 4 * w.setup.groups.num_groups()) : 200);
  w.setup.threads = pick(1, kMaxThreads);
  w.setup.forced = chance(70);
  w.join_every = pick(0, 4);
  if (c.prefix_cache && chance(25)) c.tiers.disk = pick(1, 60);
  // By the time that steps really take.
  if (chance(40) && (c.pipeline.depth == 0 || c.pipeline.chained))
    c.slo.itl = std::chrono::microseconds(pick(1, 2000));
  return w;
}

void move_much(std::mt19937_64& rng, Workload& w) {
  SchedulerConfig& c = w.setup.scheduler;
  c.allocator = KvAllocator::paged;
  c.slo = {};  // what is counted below must not depend on the machine
  c.prefix_cache = true;
  c.admission = Admission::watermark;
  c.preempt = Preempt::swap;
  c.swap_cost = {};
  c.tiers = {40, 80, 0, c.tiers.disk};
  std::vector<Request> all = std::move(w.requests);
  w.requests.clear();
  int longest = 0;
  for (RequestId id = 1; id <= 9; ++id) {
    Request r = all[id % all.size()];
    auto prompt = std::make_shared<std::vector<Token>>(*all[id % 3 % all.size()].prompt);
    prompt->resize(std::min<size_t>(prompt->size() + 10, 64), static_cast<Token>(rng() % 20));
    r.id = id;
    r.prompt = prompt;
    r.tenant = rng() % 8 == 0;
    longest = std::max(longest, static_cast<int>(prompt->size()) + r.max_new);
    w.requests.push_back(std::move(r));
  }
  c.num_blocks = static_cast<int>(Scheduler::most_blocks(longest, c));
  w.cancel_at = {{static_cast<RequestId>(1 + rng() % 9), static_cast<int>(rng() % 30)}};
}

void search_with_beams(std::mt19937_64& rng, Workload& w) {
  SchedulerConfig& c = w.setup.scheduler;
  c.allocator = KvAllocator::paged;
  c.max_seqs = std::max(c.max_seqs, 4);
  c.budget = std::max(c.budget, 4);
  c.num_blocks = 0;
  for (Request& r : w.requests) {
    if (rng() % 2 && r.pooling == Pooling::none) {
      r.n = 1 + static_cast<int>(rng() % 4);
      r.constraint = nullptr;
      r.sampling = std::make_shared<const SamplingSpec>();
      r.beams = BeamSpec{static_cast<float>(rng() % 3), static_cast<BeamEnd>(rng() % 3)};
    }
    auto positions = static_cast<int>(r.prompt->size()) + r.max_new;
    int rows = (positions + c.block_size - 1) / c.block_size;
    c.num_blocks = std::max({c.num_blocks, r.n * rows * w.setup.groups.num_groups(),
                             static_cast<int>(Scheduler::most_blocks(positions, c))});
  }
  c.num_blocks += static_cast<int>(rng() % 20);
}

void bound_thinking(uint64_t seed, int vocab, Workload& w) {
  std::mt19937_64 rng(seed ^ 0x7468696e6b);
  for (Request& r : w.requests) {
    const uint64_t draw = rng();
    if (draw % 4 != 0 || r.beams || r.pooling != Pooling::none) continue;
    r.thinking = tiny_thinking(vocab, draw / 4 % 4 != 0, static_cast<int>(draw / 16 % 8));
    auto spec = std::make_shared<SamplingSpec>(*r.sampling);
    spec->min_tokens = 0;  // it could forbid the end mark
    spec->banned_until_min.clear();
    r.sampling = std::move(spec);
    add_end_tokens(r);
  }
}

void keep_in_the_pool(std::mt19937_64&, Workload& w) {
  SchedulerConfig& c = w.setup.scheduler;
  c.pipeline = Pipeline::sync;
  c.preempt = Preempt::recompute;
  c.tiers = {};
  if (c.mapped()) c.allocator = KvAllocator::range;
}

}  // namespace sluice

#include "core/scheduler_state.h"

#include <algorithm>
#include <utility>

#include "core/policy.h"

namespace sluice {

namespace {

// Core never looks inside a constraint, only whether there is one.
std::shared_ptr<const constrain::Constraint> some_constraint() {
  static const std::shared_ptr<const int> owner = std::make_shared<const int>(0);
  return {owner, reinterpret_cast<const constrain::Constraint*>(owner.get())};
}

void request_fields(auto& io, auto& r) {
  constexpr bool reads = std::decay_t<decltype(io)>::kReads;
  io.number(r.id);
  io.number(r.max_new);
  io.number(r.predicted_output);
  io.number(r.n);
  io.choice(r.pooling, static_cast<int>(Pooling::mean) + 1);
  io.number(r.priority);
  io.number(r.tenant);
  io.number(r.account);
  io.time(r.arrival);
  io.time(r.deadline);
  bool searches = r.beams.has_value(), strings = !r.stop.strings.empty(), masked = r.masked();
  io.flag(searches), io.flag(strings), io.flag(masked);
  if constexpr (reads) {
    if (searches) r.beams.emplace();
    if (strings) r.stop.strings = {kReplayStop};
    if (masked) r.constraint = some_constraint();
    std::vector<Token> prompt;
    token_list(io, prompt);
    r.prompt = std::make_shared<const std::vector<Token>>(std::move(prompt));
  } else {
    token_list(io, *r.prompt);
  }
  if (r.beams) {
    io.real(r.beams->length_penalty);
    io.choice(r.beams->end, static_cast<int>(BeamEnd::never) + 1);
  }
  token_list(io, r.stop.tokens);
}

void read_request(Reader& io, Request& r) {
  request_fields(io, r);
  SamplingSpec spec;
  sampling_fields(io, spec);
  r.sampling = std::make_shared<const SamplingSpec>(std::move(spec));
  if (r.prompt->empty()) io.fail("a request has no prompt");
  if (r.n < 1 || r.n > UINT16_MAX) io.fail("a request has no valid number of choices");
  if (r.pooling != Pooling::none && (r.max_new != 0 || r.n != 1))
    io.fail("a request for a vector samples tokens");
}

void config_fields(auto& io, auto& c) {
  io.choice(c.batching, 2);
  io.choice(c.prefill, 2);
  io.choice(c.mix, 3);
  io.choice(c.order, 5);
  io.time(c.aging);
  io.choice(c.admission, 3);
  io.choice(c.predictor.kind, 5);
  io.number(c.predictor.tokens);
  io.real(c.predictor.quantile);
  io.choice(c.allocator, 4);
  io.number(c.budget);
  io.number(c.chunk);
  io.number(c.mixed_budget);
  io.time(c.slo.itl);
  io.real(c.slo.itl_quantile);
  io.time(c.slo.ttft);
  io.real(c.slo.ttft_quantile);
  io.real(c.short_share);
  io.number(c.max_seqs);
  io.number(c.prefill_delay);
  io.number(c.prefill_batch);
  io.time(c.fill_wait);
  io.number(c.max_len);
  io.number(c.num_blocks);
  io.number(c.block_size);
  io.number(c.pages.block_bytes);
  io.number(c.pages.page_bytes);
  io.number(c.pages.slot_blocks);
  if constexpr (std::decay_t<decltype(io)>::kReads) c.group_windows.clear();
  io.list(c.group_windows, [](auto& i, auto& w) { i.number(w); });
  io.real(c.watermark);
  io.flag(c.prefix_cache);
  io.choice(c.preempt, 2);
  io.real(c.swap_cost.move_block);
  io.real(c.swap_cost.compute_token);
  io.real(c.swap_cost.delay);
  io.number(c.tiers.swap);
  io.number(c.tiers.host);
  io.number(c.tiers.block_bytes);
  io.number(c.tiers.disk);
  io.number(c.max_queued);
  io.number(c.pipeline.depth);
  io.flag(c.pipeline.chained);
  io.number(c.pipeline.lanes);
  io.number(c.sampling.logit_bias);
  io.number(c.sampling.banned_until_min);
  io.number(c.sampling.bad_length);
  io.number(c.sampling.bad_tokens);
  io.number(c.sampling.num_logprobs);
  io.number(c.sampling.logprob_ids);
}

constexpr int kMost = 1 << 26;  // of blocks, positions, slots

bool in(int64_t x, int64_t lo, int64_t hi) { return x >= lo && x <= hi; }

}  // namespace

std::shared_ptr<const TokenText> replay_text(int vocab) {
  auto text = std::make_shared<TokenText>();
  for (int t = 0; t < vocab; ++t) text->add({});
  text->add(kReplayStop);
  return text;
}

void encode_request(const Request& r, const SamplingSpec& asked, Bytes& out, const TokenMap* map) {
  Writer w(out, map);
  request_fields(w, r);
  sampling_fields(w, asked);
}

Result<Request> decode_request(std::span<const std::byte> bytes) {
  Reader io(bytes);
  Request r;
  read_request(io, r);
  if (io.ok() && !io.at_end()) io.fail("bytes follow its end");
  if (!io.ok()) return io.error("request");
  return r;
}

void encode_config(const SchedulerConfig& config, Bytes& out) {
  Writer w(out);
  config_fields(w, config);
}

Result<SchedulerConfig> decode_config(std::span<const std::byte> bytes) {
  Reader io(bytes);
  SchedulerConfig c;
  config_fields(io, c);
  if (io.ok() && !io.at_end()) io.fail("bytes follow its end");
  if (!io.ok()) return io.error("settings of the scheduler");
  return c;
}

Result<void> check_config(const SchedulerConfig& c) {
  auto bad = [](const char* what) {
    return Error{400, strf("the settings of the scheduler have no valid %s", what)};
  };
  if (!in(c.budget, 1, kMost)) return bad("budget");
  if (!in(c.max_seqs, 1, 1 << 20)) return bad("number of sequences");
  if (!in(c.block_size, 1, 1 << 16) || !in(c.num_blocks, 0, kMost) ||
      int64_t{c.num_blocks} * c.block_size > int64_t{1} << 31)
    return bad("number of blocks");
  if (!in(c.max_len, 1, kMost)) return bad("context length");
  if (!in(std::ssize(c.group_windows), 1, kMaxCacheGroups) ||
      std::ranges::any_of(c.group_windows, [](int w) { return w < 0 || w > kMost; }))
    return bad("cache groups");
  if (!in(c.pipeline.depth, 0, UINT8_MAX - 1) || !c.pipeline.valid()) return bad("pipeline");
  if (!in(c.tiers.swap, 0, kMost) || !in(c.tiers.host, 0, kMost) || !in(c.tiers.disk, 0, kMost) ||
      (c.tiers.total() > 0 && int64_t{c.tiers.total()} * c.block_size > int64_t{1} << 31))
    return bad("places outside the pool");
  if (c.chunk < 0 || c.mixed_budget < 0 || c.prefill_delay < 0 || c.prefill_batch < 0 ||
      c.max_queued < 0 || c.aging < Time{0} || c.fill_wait < Time{0} || c.slo.itl < Time{0} ||
      c.slo.ttft < Time{0})
    return bad("sizes of steps: one is negative");
  if (!(c.short_share >= 0 && c.short_share <= 1) || !(c.watermark >= 0 && c.watermark <= 1) ||
      !(c.predictor.quantile > 0 && c.predictor.quantile < 1))
    return bad("shares: one is not between 0 and 1");
  if (c.aging > std::chrono::hours(24 * 365)) return bad("aging");
  if (!in(c.pages.block_bytes, 1, int64_t{1} << 36) || !in(c.pages.page_bytes, 1, int64_t{1} << 36))
    return bad("sizes of pages");
  int64_t slots = std::min(c.max_seqs, c.budget);
  if (c.mapped() && (!in(c.pages.slot_blocks, 0, kMost) ||
                     (slots + 1) * std::ssize(c.group_windows) *
                             std::max<int64_t>(c.pages.slot_blocks, c.max_len + 1) >
                         INT32_MAX))
    return bad("sizes of slots");
  return check_allocator(c);
}

// Reads and writes the private parts of a scheduler; a friend of all that have some.
struct SchedulerState {
  using Index = Scheduler::Index;
  static constexpr Index kNone = Scheduler::kNone;

  // A bit field, or anything that cannot be referred to.
  template <typename Io>
  static bool bit(Io& io, bool value) {
    io.flag(value);
    return value;
  }
  static void ids(auto& io, auto& list) {
    io.list(list, [](auto& i, auto& x) { i.number(x); });
  }
  static void hash(auto& io, auto& h) { io.number(h.a), io.number(h.b); }

  static void table(auto& io, auto& t) {
    ids(io, t.cells_);
    io.number(t.ready_);
    io.number(t.slid_);
  }

  static void timing(auto& io, auto& t) {
    io.time(t.arrival), io.time(t.first_scheduled), io.time(t.first_token);
    io.time(t.last_token), io.time(t.finish);
    io.number(t.num_preemptions), io.number(t.num_steps), io.number(t.num_cached);
  }

  static void sequence(auto& io, auto& s) {
    io.choice(s.phase, static_cast<int>(Phase::done) + 1);
    io.number(s.epoch);
    if (s.phase == Phase::free) return;
    if constexpr (std::decay_t<decltype(io)>::kReads) {
      s.fetching = bit(io, false), s.fork_pending = bit(io, false);
      s.constrained = bit(io, false), s.beam = bit(io, false);
      s.parked = bit(io, false), s.forced = bit(io, false);
    } else {
      for (bool b : {bool{s.fetching}, bool{s.fork_pending}, bool{s.constrained}, bool{s.beam},
                     bool{s.parked}, bool{s.forced}})
        io.flag(b);
    }
    io.choice(s.pooling, static_cast<int>(Pooling::mean) + 1);
    io.number(s.in_flight);
    io.number(s.slot);
    io.number(s.planned), io.number(s.computed), io.number(s.unknown);
    io.number(s.num_prompt), io.number(s.max_new), io.number(s.min_tokens);
    io.number(s.predicted_output), io.number(s.num_scored), io.number(s.num_registered);
    io.number(s.planned_step);
    io.number(s.id.req), io.number(s.id.choice);
    token_list(io, s.output);
    table(io, s.table);
    timing(io, s.timing);
    hash(io, s.last_hash);
    io.number(s.choices);
    io.number(s.reserved);
  }

  static void choices(auto& io, auto& c) {
    bool live = c.request != nullptr;
    io.flag(live);
    if (!live) return;
    if constexpr (std::decay_t<decltype(io)>::kReads) {
      auto r = std::make_shared<Request>();
      read_request(io, *r);
      c.request = r;
    } else {
      request_fields(io, *c.request);
      sampling_fields(io, *c.request->sampling);
    }
    ids(io, c.seqs);
    io.number(c.num_live), io.number(c.num_records), io.number(c.account);
  }

  // References, and both lists of those without any, which say the rest.
  static void pool(auto& io, auto& p) {
    if constexpr (std::decay_t<decltype(io)>::kReads) {
      read_pool(io, p);
    } else {
      for (size_t b = 1; b < p.nodes_.size(); ++b) {
        io.number(static_cast<uint32_t>(p.nodes_[b].refs) * 2 + (p.nodes_[b].cached ? 1u : 0u));
      }
      ids(io, p.free_);
      for (BlockId b = p.nodes_[0].next; b != kNullBlock; b = p.nodes_[static_cast<size_t>(b)].next)
        io.number(b);
      io.number(kNullBlock);
    }
  }
  static void read_pool(Reader& io, BlockPool& p) {
    size_t idle_cached = 0, idle_free = 0;
    for (size_t b = 1; b < p.nodes_.size() && io.ok(); ++b) {
      uint32_t v = 0;
      io.number(v);
      if (v / 2 > kMost) return io.fail("a block has too many references");
      p.nodes_[b] = {static_cast<int32_t>(v / 2), v % 2 == 1};
      if (v / 2 == 0) ++(v % 2 ? idle_cached : idle_free);
    }
    std::vector<BlockId> free;
    ids(io, free);
    std::vector<bool> seen(p.nodes_.size());
    auto take = [&](BlockId b, bool cached) {
      if (b <= 0 || b > p.total_ || seen[static_cast<size_t>(b)])
        return io.fail("a list of blocks names one twice or one that is not there");
      seen[static_cast<size_t>(b)] = true;
      const BlockPool::Node& n = p.nodes_[static_cast<size_t>(b)];
      if (n.refs != 0 || n.cached != cached) io.fail("a block is in the wrong list");
    };
    for (BlockId b : free) take(b, false);
    if (free.size() != idle_free) return io.fail("a free block is in no list");
    p.free_.assign(free.begin(), free.end());
    p.num_cached_ = 0;
    for (BlockId b = -1; io.ok();) {
      io.number(b);
      if (!io.ok() || b == kNullBlock) break;
      take(b, true);
      if (io.ok()) p.link_newest(b);
    }
    if (static_cast<size_t>(p.num_cached_) != idle_cached) io.fail("a cached block is in no list");
  }

  // The cached blocks of a pool, with what they hold.
  static void index(auto& io, const BlockPool& p, auto& index, int block_size, int groups) {
    for (BlockId b = 1; b <= p.total() && io_ok(io); ++b) {
      if (!p.cached(b)) continue;
      if constexpr (std::decay_t<decltype(io)>::kReads) {
        PrefixKey key;
        std::vector<Token> tokens(static_cast<size_t>(block_size));
        hash(io, key.hash);
        io.number(key.group), io.number(key.tenant);
        for (Token& t : tokens) io.token(t);
        if (!io.ok()) return;
        if (key.group < 0 || key.group >= groups) return io.fail("a cached block has no group");
        if (!index.insert(key, tokens, b)) return io.fail("two blocks hold the same content");
      } else {
        const PrefixKey& key = index.key(b);
        hash(io, key.hash);
        io.number(key.group), io.number(key.tenant);
        for (Token t : index.tokens(b)) io.token(t);
      }
    }
  }
  static bool io_ok(const Writer&) { return true; }
  static bool io_ok(const Reader& r) { return r.ok(); }

  static void places(auto& io, auto& p, int block_size, int groups) {
    pool(io, p.places_);
    index(io, p.places_, p.index_, block_size, groups);
  }

  static void blocks(auto& io, auto& b, int block_size, int groups) {
    pool(io, b.pool);
    index(io, b.pool, b.index, block_size, groups);
    pool(io, b.tiers.swap_);
    places(io, b.tiers.host_, block_size, groups);
    places(io, b.tiers.disk_, block_size, groups);
    io.list(b.moves.planned_, [](auto& i, auto& t) { transfer_fields(i, t); });
    io.list(b.moves.moving_, [](auto& i, auto& m) {
      transfer_fields(i, m.transfer);
      i.number(m.seq), i.number(m.epoch);
    });
    io.number(b.moves.next_);
    io.number(b.promised_);
  }

  static void ranges(auto& io, auto& r) {
    if constexpr (std::decay_t<decltype(io)>::kReads) r.free_.clear();
    io.list(r.free_, [](auto& i, auto& range) { i.number(range.first), i.number(range.size); });
    io.number(r.num_free_);
  }
  static void pages(auto& io, auto& p) {
    io.number(p.free_), io.number(p.used_), io.flag(p.any_changed_);
    for (auto& s : p.slots_) io.number(s.used), io.number(s.mapped), io.flag(s.changed);
  }

  static void beams(auto& io, auto& g) {
    auto& b = g.search;
    io.number(b.width_), io.number(b.max_new_), io.number(b.length_);
    io.real(b.spec_.length_penalty);
    io.choice(b.spec_.end, static_cast<int>(BeamEnd::never) + 1);
    token_list(io, b.end_tokens_);
    if constexpr (std::decay_t<decltype(io)>::kReads) b.beams_.clear();
    io.list(b.beams_,
            [](auto& i, auto& x) { i.number(x.parent), i.token(x.token), i.real(x.logprob); });
    io.list(b.answers_, [](auto& i, auto& a) {
      token_list(i, a.tokens);
      i.real(a.score), i.flag(a.ended);
    });
    ids(io, g.seqs);
    io.list(g.options, [](auto& i, auto& row) {
      i.list(row, [](auto& j, auto& o) { j.token(o.token), j.real(o.logprob); });
    });
    io.number(g.num_parked), io.number(g.promised), io.number(g.held_slots);
    io.flag(g.chosen);
  }

  static void load(auto& io, auto& l) {
    io.number(l.tokens), io.number(l.context), io.number(l.attended);
  }
  static void flight(auto& io, auto& f) {
    io.number(f.step);
    io.time(f.scheduled);
    load(io, f.slo.load);
    io.number(f.slo.num_decode);
    io.real(f.slo.predicted);
    io.list(f.items, [](auto& i, auto& item) {
      i.number(item.seq), i.number(item.epoch), i.number(item.pos), i.number(item.count);
      i.choice(item.want, static_cast<int>(Want::pool) + 1);
    });
    io.flag(f.lost);
  }

  static void accounts(auto& io, auto& a) {
    io.list(a.entries_, [](auto& i, auto& e) {
      i.number(e.id), i.number(e.charged), i.number(e.num_live), i.number(e.num_waiting);
    });
    io.number(a.last_left_);
  }
  static void lengths(auto& io, auto& h) {
    io.number(h.total_);
    if (h.total_ == 0) return;
    for (auto& n : h.counts_) io.number(n);
  }
  static void predictor(auto& io, auto& p) {
    lengths(io, p.all_);
    for (auto& k : p.known_) io.number(k.account), lengths(io, k.lengths);
  }
  static void slo(auto& io, auto& s) {
    auto& m = s.model_;
    io.number(m.count_);
    for (auto& row : m.xx_) {
      for (auto& x : row) io.real(x);
    }
    for (auto& x : m.xy_) io.real(x);
    io.real(m.yy_), io.real(m.y_), io.real(m.weight_);
    for (auto& x : m.fit_) io.real(x);
    for (auto& e : s.errors_) io.real(e);
    io.number(s.num_errors_);
    io.real(s.margin_), io.real(s.median_), io.real(s.late_rows_), io.real(s.rows_);
    io.number(s.most_seen_), io.number(s.num_prompt_steps_);
    for (auto& n : s.num_timed_) io.number(n);
    io.number(s.num_plain_);
    io.time(s.last_end_);
    auto& t = s.stats_;
    io.number(t.prompt_tokens), io.real(t.predicted), io.real(t.step_target);
    io.number(t.num_learnt), io.real(t.last_predicted), io.real(t.last_seconds), io.real(t.late);
  }
  static void totals(auto& io, auto& s) {
    io.number(s.num_preemptions_), io.number(s.prefix_queries_), io.number(s.prefix_hits_);
    auto& t = s.tier_totals_;
    io.number(t.num_swapped), io.number(t.num_restored), io.number(t.blocks_out);
    io.number(t.blocks_in), io.number(t.prefix_hits), io.number(t.disk_writes);
    io.number(t.disk_reads), io.number(t.disk_lost), io.number(t.disk_hits);
  }

  // In the order of scheduler.h. What plan() and complete() use for themselves is left out.
  static void all(auto& io, auto& s) {
    blocks(io, s.blocks_, s.config_.block_size, s.layout_.num_groups);
    if (s.config_.ranged()) ranges(io, s.ranges_);
    if (s.config_.mapped()) pages(io, s.pages_);
    io.list(s.seqs_, [](auto& i, auto& x) { sequence(i, x); });
    io.list(s.standings_, [](auto& i, auto& x) {
      i.number(x.rank), i.number(x.account), i.number(x.num_charged);
    });
    ids(io, s.free_seqs_);
    io.list(s.choices_, [](auto& i, auto& c) { choices(i, c); });
    ids(io, s.free_choices_);
    ids(io, s.waiting_);
    ids(io, s.running_);
    if constexpr (std::decay_t<decltype(io)>::kReads) s.free_slots_.clear();
    ids(io, s.free_slots_);
    if constexpr (std::decay_t<decltype(io)>::kReads) {
      uint64_t num = 0;
      io.number(num);
      for (; num > 0 && io.ok(); --num) {
        uint32_t c = 0;
        io.number(c);
        auto [at, fresh] = s.beams_.try_emplace(c);
        if (!fresh) return io.fail("a search is there twice");
        beams(io, at->second);
      }
    } else {
      io.list(s.beams_, [](auto& i, auto& e) { i.number(e.first), beams(i, e.second); });
    }
    io.number(s.held_slots_);
    io.list(s.closing_, [](auto& i, auto& r) { row_op_fields(i, r); });
    io.list(s.flights_, [](auto& i, auto& f) { flight(i, f); });
    io.list(s.pending_, [](auto& i, auto& p) { i.number(p.step), i.number(p.block); });
    io.list(s.away_, [](auto& i, auto& a) {
      ids(i, a.places);
      i.number(a.positions), i.number(a.num_coming), i.flag(a.lost), i.flag(a.counted);
    });
    io.list(s.claims_, [](auto& i, auto& c) {
      i.number(c.range.first), i.number(c.range.size), i.number(c.predicted);
    });
    io.list(s.pending_ranges_, [](auto& i, auto& p) {
      i.number(p.step), i.number(p.range.first), i.number(p.range.size);
    });
    io.list(s.pending_slots_, [](auto& i, auto& p) { i.number(p.step), i.number(p.slot); });
    io.number(s.blocked_), io.number(s.blocked_available_), io.number(s.reserved_);
    io.flag(s.decode_blocked_), io.flag(s.prefill_blocked_);
    io.flag(s.forming_), io.flag(s.joining_);
    io.number(s.next_step_);
    io.time(s.next_deadline_), io.time(s.next_aging_), io.time(s.fill_until_);
    accounts(io, s.accounts_);
    predictor(io, s.predictor_);
    if (s.config_.slo.any()) slo(io, s.slo_);
    totals(io, s);
  }

  // What is derived from the rest.
  static void derive(Scheduler& s) {
    for (uint32_t c = 0; c < s.choices_.size(); ++c) {
      Choices& choices = s.choices_[c];
      if (!choices.request) continue;
      auto r = std::make_shared<Request>(*choices.request);
      if (s.config_.prefix_cache)
        r->block_hashes = hash_blocks(*r->prompt, s.config_.block_size, r->tenant);
      choices.request = std::move(r);
      if (choices.num_live == 0) continue;
      s.choices_of_[choices.request->id] = c;
      ++s.requests_live_;
      s.num_constrained_ += choices.request->masked();
    }
    for (Sequence& x : s.seqs_) {
      if (x.phase == Phase::free) continue;
      x.request = s.choices_[x.choices].request.get();
      x.stop = StopMatcher(x.request->stop.strings);
      x.output.reserve(static_cast<size_t>(std::max(x.max_new, 0)));
    }
  }

  static const char* fault(const Scheduler& s);
  static const char* fault(const Scheduler& s, Index i);
  static const char* fault_in_lists(const Scheduler& s);
  static const char* fault_in_blocks(const Scheduler& s);
  static const char* fault_in_ranges(const Scheduler& s);
  static const char* fault_in_pages(const Scheduler& s);
  static const char* fault_in_flights(const Scheduler& s);
  static const char* fault_in_tiers(const Scheduler& s);
  static const char* fault_in_beams(const Scheduler& s);
};

// ---- whether the parts agree ----

namespace {

constexpr size_t kMaxFlights = 200;
constexpr int64_t kManyPositions = int64_t{1} << 30;

}  // namespace

const char* SchedulerState::fault(const Scheduler& s, Index i) {
  const Sequence& x = s.seqs_[i];
  if (x.choices >= s.choices_.size() || !s.choices_[x.choices].request)
    return "a sequence has no request";
  const Request& r = *s.choices_[x.choices].request;
  const auto& seqs = s.choices_[x.choices].seqs;
  if (x.id.req != r.id || x.id.choice >= r.n || x.id.choice >= seqs.size() ||
      seqs[x.id.choice] != i)
    return "a sequence is not its request's";
  if (x.num_prompt != std::ssize(*r.prompt) || x.max_new != r.max_new ||
      x.min_tokens != r.sampling->min_tokens || x.pooling != r.pooling ||
      x.beam != r.beams.has_value() || x.constrained != r.masked())
    return "a sequence differs from its request";
  if (x.max_new < 0 || x.num_prompt + int64_t{x.max_new} > s.config_.max_len ||
      std::ssize(x.output) > x.max_new)
    return "a sequence is too long";
  int64_t known = s.known_len(x);
  if (!in(x.unknown, 0, kManyPositions) || !in(x.planned, 0, known + x.unknown) ||
      !in(x.computed, 0, x.planned) || !in(x.num_scored, 0, known) ||
      !in(x.num_registered, 0, x.computed / s.config_.block_size + 1) ||
      int64_t{x.num_registered} * s.config_.block_size > known ||
      !in(x.predicted_output, 0, kManyPositions) || !in(x.reserved, 0, kManyPositions))
    return "a sequence has impossible progress";
  if (x.slot >= static_cast<Slot>(s.config_.max_seqs)) return "a sequence has no valid slot";
  auto cells = x.table.cells_.size(), groups = static_cast<size_t>(s.layout_.num_groups);
  if (cells % groups != 0) return "a block table has half a row";
  auto rows = static_cast<int64_t>(cells / groups);
  if (!in(x.table.ready_, 0, rows) || !in(x.table.slid_, 0, kManyPositions))
    return "a block table has impossible progress";
  if (x.phase == Phase::running && rows * s.config_.block_size < x.planned)
    return "a running sequence has fewer blocks than positions";
  if (x.phase != Phase::running && cells != 0) return "a sequence that waits has blocks";
  return nullptr;
}

const char* SchedulerState::fault_in_lists(const Scheduler& s) {
  std::vector<uint8_t> listed(s.seqs_.size());
  auto list = [&](const std::vector<Index>& all, Phase phase) {
    return std::ranges::all_of(all, [&](Index i) {
      return i < s.seqs_.size() && s.seqs_[i].phase == phase && !std::exchange(listed[i], 1);
    });
  };
  if (!list(s.free_seqs_, Phase::free) || !list(s.waiting_, Phase::waiting) ||
      !list(s.running_, Phase::running))
    return "a list names a sequence twice or one of another kind";
  for (size_t i = 0; i < s.seqs_.size(); ++i) {
    Phase p = s.seqs_[i].phase;
    if ((p == Phase::waiting || p == Phase::running || p == Phase::free) && !listed[i])
      return "a sequence is in no list";
  }
  auto before = [&](Index a, Index b) { return s.before(a, b); };
  if (!std::is_sorted(s.running_.begin(), s.running_.end(), before) ||
      !std::is_sorted(s.waiting_.rbegin(), s.waiting_.rend(), before))
    return "a queue is not in order";
  std::vector<uint8_t> slots(static_cast<size_t>(s.config_.max_seqs));
  auto slot = [&](Slot x) { return x < slots.size() && !std::exchange(slots[x], 1); };
  for (Slot x : s.free_slots_) {
    if (!slot(x)) return "a free slot is there twice";
  }
  for (Index i : s.running_) {
    if (!slot(s.seqs_[i].slot)) return "two sequences have one slot";
  }
  for (const auto& p : s.pending_slots_) {
    if (!slot(p.slot)) return "a slot is given back twice";
  }
  if (!std::ranges::all_of(slots, [](uint8_t x) { return x == 1; })) return "a slot is nobody's";
  std::vector<uint8_t> chosen(s.choices_.size());
  for (uint32_t c : s.free_choices_) {
    if (c >= s.choices_.size() || s.choices_[c].request || std::exchange(chosen[c], 1))
      return "a list of requests is wrong";
  }
  if (s.blocked_ != kNone &&
      (s.blocked_ >= s.seqs_.size() || s.seqs_[s.blocked_].phase != Phase::waiting))
    return "the sequence that could not start does not wait";
  for (const RowOp& op : s.closing_) {
    if (op.kind != RowOp::close || op.slot >= slots.size()) return "a row to close is not valid";
  }
  return s.held_slots_ < 0 || static_cast<size_t>(s.held_slots_) > s.free_slots_.size()
             ? "more slots are held than free"
             : nullptr;
}

const char* SchedulerState::fault_in_blocks(const Scheduler& s) {
  const BlockPool& pool = s.blocks_.pool;
  std::vector<int> refs(static_cast<size_t>(pool.total()) + 1);
  int64_t promised = s.blocks_.promised_;
  auto hold = [&](BlockId b) {
    return b > 0 && b <= pool.total() && ++refs[static_cast<size_t>(b)] > 0;
  };
  for (const Sequence& x : s.seqs_) {
    if (x.phase != Phase::running) continue;
    promised -= x.table.promised(s.layout_of(x));
    for (BlockId b : x.table.blocks()) {
      if (b != kNullBlock && !hold(b)) return "a block table names a block that is not there";
    }
  }
  for (const auto& [c, group] : s.beams_) promised -= group.promised;
  if (promised != 0 || s.blocks_.promised_ < 0 || s.blocks_.promised_ > pool.available())
    return "promised blocks do not add up";
  uint64_t last = 0;
  for (const auto& p : s.pending_) {
    if (!hold(p.block)) return "a block that is given back is not there";
    if (p.step < last) return "blocks that are given back are not in order";
    last = p.step;
  }
  for (const Moving& m : s.blocks_.moves.moving_) {
    if (m.transfer.kind == Transfer::in && !hold(m.transfer.to))
      return "a block that comes in is not there";
  }
  for (BlockId b = 1; b <= pool.total(); ++b) {
    if (refs[static_cast<size_t>(b)] != pool.refs(b)) return "references of blocks do not add up";
  }
  return nullptr;
}

const char* SchedulerState::fault_in_ranges(const Scheduler& s) {
  const RangeAllocator& r = s.ranges_;
  int64_t free = 0;
  std::vector<uint8_t> held(static_cast<size_t>(r.total_) + 1);
  auto hold = [&](BlockRange x) {
    if (x.size == 0) return true;
    if (x.first < 1 || x.size < 0 || x.first - 1 > r.total_ - x.size) return false;
    for (BlockId b = x.first; b < x.end(); ++b) {
      if (std::exchange(held[static_cast<size_t>(b)], 1)) return false;
    }
    return true;
  };
  for (size_t k = 0; k < r.free_.size(); ++k) {
    const BlockRange& x = r.free_[k];
    if (x.size <= 0 || !hold(x) || (k > 0 && r.free_[k - 1].end() >= x.first))
      return "free ranges overlap or touch";
    free += x.size;
  }
  if (free != r.num_free_) return "free ranges do not add up";
  for (size_t i = 0; i < s.seqs_.size(); ++i) {
    const Sequence& x = s.seqs_[i];
    BlockRange range = s.claims_[i].range;
    if (s.claims_[i].predicted < 0) return "a range is for a negative output";
    if (x.phase != Phase::running) {
      if (range.size != 0) return "a sequence that waits has a range";
      continue;
    }
    if (!hold(range)) return "ranges of sequences overlap";
    const auto& cells = x.table.cells_;
    size_t taken = static_cast<size_t>(x.table.ready_ * s.layout_.num_groups);
    if (cells.size() > static_cast<size_t>(range.size)) return "a table is longer than its range";
    for (size_t k = 0; k < cells.size(); ++k) {
      if (cells[k] != (k < taken ? range.first + static_cast<BlockId>(k) : kNullBlock))
        return "a table is not its range";
    }
  }
  for (const auto& p : s.pending_ranges_) {
    if (p.range.size <= 0 || !hold(p.range)) return "ranges that are given back overlap";
  }
  return nullptr;
}

const char* SchedulerState::fault_in_pages(const Scheduler& s) {
  const SlotPages& p = s.pages_;
  int64_t mapped = 0, used = 0;
  for (const auto& slot : p.slots_) {
    if (slot.used < 0 || slot.mapped < slot.used) return "a slot uses pages that are not mapped";
    mapped += slot.mapped, used += slot.used;
  }
  if (p.free_ < 0 || p.used_ != used || mapped + p.free_ != p.total_) return "pages do not add up";
  for (Slot slot : s.free_slots_) {
    if (p.used(slot) != 0) return "a free slot has pages";
  }
  for (Index i : s.running_) {
    const Sequence& x = s.seqs_[i];
    if (s.config_.pages.pages_for(x.table.ready_) > p.used(x.slot))
      return "a table is longer than its pages";
    SlotBlocks all = s.slot_blocks(x.slot, 0);
    int taken = x.table.ready_ * s.layout_.num_groups;
    for (int k = 0; k < static_cast<int>(x.table.cells_.size()); ++k) {
      if (x.table.cells_[static_cast<size_t>(k)] != (k < taken ? all.at(k) : kNullBlock))
        return "a table is not its slot's";
    }
  }
  return nullptr;
}

const char* SchedulerState::fault_in_flights(const Scheduler& s) {
  std::vector<int> in_flight(s.seqs_.size());
  if (s.flights_.size() > kMaxFlights) return "too many steps are in flight";
  uint64_t last = 0;
  for (const auto& f : s.flights_) {
    if (f.step <= last || f.step >= s.next_step_) return "steps in flight are not in order";
    last = f.step;
    for (const auto& item : f.items) {
      if (item.seq >= s.seqs_.size() || s.seqs_[item.seq].phase == Phase::free)
        return "a step in flight names a sequence that is not there";
      if (item.pos < 0 || item.count < 1 || item.pos > kManyPositions || item.count > kMost)
        return "a step in flight has no valid positions";
      ++in_flight[item.seq];
    }
  }
  for (size_t i = 0; i < s.seqs_.size(); ++i) {
    const Sequence& x = s.seqs_[i];
    if (x.phase != Phase::free && x.in_flight != in_flight[i])
      return "steps in flight do not add up";
    if (x.phase == Phase::done && x.in_flight == 0) return "a sequence that is done stays";
  }
  return nullptr;
}

const char* SchedulerState::fault_in_tiers(const Scheduler& s) {
  const TierCache& tiers = s.blocks_.tiers;
  const TierSizes& sizes = s.config_.tiers;
  std::vector<int> refs(static_cast<size_t>(sizes.total()) + 1);
  auto hold = [&](PlaceId p, int most) {
    return p > 0 && p <= most && ++refs[static_cast<size_t>(p)] > 0;
  };
  for (size_t i = 0; i < s.away_.size(); ++i) {
    const auto& a = s.away_[i];
    if (s.seqs_[i].phase == Phase::free) continue;
    if (!in(a.positions, 0, kManyPositions) || a.num_coming < 0)
      return "a swapped sequence has impossible progress";
    if (!a.places.empty() &&
        std::ssize(a.places) != int64_t{s.blocks_for(a.positions)} * s.layout_.num_groups)
      return "a swapped sequence has too few places";
    if (a.places.empty() && a.positions != 0) return "a swapped sequence has no places";
    for (PlaceId p : a.places) {
      if (p != kNullBlock && !hold(p, sizes.swap)) return "a place is not there";
    }
  }
  TransferId last = 0;
  for (const Moving& m : s.blocks_.moves.moving_) {
    const Transfer& t = m.transfer;
    if (t.id <= last || t.id >= s.blocks_.moves.next_) return "transfers are not in order";
    last = t.id;
    if (t.kind == Transfer::out && !hold(t.to, sizes.total())) return "a place is not there";
    if (t.kind == Transfer::in && !hold(t.from, sizes.total())) return "a place is not there";
    if (t.kind == Transfer::in && (m.seq >= s.seqs_.size() || s.away_.empty()))
      return "a transfer is nobody's";
    if (t.kind == Transfer::send || t.kind == Transfer::receive)
      return "a transfer is of a kind that no scheduler plans";
  }
  for (const Transfer& t : s.blocks_.moves.planned_) {
    if (t.kind != Transfer::copy && sizes.total() == 0) return "a planned transfer has no place";
  }
  auto agree = [&](const BlockPool& pool, int first) {
    for (BlockId b = 1; b <= pool.total(); ++b) {
      if (pool.refs(b) != refs[static_cast<size_t>(first + b)]) return false;
    }
    return true;
  };
  if (!agree(tiers.swap_, 0) || !agree(tiers.host_.places_, sizes.swap) ||
      !agree(tiers.disk_.places_, sizes.memory()))
    return "references of places do not add up";
  return nullptr;
}

const char* SchedulerState::fault_in_beams(const Scheduler& s) {
  int held = 0;
  for (const auto& [c, g] : s.beams_) {
    if (c >= s.choices_.size() || !s.choices_[c].request || !s.choices_[c].request->beams ||
        s.choices_[c].num_live == 0)
      return "a search has no request";
    const Request& r = *s.choices_[c].request;
    const BeamSearch& b = g.search;
    if (b.width_ != r.n || b.max_new_ != r.max_new || b.max_new_ < 1 || b.length_ < 0)
      return "a search is not its request's";
    if (b.beams_.size() > static_cast<size_t>(r.n) || g.promised < 0 || g.held_slots < 0 ||
        !in(g.num_parked, 0, std::ssize(g.seqs)) || g.options.size() != g.seqs.size())
      return "a search has impossible progress";
    held += g.held_slots;
    for (Index i : g.seqs) {
      if (i >= s.seqs_.size() || s.seqs_[i].choices != c || s.seqs_[i].phase != Phase::running)
        return "a search names a sequence that does not run";
    }
    size_t parents = g.seqs.size();
    if (!g.chosen && !g.seqs.empty() && b.beams_.size() != parents)
      return "a search has other beams than sequences";
    for (const auto& beam : b.beams_) {
      if (g.chosen && (beam.parent < 0 || static_cast<size_t>(beam.parent) >= parents))
        return "a beam has no parent";
    }
    for (const auto& a : b.answers_) {
      if (a.tokens.empty() || std::ssize(a.tokens) > r.max_new) return "an answer is not valid";
    }
    if (b.answers_.size() > static_cast<size_t>(r.n)) return "a search has too many answers";
  }
  if (held != s.held_slots_) return "slots of searches do not add up";
  for (uint32_t c = 0; c < s.choices_.size(); ++c) {
    const Choices& x = s.choices_[c];
    if (x.num_live > 0 && x.request->beams && !s.beams_.contains(c)) return "a search is missing";
  }
  return nullptr;
}

const char* SchedulerState::fault(const Scheduler& s) {
  if (s.standings_.size() != s.seqs_.size() ||
      s.claims_.size() != (s.config_.ranged() ? s.seqs_.size() : 0) ||
      s.away_.size() != (s.config_.tiers.total() > 0 ? s.seqs_.size() : 0))
    return "sequences do not add up";
  std::vector<int> live(s.choices_.size()), records(s.choices_.size());
  for (Index i = 0; i < s.seqs_.size(); ++i) {
    const Sequence& x = s.seqs_[i];
    if (x.phase == Phase::free) continue;
    if (const char* why = fault(s, i)) return why;
    ++records[x.choices];
    live[x.choices] += x.phase != Phase::done;
    if (s.config_.order == Order::fair && s.standings_[i].account >= s.accounts_.entries_.size())
      return "a sequence has no account";
  }
  for (size_t c = 0; c < s.choices_.size(); ++c) {
    const Choices& x = s.choices_[c];
    if (!x.request) continue;
    if (x.num_live != live[c] || x.num_records != records[c] || x.num_records < 1 ||
        std::ssize(x.seqs) != x.request->n ||
        std::ranges::any_of(x.seqs, [&](Index i) { return i >= s.seqs_.size(); }))
      return "choices of a request do not add up";
    if (s.config_.order == Order::fair && x.account >= s.accounts_.entries_.size())
      return "a request has no account";
    if (auto ok = Scheduler::check(*x.request, s.config_);
        !ok && !(x.request->beams && x.num_live == 0) && !x.request->beams)
      return "a request cannot run with these settings";
    if (x.request->beams && s.config_.contiguous()) return "a search has no blocks to share";
  }
  std::vector<int> waiting(s.accounts_.entries_.size());
  if (const char* why = fault_in_lists(s)) return why;
  if (s.config_.order == Order::fair) {
    for (Index i : s.waiting_) waiting[s.standings_[i].account] += !s.aged(i);
    for (size_t a = 0; a < waiting.size(); ++a) {
      if (s.accounts_.entries_[a].num_waiting != waiting[a]) return "accounts do not add up";
    }
  }
  if (const char* why = fault_in_flights(s)) return why;
  if (const char* why = fault_in_tiers(s)) return why;
  if (const char* why = fault_in_beams(s)) return why;
  if (!s.config_.ranged() && !s.pending_ranges_.empty()) return "ranges without their allocator";
  if (!s.config_.mapped() && !s.pending_slots_.empty()) return "slots without their allocator";
  if (s.config_.contiguous() && (!s.pending_.empty() || !s.blocks_.moves.moving_.empty()))
    return "blocks without their allocator";
  if (s.config_.ranged()) return fault_in_ranges(s);
  if (s.config_.mapped()) return fault_in_pages(s);
  return fault_in_blocks(s);
}

void encode_state(const Scheduler& scheduler, Bytes& out, const TokenMap* map) {
  Writer w(out, map);
  SchedulerState::all(w, scheduler);
}

Result<Scheduler> decode_state(std::span<const std::byte> bytes,
                               const SchedulerConfig& config,
                               std::shared_ptr<const TokenText> text) {
  if (auto ok = check_config(config); !ok) return ok.error();
  Reader io(bytes);
  Scheduler s(config, std::move(text));
  SchedulerState::all(io, s);
  if (io.ok() && !io.at_end()) io.fail("bytes follow its end");
  if (io.ok()) {
    if (const char* why = SchedulerState::fault(s)) io.fail(why);
  }
  if (!io.ok()) return io.error("state of the scheduler");
  SchedulerState::derive(s);
  return s;
}

}  // namespace sluice

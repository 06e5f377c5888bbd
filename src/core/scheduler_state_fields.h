// The lists of fields that scheduler_state.cc and its parts share: a request, and everything
// private of a scheduler. For those files alone.
#pragma once

#include <memory>
#include <type_traits>
#include <vector>

#include "core/executor_content.h"
#include "core/scheduler_state.h"

namespace sluice {

inline constexpr int kMostOfAny = 1 << 26;  // blocks, positions, slots

inline bool in_range(int64_t x, int64_t lo, int64_t hi) { return x >= lo && x <= hi; }

// Core never looks inside a constraint, only whether there is one.
std::shared_ptr<const constrain::Constraint> replay_constraint();

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
    if (masked) r.constraint = replay_constraint();
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

void read_request(Reader& io, Request& r);

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
      if (v / 2 > kMostOfAny) return io.fail("a block has too many references");
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

  static Result<ExecutorContent> content(const Scheduler& s, const NeededBlocks& needed);
  static Result<void> add_swapped(const Scheduler& s, Index i, ExecutorContent& out);
  static void keep_needed(const Scheduler& s, StepPlan& plan);
  static void open_row(const Scheduler& s, const Sequence& x, StepPlan& out);
  static Token known(const Scheduler& s, Slot slot, uint32_t epoch, int pos);
};

}  // namespace sluice

// Beam search: the sequences of a request are its beams. Each step that all of them have taken is
// one of the search (beam_search.h), after which some beams die and others fork: a fork shares the
// full blocks of its parent and copies the partial one.
//
// Blocks for the longest outputs are set aside when the request starts: the prompt's once, the rest
// for each beam. A beam that dies gives back at least what a fork takes, so no fork ever fails, and
// no beam waits for blocks that others of its search hold.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/str.h"
#include "core/policy.h"
#include "core/scheduler.h"

namespace sluice {

Result<void> check_beams(const Request& r, const SchedulerConfig& c) {
  if (!r.beams) return {};
  auto refuse = [](std::string why) { return Error{400, "beam search: " + std::move(why)}; };
  if (c.contiguous())
    return refuse(strf("with --kv-allocator %s beams cannot share blocks: use --kv-allocator paged",
                       name_of(kAllocators, c.allocator)));
  if (r.pooling != Pooling::none) return refuse("embeddings have no tokens to search for");
  if (r.constraint) return refuse("it does not go with a constraint on the output");
  if (r.masked()) return refuse("it does not go with a budget of thinking");
  if (!r.stop.strings.empty())
    return refuse("it does not go with stop strings: use stop_token_ids");
  if (const char* name = r.sampling ? not_with_beams(*r.sampling) : nullptr)
    return refuse(strf("it does not go with %s", name));
  if (int most = std::min(c.max_seqs, c.budget); r.n > most)
    return refuse(
        strf("%d beams need a slot each and there are %d: ask for fewer, or raise "
             "--max-seqs",
             r.n, most));
  int top = BeamSearch::num_candidates(r.n, r.stop.tokens.size());
  if (top > c.sampling.num_logprobs)
    return refuse(
        strf("%d beams and %zu end tokens are compared by %d log-probabilities each, and "
             "this device reports %d: ask for fewer beams",
             r.n, r.stop.tokens.size(), top, c.sampling.num_logprobs));
  return {};
}

// Sampling reports the likeliest tokens; which one it takes does not matter.
std::shared_ptr<const SamplingSpec> beam_sampling(const Request& r) {
  SamplingSpec spec;
  spec.temperature = 0;
  spec.num_logprobs = BeamSearch::num_candidates(r.n, r.stop.tokens.size());
  return std::make_shared<const SamplingSpec>(std::move(spec));
}

// The most that all beams hold together.
int64_t Scheduler::beam_blocks(const Request& r, const SchedulerConfig& c) {
  auto prompt = static_cast<int64_t>(r.prompt->size());
  int64_t positions = std::min<int64_t>(prompt + r.max_new, c.max_len);
  int64_t rows = (positions + c.block_size - 1) / c.block_size, common = prompt / c.block_size;
  return static_cast<int64_t>(c.group_windows.size()) * (common + r.n * (rows - common));
}

// What admission=reserve-max sets aside.
int64_t Scheduler::reserve_blocks(const Sequence& s) const {
  return s.beam ? beam_blocks(request_of(s), config_)
                : most_blocks(prompt_len(s) + s.max_new, config_);
}

// Blocks for the beams that hold none, if they fork at this position.
int Scheduler::spare_blocks(const Sequence& s, int positions) const {
  int num_beams = 1;
  if (auto it = beams_.find(s.choices); it != beams_.end() && !it->second.seqs.empty())
    num_beams = static_cast<int>(it->second.seqs.size());
  int each = layout_.num_groups * (beam_rows(s) - positions / config_.block_size);
  return (request_of(s).n - num_beams) * each;
}

// The first sequence of a search starts: it holds the blocks of the whole output, and those of the
// others are promised.
void Scheduler::claim_beams(Index i) {
  Beams& group = beams_.at(seqs_[i].choices);
  group.seqs = {i};
  group.options.assign(1, {});
  group.promised = spare_blocks(seqs_[i], prompt_len(seqs_[i]));
  blocks_.promise(group.promised);
  group.held_slots = request_of(seqs_[i]).n - 1;
  held_slots_ += group.held_slots;
}

void Scheduler::unclaim_beams(uint32_t c) {
  Beams& group = beams_.at(c);
  blocks_.unpromise(std::exchange(group.promised, 0));
  held_slots_ -= std::exchange(group.held_slots, 0);
}

// A beam's step is done. The last one's decides what becomes of all.
void Scheduler::take_beam(
    Index i, std::span<const TopLogprob> top, Event& event, Time now, Events& out) {
  Sequence& s = seqs_[i];
  --s.unknown;
  s.parked = true;
  Beams& group = beams_.at(s.choices);
  auto at = static_cast<size_t>(std::ranges::find(group.seqs, i) - group.seqs.begin());
  CHECK(at < group.seqs.size() && !top.empty());
  group.options[at].clear();
  for (const TopLogprob& t : top.subspan(1))  // the first is the sampled one, again
    group.options[at].push_back({t.token, t.logprob});
  if (++group.num_parked < static_cast<int>(group.seqs.size())) return;
  std::vector<BeamSearch::Row> rows;
  for (size_t k = 0; k < group.seqs.size(); ++k)
    rows.push_back({seqs_[group.seqs[k]].output, group.options[k]});
  group.chosen = group.search.step(rows);
  if (!group.chosen) end_beams(s.choices, event, now, out);
}

// The search is over: choice k is its answer k, all of whose tokens become events now.
void Scheduler::end_beams(uint32_t c, const Event& event, Time now, Events& out) {
  std::vector<BeamSearch::Answer> answers(beams_.at(c).search.answers().begin(),
                                          beams_.at(c).search.answers().end());
  std::vector<Index> seqs = choices_[c].seqs;  // finish() may recycle the request
  for (size_t k = 0; k < seqs.size(); ++k) {
    Sequence& s = seqs_[seqs[k]];
    Event next = event;
    next.req = s.id.req, next.choice = s.id.choice;
    if (k >= answers.size()) {  // a vocabulary with fewer outputs than beams
      finish(seqs[k], Finish::stop, now, next, out);
      continue;
    }
    s.timing.first_token = s.timing.last_token = now;
    next.timing = s.timing;
    s.output.assign(answers[k].tokens.begin(), answers[k].tokens.end());
    for (size_t t = 0; t + 1 < s.output.size(); ++t) {
      next.token = s.output[t];
      out.list.push_back(next);
    }
    next.token = s.output.back();
    next.is_end_token = answers[k].ended;
    finish(seqs[k], answers[k].ended ? Finish::stop : Finish::length, now, next, out);
  }
}

void Scheduler::fork_beams(Time now, StepPlan& out) {
  for (auto& [c, group] : beams_) {
    if (std::exchange(group.chosen, false)) fork_group(c, group, now, out);
  }
}

// The first child of a beam takes over its sequence and blocks. Further ones get sequences that are
// not beams: those of beams without children, and at first those that have not started.
void Scheduler::fork_group(uint32_t c, Beams& group, Time now, StepPlan& out) {
  std::span<const BeamSearch::Beam> beams = group.search.beams();
  const std::vector<Index> parents = group.seqs;
  const int computed = seqs_[parents[0]].computed;
  group.seqs.assign(beams.size(), kNone);
  for (size_t k = 0; k < beams.size(); ++k) {
    Index parent = parents[static_cast<size_t>(beams[k].parent)];
    CHECK(seqs_[parent].in_flight == 0 && seqs_[parent].computed == computed);
    if (std::ranges::find(group.seqs, parent) == group.seqs.end()) group.seqs[k] = parent;
  }
  std::vector<Index> spare;  // by choice, the first one last
  for (size_t k = choices_[c].seqs.size(); k > 0; --k) {
    Index i = choices_[c].seqs[k - 1];
    if (std::ranges::find(group.seqs, i) == group.seqs.end()) spare.push_back(i);
  }
  // All that is not a beam's becomes spare: what the forks take of it is there.
  blocks_.unpromise(std::exchange(group.promised, 0));
  std::vector<std::vector<BlockId>> held;  // by spare: as the executor knows it
  for (Index i : spare) {
    BlockTable& table = seqs_[i].table;
    held.push_back(table.blocks());
    blocks_.unpromise(table.promised(whole_));
    table.release([&](BlockId b) { blocks_.release(b); }, [](BlockId) {});
    seqs_[i].parked = true;
  }
  for (size_t k = 0; k < beams.size(); ++k) {
    if (group.seqs[k] != kNone) continue;
    if (seqs_[spare.back()].phase == Phase::forking) --group.held_slots, --held_slots_;
    Index parent = parents[static_cast<size_t>(beams[k].parent)];
    fork_beam(spare.back(), parent, held.back(), now, out);
    group.seqs[k] = spare.back();
    spare.pop_back(), held.pop_back();
  }
  group.promised = spare_blocks(seqs_[parents[0]], computed);
  blocks_.promise(group.promised);
  for (size_t k = 0; k < beams.size(); ++k) {
    Sequence& s = seqs_[group.seqs[k]];
    s.output.push_back(beams[k].token);
    s.parked = false;
  }
  group.options.resize(beams.size());
  group.num_parked = 0;
}

// Becomes a copy of its parent. `held` are the cells of the table that it had.
void Scheduler::fork_beam(
    Index i, Index parent, std::span<const BlockId> held, Time now, StepPlan& out) {
  Sequence& s = seqs_[i];
  const Sequence& p = seqs_[parent];
  const int full = p.computed / config_.block_size;
  s.table.share(layout_, blocks_, p.table, p.computed);
  for (int g = 0; p.computed % config_.block_size != 0 && g < layout_.num_groups; ++g) {
    blocks_.moves.add(Transfer::copy, p.table.at(layout_, full, g), s.table.at(layout_, full, g));
  }
  s.table.claim(whole_, blocks_, beam_rows(s), full + 1, 0);
  s.output.assign(p.output.begin(), p.output.end());
  s.planned = s.computed = p.computed;
  s.num_registered = p.num_registered;
  s.last_hash = p.last_hash;
  if (s.phase == Phase::forking) return start(i, now, out);
  for (int index = 0; index < s.table.ready(); ++index) {
    for (int g = 0; g < layout_.num_groups; ++g) {
      auto cell = static_cast<size_t>(index * layout_.num_groups + g);
      BlockId b = s.table.blocks()[cell];
      if (cell >= held.size() || held[cell] != b) edits_of(s, out).add(index, g, b);
    }
  }
}

}  // namespace sluice

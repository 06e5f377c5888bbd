// What a scheduler says of results that come from a file, before it takes them.
#include <algorithm>

#include "base/str.h"
#include "core/scheduler.h"

namespace sluice {

namespace {

// Every transfer that a result names must be under way, and named once.
bool names_each_once(std::vector<TransferId> ids, std::span<const Moving> moving) {
  std::ranges::sort(ids);
  if (std::ranges::adjacent_find(ids) != ids.end()) return false;
  return std::ranges::all_of(ids, [&](TransferId id) {
    return std::ranges::any_of(moving, [&](const Moving& m) { return m.transfer.id == id; });
  });
}

}  // namespace

Result<void> Scheduler::check(const StepResult& result) const {
  auto bad = [&](const char* why) {
    return Error{
        400, strf("the result of step %llu %s", static_cast<unsigned long long>(result.step), why)};
  };
  if (flights_.empty()) return bad("belongs to no step in flight");
  const InFlight& flight = flights_.front();
  if (flight.step != result.step) return bad("is not that of the oldest step in flight");
  if (flight.lost || !result.failure.empty()) return {};
  std::vector<TransferId> ids = result.transfers;
  ids.insert(ids.end(), result.lost.begin(), result.lost.end());
  if (!names_each_once(ids, blocks_.moves.moving())) return bad("names transfers that are not");
  for (TransferId id : result.lost) {
    for (const Moving& m : blocks_.moves.moving()) {
      if (m.transfer.id == id && m.transfer.kind == Transfer::copy) return bad("loses a copy");
    }
  }
  size_t row = 0;
  for (const InFlight::Item& item : flight.items) {
    if (item.want == Want::none) continue;
    if (row == result.rows.size()) return bad("has fewer rows than its plan wants");
    const Sampled& sampled = result.rows[row++];
    const Sequence& s = seqs_[item.seq];
    if (s.phase == Phase::done || s.epoch != item.epoch) continue;  // nobody reads it
    if (sampled.slot != s.slot || sampled.epoch != s.epoch) return bad("has another's row");
    bool token = samples(item.want);
    if (sampled.num_tokens != (token ? 1u : 0u)) return bad("has a row with too many tokens");
    if (uint64_t{sampled.token_at} + sampled.num_tokens > result.tokens.size() ||
        uint64_t{sampled.top_at} + sampled.num_top > result.top.size())
      return bad("has a row whose tokens are not there");
    if (token && static_cast<int>(s.output.size()) >= s.max_new && !s.forced)
      return bad("has a token too many");
    if (item.want == Want::pool &&
        (sampled.pooled < 0 || static_cast<size_t>(sampled.pooled) >= result.pooled.size()))
      return bad("lacks a vector");
    if (s.beam && (sampled.num_top < 2 || !token || s.unknown < 1 || !awaited(item.seq)))
      return bad("has a beam without candidates");
  }
  if (row != result.rows.size()) return bad("has more rows than its plan wants");
  return {};
}

// Whether a search waits for this beam's result.
bool Scheduler::awaited(Index i) const {
  auto it = beams_.find(seqs_[i].choices);
  if (it == beams_.end() || it->second.chosen || seqs_[i].parked) return false;
  const Beams& g = it->second;
  return g.num_parked < static_cast<int>(g.seqs.size()) &&
         std::ranges::find(g.seqs, i) != g.seqs.end();
}

int Scheduler::row_of(SeqId id) const {
  int row = 0;
  if (flights_.empty()) return -1;
  for (const InFlight::Item& item : flights_.front().items) {
    if (item.want == Want::none) continue;
    const Sequence& s = seqs_[item.seq];
    if (s.id == id && s.epoch == item.epoch && s.phase == Phase::running) return row;
    ++row;
  }
  return -1;
}

}  // namespace sluice

#include "exec/prefix_groups.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace sluice {

PrefixGroups::PrefixGroups(const ExecutorConfig& config, int64_t least_saved)
    : least_saved_(config.num_pages > 0 ? 0 : least_saved), block_size_(config.block_size) {
  if (least_saved_ == 0) return;
  table_len_ = table_len(config);
  const auto cells = static_cast<size_t>(config.max_seqs * table_len_);
  for (int window : config.groups.windows) {
    plane_of_group_.push_back(window > 0 ? -1 : static_cast<int>(tables_.size()));
    if (window == 0) tables_.emplace_back(cells, kNullBlock);
  }
  if (tables_.empty()) least_saved_ = 0;
  slots_.resize(static_cast<size_t>(config.max_seqs));
}

std::span<const int32_t> PrefixGroups::table(size_t group, int32_t slot) const {
  return std::span(tables_[group])
      .subspan(static_cast<size_t>(slot * table_len_), static_cast<size_t>(table_len_));
}

void PrefixGroups::read(const StepPlan& plan) {
  if (least_saved_ == 0) return;
  for (const RowOp& op : plan.rows) {
    if (op.kind == RowOp::open) ++slots_[op.slot].version;
  }
  for (const TableEdit& e : plan.edits) {
    const int plane = plane_of_group_[e.group];
    if (plane < 0) continue;
    tables_[static_cast<size_t>(plane)][static_cast<size_t>(e.slot * table_len_ + e.index)] =
        static_cast<int32_t>(e.block);
    SlotState& s = slots_[e.slot];
    if (static_cast<int32_t>(e.index) < s.used) ++s.version, s.used = 0;
  }
}

// Blocks that the rows' slots have in common.
int32_t PrefixGroups::common_blocks(const Row& row, const Row& leader) {
  SlotState &own = slots_[static_cast<size_t>(row.slot)],
            &other = slots_[static_cast<size_t>(leader.slot)];
  int32_t common = std::min(row.full, leader.full);
  Compared* least = &own.compared[0];  // the one to replace
  for (Compared& c : own.compared) {
    if (c.own_version != own.version) c = {};
    if (c.other == leader.slot && c.other_version == other.version)
      return std::min(c.common, common);
    if (c.common < least->common) least = &c;
  }
  for (size_t g = 0; g < tables_.size(); ++g) {
    const auto a = table(g, row.slot).first(static_cast<size_t>(common));
    const auto b = table(g, leader.slot).first(static_cast<size_t>(common));
    common = static_cast<int32_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  }
  if (common >= least->common) *least = {leader.slot, common, own.version, other.version};
  own.used = std::max(own.used, common), other.used = std::max(other.used, common);
  return common;
}

bool PrefixGroups::find(std::span<const SliceView> decodes) {
  groups_.clear(), members_.clear(), places_.clear();
  saved_ = 0;
  if (least_saved_ == 0 || decodes.size() < 2) return false;
  int64_t most = 0;
  for (const SliceView& s : decodes) most += s.pos;
  if (most < least_saved_) return false;

  // Rows with a span in common have the same block at its end.
  const int blocks_of_span = std::max(1, (1 << span_bits(0)) / block_size_);
  const auto first_span = static_cast<size_t>(blocks_of_span - 1);
  rows_.clear(), found_.clear();
  for (const SliceView& s : decodes) {
    if (whole_spans(s.pos) > 0 && s.row < kMaxPrefixRows)
      rows_.push_back({s.row, s.slot, s.pos / block_size_, table(0, s.slot)[first_span]});
  }
  split_runs(0, rows_.size(), rows_.size());
  std::ranges::stable_sort(found_, std::greater{}, &Found::saved);
  if (found_.size() > kMaxPrefixGroups) found_.resize(kMaxPrefixGroups);
  for (const Found& f : found_) saved_ += f.saved();
  if (saved_ < least_saved_) return false;

  places_.assign(decodes.size(), -1);
  for (const Found& f : found_) {
    const auto at = static_cast<int32_t>(members_.size());
    for (const Row& r : std::span(rows_).subspan(f.first, f.num)) {
      places_[static_cast<size_t>(r.row)] =
          prefix_place(static_cast<int>(groups_.size()), static_cast<int>(members_.size()) - at);
      members_.push_back(r.row);
    }
    groups_.push_back({at, static_cast<int32_t>(f.num), f.positions});
  }
  return true;
}

// Sorts rows by their keys, and splits runs of at most `most` rows with one key.
int64_t PrefixGroups::split_runs(size_t first, size_t num, size_t most) {
  const auto rows = std::span(rows_).subspan(first, num);
  std::ranges::sort(rows, {}, [](const Row& r) { return std::pair(r.key, r.row); });
  int64_t saved = 0;
  for (size_t begin = 0, end = 0; begin < num; begin = end) {
    while (end < num && rows[end].key == rows[begin].key) ++end;
    if (end - begin > 1 && end - begin <= most) saved += split(first + begin, end - begin);
  }
  return saved;
}

// Rows that may have something in common: one group of what all of them have, or groups of those
// that go on alike, whichever saves more. Returns the positions saved.
int64_t PrefixGroups::split(size_t first, size_t num) {
  const auto rows = std::span(rows_).subspan(first, num);
  int32_t common = rows[0].full;
  for (const Row& r : rows.subspan(1)) common = std::min(common, common_blocks(r, rows[0]));
  const Found all{first, num, whole_spans(common * block_size_)};
  for (Row& r : rows)  // the block behind; rows without one go on like no other
    r.key = r.full > common ? table(0, r.slot)[static_cast<size_t>(common)] : -1 - r.row;
  const size_t before = found_.size();
  const int64_t saved = split_runs(first, num, num - 1);
  if (all.saved() < saved || all.saved() == 0) return saved;
  found_.resize(before);
  std::ranges::sort(rows, {}, &Row::row);
  found_.push_back(all);
  return all.saved();
}

}  // namespace sluice

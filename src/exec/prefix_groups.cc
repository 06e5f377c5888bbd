#include "exec/prefix_groups.h"

#include <algorithm>

namespace sluice {

namespace {

// Rows of a set that others are compared with: bounds the time of a step whose rows have little
// more than a block in common.
constexpr int kMaxLeaders = 4;

}  // namespace

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
  first_of_.resize(static_cast<size_t>(config.num_blocks) + 1);
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

// Blocks that the row's slot has in common with the leader's, at most `most`.
int32_t PrefixGroups::common_blocks(int32_t leader, const SliceView& row, int32_t most) {
  SlotState &own = slots_[static_cast<size_t>(row.slot)],
            &other = slots_[static_cast<size_t>(leader)];
  if (own.other == leader && own.own_version == own.version && own.other_version == other.version)
    return std::min(own.common, most);
  int32_t common = most;
  for (size_t g = 0; g < tables_.size(); ++g) {
    const auto a = table(g, row.slot).first(static_cast<size_t>(common));
    const auto b = table(g, leader).first(static_cast<size_t>(common));
    common = static_cast<int32_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  }
  own.other = leader, own.common = common;
  own.own_version = own.version, own.other_version = other.version;
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

  // Sets of rows that begin with the same block; the first of a set is its leader.
  ++turn_, num_sets_ = 0;
  for (const SliceView& s : decodes) {
    const int32_t full = s.pos / block_size_;
    if (whole_spans(s.pos) == 0 || s.row >= kMaxPrefixRows) continue;
    auto& [turn, set] = first_of_[static_cast<size_t>(table(0, s.slot)[0])];
    if (turn != turn_) {
      turn = turn_, set = static_cast<int32_t>(num_sets_++);
      if (sets_.size() < num_sets_) sets_.emplace_back();
      sets_[static_cast<size_t>(set)].assign(1, {s.row, s.slot, full});
      continue;
    }
    std::vector<Row>& rows = sets_[static_cast<size_t>(set)];
    const int32_t limit = std::min(full, rows[0].common);
    rows.push_back({s.row, s.slot, common_blocks(rows[0].slot, s, limit)});
  }
  for (size_t k = 0; k < num_sets_; ++k) {
    for (int leaders = 0; leaders < kMaxLeaders && add_group(sets_[k], decodes);) ++leaders;
  }
  if (saved_ < least_saved_) {
    groups_.clear(), members_.clear();
    return false;
  }

  places_.assign(decodes.size(), -1);
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (int32_t k = 0; k < groups_[g].rows; ++k) {
      const int32_t row = members_[static_cast<size_t>(groups_[g].first + k)];
      places_[static_cast<size_t>(row)] = prefix_place(static_cast<int>(g), k);
    }
  }
  return true;
}

// The rows of the set that save most: those that have a prefix of some length in common with its
// first row, and that row. The set keeps the others, compared with the first of them. False:
// nothing is left to do.
bool PrefixGroups::add_group(std::vector<Row>& rows, std::span<const SliceView> decodes) {
  if (rows.size() < 2 || groups_.size() == kMaxPrefixGroups) return false;
  std::sort(rows.begin() + 1, rows.end(), [](const Row& a, const Row& b) {
    return a.common != b.common ? a.common > b.common : a.row < b.row;
  });
  int64_t best = 0;
  size_t last = 0;
  for (size_t k = 1; k < rows.size(); ++k) {
    const int64_t saved = static_cast<int64_t>(k) * whole_spans(rows[k].common * block_size_);
    if (saved >= best && saved > 0) best = saved, last = k;
  }
  if (best > 0) {
    groups_.push_back({static_cast<int32_t>(members_.size()), static_cast<int32_t>(last) + 1,
                       whole_spans(rows[last].common * block_size_)});
    for (size_t k = 0; k <= last; ++k) members_.push_back(rows[k].row);
    saved_ += best;
  }
  rows.erase(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(last) + 1);
  if (rows.size() < 2) return false;
  auto slice = [&](const Row& r) { return decodes[static_cast<size_t>(r.row)]; };
  rows[0].common = slice(rows[0]).pos / block_size_;
  for (size_t k = 1; k < rows.size(); ++k) {
    const int32_t full = slice(rows[k]).pos / block_size_;
    rows[k].common = common_blocks(rows[0].slot, slice(rows[k]), std::min(full, rows[0].common));
  }
  return true;
}

}  // namespace sluice

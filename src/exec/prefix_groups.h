// Finds decode rows whose block tables begin with the same blocks (a system prompt, a document,
// several outputs of one prompt), so that a device reads those blocks once for all of them. Keeps a
// copy of the tables on the host, and remembers how many blocks two slots share until one changes.
// Owned by an executor, on its thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "core/step_plan.h"
#include "exec/executor_config.h"

namespace sluice {

class PrefixGroups {
 public:
  // Finds none where `least_saved` is 0, or blocks have no tables. Layers with a window do not take
  // part: two slots have in common what their tables in all other groups have.
  PrefixGroups(const ExecutorConfig& config, int64_t least_saved);

  // Before find() of the same plan.
  void read(const StepPlan& plan);
  // Of the decode rows, one slice each: groups that save at least `least_saved` positions together,
  // or none. The lists below are of the last call.
  bool find(std::span<const SliceView> decodes);

  const std::vector<PrefixGroup>& groups() const { return groups_; }
  const std::vector<int32_t>& members() const { return members_; }
  const std::vector<int32_t>& places() const { return places_; }
  // Positions that rows need not read, over all groups.
  int64_t saved() const { return saved_; }

 private:
  struct Row {
    int32_t row, slot;
    int32_t full;  // blocks
    int32_t key;   // rows of one key may go on alike: a block, or one below 0 for each row
  };
  struct Compared {  // with a slot of that version
    int32_t other = -1, common = 0;
    uint64_t own_version = 0, other_version = 0;
  };
  struct SlotState {
    uint64_t version = 0;
    int32_t used = 0;  // blocks that were compared: a change among them makes a new version
    std::array<Compared, 2> compared;  // the comparisons with most in common
  };
  struct Found {
    size_t first, num;  // of rows_
    int32_t positions;
    int64_t saved() const { return static_cast<int64_t>(num - 1) * positions; }
  };

  int32_t common_blocks(const Row& row, const Row& leader);
  int64_t split(size_t first, size_t num);
  int64_t split_runs(size_t first, size_t num, size_t most);
  std::span<const int32_t> table(size_t group, int32_t slot) const;

  int64_t least_saved_;
  int block_size_;
  int64_t table_len_ = 0;
  std::vector<int> plane_of_group_;           // by cache group: which of tables_, or -1
  std::vector<std::vector<int32_t>> tables_;  // of the groups without a window: [slots, table_len]
  std::vector<SlotState> slots_;
  std::vector<Row> rows_;
  std::vector<Found> found_;

  std::vector<PrefixGroup> groups_;
  std::vector<int32_t> members_, places_;
  int64_t saved_ = 0;
};

}  // namespace sluice

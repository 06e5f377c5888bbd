// Which layers share cache blocks. A block holds block_size positions of `num_planes` layers, and
// any block can serve any group, so that one pool serves all: layers that see everything and layers
// with a window are in different groups, and a group short of layers leaves planes unused.
// Plain data, made once from a model's shape.
#pragma once

#include <span>
#include <vector>

#include "model/model.h"

namespace sluice {

struct CacheGroups {
  struct Place {
    int group = 0, plane = 0;
  };
  int num_planes = 0;
  std::vector<int> windows;   // per group, 0 = sees everything: SchedulerConfig::group_windows
  std::vector<Place> layers;  // where each layer's K and V are

  int num_groups() const { return static_cast<int>(windows.size()); }
};

// All layers in one group that keeps everything.
CacheGroups one_cache_group(int num_layers);
// The same groups for some of the layers alone, with as many planes as these need.
CacheGroups part_of(const CacheGroups& groups, LayerRange layers);
// Groups of at most `num_planes` layers with the same window (0 = none), those without first.
CacheGroups split_layers(std::span<const int> windows, int num_planes);
// With the number of planes that serves the model best: of those that need at most 5 % more memory
// for a sequence of the trained length than the best, and at most kMaxCacheGroups groups, the one
// with the fewest groups. A model whose layers are all alike has one group.
CacheGroups cache_groups(const ModelShape& shape);

}  // namespace sluice

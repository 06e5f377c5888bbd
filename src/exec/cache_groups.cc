#include "exec/cache_groups.h"

#include <algorithm>
#include <map>

#include "base/check.h"
#include "core/step_plan.h"

namespace sluice {

CacheGroups one_cache_group(int num_layers) {
  return split_layers(std::vector<int>(static_cast<size_t>(num_layers)), num_layers);
}

CacheGroups part_of(const CacheGroups& groups, LayerRange layers) {
  const auto num_layers = static_cast<int>(groups.layers.size());
  CacheGroups part;
  part.windows = groups.windows;
  part.num_planes = 1;
  std::vector<int> used(groups.windows.size());  // planes, by group
  for (int l = layers.first; l < std::min(layers.end, num_layers); ++l) {
    const int group = groups.layers[static_cast<size_t>(l)].group;
    const int plane = used[static_cast<size_t>(group)]++;
    part.layers.push_back({group, plane});
    part.num_planes = std::max(part.num_planes, plane + 1);
  }
  return part;
}

CacheGroups split_layers(std::span<const int> windows, int num_planes) {
  CHECK(num_planes > 0);
  CacheGroups groups;
  groups.num_planes = num_planes;
  groups.layers.resize(windows.size());
  std::map<int, std::vector<size_t>> kinds;  // layers by window
  for (size_t l = 0; l < windows.size(); ++l) kinds[windows[l]].push_back(l);
  for (const auto& [window, layers] : kinds) {
    for (size_t i = 0; i < layers.size(); ++i) {
      int plane = static_cast<int>(i) % num_planes;
      if (plane == 0) groups.windows.push_back(window);
      groups.layers[layers[i]] = {groups.num_groups() - 1, plane};
    }
  }
  return groups;
}

CacheGroups cache_groups(const ModelShape& shape) {
  std::vector<int> windows = shape.windows;
  windows.resize(static_cast<size_t>(shape.num_layers));
  // A window that no sequence outgrows is none.
  for (int& w : windows) w = w < shape.max_len ? w : 0;
  struct Choice {
    int num_planes, num_groups;
    double memory;  // positions times planes of a sequence of the trained length
  };
  std::vector<Choice> choices;
  for (int planes = 1; planes <= shape.num_layers; ++planes) {
    CacheGroups g = split_layers(windows, planes);
    if (g.num_groups() > kMaxCacheGroups) continue;
    double positions = 0;
    for (int w : g.windows) positions += w == 0 ? shape.max_len : w;
    choices.push_back({planes, g.num_groups(), positions * planes});
  }
  // More kinds of layers than there may be groups: all are kept in full.
  if (choices.empty()) return one_cache_group(shape.num_layers);
  double least = std::ranges::min(choices, {}, &Choice::memory).memory;
  std::erase_if(choices, [&](const Choice& c) { return c.memory > least * 1.05; });
  const Choice& best = *std::ranges::min_element(choices, [](const Choice& a, const Choice& b) {
    return a.num_groups != b.num_groups ? a.num_groups < b.num_groups : a.memory < b.memory;
  });
  return split_layers(windows, best.num_planes);
}

}  // namespace sluice

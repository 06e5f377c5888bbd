#include "backend/cpu/numa.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <climits>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "base/thread_pool.h"

namespace sluice {

namespace {

// Of <linux/mempolicy.h>.
constexpr int kPolicyDefault = 0, kPolicyInterleave = 3;
constexpr int kMaxNodes = 1024;
constexpr size_t kWordBits = sizeof(unsigned long) * CHAR_BIT;
using NodeMask = std::array<unsigned long, kMaxNodes / kWordBits>;

// "0-3,8,10-11" has cpu?
bool lists(std::string_view text, int cpu) {
  const char *at = text.data(), *end = at + text.size();
  while (at < end) {
    int first = 0;
    auto [next, failed] = std::from_chars(at, end, first);
    if (failed != std::errc()) return false;
    int last = first;
    if (next < end && *next == '-') {
      auto [after, bad] = std::from_chars(next + 1, end, last);
      if (bad != std::errc()) return false;
      next = after;
    }
    if (cpu >= first && cpu <= last) return true;
    at = next < end && *next == ',' ? next + 1 : end;
  }
  return false;
}

bool has_own_policy() {
  int mode = kPolicyDefault;
  return syscall(SYS_get_mempolicy, &mode, nullptr, 0UL, nullptr, 0UL) == 0 &&
         mode != kPolicyDefault;
}

}  // namespace

std::vector<int> nodes_of(std::span<const int> cpus, const std::string& directory) {
  std::vector<int> nodes;
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(directory, failed)) {
    std::string name = entry.path().filename();
    int node = 0;
    if (!name.starts_with("node")) continue;
    auto [end, bad] = std::from_chars(name.data() + 4, name.data() + name.size(), node);
    if (bad != std::errc() || end != name.data() + name.size() || node >= kMaxNodes) continue;
    std::ifstream in(entry.path() / "cpulist");
    std::string list;
    std::getline(in, list);
    if (std::ranges::any_of(cpus, [&](int cpu) { return lists(list, cpu); })) nodes.push_back(node);
  }
  std::ranges::sort(nodes);
  return nodes;
}

const std::vector<int>& memory_nodes() {
  static const std::vector<int> nodes = [] {
    std::vector<int> found;
    if (!has_own_policy()) found = nodes_of(usable_cores(), "/sys/devices/system/node");
    if (found.size() < 2) found.clear();
    return found;
  }();
  return nodes;
}

bool spread_over(std::span<const int> nodes, void* data, size_t bytes) {
  NodeMask mask{};
  for (int node : nodes) {
    auto n = static_cast<size_t>(node);
    mask[n / kWordBits] |= 1UL << n % kWordBits;
  }
  return syscall(SYS_mbind, data, bytes, kPolicyInterleave, mask.data(), kMaxNodes + 1UL, 0U) == 0;
}

}  // namespace sluice

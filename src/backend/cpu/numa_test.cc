#include "backend/cpu/numa.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "base/thread_pool.h"

namespace sluice {
namespace {

TEST(Numa, NodesOfTheCoresInUse) {
  const std::filesystem::path dir =
      std::filesystem::path(testing::TempDir()) / ("sluice-nodes-" + std::to_string(getpid()));
  const auto node = [&](const char* name, const char* cpus) {
    std::filesystem::create_directories(dir / name);
    std::ofstream(dir / name / "cpulist") << cpus << "\n";
  };
  node("node0", "0-3,8-11");
  node("node1", "4-7,12-15");
  node("node10", "16");
  node("node2", "");  // memory without cores
  node("power", "0-15");
  const auto nodes = [&](std::vector<int> cpus) { return nodes_of(cpus, dir); };
  using Nodes = std::vector<int>;
  EXPECT_EQ(nodes({0, 1}), Nodes({0}));
  EXPECT_EQ(nodes({9}), Nodes({0}));
  EXPECT_EQ(nodes({3, 4}), Nodes({0, 1}));
  EXPECT_EQ(nodes({16, 12, 0}), Nodes({0, 1, 10}));
  EXPECT_EQ(nodes({17}), Nodes());
  EXPECT_EQ(nodes_of(std::vector<int>{0}, dir / "missing"), Nodes());
  node("node3", "nonsense");
  EXPECT_EQ(nodes({5}), Nodes({1}));
  std::filesystem::remove_all(dir);
}

TEST(Numa, SpreadMemoryHoldsWhatIsWritten) {
  constexpr size_t kBytes = 1 << 20;
  const std::vector<int> nodes = nodes_of(usable_cores(), "/sys/devices/system/node");
  if (nodes.empty()) GTEST_SKIP() << "the system names no nodes";
  void* data = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(data, MAP_FAILED);
  const bool spread = spread_over(nodes, data, kBytes);
  EXPECT_TRUE(spread || errno == EPERM || errno == ENOSYS) << strerror(errno);
  std::memset(data, 7, kBytes);
  EXPECT_EQ(static_cast<const char*>(data)[kBytes - 1], 7);
  const int missing[] = {1023};
  EXPECT_FALSE(spread_over(missing, data, kBytes));
  munmap(data, kBytes);
  EXPECT_TRUE(memory_nodes().empty() || memory_nodes() == nodes);
}

}  // namespace
}  // namespace sluice

#include "tools/cpu_limits.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "backend/cpu/features.h"
#include "base/build_id.h"

namespace sluice {
namespace {

CpuLimits sample() {
  CpuLimits m;
  m.id = {"A CPU 6-207", 8, "avx512-vnni"};
  m.measured = "2026-01-31T12:00:00Z";
  m.reads = {{1, 20e9}, {2, 38e9}, {4, 60e9}, {8, 100e9}};
  m.peaks = {
      {"vnni", "int8", 100e9, 800e9}, {"amx", "int8", 90e9, 900e9}, {"fma", "f32", 50e9, 400e9}};
  m.kernels = {{"avx2-q8_0", 8, {{1, 3e-11}, {8, 5e-11}}}};
  return m;
}

std::string with(const std::string& from, const std::string& what, const std::string& to) {
  size_t at = from.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return from.substr(0, at) + to + from.substr(at + what.size());
}

TEST(CpuLimits, WhatWasWrittenIsReadBack) {
  CpuLimits m = sample();
  Result<CpuLimits> back = parse_limits(limits_to_json(m));
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(limits_to_json(*back), limits_to_json(m));
}

TEST(CpuLimits, BadFilesAreRefused) {
  std::string good = limits_to_json(sample());
  std::string bad[] = {"",
                       "[]",
                       good.substr(0, good.size() / 2),
                       with(good, "sluice machine limits 2", "sluice machine limits 0"),
                       with(good, "\"cores\":8", "\"cores\":0"),
                       with(good, "\"cores\":8", "\"cores\":100000000000"),
                       with(good, "\"cores\":8", "\"cores\":\"8\""),
                       with(good, "\"threads\":2", "\"threads\":1"),
                       with(good, "\"threads\":8", "\"threads\":9"),
                       with(good, "2e+10", "-2e+10"),
                       with(good, "2e+10", "0"),
                       with(good, "\"type\":\"int8\"", "\"type\":8"),
                       with(good, "\"reads\":[", "\"reads\":[7,"),
                       with(good, "\"peaks\":", "\"peeks\":"),
                       with(good, "\"kernels\":", "\"kernel\":"),
                       with(good, "\"build\":\"\"", "\"build\":7"),
                       with(good, "\"kernel\":\"avx2-q8_0\"", "\"kernel\":\"\""),
                       with(good, "\"rows\":8", "\"rows\":1"),
                       with(good, "\"seconds\":5e-11", "\"seconds\":-5e-11")};
  for (const std::string& text : bad) {
    Result<CpuLimits> m = parse_limits(text);
    ASSERT_FALSE(m) << text;
    EXPECT_FALSE(m.error().message.empty());
  }
}

TEST(CpuLimits, RatesBetweenWhatWasMeasured) {
  CpuLimits m = sample();
  EXPECT_EQ(m.read_rate(1), 20e9);
  EXPECT_EQ(m.read_rate(4), 60e9);
  EXPECT_EQ(m.read_rate(6), 80e9);
  EXPECT_EQ(m.read_rate(64), 100e9);
  EXPECT_EQ(m.best(PeakType::int8, 1)->name, "vnni");
  EXPECT_EQ(m.best(PeakType::int8, 8)->name, "amx");
  EXPECT_EQ(m.best(PeakType::bf16, 8), nullptr);
  EXPECT_EQ(m.peak_rate(m.peaks[2], 8), 400e9);
  EXPECT_EQ(m.peak_rate(m.peaks[2], 1), 50e9);
}

TEST(CpuLimits, NamesOfCpus) {
  EXPECT_EQ(cpu_name("vendor_id\t: X\ncpu family\t: 6\nmodel\t\t: 207\nmodel name\t: A B(R)\n"),
            "A B(R) 6-207");
  EXPECT_EQ(cpu_name("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"),
            "arm 0x41 0xd40");
  EXPECT_EQ(cpu_name(""), "unknown");
  EXPECT_EQ((MachineId{"A B(R) 6-207", 2, "avx512-vnni"}.file_stem()), "a-b-r-6-207-2-avx512-vnni");
}

TEST(CpuLimits, PeaksOfThisCpuRun) {
  with_pool(2, [](ThreadPool& pool) {
    for (const PeakRow& r : peak_rows()) {
      if (!cpu_features().has(r.need)) continue;
      EXPECT_GT(measure_peak(pool, r, 1e-4, 1), 0) << r.name;
    }
  });
}

TEST(CpuLimits, ABadCacheFileIsMeasuredAgain) {
  std::string dir = testing::TempDir() + "limits_" + std::to_string(getpid());
  ASSERT_EQ(setenv("XDG_CACHE_HOME", dir.c_str(), 1), 0);
  CpuLimits m = sample();
  m.build = build_id();
  std::string path = limits_path(m.id);
  EXPECT_EQ(path, dir + "/sluice/machine-a-cpu-6-207-8-avx512-vnni.json");
  EXPECT_EQ(load_limits(path, m.id).error().code, 404);
  int measured = 0;
  std::vector<std::string> said;
  auto get = [&] {
    return cached_limits(
        path, m.id, [&] { return ++measured, m; },
        [&](const std::string& line) { said.push_back(line); });
  };
  get();  // there is none: nothing to say
  EXPECT_EQ(limits_to_json(get()), limits_to_json(m));
  EXPECT_EQ(measured, 1);
  EXPECT_TRUE(said.empty());

  std::ofstream(path) << "{";
  get();
  EXPECT_EQ(measured, 2);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said[0].find("measured again"), std::string::npos) << said[0];

  CpuLimits other = m;
  other.id.cores = 16;
  ASSERT_TRUE(save_limits(path, other));
  get();
  EXPECT_EQ(measured, 3);
  ASSERT_EQ(said.size(), 2u);
  EXPECT_NE(said[1].find("another machine"), std::string::npos) << said[1];
  get();
  EXPECT_EQ(measured, 3);
  std::filesystem::remove_all(dir);
}

TEST(CpuLimits, RatesOfAnotherBuildsKernelsAreNotUsed) {
  const std::string path = testing::TempDir() + "build_" + std::to_string(getpid()) + ".json";
  CpuLimits m = sample();
  m.build = build_id();
  ASSERT_TRUE(save_limits(path, m));
  EXPECT_EQ(load_limits(path, m.id)->kernels, m.kernels);
  m.build += "0";
  ASSERT_TRUE(save_limits(path, m));
  const Result<CpuLimits> other = load_limits(path, m.id);
  EXPECT_TRUE(other->kernels.empty());
  EXPECT_EQ(other->reads.size(), m.reads.size());
  std::filesystem::remove(path);
}

TEST(CpuLimits, AFolderThatCannotBeWrittenIsNoFailure) {
  std::vector<std::string> said;
  CpuLimits m = cached_limits("/dev/null/sluice/machine.json", sample().id, sample,
                              [&](const std::string& line) { said.push_back(line); });
  EXPECT_EQ(m.reads.size(), 4u);
  EXPECT_EQ(said.size(), 1u);
}

}  // namespace
}  // namespace sluice

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tools/lab/experiments.h"
#include "tools/lab/files.h"
#include "tools/lab/workload.h"
#include "tools/plot.h"

namespace sluice {

TEST(LabWorkload, ArePureFunctionsOfTheirArguments) {
  LabWorkload a = poisson_arrivals(lognormal_outputs(200, 8, 24, 240, 3), 50, 4);
  LabWorkload b = poisson_arrivals(lognormal_outputs(200, 8, 24, 240, 3), 50, 4);
  double sum = 0;
  std::vector<double> outputs;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].output, b[i].output);
    EXPECT_EQ(a[i].at, b[i].at);
    EXPECT_GE(a[i].output, 4);
    EXPECT_LE(a[i].output, 240);
    EXPECT_GT(a[i].at, i > 0 ? a[i - 1].at : 0);
    outputs.push_back(a[i].output);
    sum = a[i].at;
  }
  EXPECT_NEAR(spread_of(outputs).median, 24, 6);
  EXPECT_NEAR(sum, 4, 1.2);  // 200 gaps of 20 ms
}

TEST(LabWorkload, OneInEightIsLong) {
  LabWorkload w = few_long_outputs(32, 8, 8, 100, 10);
  int total = 0;
  for (const LabRequest& r : w) total += r.output;
  EXPECT_EQ(total, 4 * 100 + 28 * 10);
  EXPECT_EQ(w[0].output, 100);
  EXPECT_EQ(w[7].output, 10);
}

TEST(LabSpread, MedianAndEnds) {
  EXPECT_EQ(spread_of({}).median, 0);
  Spread s = spread_of({3, 1, 2, 10});
  EXPECT_DOUBLE_EQ(s.median, 2.5);
  EXPECT_DOUBLE_EQ(s.least, 1);
  EXPECT_DOUBLE_EQ(s.most, 10);
}

TEST(LabExperiments, NamesAreUniqueAndRowsComplete) {
  std::set<std::string> names;
  for (const Experiment& e : experiments()) {
    EXPECT_TRUE(names.insert(e.name).second) << e.name;
    for (const char* text : {e.row, e.technique, e.claim, e.conditions, e.off, e.on, e.expectation})
      EXPECT_NE(*text, 0) << e.name;
    EXPECT_LT(e.least, e.most) << e.name;
    EXPECT_FALSE(e.workload().empty()) << e.name;
    LabSetup off = lab_setup("random:lab-16m", "q8_0", 1), on = off;
    e.turn_off(off);
    e.turn_on(on);
    const bool differ =
        off.kv_cache != on.kv_cache || off.warm != on.warm || off.text != on.text ||
        off.padded != on.padded || off.engine.attention != on.engine.attention ||
        off.engine.fuse != on.engine.fuse || off.engine.full_sort != on.engine.full_sort ||
        off.engine.quantize != on.engine.quantize || off.engine.kv_type != on.engine.kv_type ||
        off.engine.record_metrics != on.engine.record_metrics ||
        off.engine.scheduler != on.engine.scheduler;
    EXPECT_TRUE(differ) << e.name;
  }
}

TEST(LabExperiments, Verdicts) {
  EXPECT_STREQ(verdict(2.5, 2, 3), "as expected");
  EXPECT_STREQ(verdict(4, 2, 3), "more than expected");
  EXPECT_STREQ(verdict(1.5, 2, 3), "less than expected");
  EXPECT_STREQ(verdict(1.01, 2, 3), "no effect");
  EXPECT_STREQ(verdict(0.5, 2, 3), "contrary");
  EXPECT_STREQ(verdict(0.5, 0.95, 1.05), "worse than expected");
}

TEST(Plot, BarsAndFilesAreWellFormed) {
  BarChart chart{"a < b", "requests/s", true, true, {{"one", 1, "1 x", 0}, {"two", 10, "10 x", 0}}};
  const std::string svg = svg_file(svg_bars(chart));
  EXPECT_NE(svg.find("a &lt; b"), std::string::npos);
  EXPECT_NE(svg.find("xmlns='http://www.w3.org/2000/svg'"), std::string::npos);
  EXPECT_EQ(svg.find("class=g"), std::string::npos);
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
}

}  // namespace sluice

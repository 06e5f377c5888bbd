#include "server/trace_context.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

constexpr const char* kGood = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST(TraceContext, ReadsTheStandardsExample) {
  TraceContext c = parse_traceparent(kGood);
  ASSERT_TRUE(c);
  EXPECT_EQ(trace_id(c.trace), "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(c.flags, 1);
  c.span = 0xabc;
  EXPECT_EQ(format_traceparent(c), "00-0af7651916cd43dd8448eb211c80319c-0000000000000abc-01");
}

TEST(TraceContext, TakesLaterVersions) {
  std::string later = kGood;
  later[1] = '1';
  EXPECT_TRUE(parse_traceparent(later));
  EXPECT_TRUE(parse_traceparent(later + "-more"));
  EXPECT_FALSE(parse_traceparent(later + "more"));
  later.replace(53, 2, "ff");
  EXPECT_EQ(parse_traceparent(later).flags, 1) << "only the sampled flag is known";
}

TEST(TraceContext, IgnoresWhatIsNotValid) {
  const std::string good = kGood;
  auto with = [&](size_t at, const std::string& text) {
    std::string s = good;
    return s.replace(at, text.size(), text);
  };
  for (const std::string& bad :
       {std::string(), std::string("00"), good.substr(0, 54), good + "-more", good + "0",
        with(0, "ff"), with(0, "0x"), with(3, std::string(32, '0')), with(36, std::string(16, '0')),
        with(3, "0AF7"), with(40, "g"), with(2, "_"), with(35, "_"), with(52, "_"), with(53, "zz")})
    EXPECT_FALSE(parse_traceparent(bad)) << bad;
  // Half of the id may be zero.
  EXPECT_TRUE(parse_traceparent(with(3, std::string(16, '0'))));
}

}  // namespace
}  // namespace sluice

#include "tools/route/probe_rule.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace sluice {
namespace {

using std::chrono::milliseconds;
using Outcome = ProbeRule::Outcome;
using Verdict = ProbeRule::Verdict;

// When a worker that hangs at `hangs` becomes suspect and is given up. It was first probed at
// `first`, and answers at once until it hangs.
struct Found {
  milliseconds suspect{-1}, given_up{-1};
};

Found find_hung(milliseconds first, milliseconds hangs) {
  ProbeRule rule;
  Found found;
  for (milliseconds now = first; found.given_up.count() < 0;) {
    const bool answers = now < hangs;
    if (!answers) now += ProbeRule::kPatience;
    const Verdict v = rule.after(answers ? Outcome::answered : Outcome::missed);
    if (v == Verdict::suspect && found.suspect.count() < 0) found.suspect = now;
    if (v == Verdict::hangs) found.given_up = now;
    if (v == Verdict::up) now += ProbeRule::kPause;
  }
  return found;
}

TEST(ProbeRule, AnAnswerClearsWhatWasMissed) {
  ProbeRule rule;
  EXPECT_EQ(rule.after(Outcome::missed), Verdict::suspect);
  EXPECT_EQ(rule.after(Outcome::missed), Verdict::suspect);
  EXPECT_EQ(rule.after(Outcome::answered), Verdict::up);
  EXPECT_EQ(rule.after(Outcome::missed), Verdict::suspect);
  EXPECT_EQ(rule.after(Outcome::missed), Verdict::suspect);
  EXPECT_EQ(rule.after(Outcome::missed), Verdict::hangs);
  EXPECT_EQ(rule.after(Outcome::missed), Verdict::hangs);
}

// A worker that stops takes no connections and still finishes what it has.
TEST(ProbeRule, ARefusalIsNoSilence) {
  ProbeRule rule;
  for (int k = 0; k < 10; ++k) EXPECT_EQ(rule.after(Outcome::refused), Verdict::refuses);
  EXPECT_EQ(rule.after(Outcome::broken), Verdict::unsure);
  EXPECT_EQ(rule.after(Outcome::refused), Verdict::refuses);
}

// A request that was begun waits until its worker is given up, then it ends with an error.
TEST(ProbeRule, AStreamIsSilentForLessThanFourSeconds) {
  for (milliseconds hangs{1000}; hangs < milliseconds(2000); hangs += milliseconds(1))
    EXPECT_LE(find_hung(milliseconds(0), hangs).given_up - hangs, milliseconds(3500));
}

// A request goes to a worker that hangs, then to the one of which nobody knows yet that it hangs.
TEST(ProbeRule, TwoHungWorkersInARowCostLessThanFourSeconds) {
  milliseconds worst{0};
  for (milliseconds sent{3000}; sent < milliseconds(3500); sent += milliseconds(7)) {
    const milliseconds moved = find_hung(milliseconds(0), sent).suspect;
    for (milliseconds first{0}; first < milliseconds(500); first += milliseconds(7))
      for (milliseconds hangs = sent; hangs <= moved; hangs += milliseconds(7)) {
        const milliseconds next = find_hung(first, hangs).suspect;
        worst = std::max(worst, std::max(next, moved) - sent);  // not sent there if known before
      }
  }
  EXPECT_GT(worst, milliseconds(2500));
  EXPECT_LE(worst, milliseconds(3000));
}

}  // namespace
}  // namespace sluice

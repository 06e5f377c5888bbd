#include "server/admission.h"

#include <atomic>
#include <thread>

#include <gtest/gtest.h>

namespace sluice {
namespace {

AdmissionLimits limits() {
  AdmissionLimits l;
  l.total = {8, 100, 1000};
  l.per_key = {4, 0, 0};
  l.per_request = {16, 0, 500};
  return l;
}

TEST(AdmissionControl, BoundsSequencesTokensAndBytes) {
  AdmissionControl a(limits(), 3);
  EXPECT_FALSE(a.admit(0, {4, 50, 500}));
  EXPECT_FALSE(a.admit(1, {3, 20, 100}));
  EXPECT_EQ(a.admit(2, {2, 1, 1})->status, 429) << "nine sequences";
  EXPECT_EQ(a.admit(2, {1, 31, 1})->status, 429) << "101 tokens";
  EXPECT_EQ(a.admit(2, {1, 1, 401})->status, 429) << "1,001 bytes";
  EXPECT_EQ(a.admit(0, {1, 1, 1})->status, 429) << "the key's fifth";
  EXPECT_FALSE(a.full());
  EXPECT_FALSE(a.admit(2, {1, 1, 1})) << "refusals must leave nothing behind";
  EXPECT_TRUE(a.full());
  a.release(0, {4, 50, 500});
  EXPECT_FALSE(a.full());
  EXPECT_FALSE(a.admit(0, {4, 50, 500}));
}

TEST(AdmissionControl, OneRequestIsBoundedEvenAlone) {
  AdmissionControl a(limits(), 0);
  EXPECT_FALSE(a.check({16, 1000, 500}));
  EXPECT_EQ(a.check({17, 1, 1})->code, "too_many_sequences");
  EXPECT_EQ(a.check({1, 1, 501})->code, "answer_too_large");
  EXPECT_FALSE(a.admit(-1, {16, 1000, 500})) << "alone it may be larger than the queue";
  EXPECT_EQ(a.admit(-1, {1, 1, 0})->status, 429);
}

TEST(AdmissionControl, TicketsGiveBackWhatTheyHold) {
  AdmissionLimits l = limits();
  l.per_key = {};
  AdmissionControl a(l, 1);
  ASSERT_FALSE(a.admit(-1, {4, 90, 1000}));
  {
    Ticket whole(a, -1, {4, 90, 1000});
    {
      std::unique_ptr<Ticket> first = whole.split({3, 40, 0});
      std::unique_ptr<Ticket> second = whole.split({3, 50, 0});  // two more than were admitted
      EXPECT_EQ(a.admit(-1, {3, 0, 0})->status, 429);
      first->release_tokens();
      first->release_sequence();
      EXPECT_FALSE(a.admit(-1, {1, 40, 0}));
      a.release(-1, {1, 40, 0});
    }
    EXPECT_EQ(a.admit(-1, {0, 0, 1})->status, 429) << "the answer is not sent yet";
  }
  EXPECT_FALSE(a.admit(-1, {8, 100, 1000})) << "something was kept";
}

TEST(AdmissionControl, RacesLetNobodyInBeyondTheLimit) {
  AdmissionLimits l;
  l.total = {10, 1 << 20, 1 << 20};
  AdmissionControl a(l, 1);
  ASSERT_FALSE(a.admit(-1, {1, 1, 1}));
  std::atomic<int> inside{1}, most{1};
  auto work = [&] {
    for (int i = 0; i < 20'000; ++i) {
      if (a.admit(-1, {3, 1, 1})) continue;
      int now = inside.fetch_add(3) + 3;
      for (int old = most.load(); old < now && !most.compare_exchange_weak(old, now);) continue;
      inside.fetch_sub(3);
      a.release(-1, {3, 1, 1});
    }
  };
  std::thread one(work), two(work);
  work();
  one.join();
  two.join();
  EXPECT_LE(most.load(), 10);
  EXPECT_FALSE(a.admit(-1, {9, 1, 1}));
}

}  // namespace
}  // namespace sluice

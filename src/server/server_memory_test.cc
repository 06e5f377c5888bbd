#include "server/server_memory.h"

#include <gtest/gtest.h>

#include "server/observe.h"

namespace sluice {
namespace {

TEST(ServerMemory, FollowsTheLimits) {
  HttpLimits http;
  AdmissionLimits admission;
  const ServerMemory usual = server_memory(http, admission, 8);
  EXPECT_GE(usual.requests, http.connections * (http.body_bytes + http.header_bytes));
  EXPECT_EQ(usual.unread, 2 * http.unread_bytes);
  EXPECT_EQ(usual.streams, size_t{256} << 20);
  EXPECT_EQ(usual.constraints, size_t{256} << 20);
  EXPECT_EQ(usual.responses, size_t{64} << 20);
  EXPECT_EQ(usual.turns, size_t{8} << 20);
  EXPECT_EQ(usual.answers, size_t{1} << 30);
  EXPECT_EQ(usual.prompts, size_t{262'144} * 4);

  http.connections /= 2;
  http.unread_bytes /= 4;
  admission.total.bytes = 0;
  admission.total.tokens = 10;
  const ServerMemory small = server_memory(http, admission, 16);
  EXPECT_EQ(small.requests, usual.requests / 2);
  EXPECT_EQ(small.unread, usual.unread / 4);
  EXPECT_EQ(small.answers, std::nullopt);
  EXPECT_EQ(small.prompts, 40U);
  EXPECT_EQ(small.outbox, 2 * usual.outbox);
}

TEST(ServerMemory, RecordsAreThoseOfTheRecorder) {
  const size_t bytes = server_memory({}, {}, 8).records;
  EXPECT_EQ(bytes, Recorder::bytes(8));
  // The tables that begin() makes, by the largest alone.
  EXPECT_GT(bytes, Recorder::kSlices * sizeof(SliceRecord));
  EXPECT_LT(bytes, size_t{16} << 20);
}

}  // namespace
}  // namespace sluice

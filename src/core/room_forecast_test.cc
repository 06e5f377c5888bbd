#include "core/room_forecast.h"

#include <vector>

#include <gtest/gtest.h>

namespace sluice {
namespace {

using Users = std::vector<RoomUser>;

TEST(RoomForecast, StartsAtOnceWhereThereIsRoom) {
  EXPECT_EQ(steps_until_room({10, 2}, Users{}, Users{{10, 1, 5}}), 0);
  EXPECT_EQ(steps_until_room({10, 2}, Users{{50, 1, 7}}, Users{{4, 1, 5}, {6, 1, 5}}), 0);
}

TEST(RoomForecast, WaitsForBlocksUntilEnoughSequencesEnded) {
  const Users running = {{10, 1, 30}, {10, 1, 7}, {10, 1, 12}};
  EXPECT_EQ(steps_until_room({0, 9}, running, Users{{10, 1, 5}}), 7);
  EXPECT_EQ(steps_until_room({0, 9}, running, Users{{11, 1, 5}}), 12);
  EXPECT_EQ(steps_until_room({0, 9}, running, Users{{30, 1, 5}}), 30);
  EXPECT_EQ(steps_until_room({0, 9}, running, Users{{31, 1, 5}}), 30) << "alone, it is tried";
}

TEST(RoomForecast, WaitsForSlots) {
  const Users running = {{1, 1, 30}, {1, 1, 7}};
  EXPECT_EQ(steps_until_room({99, 0}, running, Users{{1, 1, 5}}), 7);
  EXPECT_EQ(steps_until_room({99, 0}, running, Users{{1, 2, 5}}), 30);
}

TEST(RoomForecast, WhoWaitsBeforeItStartsAndEndsFirst) {
  const Users running = {{1, 1, 10}};
  // One slot: each has it for five steps.
  EXPECT_EQ(steps_until_room({99, 0}, running, Users{{1, 1, 5}, {1, 1, 5}, {1, 1, 5}}), 20);
  // A large one in front holds up a small one behind it.
  EXPECT_EQ(steps_until_room({3, 5}, Users{{4, 1, 10}}, Users{{6, 1, 5}, {1, 1, 5}}), 10);
}

}  // namespace
}  // namespace sluice

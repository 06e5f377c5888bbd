// When a request finds a slot and blocks: sequences end at their expected lengths, and those that
// wait before it start in their order. Time is counted in steps of decodes. Pure.
#pragma once

#include <cstdint>
#include <span>

namespace sluice {

struct RoomUser {
  int64_t blocks = 0;  // that it holds, or needs to start
  int slots = 1;
  int64_t steps = 1;  // until it ends: from now on, or from its start
};

struct Room {
  int64_t blocks = 0;
  int slots = 0;
};

// Steps until the last of `waiting` starts; 0: it starts at once. `free` is there now beside what
// `running` holds. Growth is left out: what a sequence gains is small beside what others release.
// A sequence that needs more than everything starts when nothing else runs.
int64_t steps_until_room(Room free,
                         std::span<const RoomUser> running,
                         std::span<const RoomUser> waiting);

}  // namespace sluice

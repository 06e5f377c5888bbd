#include "core/room_forecast.h"

#include <functional>
#include <queue>
#include <utility>
#include <vector>

namespace sluice {

int64_t steps_until_room(Room free,
                         std::span<const RoomUser> running,
                         std::span<const RoomUser> waiting) {
  struct End {
    int64_t step = 0;
    Room held;
    bool operator>(const End& o) const { return step > o.step; }
  };
  std::vector<End> list;
  list.reserve(running.size() + waiting.size());
  for (const RoomUser& u : running) list.push_back({u.steps, {u.blocks, u.slots}});
  std::priority_queue<End, std::vector<End>, std::greater<>> ends(std::greater<>(),
                                                                  std::move(list));
  int64_t now = 0;
  for (const RoomUser& u : waiting) {
    while ((u.blocks > free.blocks || u.slots > free.slots) && !ends.empty()) {
      now = ends.top().step;
      free.blocks += ends.top().held.blocks;
      free.slots += ends.top().held.slots;
      ends.pop();
    }
    free.blocks -= u.blocks;
    free.slots -= u.slots;
    ends.push({now + u.steps, {u.blocks, u.slots}});
  }
  return now;
}

}  // namespace sluice

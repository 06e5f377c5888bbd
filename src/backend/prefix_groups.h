// Decode rows that begin with the same blocks of K and V, for attention that reads those blocks
// once for all of the rows. Plain data, the same on the host and on a device.
#pragma once

#include <bit>
#include <cstdint>

namespace sluice {

inline constexpr int kMaxPrefixGroups = 16;
inline constexpr int kMaxPrefixRows = 1024;  // of all groups together

// Rows [first, first + rows) of the list of members see the same blocks in [0, positions).
struct PrefixGroup {
  int32_t first = 0, rows = 0, positions = 0;
};

// A row's place: its group, and its number in it. Negative: it is in none.
inline constexpr int kPrefixRowBits = 20;
constexpr int32_t prefix_place(int group, int row) { return group << kPrefixRowBits | row; }

// How a device works through the groups of a step, made on the device.
struct PrefixPlan {
  struct Group {
    int32_t first, rows, positions;
    int32_t spans, states;  // spans of the prefix; states that a row has of them
    int32_t tiles, chunks;  // of rows, of spans
    int64_t state_at;       // floats before the group's states
  };
  int32_t num_groups, num_items;  // items: (group, chunk, tile)
  int32_t chunk;                  // spans of an item
  int32_t tile;                   // (row, head) pairs of an item
  Group groups[kMaxPrefixGroups];
};

// The groups of a step in a device's memory; `plan` is null where attention has none.
struct PrefixView {
  const PrefixPlan* plan = nullptr;
  const int32_t* members = nullptr;  // batch rows by group
  const int32_t* places = nullptr;   // [decode rows] prefix_place(), or -1
};

// When groups pay on a device.
struct PrefixSharing {
  int64_t least_saved = 0;  // positions that rows need not read, from which it pays; 0: never
};

// log2 of the length of the span that holds `position`: 256 positions, and from 16,384 on 32 spans
// to a doubling (span_shift() in cuda/span_places.cuh).
constexpr int span_bits(int32_t position) {
  const int bits = std::bit_width(static_cast<uint32_t>(position)) - 6;
  return bits > 8 ? bits : 8;
}
// `positions` rounded down to the end of a span.
constexpr int32_t whole_spans(int32_t positions) {
  return positions >> span_bits(positions) << span_bits(positions);
}
// Spans in which so many positions lie.
constexpr int num_spans(int32_t positions) {
  int num = 0;
  for (int32_t at = 0; at < positions; at += 1 << span_bits(at)) ++num;
  return num;
}

}  // namespace sluice

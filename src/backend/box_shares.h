// How blocks of a GPU's product share out boxes of columns evenly. Plain arithmetic, so that it is
// tested everywhere; the kernel is cuda/wide_shares.cu.
#pragma once

#include <cstdint>

namespace sluice {

// A block's share of the boxes of all tiles, tile by tile. There are at least as many tiles as
// blocks, so that a tile is in one share or in two: the end of one and the beginning of the next.
struct BoxShare {
  int boxes;        // of a tile
  int first, last;  // the share: [first, last) of all tiles' boxes

  constexpr BoxShare(int tiles, int boxes_of_tile, int block, int blocks)
      : boxes(boxes_of_tile),
        first(static_cast<int>(int64_t{tiles} * boxes_of_tile * block / blocks)),
        last(static_cast<int>(int64_t{tiles} * boxes_of_tile * (block + 1) / blocks)) {}

  // Boxes of a tile that are added up in one go.
  struct Run {
    int tile, box, end;
    bool gives, takes;  // the next block ends the tile; the block before has begun it
  };
  constexpr int runs() const { return last / boxes - first / boxes + (last % boxes > 0); }
  // The part that the next block needs comes first. The part that needs the block before comes
  // last.
  constexpr Run run(int i) const {
    const int tile = first / boxes, box = first % boxes, last_tile = last / boxes;
    if (last % boxes > 0 && i-- == 0) return {last_tile, 0, last % boxes, true, false};
    const int whole = tile + (box > 0) + i;
    if (whole < last_tile) return {whole, 0, boxes, false, false};
    return {tile, box, boxes, false, true};
  }
};

}  // namespace sluice

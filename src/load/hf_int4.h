// Reads the 4-bit checkpoints of AWQ and GPTQ: their settings in config.json, and their codes,
// which it repacks into rows of Format::int4. No state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "tensor/formats/int4.h"
#include "tensor/safetensors.h"

namespace sluice {

struct HfQuant {
  enum class Method : uint8_t { awq, gptq };
  Method method = Method::gptq;
  int group = 0;        // columns that share a scale; 0: all
  int zero_offset = 0;  // added to stored zero points
};

// The object quantization_config of a config.json.
Result<HfQuant> parse_hf_quant(const json::object& config);

// A matrix [rows, cols] as such a checkpoint holds it, in little-endian 32-bit words of eight
// codes.
//   codes   gptq [cols / 8, rows], a word is eight columns; awq [cols, rows / 8], eight rows
//   zeros   [groups, rows / 8]
//   scales  [groups, rows]
struct Int4Source {
  HfQuant quant;
  int64_t rows = 0, cols = 0;
  std::span<const std::byte> codes, zeros, scales;
  SafetensorsType scale_type = SafetensorsType::f16;
  std::vector<int32_t> groups;  // of each column, where they are not its index / group

  int64_t group_size() const { return quant.group ? quant.group : cols; }
  int64_t num_groups() const { return (cols + group_size() - 1) / group_size(); }
  // Rows of Format::int4 hold it exactly; otherwise it is decoded to f16.
  bool fits_blocks() const {
    return scale_type == SafetensorsType::f16 && groups.empty() && cols % 32 == 0 &&
           (group_size() % 32 == 0 || group_size() == cols);
  }
};

// Rows [begin, end), multiples of 8; `place` is where in `out` each of all rows goes.
void repack_int4(const Int4Source& source,
                 int64_t begin,
                 int64_t end,
                 std::span<const int64_t> place,
                 BlockInt4* out);
void decode_int4(const Int4Source& source,
                 int64_t begin,
                 int64_t end,
                 std::span<const int64_t> place,
                 uint16_t* out);

}  // namespace sluice

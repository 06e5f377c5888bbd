#include "load/hf_int4.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/str.h"
#include "load/hf_fields.h"

namespace sluice {
namespace {

std::string lower(std::string s) {
  for (char& c : s) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return s;
}

void check_awq(HfFields& f) {
  const std::string version = lower(f.string("version", f.string("checkpoint_format", "gemm")));
  if (version != "gemm") {
    f.fail(strf("AWQ version %s is not supported: gemm is", quote(version).c_str()));
  }
  if (!f.boolean("zero_point", true)) f.fail("AWQ without zero points is not supported");
}

void check_gptq(HfFields& f, HfQuant& q) {
  const std::string format = lower(f.string("checkpoint_format", "gptq"));
  if (format != "gptq" && format != "gptq_v2") {
    f.fail(strf("GPTQ checkpoint_format %s is not supported: gptq and gptq_v2 are",
                quote(format).c_str()));
  }
  if (f.boolean("is_marlin_format", false)) f.fail("GPTQ in marlin's format is not supported");
  const json::object* dynamic = f.object("dynamic");
  if (dynamic && !dynamic->empty()) {
    f.fail("GPTQ with settings of single modules (dynamic) is not supported");
  }
  if (lower(f.string("pack_dtype", "int32")) != "int32") {
    f.fail("GPTQ packed in other words than int32 is not supported");
  }
  q.zero_offset = format == "gptq" ? 1 : 0;
}

uint32_t word(std::span<const std::byte> words, int64_t index) {
  uint32_t w = 0;
  std::memcpy(&w, words.data() + index * 4, 4);
  return w;
}

// Which code of a word is row c of the eight: gptq's zero points and awq.
constexpr int kInOrder[8] = {0, 1, 2, 3, 4, 5, 6, 7};
constexpr int kAwqPlace[8] = {0, 4, 1, 5, 2, 6, 3, 7};

float scale_at(const Int4Source& s, int64_t group, int64_t row) {
  const int64_t i = group * s.rows + row;
  if (s.scale_type == SafetensorsType::f32) {
    float v = 0;
    std::memcpy(&v, s.scales.data() + i * 4, 4);
    return v;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, s.scales.data() + i * 2, 2);
  return s.scale_type == SafetensorsType::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

int zero_at(const Int4Source& s, int64_t group, int64_t row) {
  const int* place = s.quant.method == HfQuant::Method::awq ? kAwqPlace : kInOrder;
  const uint32_t w = word(s.zeros, group * (s.rows / 8) + row / 8);
  return static_cast<int>(w >> 4 * place[row % 8] & 15) + s.quant.zero_offset;
}

// Codes of rows [row, row + 8) and columns [col, col + num), num <= 32 and a multiple of 8.
void read_codes(const Int4Source& s, int64_t row, int64_t col, int num, uint8_t (&q)[8][32]) {
  if (s.quant.method == HfQuant::Method::gptq) {
    for (int i = 0; i < num; i += 8) {
      for (int r = 0; r < 8; ++r) {
        const uint32_t w = word(s.codes, (col + i) / 8 * s.rows + row + r);
        for (int n = 0; n < 8; ++n) q[r][i + n] = static_cast<uint8_t>(w >> 4 * n & 15);
      }
    }
  } else {
    for (int i = 0; i < num; ++i) {
      const uint32_t w = word(s.codes, (col + i) * (s.rows / 8) + row / 8);
      for (int r = 0; r < 8; ++r) q[r][i] = static_cast<uint8_t>(w >> 4 * kAwqPlace[r] & 15);
    }
  }
}

}  // namespace

Result<HfQuant> parse_hf_quant(const json::object& config) {
  std::string error;
  HfFields f(config, error);
  HfQuant q;
  const std::string method = lower(f.string("quant_method"));
  if (method != "awq" && method != "gptq") {
    return Error{400, strf("quant_method %s is not supported: awq and gptq with 4 bits are; or "
                           "fetch the model in bf16",
                           quote(method).c_str())};
  }
  const int bits = f.integer("bits", 1, 64, f.integer("w_bit", 1, 64, 4));
  if (bits != 4) f.fail(strf("%s with %d bits is not supported: 4 bits are", method.c_str(), bits));
  const int group =
      f.integer("group_size", -1, 1 << 20, f.integer("q_group_size", -1, 1 << 20, 128));
  if (group != -1 && (group < 8 || group % 8 != 0)) {
    f.fail(strf("a group_size of %d is not supported: multiples of 8 are, and -1", group));
  }
  q.group = std::max(group, 0);
  if (method == "awq") {
    q.method = HfQuant::Method::awq;
    check_awq(f);
  } else {
    check_gptq(f, q);
  }
  if (!error.empty()) return Error{400, "quantization_config: " + error};
  return q;
}

void repack_int4(const Int4Source& s,
                 int64_t begin,
                 int64_t end,
                 std::span<const int64_t> place,
                 BlockInt4* out) {
  CHECK(s.fits_blocks() && begin % 8 == 0 && end % 8 == 0);
  const int64_t blocks = s.cols / 32;
  const int64_t group_size = s.group_size();
  for (int64_t row = begin; row < end; row += 8) {
    uint16_t scale[8] = {};
    uint16_t minus_zero[8] = {};
    for (int64_t b = 0; b < blocks; ++b) {
      if (const int64_t col = b * 32; col % group_size == 0) {
        for (int r = 0; r < 8; ++r) {
          const int64_t group = col / group_size;
          std::memcpy(&scale[r], s.scales.data() + (group * s.rows + row + r) * 2, 2);
          minus_zero[r] = f32_to_f16(static_cast<float>(-zero_at(s, group, row + r)));
        }
      }
      uint8_t q[8][32];
      read_codes(s, row, b * 32, 32, q);
      for (int r = 0; r < 8; ++r) {
        BlockInt4& block = out[place[static_cast<size_t>(row + r)] * blocks + b];
        block.d = scale[r];
        block.m = minus_zero[r];
        for (int i = 0; i < 16; ++i) {
          block.qs[i] = static_cast<uint8_t>(q[r][i] | q[r][i + 16] << 4);
        }
      }
    }
  }
}

void decode_int4(const Int4Source& s,
                 int64_t begin,
                 int64_t end,
                 std::span<const int64_t> place,
                 uint16_t* out) {
  CHECK(begin % 8 == 0 && end % 8 == 0);
  struct Group {
    float scale[8];
    int zero[8];
  };
  std::vector<Group> groups(static_cast<size_t>(s.num_groups()));  // of eight rows
  for (int64_t row = begin; row < end; row += 8) {
    for (int64_t g = 0; g < s.num_groups(); ++g) {
      for (int r = 0; r < 8; ++r) {
        groups[static_cast<size_t>(g)].scale[r] = scale_at(s, g, row + r);
        groups[static_cast<size_t>(g)].zero[r] = zero_at(s, g, row + r);
      }
    }
    for (int64_t col = 0; col < s.cols; col += 8) {
      uint8_t q[8][32];
      read_codes(s, row, col, 8, q);
      for (int i = 0; i < 8; ++i) {
        const int64_t g =
            s.groups.empty() ? (col + i) / s.group_size() : s.groups[static_cast<size_t>(col + i)];
        const Group& group = groups[static_cast<size_t>(g)];
        for (int r = 0; r < 8; ++r) {
          const float value = group.scale[r] * static_cast<float>(q[r][i] - group.zero[r]);
          out[place[static_cast<size_t>(row + r)] * s.cols + col + i] = f32_to_f16(value);
        }
      }
    }
  }
}

}  // namespace sluice

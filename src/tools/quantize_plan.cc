#include "tools/quantize_plan.h"

#include <algorithm>
#include <string_view>

#include "tensor/formats/all.h"

namespace sluice {

namespace {

constexpr std::string_view kOutput = "output.weight", kEmbedding = "token_embd.weight";

bool fits(Format f, int64_t cols) { return cols % format_info(f).block_elems == 0; }

// The next finer format with a smaller block.
Format finer(Format f) {
  const FormatInfo& info = format_info(f);
  if (info.block_elems <= 32) return Format::f16;
  return info.block_bytes * 8 < 5 * info.block_elems ? Format::q5_0 : Format::q8_0;
}

bool stays_f32(const TensorInfo& t) {
  return t.rows == 1 || t.name.ends_with("_norm.weight") || t.name.starts_with("position_embd");
}

// What other programs call a file by its general.file_type.
constexpr struct {
  Format format;
  uint64_t file_type;
} kFileTypes[] = {{Format::f32, 0},   {Format::f16, 1},   {Format::q4_0, 2}, {Format::q8_0, 7},
                  {Format::q4_k, 14}, {Format::q6_k, 18}, {Format::bf16, 32}};

}  // namespace

std::vector<PlannedTensor> plan_formats(const std::vector<TensorInfo>& tensors,
                                        const QuantizeRules& rules) {
  const bool tied = std::none_of(tensors.begin(), tensors.end(),
                                 [](const TensorInfo& t) { return t.name == kOutput; });
  const std::string_view output = tied ? kEmbedding : kOutput;
  const bool four_bits = rules.type == Format::q4_0 || rules.type == Format::q4_k;
  std::vector<PlannedTensor> plan;
  plan.reserve(tensors.size());
  for (const TensorInfo& t : tensors) {
    PlannedTensor p;
    p.source = &t;
    p.wanted = rules.type;
    if (stays_f32(t)) {
      p.wanted = Format::f32;
    } else if (t.name == kEmbedding && rules.keep_embedding &&
               find_gguf_type(format_info(t.format).gguf_type)) {
      p.wanted = t.format;
    } else if (t.name == output) {
      if (rules.output_type) {
        p.wanted = *rules.output_type;
      } else if (four_bits) {
        p.wanted = Format::q6_k;
      }
    }
    Format format = p.wanted;
    while (!fits(format, t.cols)) format = finer(format);
    p.fell_back = format != p.wanted;
    p.target = {t.name, format, t.rows, t.cols,
                row_bytes(format, t.cols) * static_cast<size_t>(t.rows)};
    plan.push_back(std::move(p));
  }
  return plan;
}

Meta quantized_meta(const Meta& source, Format type) {
  Meta meta;
  for (const auto& [key, value] : source.all()) {
    // The parts of a split model become one file.
    if (key.starts_with("split.")) continue;
    meta.set(key, value);
  }
  for (const auto& t : kFileTypes) {
    if (t.format == type) meta.set("general.file_type", t.file_type);
  }
  meta.set("general.quantization_version", uint64_t{2});
  return meta;
}

}  // namespace sluice

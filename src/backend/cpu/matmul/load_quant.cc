#include "backend/cpu/matmul/load_quant.h"

#include <fnmatch.h>

#include <algorithm>

#include "base/str.h"
#include "tensor/formats/all.h"

namespace sluice {

namespace {

constexpr struct {
  const char* name;
  WeightQuant kind;
} kKinds[] = {{"none", WeightQuant::none},
              {"w8a8", WeightQuant::w8a8},
              {"w4", WeightQuant::w4},
              {"u8", WeightQuant::u8}};

bool is_matrix(const TensorInfo& t) { return t.rows > 1; }

bool fits(WeightQuant kind, const TensorInfo& t) {
  switch (kind) {
    case WeightQuant::w8a8:
      return t.cols % 32 == 0 && t.cols <= kMaxW8Cols;
    case WeightQuant::w4:
      return t.cols % format_info(kW4Format).block_elems == 0 &&
             row_bytes(t.format, t.cols) > row_bytes(kW4Format, t.cols);
    case WeightQuant::none:
    case WeightQuant::u8:
      return true;
  }
  return true;
}

}  // namespace

bool matches_name(std::string_view pattern, std::string_view tensor) {
  if (pattern.find_first_of("*?[") == std::string_view::npos)
    return tensor.find(pattern) != std::string_view::npos;
  constexpr std::string_view kSuffix = ".weight";
  const std::string glob(pattern), name(tensor);
  if (fnmatch(glob.c_str(), name.c_str(), 0) == 0) return true;
  return name.ends_with(kSuffix) &&
         fnmatch(glob.c_str(), name.substr(0, name.size() - kSuffix.size()).c_str(), 0) == 0;
}

WeightQuant LoadQuant::of(const TensorInfo& t) const {
  if (!is_matrix(t) || t.name.starts_with("position_embd") || !fits(kind, t))
    return WeightQuant::none;
  const bool excluded = std::ranges::any_of(
      exclude, [&](const std::string& pattern) { return matches_name(pattern, t.name); });
  return excluded ? WeightQuant::none : kind;
}

Result<LoadQuant> load_quant(std::string_view kind,
                             std::string_view exclude,
                             const std::vector<TensorInfo>& tensors) {
  LoadQuant q;
  const auto* found = std::ranges::find_if(kKinds, [&](const auto& k) { return kind == k.name; });
  if (found == std::end(kKinds)) {
    return Error{400,
                 strf("--quantize %s: use none, w8a8, w4 or u8 on the CPU", quote(kind).c_str())};
  }
  q.kind = found->kind;
  if (!exclude.empty() && q.kind == WeightQuant::none) {
    return Error{400,
                 "--quantize-exclude names what --quantize leaves alone: give --quantize w8a8, "
                 "w4 or u8 with it"};
  }
  while (!exclude.empty()) {
    const size_t comma = std::min(exclude.find(','), exclude.size());
    const std::string_view name = exclude.substr(0, comma);
    exclude.remove_prefix(std::min(comma + 1, exclude.size()));
    if (name.empty()) return Error{400, "--quantize-exclude: a name is empty"};
    if (std::ranges::none_of(tensors, [&](const TensorInfo& t) {
          return is_matrix(t) && matches_name(name, t.name);
        })) {
      return Error{400, strf("--quantize-exclude %s: the model has no matrix of that name; `sluice "
                             "inspect --tensors` lists them",
                             quote(name).c_str())};
    }
    q.exclude.emplace_back(name);
  }
  return q;
}

}  // namespace sluice

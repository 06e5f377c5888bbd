#include "load/hf_quantised.h"

#include <algorithm>
#include <cstring>

#include "base/str.h"

namespace sluice {
namespace {

std::string dims_text(const std::vector<int64_t>& shape) {
  std::string s;
  for (int64_t d : shape) s += strf("%s%lld", s.empty() ? "" : ", ", static_cast<long long>(d));
  return "[" + s + "]";
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool is_byte_code(SafetensorsType type) {
  return type == SafetensorsType::i8 || type == SafetensorsType::f8_e4m3;
}

// "layers.0.mlp.up_proj." of its weight
std::string module_of(const HfTensor& t) { return t.name.substr(0, t.name.size() - 6); }

// Reads the tensors of one matrix.
class Finder {
 public:
  Finder(const HfShards& shards, const HfTensor& tensor, const HfQuant& quant)
      : shards_(shards), tensor_(tensor), quant_(quant) {
    out_.source.rows = tensor.rows;
    out_.source.cols = tensor.cols;
  }

  Result<HfQuantised> find() {
    const HfEntry* e = first_code_tensor();
    if (tensor_.rows % 8 != 0 || tensor_.cols % 8 != 0 || tensor_.change == HfChange::transpose) {
      return tensor_error(shards_, *e, "cannot be quantised: its sizes are no multiples of 8");
    }
    auto ok = read(*e);
    if (!ok) return ok.error();
    return std::move(out_);
  }

 private:
  const HfEntry* first_code_tensor() const {
    for (const char* tail : {"qweight", "weight_packed", "weight"}) {
      if (const HfEntry* e = shards_.find(module_of(tensor_) + tail)) return e;
    }
    return nullptr;
  }

  Result<void> read(const HfEntry& e) {
    using Method = HfQuant::Method;
    const bool words = e.tensor.name.ends_with(".qweight");
    const bool old = quant_.method == Method::awq || quant_.method == Method::gptq;
    if (words != old || (quant_.method == Method::fp8 && e.tensor.type == SafetensorsType::i8)) {
      return tensor_error(shards_, e, "is not stored as quant_method of config.json says");
    }
    if (words) return read_groups_of_words(e);
    if (e.tensor.type == SafetensorsType::u8) return read_mxfp4(e);
    if (auto ok = read_compressed_codes(e); !ok) return ok;
    if (auto ok = read_compressed_scales(); !ok) return ok;
    if (auto ok = read_compressed_zeros(); !ok) return ok;
    if (const HfEntry* order = use("weight_g_idx")) return read_order(*order);
    return {};
  }

  const HfEntry* use(const char* tail) {
    const HfEntry* e = shards_.find(module_of(tensor_) + tail);
    if (e) out_.entries.push_back(e);
    return e;
  }

  Result<const HfEntry*> need(const char* tail) {
    const HfEntry* e = use(tail);
    if (e) return e;
    return tensor_error(shards_, *first_code_tensor(), strf("has no %s beside it", tail));
  }

  Result<void> shape_is(const HfEntry& e, const std::vector<int64_t>& shape) const {
    return check_tensor_shape(shards_, e, shape);
  }

  Result<void> type_is(const HfEntry& e, SafetensorsType type) const {
    if (e.tensor.type == type) return {};
    return tensor_error(shards_, e, strf("must be %s", type_name(type)));
  }

  Result<void> take_scales(const HfEntry& e) {
    const SafetensorsType type = e.tensor.type;
    if (type != SafetensorsType::f16 && type != SafetensorsType::bf16 &&
        type != SafetensorsType::f32) {
      return tensor_error(shards_, e, "must be F16, BF16 or F32");
    }
    out_.source.scale_type = type;
    out_.source.scales = shards_.bytes(e);
    return {};
  }

  // gptq: bits and group of a module that may differ from the others'.
  void settle_dynamic(const HfEntry& codes, const HfEntry& scales) {
    CodeSource& s = out_.source;
    const auto &c = codes.tensor.shape, &g = scales.tensor.shape;
    if (c.size() == 2 && (c[0] == s.cols / 8 || c[0] == s.cols / 4)) {
      s.bits = c[0] == s.cols / 8 ? 4 : 8;
    }
    const bool fits = g.size() == 2 && g[0] > 0;
    if (fits && g[0] != s.num_groups() && s.cols % g[0] == 0) s.group = s.cols / g[0];
  }

  // awq, gptq
  Result<void> read_groups_of_words(const HfEntry& codes) {
    CodeSource& s = out_.source;
    out_.entries.push_back(&codes);
    auto zeros = need("qzeros");
    if (!zeros) return zeros.error();
    auto scales = need("scales");
    if (!scales) return scales.error();
    const bool awq = quant_.method == HfQuant::Method::awq;
    s.layout = awq ? CodeLayout::awq : CodeLayout::gptq;
    s.zero_layout = awq ? ZeroLayout::awq : ZeroLayout::gptq;
    s.bits = quant_.bits;
    s.zero_offset = quant_.zero_offset;
    s.group = quant_.group ? quant_.group : s.cols;
    if (quant_.dynamic) settle_dynamic(codes, **scales);
    const int64_t n = 32 / s.bits;
    const int64_t groups = s.num_groups();
    s.group_step = s.rows;
    s.row_step = 1;
    const std::vector<int64_t> shape = {awq ? s.cols : s.cols / n, awq ? s.rows / n : s.rows};
    if (auto ok = shape_is(codes, shape); !ok) return ok;
    if (auto ok = shape_is(**zeros, {groups, s.rows / n}); !ok) return ok;
    if (auto ok = shape_is(**scales, {groups, s.rows}); !ok) return ok;
    for (const HfEntry* e : {&codes, *zeros}) {
      if (auto ok = type_is(*e, SafetensorsType::i32); !ok) return ok;
    }
    if (auto ok = take_scales(**scales); !ok) return ok;
    s.codes = shards_.bytes(codes);
    s.zeros = shards_.bytes(**zeros);
    if (const HfEntry* order = use("g_idx")) return read_order(*order);
    return {};
  }

  // The group of each column, if they are not in order.
  Result<void> read_order(const HfEntry& e) {
    CodeSource& s = out_.source;
    if (auto ok = type_is(e, SafetensorsType::i32); !ok) return ok;
    if (auto ok = shape_is(e, {s.cols}); !ok) return ok;
    std::vector<int32_t> order(static_cast<size_t>(s.cols));
    std::memcpy(order.data(), shards_.bytes(e).data(), order.size() * 4);
    if (std::ranges::all_of(order, [](int32_t g) { return g == -1; })) return {};  // not used
    bool in_order = true;
    for (int64_t i = 0; i < s.cols; ++i) {
      const int32_t g = order[static_cast<size_t>(i)];
      if (g < 0 || g >= s.num_groups()) {
        return tensor_error(
            shards_, e, strf("names group %d of %lld", g, static_cast<long long>(s.num_groups())));
      }
      in_order = in_order && g == i / s.group;
    }
    if (!in_order) s.order = std::move(order);
    return {};
  }

  Result<void> read_mxfp4(const HfEntry& codes) {
    CodeSource& s = out_.source;
    out_.entries.push_back(&codes);
    auto scales = need("weight_scale");
    if (!scales) return scales.error();
    if (s.cols % 32 != 0) return tensor_error(shards_, codes, "has rows of no multiple of 32");
    if (auto ok = shape_is(codes, {s.rows, s.cols / 2}); !ok) return ok;
    if (auto ok = shape_is(**scales, {s.rows, s.cols / 32}); !ok) return ok;
    if (auto ok = type_is(**scales, SafetensorsType::u8); !ok) return ok;
    s.layout = CodeLayout::mxfp4;
    s.scale_type = SafetensorsType::u8;
    s.group = 32;
    s.codes = shards_.bytes(codes);
    s.scales = shards_.bytes(**scales);
    return {};
  }

  // compressed-tensors, fp8
  Result<void> read_compressed_codes(const HfEntry& e) {
    CodeSource& s = out_.source;
    out_.entries.push_back(&e);
    s.codes = shards_.bytes(e);
    s.bits = 8;
    if (!e.tensor.name.ends_with(".weight_packed")) {
      s.layout = e.tensor.type == SafetensorsType::i8 ? CodeLayout::bytes : CodeLayout::e4m3;
      return shape_is(e, {s.rows, s.cols});
    }
    s.layout = CodeLayout::packed;
    if (e.tensor.shape != std::vector<int64_t>{s.rows, s.cols / 4}) s.bits = 4;
    if (auto ok = type_is(e, SafetensorsType::i32); !ok) return ok;
    if (auto ok = shape_is(e, {s.rows, s.cols * s.bits / 32}); !ok) return ok;
    const HfEntry* shape = use("weight_shape");
    if (!shape) return {};
    const bool wide = shape->tensor.type == SafetensorsType::i64;
    if (!wide) {
      if (auto ok = type_is(*shape, SafetensorsType::i32); !ok) return ok;
    }
    if (auto ok = shape_is(*shape, {2}); !ok) return ok;
    int64_t sizes[2] = {};
    for (size_t i = 0; i < 2; ++i) {
      std::memcpy(&sizes[i], shards_.bytes(*shape).data() + i * (wide ? 8 : 4), wide ? 8 : 4);
    }
    if (sizes[0] == s.rows && sizes[1] == s.cols) return {};
    return tensor_error(
        shards_, *shape,
        strf("says %s, but config.json makes it %s", dims_text({sizes[0], sizes[1]}).c_str(),
             dims_text({s.rows, s.cols}).c_str()));
  }

  // One for the matrix, one per row, per group of columns, or per block.
  Result<void> read_compressed_scales() {
    CodeSource& s = out_.source;
    const HfEntry* e = use("weight_scale_inv");
    if (!e) {
      auto plain = need("weight_scale");
      if (!plain) return plain.error();
      e = *plain;
    }
    if (auto ok = take_scales(*e); !ok) return ok;
    const std::vector<int64_t>& shape = e->tensor.shape;
    const int64_t br = quant_.block_rows, bc = quant_.block_cols;
    const bool matrix = shape.size() == 2;
    s.group = s.cols;
    if (br > 0 && shape == std::vector<int64_t>{ceil_div(s.rows, br), ceil_div(s.cols, bc)}) {
      s.scale_rows = br;
      s.group = bc;
      s.row_step = shape[1];
      s.group_step = 1;
    } else if (shape.empty() || shape == std::vector<int64_t>(shape.size(), 1)) {
      s.scale_rows = s.rows;
    } else if (shape == std::vector<int64_t>{s.rows} || (matrix && shape[1] == 1)) {
      s.row_step = 1;
      if (shape[0] != s.rows) return shape_is(*e, {s.rows, 1});
    } else {
      const bool fits = matrix && shape[0] == s.rows && shape[1] > 0 && s.cols % shape[1] == 0;
      const int64_t group = fits ? s.cols / shape[1] : 0;
      if (std::ranges::find(quant_.groups, group) == quant_.groups.end() || !fits) {
        return tensor_error(shards_, *e,
                            strf("is %s, which fits no group_size or block of config.json for a "
                                 "matrix %s",
                                 dims_text(shape).c_str(), dims_text({s.rows, s.cols}).c_str()));
      }
      s.group = group;
      s.row_step = shape[1];
      s.group_step = 1;
    }
    return {};
  }

  Result<void> read_compressed_zeros() {
    CodeSource& s = out_.source;
    const HfEntry* e = use("weight_zero_point");
    if (!e) return {};
    s.zeros = shards_.bytes(*e);
    if (s.layout == CodeLayout::e4m3) {  // floats have none; some files write zeros
      if (std::ranges::all_of(s.zeros, [](std::byte b) { return b == std::byte{0}; })) return {};
      return tensor_error(shards_, *e, "is not zero, but belongs to floats");
    }
    if (e->tensor.type == SafetensorsType::i32) {
      s.zero_layout = ZeroLayout::packed;
      return shape_is(*e, {ceil_div(s.rows, 32 / s.bits), s.num_groups()});
    }
    if (auto ok = type_is(*e, SafetensorsType::i8); !ok) return ok;
    s.zero_layout = ZeroLayout::bytes;
    const size_t scales = s.scales.size() / type_bytes(s.scale_type);
    if (s.zeros.size() == scales) return {};
    return tensor_error(shards_, *e,
                        strf("has %zu elements beside %zu scales", s.zeros.size(), scales));
  }

  const HfShards& shards_;
  const HfTensor& tensor_;
  const HfQuant& quant_;
  HfQuantised out_;
};

}  // namespace

Error tensor_error(const HfShards& shards, const HfEntry& e, const std::string& what) {
  return Error{400, strf("%s: tensor %s %s", quote(shards.path(e), 400).c_str(),
                         quote(e.tensor.name).c_str(), what.c_str())};
}

Result<void> check_tensor_shape(const HfShards& shards,
                                const HfEntry& e,
                                const std::vector<int64_t>& shape) {
  if (e.tensor.shape == shape) return {};
  return tensor_error(shards, e,
                      strf("is %s, but config.json makes it %s; they are of different models",
                           dims_text(e.tensor.shape).c_str(), dims_text(shape).c_str()));
}

bool has_codes(const HfShards& shards, const HfTensor& t) {
  if (t.vector || !t.name.ends_with(".weight")) return false;
  const HfEntry* plain = shards.find(t.name);
  if (plain) return is_byte_code(plain->tensor.type);
  return shards.find(module_of(t) + "qweight") || shards.find(module_of(t) + "weight_packed");
}

Result<HfQuantised> find_quantised(const HfShards& shards,
                                   const HfTensor& tensor,
                                   const HfQuant& quant) {
  return Finder(shards, tensor, quant).find();
}

bool is_activation_scale(std::string_view name) {
  for (std::string_view tail :
       {".input_scale", ".input_zero_point", ".output_scale", ".output_zero_point", ".q_scale",
        ".k_scale", ".v_scale", ".k_zero_point", ".v_zero_point"}) {
    if (name.ends_with(tail)) return true;
  }
  return false;
}

}  // namespace sluice

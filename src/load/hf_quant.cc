#include "load/hf_quant.h"

#include <algorithm>
#include <initializer_list>
#include <string>

#include "base/str.h"
#include "load/hf_fields.h"

namespace sluice {
namespace {

std::string lower(std::string s) {
  for (char& c : s) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return s;
}

// -1 and null: one group, 0 here.
int read_group_size(HfFields& f, const char* key, int fallback) {
  const int group = f.integer(key, -1, 1 << 20, fallback);
  if (group != -1 && (group < 8 || group % 8 != 0)) {
    f.fail(strf("a %s of %d is not supported: multiples of 8 are, and -1", key, group));
  }
  return std::max(group, 0);
}

// [rows, columns] of a block.
void read_block(HfFields& f, const char* key, HfQuant& q) {
  const json::value* v = f.find(key);
  if (!v) return;
  const json::array* list = v->if_array();
  int sizes[2] = {};
  for (size_t i = 0; list && list->size() == 2 && i < 2; ++i) {
    const json::value& n = (*list)[i];
    if (n.is_int64() && n.get_int64() > 0 && n.get_int64() <= 1 << 20) {
      sizes[i] = static_cast<int>(n.get_int64());
    }
  }
  if (sizes[0] == 0 || sizes[1] == 0) f.fail(strf("%s must be a list of two sizes", key));
  if (q.block_rows != 0 && (q.block_rows != sizes[0] || q.block_cols != sizes[1])) {
    f.fail(strf("blocks of different sizes (%s) are not supported", key));
  }
  q.block_rows = sizes[0];
  q.block_cols = sizes[1];
}

// The layout's name, which writers give different keys. Two that differ are an error.
std::string read_layout(HfFields& f,
                        std::initializer_list<const char*> keys,
                        const char* fallback) {
  std::string found;
  const char* first = nullptr;
  for (const char* key : keys) {
    const std::string name = lower(f.string(key));
    if (name.empty()) continue;
    if (first && name != found) f.fail(strf("%s and %s name different layouts", first, key));
    if (!first) found = name, first = key;
  }
  return first ? found : fallback;
}

void read_awq(HfFields& f, HfQuant& q) {
  const std::string version = read_layout(f, {"version", "checkpoint_format", "format"}, "gemm");
  if (version != "gemm") {
    f.fail(strf("AWQ version %s is not supported: gemm is", quote(version).c_str()));
  }
  if (!f.boolean("zero_point", true)) f.fail("AWQ without zero points is not supported");
  q.bits = f.integer("bits", 1, 64, f.integer("w_bit", 1, 64, 4));
  if (q.bits != 4) f.fail(strf("awq with %d bits is not supported: 4 bits are", q.bits));
  q.group = read_group_size(
      f, f.find("q_group_size") && !f.find("group_size") ? "q_group_size" : "group_size", 128);
}

void read_gptq(HfFields& f, HfQuant& q) {
  const std::string format = read_layout(f, {"checkpoint_format", "format"}, "gptq");
  if (format != "gptq" && format != "gptq_v2") {
    f.fail(strf("GPTQ checkpoint_format %s is not supported: gptq and gptq_v2 are",
                quote(format).c_str()));
  }
  if (f.boolean("is_marlin_format", false)) f.fail("GPTQ in marlin's format is not supported");
  if (lower(f.string("pack_dtype", "int32")) != "int32") {
    f.fail("GPTQ packed in other words than int32 is not supported");
  }
  q.bits = f.integer("bits", 1, 64, 4);
  if (q.bits != 4 && q.bits != 8) {
    f.fail(strf("gptq with %d bits is not supported: 4 and 8 bits are", q.bits));
  }
  q.group = read_group_size(f, "group_size", 128);
  const json::object* dynamic = f.object("dynamic");
  q.dynamic = dynamic && !dynamic->empty();
  q.zero_offset = format == "gptq" ? 1 : 0;
}

constexpr const char* kMxfp4Packed = "mxfp4-pack-quantized";
constexpr const char* kCompressed[] = {"pack-quantized",  "int-quantized", "float-quantized",
                                       "naive-quantized", kMxfp4Packed,    "dense"};

void check_compressed_format(HfFields& f, const std::string& format) {
  for (const char* known : kCompressed) {
    if (format == known) return;
  }
  f.fail(strf(
      "compressed-tensors format %s is not supported: pack-quantized, int-quantized, "
      "float-quantized, naive-quantized and mxfp4-pack-quantized are; or fetch the model in bf16",
      quote(format).c_str()));
}

// The object `weights` of a config group.
void read_compressed_weights(HfFields f, bool mxfp4, HfQuant& q) {
  const std::string type = lower(f.string("type", "int"));
  const int bits = f.integer("num_bits", 1, 64, 8);
  if (mxfp4 && type == "float" && bits == 4 && f.integer("group_size", -1, 1 << 20, 32) == 32) {
    return;
  }
  if (mxfp4 || (!(type == "int" && (bits == 4 || bits == 8)) && !(type == "float" && bits == 8))) {
    f.fail(
        strf("weights of type %s with %d bits (num_bits) are not supported: int with 4 and 8 "
             "bits and float with 8 are",
             quote(type).c_str(), bits));
  }
  const bool grouped = f.find("group_size") && f.integer("group_size", -1, 1 << 20) != -1;
  const std::string strategy = lower(f.string("strategy", grouped ? "group" : "tensor"));
  if (strategy == "group") {
    q.groups.push_back(read_group_size(f, "group_size", -1));
  } else if (strategy == "block") {
    read_block(f, "block_structure", q);
  } else if (strategy != "tensor" && strategy != "channel") {
    f.fail(strf("strategy %s is not supported: tensor, channel, group and block are",
                quote(strategy).c_str()));
  }
}

void read_compressed(HfFields& f, HfQuant& q, std::string& error) {
  const json::object* sparse = f.object("sparsity_config");
  if (sparse && HfFields(*sparse, error).string("format", "dense") != "dense") {
    f.fail("sparsity_config: sparse weights are not supported");
  }
  const json::object* transform = f.object("transform_config");
  const json::object* rotations =
      transform ? HfFields(*transform, error).object("config_groups") : nullptr;
  if (rotations && !rotations->empty()) {
    f.fail("transform_config: rotated weights are not supported");
  }
  const json::object* all = f.object("config_groups");
  if (!all || all->empty()) return f.fail("has no config_groups");
  const std::string format = f.string("format", "dense");
  for (const auto& member : *all) {
    const json::object* o = member.value().if_object();
    if (!o) return f.fail("config_groups must hold objects");
    HfFields group(*o, error);
    const std::string own = group.string("format", format);
    check_compressed_format(f, own);
    if (const json::object* w = group.object("weights")) {
      read_compressed_weights(HfFields(*w, error), own == kMxfp4Packed, q);
    }
  }
}

void read_fp8(HfFields& f, HfQuant& q) {
  const std::string kind = lower(f.string("fmt", "e4m3"));
  if (kind != "e4m3" && kind != "float8_e4m3fn") {
    f.fail(strf("fmt %s is not supported: e4m3 is", quote(kind).c_str()));
  }
  read_block(f, "weight_block_size", q);
}

}  // namespace

Result<HfQuant> parse_hf_quant(const json::object& config) {
  std::string error;
  HfFields f(config, error);
  HfQuant q;
  const std::string method = lower(f.string("quant_method"));
  if (method == "awq") {
    q.method = HfQuant::Method::awq;
    read_awq(f, q);
  } else if (method == "gptq") {
    q.method = HfQuant::Method::gptq;
    read_gptq(f, q);
  } else if (method == "compressed-tensors") {
    q.method = HfQuant::Method::compressed_tensors;
    read_compressed(f, q, error);
  } else if (method == "fp8") {
    q.method = HfQuant::Method::fp8;
    read_fp8(f, q);
  } else {
    f.fail(
        strf("quant_method %s is not supported: awq, gptq, compressed-tensors and fp8 are; or "
             "fetch the model in bf16 or as GGUF",
             quote(method).c_str()));
  }
  if (!error.empty()) return Error{400, "quantization_config: " + error};
  return q;
}

}  // namespace sluice

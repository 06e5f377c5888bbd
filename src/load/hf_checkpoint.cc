#include "load/hf_checkpoint.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/str.h"
#include "tensor/formats/all.h"

namespace sluice {
namespace {

// The row of the GGUF tensor that each of its rows here becomes.
std::vector<int64_t> row_places(const HfTensor& t) {
  std::vector<int64_t> place(static_cast<size_t>(t.rows));
  const int64_t head = t.change == HfChange::interleave ? t.rows / t.heads : t.rows;
  for (int64_t r = 0; r < t.rows; ++r) {
    const int64_t i = r % head;
    const bool second = 2 * i >= head;
    const int64_t moved = second ? 2 * (i - head / 2) + 1 : 2 * i;
    place[static_cast<size_t>(r)] = t.change == HfChange::interleave ? r - i + moved : r;
  }
  return place;
}

std::optional<Format> float_format(SafetensorsType type) {
  switch (type) {
    case SafetensorsType::f32:
    case SafetensorsType::f64:  // converted
      return Format::f32;
    case SafetensorsType::f16:
      return Format::f16;
    case SafetensorsType::bf16:
      return Format::bf16;
    default:
      return std::nullopt;
  }
}

}  // namespace

size_t HfCheckpoint::index_of(const TensorInfo& tensor) const {
  auto it = index_.find(tensor.name);
  CHECK(it != index_.end() && tensors_[it->second].bytes == tensor.bytes);
  return it->second;
}

const HfEntry* HfCheckpoint::use(const std::string& name) {
  const HfEntry* e = shards_->find(name);
  if (e) used_.insert(e);
  return e;
}

void HfCheckpoint::add(Source source, Format format) {
  const HfTensor& t = source.tensor;
  index_.emplace(t.gguf, tensors_.size());
  const size_t bytes = row_bytes(format, t.cols) * static_cast<size_t>(t.rows);
  tensors_.push_back({t.gguf, format, t.rows, t.cols, bytes});
  sources_.push_back(std::move(source));
}

Result<void> HfCheckpoint::add_float(const HfTensor& t, const HfEntry& e) {
  const bool turned = t.change == HfChange::transpose;
  std::vector<int64_t> shape = {turned ? t.cols : t.rows, turned ? t.rows : t.cols};
  if (t.vector) shape = {t.cols};
  if (auto ok = check_tensor_shape(*shards_, e, shape); !ok) return ok.error();
  std::optional<Format> format = float_format(e.tensor.type);
  if (!format) {
    return tensor_error(
        *shards_, e,
        strf("is of type %s; weights must be F32, F16, BF16 or F64", type_name(e.tensor.type)));
  }
  if (t.change == HfChange::plus_one) format = Format::f32;
  Source s;
  s.tensor = t;
  s.entry = &e;
  // Nothing makes a writer align its tensors, but readers of halves and floats want it.
  s.in_place = t.change == HfChange::none && e.tensor.type != SafetensorsType::f64 &&
               e.tensor.offset % type_bytes(e.tensor.type) == 0;
  add(std::move(s), *format);
  return {};
}

Result<void> HfCheckpoint::add_codes(const HfTensor& t, const HfQuant& quant) {
  auto found = find_quantised(*shards_, t, quant);
  if (!found) return found.error();
  used_.insert(found->entries.begin(), found->entries.end());
  const CodeFormat becomes = choose_code_format(found->source);
  if (becomes.decoded) ++decoded_[becomes.decoded];
  Source source;
  source.tensor = t;
  source.codes = std::move(*found);
  add(std::move(source), becomes.format);
  return {};
}

void HfCheckpoint::log_decoded() const {
  for (const auto& [why, num] : decoded_) {
    LOG(info, "%d quantised matrices are decoded to 16 bits: %s", num, why.c_str());
  }
}

// Quantisers give every module a bias, of zeros where the model has none.
bool HfCheckpoint::is_zero_bias(const HfEntry& e) const {
  if (!e.tensor.name.ends_with(".bias")) return false;
  return std::ranges::all_of(shards_->bytes(e), [](std::byte b) { return b == std::byte{0}; });
}

// Weights that would not be used are wrong answers.
Result<void> HfCheckpoint::check_rest(const HfConfig& config, bool quantised) const {
  for (const auto& [name, e] : shards_->tensors()) {
    if (used_.contains(&e) || is_harmless(e.tensor.name)) continue;
    if (config.tied && name == "lm_head.weight") continue;
    if (is_zero_bias(e) || (quantised && is_activation_scale(name))) continue;
    return tensor_error(*shards_, e,
                        strf("is not part of a %s model as config.json describes it; it would be "
                             "left out",
                             config.arch.c_str()));
  }
  return {};
}

Result<void> HfCheckpoint::add_tensors(const HfConfig& config,
                                       std::optional<HfQuant> quant,
                                       HfShards shards) {
  shards_ = std::move(shards);
  for (const HfTensor& t : hf_tensors(config)) {
    if (has_codes(*shards_, t)) {
      if (!quant) {
        return Error{400, strf("the weights are quantised (%s), but config.json has no "
                               "quantization_config",
                               t.name.c_str())};
      }
      if (auto ok = add_codes(t, *quant); !ok) return ok.error();
      continue;
    }
    const HfEntry* e = use(t.name);
    if (!e) {
      return Error{400, strf("the safetensors have no tensor %s, which config.json asks for",
                             t.name.c_str())};
    }
    if (auto ok = add_float(t, *e); !ok) return ok.error();
  }
  for (auto& [name, values] : hf_rope_tensors(config)) {
    Source s;
    s.tensor.gguf = name;
    s.tensor.rows = 1;
    s.tensor.cols = static_cast<int64_t>(values.size());
    s.values = std::move(values);
    add(std::move(s), Format::f32);
  }
  auto rest = check_rest(config, quant.has_value());
  used_.clear();
  return rest;
}

std::vector<const HfEntry*> HfCheckpoint::entries_of(const Source& s) const {
  if (s.codes) return s.codes->entries;
  if (s.entry) return {s.entry};
  return {};
}

std::span<const std::byte> HfCheckpoint::data(const TensorInfo& tensor) {
  const size_t i = index_of(tensor);
  const Source& s = sources_[i];
  if (s.in_place) {
    shards_->prefetch(*s.entry);
    return shards_->bytes(*s.entry);
  }
  Bytes& bytes = live_[i];
  if (!bytes) {
    bytes = allocate_bytes(tensor.bytes);
    for (const HfEntry* e : entries_of(s)) shards_->prefetch(*e);
    make(s, tensor, bytes.get());
    for (const HfEntry* e : entries_of(s)) shards_->drop(*e);
  }
  return {bytes.get(), tensor.bytes};
}

void HfCheckpoint::release(const TensorInfo& tensor) {
  const size_t i = index_of(tensor);
  live_.erase(i);
  if (sources_[i].in_place) shards_->drop(*sources_[i].entry);
}

void HfCheckpoint::make(const Source& s, const TensorInfo& info, std::byte* out) const {
  if (s.codes) return make_codes(s, info, out);
  if (s.entry) return make_float(s, info, out);
  std::memcpy(out, s.values.data(), info.bytes);
}

void HfCheckpoint::make_codes(const Source& s, const TensorInfo& info, std::byte* out) const {
  const std::vector<int64_t> place = row_places(s.tensor);
  threads_.split(info.rows / 8, info.bytes, [&](int64_t begin, int64_t end) {
    convert_codes(s.codes->source, info.format, begin * 8, end * 8, place, out);
  });
}

void HfCheckpoint::make_float(const Source& s, const TensorInfo& info, std::byte* out) const {
  const HfTensor& t = s.tensor;
  const std::byte* in = shards_->bytes(*s.entry).data();
  const SafetensorsType type = s.entry->tensor.type;
  const int64_t elem = static_cast<int64_t>(type_bytes(type));
  std::vector<std::byte> wide;  // f64 as f32
  if (type == SafetensorsType::f64) {
    wide.resize(info.bytes);
    for (size_t i = 0; i < info.bytes / 4; ++i) {
      double d = 0;
      std::memcpy(&d, in + i * 8, 8);
      const auto f = static_cast<float>(d);
      std::memcpy(wide.data() + i * 4, &f, 4);
    }
    in = wide.data();
  }
  const int64_t size = type == SafetensorsType::f64 ? 4 : elem;
  if (t.change == HfChange::plus_one) {
    std::vector<std::byte> aligned(in, in + t.cols * size);
    auto* values = reinterpret_cast<float*>(out);
    format_info(*float_format(type)).decode(aligned.data(), values, t.cols);
    for (int64_t i = 0; i < t.cols; ++i) values[i] += 1;
    return;
  }
  const std::vector<int64_t> place = row_places(t);
  threads_.split(t.rows, info.bytes, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      std::byte* row = out + place[static_cast<size_t>(r)] * t.cols * size;
      if (t.change != HfChange::transpose) {
        std::memcpy(row, in + r * t.cols * size, static_cast<size_t>(t.cols * size));
        continue;
      }
      for (int64_t c = 0; c < t.cols; ++c) {
        std::memcpy(row + c * size, in + (c * t.rows + r) * size, static_cast<size_t>(size));
      }
    }
  });
}

}  // namespace sluice

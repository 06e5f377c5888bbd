// The checkpoint behind open_hf_directory(): tensors of safetensors files under GGUF's names.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "load/hf_config.h"
#include "load/hf_quant.h"
#include "load/hf_quantised.h"
#include "load/hf_shards.h"
#include "load/hf_tensors.h"
#include "load/tensor_maker.h"
#include "tensor/checkpoint.h"

namespace sluice {

class HfCheckpoint final : public Checkpoint {
 public:
  Meta& mutable_meta() { return meta_; }
  // Finds what the config needs; every tensor of the files must be accounted for. Errors name the
  // file, or nothing where all of them are meant.
  Result<void> add_tensors(const HfConfig& config, std::optional<HfQuant> quant, HfShards shards);

  // A line for each reason why quantised matrices became 16-bit floats.
  void log_decoded() const;

  std::span<const std::byte> data(const TensorInfo& tensor) override;
  void release(const TensorInfo& tensor) override;

 private:
  // Where a tensor's bytes come from.
  struct Source {
    HfTensor tensor;
    const HfEntry* entry = nullptr;  // the plain weight
    std::optional<HfQuantised> codes;
    std::vector<float> values;  // neither: made from config.json
    bool in_place = false;
  };

  size_t index_of(const TensorInfo& tensor) const;
  Result<void> add_float(const HfTensor& tensor, const HfEntry& e);
  Result<void> add_codes(const HfTensor& tensor, const HfQuant& quant);
  Result<void> check_rest(const HfConfig& config, bool quantised) const;
  bool is_zero_bias(const HfEntry& e) const;
  void add(Source source, Format format);

  const HfEntry* use(const std::string& name);

  void make(const Source& source, const TensorInfo& info, std::byte* out) const;
  void make_float(const Source& source, const TensorInfo& info, std::byte* out) const;
  void make_codes(const Source& source, const TensorInfo& info, std::byte* out) const;
  std::vector<const HfEntry*> entries_of(const Source& source) const;

  std::optional<HfShards> shards_;
  std::vector<Source> sources_;  // beside tensors_
  std::set<const HfEntry*> used_;
  std::map<std::string, int> decoded_;  // quantised matrices that became 16-bit floats, by reason
  std::unordered_map<size_t, Bytes> live_;
  FillThreads threads_;
};

}  // namespace sluice

#include "runtime/stream_plan.h"

#include <algorithm>

#include "backend/cuda_plugin.h"
#include "exec/layer_stream.h"
#include "runtime/placement.h"

namespace sluice {

bool streams_prompts(const EngineOptions& o) {
  return o.stream_prompts && !o.deterministic && !kv_in_bytes(o);
}

Result<size_t> stream_slot_bytes(const Checkpoint& checkpoint,
                                 const EngineOptions& options,
                                 DType activations,
                                 int num_layers) {
  Result<LoadQuant> quant = weight_quant(options, checkpoint);
  if (!quant) return quant.error();
  const std::unique_ptr<WeightStore> sizes = cuda_weight_sizes(
      {activations, options.quantize == Quantize::fp8, options.gpu_weights == GpuWeights::stored,
       options.deterministic, std::move(*quant)});
  size_t most = 0;
  for (int l = 0; l < num_layers; ++l) {
    LoadOptions load;
    load.fuse = options.fuse;
    load.layers = {l, l + 1, false};
    Result<std::unique_ptr<Model>> layer =
        load_model(ModelSource::headers_of(checkpoint), *sizes, load);
    if (!layer) return layer.error();
    most = std::max(most, LayerStream::slot_bytes(**layer));
  }
  return most;
}

}  // namespace sluice

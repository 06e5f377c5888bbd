// A loaded model: weights on a backend and the forward pass over a step's ragged list of tokens.
// Knows nothing of requests. Used by the device thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/result.h"
#include "tensor/checkpoint.h"

namespace sluice {

// A model's dimensions, for the rest of the engine.
struct ModelShape {
  std::string arch;
  int num_layers = 0, hidden = 0, vocab = 0;
  int num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int max_len = 0;           // positions it was trained for
  std::vector<int> windows;  // per layer: how many positions a query sees, 0 = all
  int ffn = 0;               // inner width of the MLP

  // Bytes of K and V per position over all layers.
  size_t kv_bytes_per_token(KvType kv) const {
    return static_cast<size_t>(num_layers) * static_cast<size_t>(num_kv_heads) * 2 *
           kv.head_bytes(head_dim, 1);
  }
};

// The file a model is loaded from, or only its headers: then no tensor's data is read, and the
// model cannot run but knows its sizes.
struct ModelSource {
  ModelSource(Checkpoint& checkpoint) : headers(checkpoint), data(&checkpoint) {}
  static ModelSource headers_of(const Checkpoint& checkpoint) { return {checkpoint, nullptr}; }

  const Checkpoint& headers;
  Checkpoint* data;  // the same file, or null

 private:
  ModelSource(const Checkpoint& h, Checkpoint* d) : headers(h), data(d) {}
};

// Layers [first, end) of a model; the default is all of them.
struct LayerRange {
  int first = 0;
  int end = INT32_MAX;
  bool embeds = true;  // else the first layer too begins with states that are given

  bool has_first() const { return first == 0 && embeds; }
  bool has_last(int num_layers) const { return end >= num_layers; }
  int count(int num_layers) const { return std::min(end, num_layers) - first; }
};

// Told of each layer, for a model whose matrices are not all in the device's memory at once. Layers
// are numbered as in the whole model.
struct LayerListener {
  virtual ~LayerListener() = default;
  virtual void loads(int layer) = 0;   // its matrices are loaded next
  virtual void begins(int layer) = 0;  // in forward(): what is queued next reads them
  virtual void ended(int layer) = 0;   // nothing that is queued later does
};

// Told in forward() when the ops that write a layer's K and V are called: they are done, or queued
// on a device with a queue. Layers are numbered as in forward()'s list of KvLayers.
struct KvWatch {
  virtual void wrote(int layer) = 0;

 protected:
  ~KvWatch() = default;
};

struct LoadOptions {
  bool fuse = true;  // QKV and gate-up as one matmul each
  // A part of the model: the embedding comes with the first layer, the output with the last.
  LayerRange layers = {};
  LayerListener* listener = nullptr;  // outlives the model
  int max_len = 0;  // of the sequences that will run; 0: what the model was trained for
  std::function<void(size_t done_bytes, size_t total_bytes)> progress;
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelShape& shape() const = 0;  // of the whole model, also where a part is loaded
  virtual size_t weight_bytes() const = 0;      // as packed, norms and biases in f32
  // Bytes of weights that a step with one output row reads: all but an untied embedding table.
  virtual size_t step_bytes() const = 0;
  // Bytes of activations for steps of up to max_tokens tokens; reserve() allocates them, once for
  // each lane of a device, and uses the first.
  virtual size_t scratch_bytes(int max_tokens, int max_outputs) const = 0;
  virtual void reserve(Backend& backend, int max_tokens, int max_outputs, int lanes = 1) = 0;
  // The same for one lane, in memory of the device that outlives the model's steps: as another
  // model has for its own, which runs at other times.
  virtual void reserve_in(std::span<std::byte> memory, int max_tokens, int max_outputs) = 0;
  // Memory of the first lane's activations.
  virtual std::span<std::byte> scratch() const = 0;
  // Whose activations the calls below use from here on.
  virtual void use_lane(int lane) = 0;
  // The residual stream of a step, [max_tokens, hidden] f32: forward() begins with it where the
  // first layer is not loaded, and leaves it there for a part with the next layers.
  virtual Tensor states() const = 0;
  // Leaves there the embedding of the batch's tokens, which the first layer would begin with.
  virtual void embed(Backend& backend, const BatchView& batch) = 0;
  // Runs the layers that are loaded over the batch, `kv` being theirs: writes K and V, leaves
  // hidden states for the calls below, which need the last layer.
  virtual void forward(Backend& backend, const BatchView& batch, std::span<const KvLayer> kv) = 0;
  // logits [rows.size(), vocab] of the given rows of the last batch; at most max_outputs at a time.
  virtual void logits(Backend& backend, std::span<const int32_t> rows, Tensor out) = 0;
  // Argmax of the logits of each of these rows. `scratch` has the shape of logits()' out; its
  // contents are unspecified on return. For backends whose memory is the host's.
  virtual void best(Backend& backend,
                    std::span<const int32_t> rows,
                    Tensor scratch,
                    std::span<Best> out) = 0;
  // The final hidden states, normed, [rows.size(), hidden] f32 of the given rows of the last batch.
  virtual void hidden(Backend& backend, std::span<const int32_t> rows, Tensor out) = 0;

  // Is told of the layers of forward() from here on; null: nobody.
  void watch(KvWatch* to) { watch_ = to; }

 protected:
  KvWatch* watch_ = nullptr;
};

// One row per family: table.cc.
struct DecoderTraits;
struct ModelFamily {
  const char* arch;  // GGUF's general.architecture
  const DecoderTraits* traits;
  Result<std::unique_ptr<Model>> (*load)(const ModelSource&,
                                         WeightStore&,
                                         const LoadOptions&,
                                         const DecoderTraits&);
};
std::span<const ModelFamily> model_families();

// Loads by the checkpoint's architecture.
Result<std::unique_ptr<Model>> load_model(const ModelSource& source,
                                          WeightStore& store,
                                          const LoadOptions& options);
// The shape, from metadata alone.
Result<ModelShape> read_shape(const Checkpoint& checkpoint);

}  // namespace sluice

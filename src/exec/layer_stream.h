// Prompts through the GPU in layers that the CPU runs otherwise. The layers' matrices lie in pinned
// memory as the GPU reads them, and are copied to two slots of its memory, a layer ahead of the
// computation. K and V of one layer are on the device at a time: those of the context come from the
// CPU's cache, and new ones go there when the step is over. Owned by a SplitExecutor's maker. The
// engine thread calls run(); the thread of the CPU's layers begin(), add() and store(), between
// steps of the device or before run().
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "backend/device.h"
#include "base/result.h"
#include "core/step_plan.h"
#include "exec/device_executor.h"
#include "exec/executor_config.h"
#include "exec/kv_cache.h"
#include "model/model.h"

namespace sluice {

class LayerStream final : LayerListener {
 public:
  struct Sizes {
    int num_layers = 0;     // the first ones
    int max_rows = 0;       // of a step
    int num_blocks = 0;     // of one layer's K and V on the device
    int max_seqs = 0;       // slots
    int64_t table_len = 0;  // blocks of a slot in a cache group
    int block_size = 16;
    KvType kv;              // on the device
    size_t slot_bytes = 0;  // of a layer's matrices
    CacheGroups groups;     // of these layers
  };
  // For the executor with these sizes; `groups` are those of the first `num_layers` layers.
  static Sizes sizes_for(const ExecutorConfig& config,
                         CacheGroups groups,
                         int num_layers,
                         size_t slot_bytes);
  // Bytes of a slot for a layer that is measured alone.
  static size_t slot_bytes(const Model& layer) {
    return (layer.weight_bytes() + (size_t{16} << 10) + 255) & ~size_t{255};
  }
  // Bytes on the device, where steps may use `shared` bytes of somebody else's activations; `model`
  // has the layers, or their headers.
  static size_t device_bytes(const Model& model, const Sizes& sizes, size_t shared);
  static size_t pinned_bytes(const ModelShape& shape, const Sizes& sizes);

  ~LayerStream() override;

  // Loads sizes.num_layers layers; the other sizes matter to reserve() alone, which comes before
  // any step. The device outlives what is returned.
  static Result<std::unique_ptr<LayerStream>> load(Device& device,
                                                   Checkpoint& checkpoint,
                                                   LoadOptions options,
                                                   Sizes sizes);

  // `shared`: activations of another model, whose steps come before and after run().
  void reserve(const Sizes& sizes, std::span<std::byte> shared);
  const Model& model() const { return *model_; }
  // Bytes on the device before reserve().
  size_t loaded_bytes() const { return slots_.bytes(); }

  // Seconds that the matrices of all layers take to the device, measured now.
  double measure();

  // A step's slices: from none, one after the other. False: there is no room for this one, which
  // happens only where several have long contexts that they do not share. `row` is where its states
  // are, `tables` the host's, of all slots.
  void begin();
  bool add(const SliceView& slice, std::span<const int32_t> tables);
  bool empty() const { return slices_.empty(); }
  int num_rows() const { return num_rows_; }
  // Copies the context of the slices from the host's cache.
  void fetch(const KvCache& host, Backend& threads);
  // Queues the layers for these slices: from their rows of `states` to the same. Where it throws,
  // nothing of it is queued any more.
  void run(float* states);
  // Waits for all that is queued; a device that is lost has nothing left to wait for.
  void drain() noexcept;
  // When that is done: new K and V to the host's cache.
  void store(const KvCache& host, Backend& threads);

 private:
  static constexpr int kSlots = 2, kFirstMark = DeviceExecutor::kMostMarks;
  static constexpr int kNumMarks = kFirstMark + 2 * kSlots + 1, kLaneMark = kNumMarks - 1;
  // A block of a slice in one cache group: positions [0, num_context) are copied to the device,
  // [num_context, end) from it.
  struct Staged {
    int32_t host, staged, num_context, end;
  };

  LayerStream(Device& device, Sizes sizes, const ModelShape& shape);
  void loads(int layer) override;
  void begins(int layer) override;
  void ended(int layer) override;
  void keep_loaded();
  void prefetch(int layer);
  void prefetch_first();
  void queue(float* states);
  bool has_context() const { return num_context_ > 0; }
  std::byte* slot(int layer) const;
  std::byte* pinned_weights(int layer) const;
  // One side of a layer's blocks on their way: 0 is K, 1 is V.
  std::byte* pinned_kv(int layer, int side) const;
  template <typename Copy>
  void for_blocks(const KvCache& host, Backend& threads, const Copy& copy);
  int weights_mark(int layer) const { return kFirstMark + layer % kSlots; }
  int free_mark(int layer) const { return kFirstMark + kSlots + layer % kSlots; }
  const std::vector<Staged>& blocks_of(int layer) const {
    return staged_[static_cast<size_t>(sizes_.groups.layers[static_cast<size_t>(layer)].group)];
  }

  Device& device_;
  Sizes sizes_;
  ModelShape shape_;
  std::unique_ptr<Model> model_;
  size_t block_bytes_ = 0;  // of K, or V, of one layer on the device
  Buffer slots_, weights_;  // on the device; pinned
  Buffer stage_, kv_;       // K, then V of one layer on the device; pinned, of all layers
  std::vector<KvLayer> layers_;
  int loading_ = -1;  // the layer whose matrices go to a slot

  // The step's arrays, pinned and on the device: positions, slots of rows, slices, tables.
  Buffer arrays_, device_arrays_;
  struct Arrays {
    int32_t *positions, *row_slot;
    SliceView* slices;
    int32_t* tables;
  };
  Arrays place(std::byte* base, size_t* bytes) const;
  Arrays host_arrays_{}, on_device_{};
  std::vector<SliceView> slices_;                   // as the device's batch has them
  std::vector<int32_t> state_rows_;                 // of each
  std::vector<std::vector<Staged>> staged_;         // by group
  std::vector<std::map<int32_t, int32_t>> shared_;  // by group: blocks of whole context, as staged
  int num_rows_ = 0, num_context_ = 0, most_staged_ = 0;
};

}  // namespace sluice

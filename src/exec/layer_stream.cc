#include "exec/layer_stream.h"

#include <algorithm>
#include <chrono>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "exec/kv_forms.h"

namespace sluice {

namespace {

size_t kv_block_bytes(const ModelShape& shape, const LayerStream::Sizes& z) {
  return static_cast<size_t>(shape.num_kv_heads) * z.kv.head_bytes(shape.head_dim, z.block_size);
}
// With the null block.
size_t side_bytes(const ModelShape& shape, const LayerStream::Sizes& z) {
  return kv_block_bytes(shape, z) * (static_cast<size_t>(z.num_blocks) + 1);
}
size_t stream_table_stride(const LayerStream::Sizes& z) {
  return static_cast<size_t>(z.groups.num_groups()) * static_cast<size_t>(z.table_len);
}
size_t array_bytes(const LayerStream::Sizes& z) {
  const auto rows = static_cast<size_t>(z.max_rows), seqs = static_cast<size_t>(z.max_seqs);
  return rows * 2 * sizeof(int32_t) + seqs * sizeof(SliceView) +
         seqs * stream_table_stride(z) * sizeof(int32_t) + size_t{4} * 256;
}

}  // namespace

LayerStream::Sizes LayerStream::sizes_for(const ExecutorConfig& c,
                                          CacheGroups groups,
                                          int num_layers,
                                          size_t slot_bytes) {
  Sizes z;
  z.num_layers = num_layers;
  z.max_rows = c.max_step_tokens;
  // One slice with the longest context, and one more block for each: the last is seldom full.
  z.num_blocks = z.max_rows / c.block_size + static_cast<int>(table_len(c)) + c.max_seqs;
  z.max_seqs = c.max_seqs;
  z.table_len = table_len(c);
  z.block_size = c.block_size;
  z.kv = c.kv_type;
  z.slot_bytes = slot_bytes;
  z.groups = std::move(groups);
  return z;
}

size_t LayerStream::device_bytes(const Model& model, const Sizes& z, size_t shared) {
  const size_t scratch = model.scratch_bytes(z.max_rows, 0);
  return kSlots * z.slot_bytes + 2 * side_bytes(model.shape(), z) + array_bytes(z) +
         (scratch <= shared ? 0 : scratch);
}

size_t LayerStream::pinned_bytes(const ModelShape& shape, const Sizes& z) {
  return static_cast<size_t>(z.num_layers) * (z.slot_bytes + 2 * side_bytes(shape, z)) +
         array_bytes(z);
}

Result<std::unique_ptr<LayerStream>> LayerStream::load(Device& device,
                                                       Checkpoint& checkpoint,
                                                       LoadOptions options,
                                                       Sizes sizes) {
  Result<ModelShape> shape = read_shape(checkpoint);
  if (!shape) return shape.error();
  std::unique_ptr<LayerStream> s(new LayerStream(device, std::move(sizes), *shape));
  options.layers = {0, s->sizes_.num_layers, false};
  options.listener = s.get();
  Result<std::unique_ptr<Model>> model = load_model(checkpoint, device, options);
  device.place_weights({});
  if (!model) return model.error();
  s->keep_loaded();
  s->model_ = std::move(*model);
  return s;
}

LayerStream::LayerStream(Device& device, Sizes sizes, const ModelShape& shape)
    : device_(device), sizes_(std::move(sizes)), shape_(shape) {
  slots_ = device_.allocate(kSlots * sizes_.slot_bytes);
  weights_ = device_.pinned(static_cast<size_t>(sizes_.num_layers) * sizes_.slot_bytes);
}

LayerStream::~LayerStream() { drain(); }

void LayerStream::drain() noexcept {
  if (layers_.empty()) return;  // nothing was reserved, so nothing runs
  try {
    device_.attach();
    device_.mark(kLaneMark);
    device_.wait(kLaneMark);
    for (int l = 0; l < kSlots; ++l) device_.wait(weights_mark(l));
  } catch (const std::exception&) {
  }
}

void LayerStream::reserve(const Sizes& sizes, std::span<std::byte> shared) {
  CHECK(sizes.num_layers == sizes_.num_layers && sizes.slot_bytes == sizes_.slot_bytes);
  sizes_ = sizes;
  block_bytes_ = kv_block_bytes(shape_, sizes_);
  staged_.resize(static_cast<size_t>(sizes_.groups.num_groups()));
  shared_.resize(staged_.size());
  device_.reserve_lanes(1, kNumMarks);
  const size_t side = side_bytes(shape_, sizes_);
  stage_ = device_.allocate(2 * side);
  kv_ = device_.pinned(static_cast<size_t>(sizes_.num_layers) * 2 * side);
  arrays_ = device_.pinned(array_bytes(sizes_));
  device_arrays_ = device_.allocate(array_bytes(sizes_));
  size_t bytes = 0;
  host_arrays_ = place(static_cast<std::byte*>(arrays_.data()), &bytes);
  on_device_ = place(static_cast<std::byte*>(device_arrays_.data()), &bytes);
  auto* k = static_cast<std::byte*>(stage_.data());
  layers_.clear();
  for (const CacheGroups::Place& place : sizes_.groups.layers)
    layers_.push_back({k, k + side, sizes_.kv.type, sizes_.block_size, shape_.num_kv_heads,
                       shape_.head_dim, place.group * sizes_.table_len, 0});
  if (model_->scratch_bytes(sizes_.max_rows, 0) <= shared.size()) {
    model_->reserve_in(shared, sizes_.max_rows, 0);
  } else {
    model_->reserve(device_, sizes_.max_rows, 0, 1);
  }
  prefetch_first();
}

LayerStream::Arrays LayerStream::place(std::byte* base, size_t* bytes) const {
  const auto rows = static_cast<size_t>(sizes_.max_rows);
  const auto seqs = static_cast<size_t>(sizes_.max_seqs);
  size_t used = 0;
  const auto take = [&](auto*& to, size_t count) {
    using T = std::remove_reference_t<decltype(*to)>;
    to = reinterpret_cast<T*>(base + used);
    used += (count * sizeof(T) + 255) & ~size_t{255};
  };
  Arrays a{};
  take(a.positions, rows);
  take(a.row_slot, rows);
  take(a.slices, seqs);
  take(a.tables, seqs * stream_table_stride(sizes_));
  *bytes = used;
  return a;
}

std::byte* LayerStream::slot(int layer) const {
  return static_cast<std::byte*>(slots_.data()) +
         static_cast<size_t>(layer % kSlots) * sizes_.slot_bytes;
}
std::byte* LayerStream::pinned_weights(int layer) const {
  return static_cast<std::byte*>(weights_.data()) + static_cast<size_t>(layer) * sizes_.slot_bytes;
}
std::byte* LayerStream::pinned_kv(int layer, int side) const {
  return static_cast<std::byte*>(kv_.data()) +
         (static_cast<size_t>(layer) * 2 + static_cast<size_t>(side)) * side_bytes(shape_, sizes_);
}

// While the model loads: matrices go to the layer's slot, and from there to pinned memory.
void LayerStream::loads(int layer) {
  keep_loaded();
  loading_ = layer;
  device_.place_weights({slot(layer), sizes_.slot_bytes});
}

void LayerStream::keep_loaded() {
  if (loading_ < 0) return;
  device_.download(pinned_weights(loading_), slot(loading_), sizes_.slot_bytes);
  device_.mark(0);
  device_.wait(0);
  loading_ = -1;
}

void LayerStream::prefetch(int layer) {
  device_.prefetch(slot(layer), pinned_weights(layer), sizes_.slot_bytes, free_mark(layer),
                   weights_mark(layer));
}

// A step finds its first layers there.
void LayerStream::prefetch_first() {
  for (int l = 0; l < std::min(kSlots, sizes_.num_layers); ++l) prefetch(l);
}

double LayerStream::measure() {
  if (sizes_.num_layers <= kSlots) return 0;  // they stay there
  device_.attach();
  double best = 0;
  for (int round = 0; round < 2; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int l = 0; l < sizes_.num_layers; ++l) prefetch(l);
    for (int l = 0; l < kSlots; ++l) device_.wait(weights_mark(l));
    const std::chrono::duration<double> t = std::chrono::steady_clock::now() - begin;
    best = round == 0 ? t.count() : std::min(best, t.count());
  }
  prefetch_first();
  return best;
}

void LayerStream::begin() {
  slices_.clear(), state_rows_.clear();
  for (std::vector<Staged>& list : staged_) list.clear();
  for (auto& blocks : shared_) blocks.clear();
  num_rows_ = num_context_ = most_staged_ = 0;
}

bool LayerStream::add(const SliceView& slice, std::span<const int32_t> tables) {
  const int size = sizes_.block_size, end = slice.pos + slice.count;
  const int num = (end + size - 1) / size;
  if (num_rows_ + slice.count > sizes_.max_rows) return false;
  const size_t at = static_cast<size_t>(slice.slot) * stream_table_stride(sizes_);
  // Blocks of nothing but context may be several slices'.
  const auto is_shared = [&](int i) { return (i + 1) * size <= slice.pos; };
  for (size_t g = 0; g < staged_.size(); ++g) {
    const size_t first = at + g * static_cast<size_t>(sizes_.table_len);
    size_t more = staged_[g].size();
    for (int i = 0; i < num; ++i) {
      const int32_t block = tables[first + static_cast<size_t>(i)];
      more += block != kNullBlock && !(is_shared(i) && shared_[g].contains(block));
    }
    if (more > static_cast<size_t>(sizes_.num_blocks)) return false;
  }
  for (size_t g = 0; g < staged_.size(); ++g) {
    const size_t first = at + g * static_cast<size_t>(sizes_.table_len);
    for (int i = 0; i < num; ++i) {
      const int32_t block = tables[first + static_cast<size_t>(i)];
      int32_t& staged = host_arrays_.tables[first + static_cast<size_t>(i)];
      staged = kNullBlock;
      if (block == kNullBlock) continue;  // outside a window
      if (is_shared(i)) {
        const auto [it, is_new] =
            shared_[g].emplace(block, static_cast<int32_t>(staged_[g].size()) + 1);
        staged = it->second;
        if (!is_new) continue;
      }
      staged = static_cast<int32_t>(staged_[g].size()) + 1;
      const int context = std::clamp(slice.pos - i * size, 0, size);
      staged_[g].push_back({block, staged, context, std::min(end - i * size, size)});
      num_context_ += context;
    }
    most_staged_ = std::max(most_staged_, static_cast<int>(staged_[g].size()));
  }
  for (int k = 0; k < slice.count; ++k) {
    host_arrays_.positions[num_rows_ + k] = slice.pos + k;
    host_arrays_.row_slot[num_rows_ + k] = slice.slot;
  }
  host_arrays_.slices[slices_.size()] = {num_rows_, slice.count, slice.pos, slice.slot};
  slices_.push_back({num_rows_, slice.count, slice.pos, slice.slot});
  state_rows_.push_back(slice.row);
  num_rows_ += slice.count;
  return true;
}

// copy(layer, staged block) for all of them, on the threads of the CPU.
template <typename Copy>
void LayerStream::for_blocks(const KvCache& host, Backend& threads, const Copy& copy) {
  struct Context {
    LayerStream* self;
    const KvCache* host;
    const Copy* copy;
  } ctx{this, &host, &copy};
  threads.parallel(
      sizes_.num_layers * most_staged_,
      [](void* p, int index) {
        auto& c = *static_cast<Context*>(p);
        const int layer = index / c.self->most_staged_;
        const std::vector<Staged>& list = c.self->blocks_of(layer);
        const auto block = static_cast<size_t>(index % c.self->most_staged_);
        if (block < list.size()) (*c.copy)(layer, list[block]);
      },
      &ctx);
}

void LayerStream::fetch(const KvCache& host, Backend& threads) {
  if (!has_context()) return;
  for_blocks(host, threads, [&](int layer, const Staged& b) {
    const KvForms forms(host.layers()[static_cast<size_t>(layer)], sizes_.kv.type);
    const size_t at = static_cast<size_t>(b.staged) * block_bytes_;
    forms.to_device(b.host, {0, b.num_context}, pinned_kv(layer, 0) + at, pinned_kv(layer, 1) + at);
  });
}

void LayerStream::store(const KvCache& host, Backend& threads) {
  for_blocks(host, threads, [&](int layer, const Staged& b) {
    const KvForms forms(host.layers()[static_cast<size_t>(layer)], sizes_.kv.type);
    const size_t at = static_cast<size_t>(b.staged) * block_bytes_;
    forms.to_host(b.host, {b.num_context, b.end}, pinned_kv(layer, 0) + at,
                  pinned_kv(layer, 1) + at);
  });
  begin();
}

// A failure between layers leaves others in the slots than a step begins with.
void LayerStream::run(float* states) {
  device_.attach();
  try {
    queue(states);
  } catch (...) {
    drain();
    prefetch_first();
    throw;
  }
}

void LayerStream::queue(float* states) {
  device_.upload(device_arrays_.data(), arrays_.data(), arrays_.bytes());
  const auto hidden = static_cast<size_t>(shape_.hidden);
  float* x = model_->states().f32();
  const auto for_slices = [&](const auto& copy) {
    for (size_t i = 0; i < slices_.size(); ++i)
      copy(x + static_cast<size_t>(slices_[i].row) * hidden,
           states + static_cast<size_t>(state_rows_[i]) * hidden,
           states_bytes(shape_, slices_[i].count));
  };
  for_slices([&](float* device, const float* host, size_t n) { device_.upload(device, host, n); });
  BatchView b;
  b.num_tokens = num_rows_;
  b.positions = on_device_.positions;
  b.row_slot = on_device_.row_slot;
  b.slices = slices_;
  b.device_slices = on_device_.slices;
  b.tables = on_device_.tables;
  b.table_stride = static_cast<int64_t>(stream_table_stride(sizes_));
  model_->forward(device_, b, layers_);
  for_slices(
      [&](const float* device, float* host, size_t n) { device_.download(host, device, n); });
}

void LayerStream::begins(int layer) {
  device_.start_after(weights_mark(layer));
  if (!has_context()) return;
  const size_t bytes = block_bytes_ * (blocks_of(layer).size() + 1);
  const KvLayer& kv = layers_[static_cast<size_t>(layer)];
  device_.upload(kv.k, pinned_kv(layer, 0), bytes);
  device_.upload(kv.v, pinned_kv(layer, 1), bytes);
}

// The slot gets the next layer of its turn, at the end those that the next step begins with.
void LayerStream::ended(int layer) {
  device_.mark(free_mark(layer));
  const size_t bytes = block_bytes_ * (blocks_of(layer).size() + 1);
  const KvLayer& kv = layers_[static_cast<size_t>(layer)];
  device_.download(pinned_kv(layer, 0), kv.k, bytes);
  device_.download(pinned_kv(layer, 1), kv.v, bytes);
  if (sizes_.num_layers <= kSlots) return;
  prefetch(layer + kSlots < sizes_.num_layers ? layer + kSlots : layer % kSlots);
}

}  // namespace sluice

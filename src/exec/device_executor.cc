#include "exec/device_executor.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "base/check.h"
#include "exec/row_spec.h"

namespace sluice {

namespace {

constexpr size_t kPacketBytes = 1 << 20;  // grows for the rare step that needs more
constexpr int kMostPadding = 31;          // rows: bucket_of()

int max_rows(const ExecutorConfig& c) {
  return std::max(c.max_step_tokens, DeviceExecutor::bucket_of(c.max_seqs));
}
// Rows of logits held at once; more are done in turns. A captured step has all of its own at once.
int held_logits(const ExecutorConfig& c) {
  return std::max(c.logits_rows, DeviceExecutor::bucket_of(c.max_seqs));
}

size_t padded(size_t bytes) { return (bytes + 255) & ~size_t{255}; }

// Bytes of StepArrays for n rows, without tables, and where they are.
size_t place_arrays(StepArrays* a, std::byte* base, size_t n) {
  size_t used = 0;
  auto take = [&](auto*& pointer, size_t count) {
    using T = std::remove_reference_t<decltype(*pointer)>;
    if (base) pointer = reinterpret_cast<T*>(base + used);
    used += padded(count * sizeof(T));
  };
  take(a->tokens, n);
  take(a->positions, n);
  take(a->row_slot, n);
  take(a->slices, n);
  take(a->out_rows, n);
  take(a->outputs, n);
  take(a->prefixes, 1);
  take(a->prefix_members, n);
  take(a->prefix_places, n);
  return used;
}
size_t tables_bytes(size_t slots, size_t table_stride) {
  return padded((slots + 1) * table_stride * sizeof(int32_t));
}

template <typename T>
void append(std::byte* packet, size_t& at, uint32_t& offset, const std::vector<T>& list) {
  at = (at + 15) & ~size_t{15};
  offset = static_cast<uint32_t>(at);
  if (!list.empty()) std::memcpy(packet + at, list.data(), list.size() * sizeof(T));
  at += list.size() * sizeof(T);
}

// The sizes that attention's memory depends on.
AttentionSpec attention_spec(const ModelShape& shape) {
  return {shape.num_heads, shape.num_kv_heads, shape.head_dim};
}
int max_positions(const ExecutorConfig& c) { return static_cast<int>(table_len(c)) * c.block_size; }
// Block ids of a slot; none where its blocks are consecutive.
size_t table_cells(const ExecutorConfig& c) {
  if (c.num_pages > 0) return 0;
  return static_cast<size_t>(std::max(1, c.groups.num_groups())) *
         static_cast<size_t>(table_len(c));
}

}  // namespace

int DeviceExecutor::bucket_of(int n) {
  if (n <= 8) return n <= 1 ? 1 : n <= 2 ? 2 : n <= 4 ? 4 : 8;
  return n <= 256 ? (n + 7) / 8 * 8 : (n + 31) / 32 * 32;
}

size_t DeviceExecutor::activation_bytes(const Model& model, const ExecutorConfig& c) {
  return model.scratch_bytes(max_rows(c), held_logits(c));
}

size_t DeviceExecutor::workspace_bytes(const Model& model, const ExecutorConfig& c) {
  StepArrays a;
  auto rows = static_cast<size_t>(max_rows(c)), outputs = static_cast<size_t>(held_logits(c));
  size_t lane = place_arrays(&a, nullptr, rows);
  lane += activation_bytes(model, c);
  lane += outputs * output_row_bytes(model.shape());
  lane += rows * (sizeof(SampleResult) + kMaxTopLogprobs * sizeof(TopEntry)) + kPacketBytes;
  lane += MaskInbox::bytes(c.max_seqs, model.shape().vocab);
  return tables_bytes(static_cast<size_t>(c.max_seqs), table_cells(c)) +
         static_cast<size_t>(c.pipeline.lanes) * lane;
}

size_t DeviceExecutor::workspace_bytes(const Device& device,
                                       const Model& model,
                                       const ExecutorConfig& c) {
  auto lanes = static_cast<size_t>(c.pipeline.lanes);
  size_t attention =
      device.attention_bytes(attention_spec(model.shape()), max_rows(c), max_positions(c));
  return workspace_bytes(model, c) + lanes * attention + (lanes - 1) * device.lane_bytes() +
         device.sampling_bytes(c.max_seqs, model.shape().vocab, c.pipeline.lanes);
}

DeviceExecutor::DeviceExecutor(Device& device,
                               Model& model,
                               ExecutorConfig config,
                               const Clock& clock,
                               bool capture,
                               DiskTier* disk)
    : device_(device),
      model_(model),
      config_(with_groups(std::move(config), model.shape())),
      clock_(clock),
      capture_(capture),
      cache_(device,
             model.shape(),
             config_.groups,
             {config_.kv_type, config_.num_blocks, config_.block_size, group_stride(config_),
              config_.num_pages, config_.max_seqs}),
      disk_(disk),
      max_rows_(max_rows(config_)),
      held_logits_(held_logits(config_)),
      lanes_(static_cast<size_t>(config_.pipeline.lanes)),
      last_touch_(static_cast<size_t>(config_.max_seqs)),
      mask_inbox_(
          device, config_.pipeline.max_in_flight() + 2, config_.max_seqs, model.shape().vocab),
      reader_(config_),
      prefix_groups_(
          config_,
          device.prefix_sharing(attention_spec(model.shape()), config_.kv_type).least_saved),
      jobs_(static_cast<size_t>(config_.pipeline.max_in_flight()) + 2),
      pooler_(static_cast<size_t>(config_.max_seqs)) {
  CHECK(config_.pipeline.valid());
  CHECK(!config_.states || config_.pipeline.depth == 0);
  CHECK(config_.num_disk == (disk_ ? disk_->num_places() : 0));
  attach();
  if (config_.num_places > 0) {
    size_t bytes = block_bytes(cache_.planes());
    tier_ = HostTier(device_.pinned(static_cast<size_t>(config_.num_places) * bytes),
                     config_.num_places, bytes);
  }
  const ModelShape& shape = model_.shape();
  const int marks = config_.trace ? 2 + kPartMarks : 2;
  CHECK(marks * num_jobs() <= kMostMarks);
  device_.reserve_lanes(config_.pipeline.lanes, marks * num_jobs());
  if (config_.states) no_states_ = device_.pinned(states_bytes(shape, kMostPadding));
  model_.reserve(device_, max_rows_, held_logits_, config_.pipeline.lanes);
  auto rows = static_cast<size_t>(max_rows_), slots = static_cast<size_t>(config_.max_seqs);
  tables_ = device_.allocate(tables_bytes(slots, table_cells(config_)));
  if (cache_.mapped()) cache_.map_padding();
  for (Lane& lane : lanes_) reserve_lane(lane);
  lane_ = &lanes_[0];
  device_.reserve_sampling(config_.max_seqs, shape.vocab);
  device_.reserve_attention(attention_spec(shape), max_rows_, max_positions(config_));
  constexpr size_t kReason = 512;  // a failure is named without memory
  result_.failure.reserve(kReason);
  for (Job& job : jobs_) {
    job.failure.reserve(kReason);
    job.packet = device_.pinned(kPacketBytes);
    job.results = device_.pinned(rows * sizeof(SampleResult));
    if (config_.sender) job.written.reserve(cache_.planes().size());
  }
  // Memory is cleared in the first lane.
  if (lanes_.size() > 1) {
    device_.mark(0);
    device_.wait(0);
  }
}

void DeviceExecutor::reserve_lane(Lane& lane) {
  auto rows = static_cast<size_t>(max_rows_);
  lane.arrays_memory = device_.allocate(place_arrays(&lane.arrays, nullptr, rows));
  place_arrays(&lane.arrays, static_cast<std::byte*>(lane.arrays_memory.data()), rows);
  lane.arrays.tables = static_cast<int32_t*>(tables_.data());
  lane.arrays.pad_slot = config_.max_seqs;
  lane.packet = device_.allocate(kPacketBytes);
  lane.logits =
      device_.allocate(static_cast<size_t>(held_logits_) * output_row_bytes(model_.shape()));
  lane.results = device_.allocate(rows * sizeof(SampleResult));
  lane.top = device_.allocate(rows * kMaxTopLogprobs * sizeof(TopEntry));
  lane.masks = device_.allocate(MaskInbox::bytes(config_.max_seqs, model_.shape().vocab));
}

DeviceExecutor::~DeviceExecutor() {
  mask_inbox_.release();
  drain_quietly();
}

void DeviceExecutor::drain_quietly() noexcept {
  try {
    drain();
  } catch (const std::exception&) {
    // The device is lost: its memory goes with it.
  }
}

// Waits for every lane; the first is in use afterwards.
void DeviceExecutor::drain() {
  for (size_t lane = lanes_.size(); lane-- > 0;) {
    device_.use_lane(static_cast<int>(lane));
    device_.join_downloads();
    device_.mark(0);
    device_.wait(0);
  }
}

void DeviceExecutor::launch(const StepPlan& plan) {
  CHECK(num_launched_ - num_waited_ < jobs_.size());
  queue_unfinished();
  auto index = static_cast<int>(num_launched_++ % jobs_.size());
  Job& job = jobs_[static_cast<size_t>(index)];
  job.step = plan.step;
  job.parts = 0;
  job.sends.clear(), job.written.clear();
  job.failure.clear();
  if (config_.timed) job.launched = clock_.now();
  // What a failed launch should have put on the device is missing from the steps behind it.
  bool after_failure = lost_ && num_launched_ - num_waited_ == 1;
  if (after_failure) lost_ = false;
  if (lost_) {
    job.failure = "a step before it failed";
    return;
  }
  try {
    attach();
    // What it did queue: other lanes have no order with it, and unmapping has none with the queue.
    // Staging memory of the disk is in use again too.
    if (after_failure && (lanes_.size() > 1 || config_.num_pages > 0 || disk_)) drain();
    if (disk_) collect_disk(job, plan);
    use_lane(job, plan);
    write_packet(job, plan);
    if (!plan.pages.empty()) cache_.set_pages(plan.pages);
    device_.mark(2 * index);
    queue_step(job, plan);
    if (job.work.num_masks > 0) {
      unfinished_ = &job;
    } else {
      queue_rest(job);
    }
  } catch (const std::exception& e) {
    job.failure = e.what();
    lost_ = true;
  }
}

// Steps take turns on the lanes. A sequence is in one step at a time, and what it reads of others
// is computed; but a slot may be opened again, or its table edited, while a step of a sequence that
// was cancelled or preempted still uses it in another lane. Then this step starts after that one.
void DeviceExecutor::use_lane(const Job& job, const StepPlan& plan) {
  if (lanes_.size() == 1) return;
  size_t mine = num_launched_ % lanes_.size();
  set_lane(mine);
  std::vector<uint64_t>& latest = latest_in_lane_;
  latest.assign(lanes_.size(), 0);
  auto touch = [&](Slot slot) {
    uint64_t last = std::exchange(last_touch_[slot], num_launched_);
    uint64_t& in_lane = latest[last % lanes_.size()];
    if (last > num_waited_ && last != num_launched_) in_lane = std::max(in_lane, last);
  };
  for (const RowOp& op : plan.rows) {
    if (op.kind == RowOp::open) touch(op.slot);
  }
  for (const TableEdit& e : plan.edits) touch(e.slot);
  for (const PageOp& op : plan.pages) touch(op.slot);  // new pages are cleared in this lane
  for (const Slice& s : plan.slices) touch(s.slot);
  // Blocks that are copied, go to another tier or come from it may be reused at once, by sequences
  // that were in no step with them: such a step has its turn between those before and those behind
  // it.
  const bool moves = !job.reads.empty() || !plan.transfers.empty();
  const uint64_t oldest = moves ? num_waited_ + 1 : std::max(num_waited_ + 1, last_move_);
  const uint64_t end = moves ? num_launched_ : std::min(num_launched_, last_move_ + 1);
  for (uint64_t step = oldest; step < end; ++step)
    latest[step % lanes_.size()] = std::max(latest[step % lanes_.size()], step);
  if (moves) last_move_ = num_launched_;
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    if (lane == mine || latest[lane] == 0) continue;
    auto index = static_cast<int>((latest[lane] - 1) % jobs_.size());
    device_.start_after(2 * index + 1);
  }
}

void DeviceExecutor::set_lane(size_t lane) {
  if (lanes_.size() == 1) return;
  lane_ = &lanes_[lane];
  device_.use_lane(static_cast<int>(lane));
  model_.use_lane(static_cast<int>(lane));
}

// The device is chosen per thread, and launches come from another one than construction.
void DeviceExecutor::attach() {
  if (attached_ == std::this_thread::get_id()) return;
  device_.attach();
  attached_ = std::this_thread::get_id();
}

void DeviceExecutor::write_packet(Job& job, const StepPlan& plan) {
  StepWork& work = job.work;
  reader_.read(plan, work);
  prefix_groups_.read(plan);
  job.shares = prefix_groups_.find(std::span(work.slices).first(plan.num_decode));
  if (job.shares)
    positions_shared_.fetch_add(static_cast<uint64_t>(prefix_groups_.saved()),
                                std::memory_order_relaxed);
  if (work.num_masks > 0) mask_inbox_.expect(place_of(job), plan.step, work.num_masks);
  specs_.clear(), edits_.clear(), slices_.clear();
  words_.assign(plan.tokens.begin(), plan.tokens.end());
  for (const RowOp& op : plan.rows) {
    if (op.kind != RowOp::open) continue;
    RowStart start{static_cast<int32_t>(op.slot),
                   op.id.choice,
                   {plan.tokens.data() + op.history_at, op.num_history},
                   op.num_history_prompt};
    specs_.push_back(make_row_spec(plan.sampling[op.sampling], start, words_));
  }
  for (const TableEdit& e : plan.edits) edits_.push_back({reader_.table_at(e), e.block, 0});
  for (size_t k = 0; k < plan.slices.size(); ++k) {
    const SliceView& v = work.slices[k];
    const Slice& s = plan.slices[k];
    slices_.push_back({v.row, v.count, v.pos, v.slot, s.token_at, s.chained ? 1 : 0});
  }
  for (const PoolRow& p : work.pool) {
    work.outputs.push_back({p.row, -1, 0, kNoToken, -1});
    work.result_of.push_back(-1);
  }
  job.top = std::ranges::any_of(job.work.outputs, [](const OutputRow& o) { return o.num_top > 0; });

  size_t bytes = specs_.size() * sizeof(RowSpec) + edits_.size() * sizeof(PacketEdit) +
                 slices_.size() * sizeof(PacketSlice) +
                 job.work.outputs.size() * sizeof(OutputRow) + words_.size() * sizeof(int32_t) +
                 (job.shares ? kMaxPrefixGroups * sizeof(PrefixGroup) +
                                   2 * work.slices.size() * sizeof(int32_t)
                             : 0) +
                 256;
  grow_packet(job, bytes);
  auto* packet = static_cast<std::byte*>(job.packet.data());
  size_t at = 0;
  append(packet, at, header_.specs_at, specs_);
  append(packet, at, header_.edits_at, edits_);
  append(packet, at, header_.slices_at, slices_);
  append(packet, at, header_.outputs_at, job.work.outputs);
  append(packet, at, header_.words_at, words_);
  header_.num_groups = header_.num_members = header_.num_places = 0;
  if (job.shares) {
    append(packet, at, header_.groups_at, prefix_groups_.groups());
    append(packet, at, header_.members_at, prefix_groups_.members());
    append(packet, at, header_.places_at, prefix_groups_.places());
    header_.num_groups = static_cast<uint32_t>(prefix_groups_.groups().size());
    header_.num_members = static_cast<uint32_t>(prefix_groups_.members().size());
    header_.num_places = static_cast<uint32_t>(prefix_groups_.places().size());
  }
  header_.num_specs = static_cast<uint32_t>(specs_.size());
  header_.num_edits = static_cast<uint32_t>(edits_.size());
  header_.num_slices = static_cast<uint32_t>(slices_.size());
  header_.num_outputs = static_cast<uint32_t>(job.work.outputs.size());
  header_.data = static_cast<const std::byte*>(lane_->packet.data());
  device_.upload(lane_->packet.data(), packet, at);
}

// Before anything of the step is queued: the device is idle once the marks of earlier steps pass.
void DeviceExecutor::grow_packet(Job& job, size_t bytes) {
  if (bytes > lane_->packet.bytes()) {
    auto index = static_cast<int>(&job - jobs_.data());
    device_.mark(2 * index);
    device_.wait(2 * index);
    lane_->packet = device_.allocate(bytes * 2);
  }
  if (bytes > job.packet.bytes()) job.packet = device_.pinned(lane_->packet.bytes());
}

// Up to the logits, or with sampling where it is captured with them.
void DeviceExecutor::queue_step(Job& job, const StepPlan& plan) {
  auto num_slices = static_cast<int>(plan.slices.size());
  job.lane = static_cast<size_t>(lane_ - lanes_.data());
  job.sampled = false;
  job.decodes = num_slices > 0 && plan.num_decode == num_slices &&
                job.work.outputs.size() == plan.slices.size() && job.work.pool.empty();
  int num_tokens = job.work.num_tokens;
  int rows = job.decodes ? bucket_of(num_slices) : num_tokens;
  device_.prepare(header_, lane_->arrays, num_tokens, rows);
  mark_part(job, kPrepare);
  queue_transfers(job, plan);
  if (!plan.transfers.empty() || !job.reads.empty()) mark_part(job, kCopies);
  if (num_slices == 0) return;
  if (config_.states) upload_states(num_tokens, rows);
  model_.watch(job.decodes || job.sends.empty() ? nullptr : this);
  sending_ = &job;
  if (job.decodes) {
    queue_decodes(job);
  } else {
    queue_ragged(job, plan);
  }
  if (!job.sends.empty()) send_planes(job, cache_.planes().size());
  mark_part(job, kForward);
}

// Padding begins with zeros: what is left there would grow from step to step.
void DeviceExecutor::upload_states(int num_tokens, int rows) {
  const ModelShape& shape = model_.shape();
  auto* to = static_cast<std::byte*>(model_.states().data);
  const size_t bytes = states_bytes(shape, num_tokens);
  device_.upload(to, config_.states, bytes);
  if (rows > num_tokens)
    device_.upload(to + bytes, no_states_.data(), states_bytes(shape, rows - num_tokens));
}

// Sampling, and what comes back to the host.
void DeviceExecutor::queue_rest(Job& job) {
  auto place = static_cast<int>(place_of(job));
  size_t num = job.num_sampled();
  size_t results = num * sizeof(SampleResult);
  size_t top = job.top ? num * kMaxTopLogprobs * sizeof(TopEntry) : 0;
  size_t all = results + top +
               job.work.pool.size() * static_cast<size_t>(model_.shape().hidden) * sizeof(float);
  if (all > job.results.bytes()) job.results = device_.pinned(2 * all);
  if (job.work.num_masks > 0) mask_inbox_.queue(place_of(job), lane_->masks.data());
  if (!job.sampled) {
    sample_outputs(job);
    mark_part(job, kSample);
  }
  auto* to = static_cast<std::byte*>(job.results.data());
  if (num > 0) device_.download(to, lane_->results.data(), results);
  if (top > 0) device_.download(to + results, lane_->top.data(), top);
  run_hidden(job, to + results + top);
  if (!job.sends.empty()) device_.join_downloads();
  device_.mark(2 * place + 1);
}

// The rest of a step under masks, in its own lane.
void DeviceExecutor::queue_unfinished() {
  if (!unfinished_) return;
  Job& job = *std::exchange(unfinished_, nullptr);
  try {
    attach();
    set_lane(job.lane);
    queue_rest(job);
  } catch (const std::exception& e) {
    job.failure = e.what();
    lost_ = true;
  }
}

// Hidden states of the pooled rows, in turns through the buffer of logits.
void DeviceExecutor::run_hidden(const Job& job, std::byte* to) {
  auto hidden = static_cast<int64_t>(model_.shape().hidden);
  auto turn = static_cast<size_t>(held_logits_);
  for (size_t at = 0; at < job.work.pool.size(); at += turn) {
    size_t num = std::min(turn, job.work.pool.size() - at);
    Tensor out{lane_->logits.data(), DType::f32, static_cast<int64_t>(num), hidden, hidden};
    model_.hidden(device_, {lane_->arrays.out_rows + job.num_sampled() + at, num}, out);
    size_t bytes = num * static_cast<size_t>(hidden) * sizeof(float);
    device_.download(to, out.data, bytes);
    to += bytes;
  }
}

BatchView DeviceExecutor::view(const Job& job, int num_tokens, int num_decode) const {
  const StepArrays& arrays = lane_->arrays;
  BatchView b;
  if (job.shares) b.prefixes = {arrays.prefixes, arrays.prefix_members, arrays.prefix_places};
  b.num_tokens = num_tokens;
  b.num_decode = num_decode;
  b.tokens = arrays.tokens;
  b.positions = arrays.positions;
  b.row_slot = arrays.row_slot;
  b.device_slices = arrays.slices;
  b.tables = cache_.mapped() ? nullptr : arrays.tables;
  b.first_block = cache_.first_block();
  b.table_stride = reader_.table_stride();
  return b;
}

template <typename Run>
void DeviceExecutor::run_captured(SequenceKey key, const Run& run) {
  if (!capture_) return run();
  auto it = lane_->sequences.find(key);
  if (it == lane_->sequences.end()) {
    int sequence = -1;
    try {
      device_.begin_capture();
      run();
      sequence = device_.end_capture();
    } catch (const std::bad_alloc&) {
      // No memory for one more: this step and all like it op by op.
      device_.abort_capture();
      capture_ = false;
      return run();
    } catch (...) {
      device_.abort_capture();
      throw;
    }
    it = lane_->sequences.emplace(key, sequence).first;
  }
  device_.launch(it->second);
}

void DeviceExecutor::queue_decodes(Job& job) {
  int bucket = bucket_of(static_cast<int>(job.work.outputs.size()));
  const bool masked = job.work.num_masks > 0;
  auto run = [&] {
    model_.forward(device_, view(job, bucket, bucket), cache_.layers());
    run_logits(0, static_cast<size_t>(bucket));
    if (!masked) run_sampling(job, 0, static_cast<size_t>(bucket));
  };
  if (!masked && profile_rows_.load() == static_cast<int>(job.work.outputs.size())) {
    profile_rows_.store(0);
    StepProfile profile = profile_step(run);
    job.sampled = true;
    std::lock_guard lock(profile_mutex_);
    profile_ = std::move(profile);
    return;
  }
  Captured what = masked ? Captured::up_to_logits : job.top ? Captured::with_top : Captured::all;
  run_captured({bucket, what, job.shares}, run);
  job.sampled = !masked;
}

void DeviceExecutor::queue_ragged(const Job& job, const StepPlan& plan) {
  BatchView batch = view(job, job.work.num_tokens, plan.num_decode);
  batch.slices = job.work.slices;
  model_.forward(device_, batch, cache_.layers());
  size_t num = std::min(static_cast<size_t>(held_logits_), job.num_sampled());
  if (num > 0) run_logits(0, num);
}

// In turns of as many logits as are held; those of the first turn are computed.
void DeviceExecutor::sample_outputs(const Job& job) {
  auto turn = static_cast<size_t>(held_logits_);
  size_t num = job.num_sampled();
  if (job.decodes) num = static_cast<size_t>(bucket_of(static_cast<int>(num)));
  for (size_t at = 0; at < num; at += turn) {
    size_t now = std::min(turn, num - at);
    if (at > 0) run_logits(at, now);
    run_sampling(job, at, now);
  }
}

void DeviceExecutor::run_logits(size_t at, size_t num) {
  auto vocab = static_cast<int64_t>(model_.shape().vocab);
  Tensor logits{lane_->logits.data(), DType::f32, static_cast<int64_t>(num), vocab, vocab};
  model_.logits(device_, {lane_->arrays.out_rows + at, num}, logits);
}

// Outputs [at, at + num), whose logits are computed.
void DeviceExecutor::run_sampling(const Job& job, size_t at, size_t num) {
  SampleStep s;
  s.logits = static_cast<float*>(lane_->logits.data());
  s.num = static_cast<int>(num);
  s.vocab = model_.shape().vocab;
  s.outputs = lane_->arrays.outputs + at;
  s.results = static_cast<SampleResult*>(lane_->results.data()) + at;
  if (job.top) s.top = static_cast<TopEntry*>(lane_->top.data()) + at * kMaxTopLogprobs;
  if (job.work.num_masks > 0) s.masks = static_cast<const uint32_t*>(lane_->masks.data());
  device_.sample(s);
}

}  // namespace sluice

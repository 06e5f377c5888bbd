// What a device with a queue of its own adds to a Backend: memory the host does not see, copies and
// events in the order of the queue, captured sequences, and the parts of a step that the host does
// itself where there is no such device: the batch from a packet, and sampling.
// One Device belongs to one thread at a time (the engine thread, after attach()). Every call but
// wait(), and those that say so, queues its work and returns.
// A device may have several queues, its lanes, that compute at the same time: each has scratch of
// its own (attention, products), and calls go to the one that use_lane() named last. What several
// lanes touch, memory, sampling rows and tables, the caller keeps in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace sluice {

// Limits of what a row's sampling may look at on a device.
inline constexpr int kMaxLogitBias = 1024;   // entries
inline constexpr int kMaxBanned = 128;       // ids forbidden before min_tokens
inline constexpr int kMaxBadTokens = 1024;   // of all bad sequences together
inline constexpr int kMaxBadLength = 32;     // of one bad sequence
inline constexpr int kMaxTopLogprobs = 128;  // reported beside a token

// How a row samples, as it travels in a packet (made by exec's make_row_spec). Lists are in the
// packet's words from lists_at, in this order:
//   bias ids, ascending; bias values (float bits), in the same order
//   banned ids, ascending; allowed ids
//   bad sequences by ascending last token: last tokens, then for each where its earlier tokens end
//     in the list that follows, then the earlier tokens of all of them
//   prompt tokens, when they are penalised; the last num_output tokens of the output
struct RowSpec {
  uint64_t seed;
  int32_t slot;
  uint32_t choice;
  float inv_temperature;  // negative: greedy
  float x_min;            // tokens below e^x_min times the most likely have no weight
  int32_t top_k;          // 0: off
  float top_p;            // 1: off
  float repetition_penalty, frequency_penalty, presence_penalty;
  int32_t min_tokens;
  int32_t num_generated;
  int32_t num_bias, num_banned, num_allowed;
  int32_t num_bad, num_bad_earlier;  // sequences; tokens of all but their last
  int32_t num_prompt, num_output;
  uint32_t lists_at;
  int32_t zero;
};

// One row of logits: sample after it, or score the token that is known to follow.
struct OutputRow {
  int32_t row;        // of the batch
  int32_t slot;       // negative: padding, nothing is read or written for it
  int32_t position;   // of the token that follows
  int32_t actual;     // negative: sample; else score this token
  int32_t num_top;    // -1: no log-probabilities, 0: of the token, k: of the k most likely too
  int32_t mask = -1;  // row of SampleStep::masks that a sampled token must be in; -1: none
};

struct SampleResult {
  int32_t token;  // sampled, or `actual`; -1: its mask allows nothing
  int32_t rank;   // 1 = most likely; with num_top >= 0
  float logprob;
  int32_t num_top;  // entries in the top list
};
struct TopEntry {
  int32_t token;
  float logprob;
};

// Edits apply in order: of two at one place the later stands.
struct PacketEdit {
  int64_t at;  // in the tables
  int32_t block, zero;
};
struct PacketSlice {
  int32_t row, count, pos, slot;
  uint32_t token_at;  // in the packet's words; chained: the row's last sampled token instead
  int32_t chained;
};

// A step as the host sends it: one copy, then prepare() spreads it. Offsets in bytes from the
// packet's beginning, which is aligned to 16; each a multiple of 8. Slices cover the rows
// [0, num_tokens) in order; a slot opened twice is opened by the later spec.
struct Packet {
  const std::byte* data = nullptr;  // on the device
  uint32_t specs_at = 0, num_specs = 0;
  uint32_t edits_at = 0, num_edits = 0;
  uint32_t slices_at = 0, num_slices = 0;
  uint32_t outputs_at = 0, num_outputs = 0;
  uint32_t words_at = 0;
  uint32_t groups_at = 0, num_groups = 0;    // PrefixGroup
  uint32_t members_at = 0, num_members = 0;  // int32_t, see PrefixView
  uint32_t places_at = 0, num_places = 0;    // int32_t; 0 without groups, else the decode rows
};

// Arrays of a step in device memory, at fixed addresses so that captured sequences may name them.
struct StepArrays {
  int32_t* tokens = nullptr;     // [max_tokens]
  int32_t* positions = nullptr;  // [max_tokens]
  int32_t* row_slot = nullptr;   // [max_tokens]
  SliceView* slices = nullptr;   // [max_slices]
  int32_t* out_rows = nullptr;   // [max_tokens] batch row of each output
  OutputRow* outputs = nullptr;  // [max_tokens]
  int32_t* tables = nullptr;  // [slots + 1, table_stride]; the last slot is padding's: null blocks
  int pad_slot = 0;
  PrefixPlan* prefixes = nullptr;     // [1]
  int32_t* prefix_members = nullptr;  // [max_tokens]
  int32_t* prefix_places = nullptr;   // [max_tokens]
};

struct SampleStep {
  float* logits = nullptr;  // [num, vocab] f32, overwritten
  int num = 0, vocab = 0;
  const OutputRow* outputs = nullptr;  // [num]
  SampleResult* results = nullptr;     // [num]
  TopEntry* top = nullptr;             // [num, kMaxTopLogprobs]; null: no row has num_top > 0
  // [rows, mask_words(vocab)] bit t % 32 of word t / 32 allows token t; null: no output has a mask
  const uint32_t* masks = nullptr;
};

// Words of a token mask.
constexpr int64_t mask_words(int vocab) { return (int64_t{vocab} + 31) / 32; }

struct DeviceLimits {
  double copy = 0;     // bytes read and written per second, by a copy
  double read = 0;     // bytes read per second
  double gemm = 0;     // multiply-add operations per second, times two, in the activations' type
  double gemm_f8 = 0;  // the same in e4m3; 0: not measured, or none
  double gemm_i8 = 0;  // likewise in int8
};

struct OpTime {
  const char* op;
  int64_t rows, cols;  // a matmul's weight, else 0
  double seconds;
};

// Cost of an op in a captured sequence, where kernels overlap: the sequence is timed without the
// op, and with an empty kernel in its place.
enum class OpMode : uint8_t { run, leave_out, empty };

// A copy from the device to pinned memory.
struct HostCopy {
  void* to;
  const void* from;
  size_t bytes;
};

class Device : public Backend {
 public:
  // Host memory that copies read and write without stopping.
  virtual Buffer pinned(size_t bytes) = 0;
  virtual void upload(void* to, const void* from, size_t bytes) = 0;
  virtual void download(void* to, const void* from, size_t bytes) = 0;
  // An upload beside the lane in use: it starts when mark `after` is reached, and mark `done` is
  // set behind it.
  virtual void prefetch(void* to, const void* from, size_t bytes, int after, int done) = 0;
  // Downloads beside the lane in use: they begin when what the lane has queued by now is done, in
  // the order of the calls. Behind them `then(context)`, unless null, is called on a thread of the
  // device's; it must not call the device.
  virtual void download_beside(std::span<const HostCopy> copies,
                               void (*then)(void*),
                               void* context) = 0;
  // Later work of the lane in use starts only when all of those are done, and their calls.
  virtual void join_downloads() = 0;
  // Matrices that are loaded from here on lie behind each other in this memory of the device, which
  // outlives them; none: each has memory of its own again.
  virtual void place_weights(std::span<std::byte> memory) = 0;
  // So many lanes, and marks [0, marks); before the first call one and two. After tune() and
  // before reserve_attention(), with lane 0 in use.
  virtual void reserve_lanes(int lanes, int marks) = 0;
  // Bytes of scratch that each further lane takes, not counting attention's.
  virtual size_t lane_bytes() const = 0;
  virtual void use_lane(int lane) = 0;
  // A point in the lane's queue, and waiting until everything before it is done.
  virtual void mark(int index) = 0;
  virtual void wait(int index) = 0;
  // Later work of the lane in use starts only when the mark, of another lane, is reached.
  virtual void start_after(int mark) = 0;
  // Later work of the lane in use starts only when *flag, in pinned memory, is at least `value`;
  // what the host wrote before it is there then.
  virtual void start_after(const uint64_t* flag, uint64_t value) = 0;
  // Milliseconds between two marks that have been waited for.
  virtual float elapsed(int from, int to) = 0;

  // What is queued between these two is recorded instead, once, and replayed by launch().
  virtual void begin_capture() = 0;
  virtual int end_capture() = 0;
  // After a failure between the two: what was recorded is thrown away.
  virtual void abort_capture() noexcept = 0;
  virtual void launch(int sequence) = 0;

  // Sampling state of `slots` rows, and scratch for every lane: after reserve_lanes().
  virtual void reserve_sampling(int slots, int vocab) = 0;
  virtual size_t sampling_bytes(int slots, int vocab, int lanes) const = 0;
  // Opens rows, edits tables, and makes the arrays of a step; rows [num_tokens, padded) become
  // padding of one token each. What decode rows have in common is written where the packet has
  // groups.
  virtual void prepare(const Packet& packet,
                       const StepArrays& arrays,
                       int num_tokens,
                       int padded) = 0;
  virtual void sample(const SampleStep& step) = 0;

  // Memory for attention of up to max_decode decode rows of up to max_positions each, per lane.
  virtual void reserve_attention(const AttentionSpec& spec, int max_decode, int max_positions) = 0;
  virtual size_t attention_bytes(const AttentionSpec& spec,
                                 int max_decode,
                                 int max_positions) const = 0;
  // Whether attention reads what decode rows have in common once, with K and V of this type.
  virtual PrefixSharing prefix_sharing(const AttentionSpec& spec, KvType kv) const = 0;
  // Times what can be computed in several ways, for steps of up to max_tokens; waits.
  virtual void tune(int max_tokens, int max_outputs) = 0;

  virtual size_t free_memory() const = 0;

  // What the device does at best, measured now; waits.
  virtual DeviceLimits measure_limits() = 0;
  // Between these two every op is timed on its own. The queue is held until all are queued, so that
  // the host's pace does not show. Not while capturing.
  virtual void begin_profile() = 0;
  virtual std::vector<OpTime> end_profile() = 0;
  virtual void abort_profile() noexcept = 0;
  // From here on ops of this name and weight do nothing, or launch one empty kernel; run: as
  // always.
  virtual void replace_op(const OpTime& op, OpMode mode) = 0;
  // Captures what `queue` queues and replays it: seconds of one replay, the median of several;
  // waits. `kernels`, if not null, gets the names of each op's kernels, in the order of calls.
  virtual double time_captured(const std::function<void()>& queue,
                               std::vector<std::string>* kernels) = 0;
};

}  // namespace sluice

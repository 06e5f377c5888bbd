#include "core/recording.h"

#include <algorithm>

#include "base/check.h"
#include "core/plan_codec.h"
#include "core/scheduler_state.h"

namespace sluice {

namespace {

constexpr size_t kHead = 9;  // length, kind, checksum

// Eight bytes at a time: table[k] is the effect of a byte that k more follow.
using CrcTables = std::array<std::array<uint32_t, 256>, 8>;
constexpr CrcTables make_crc_tables() {
  CrcTables t{};
  for (uint32_t n = 0; n < 256; ++n) {
    uint32_t c = n;
    for (int k = 0; k < 8; ++k) c = c & 1 ? c >> 1 ^ 0x82F63B78u : c >> 1;
    t[0][n] = c;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t n = 0; n < 256; ++n) t[k][n] = t[k - 1][n] >> 8 ^ t[0][t[k - 1][n] & 255];
  }
  return t;
}
constexpr CrcTables kCrc = make_crc_tables();

uint32_t word_at(const std::byte* p) {
  return static_cast<uint32_t>(p[0]) | static_cast<uint32_t>(p[1]) << 8 |
         static_cast<uint32_t>(p[2]) << 16 | static_cast<uint32_t>(p[3]) << 24;
}
void put_word(std::byte* p, uint32_t x) {
  for (int k = 0; k < 4; ++k) p[k] = static_cast<std::byte>(x >> 8 * k);
}

// The checksum of the record that begins at `head`.
uint32_t record_crc(const std::byte* head, size_t payload) {
  return crc32c({head + kHead, payload}, crc32c({head, 5}));
}

void header_fields(auto& io, auto& h) {
  io.number(h.run);
  io.number(h.segment);
  io.flag(h.follows);
  io.flag(h.text);
  io.number(h.began);
  io.number(h.vocab);
  io.text(h.model);
  io.text(h.model_hash);
  io.text(h.build);
}

template <typename T>
Result<T> finish(Reader& io, const char* what, T value) {
  if (io.ok() && !io.at_end()) io.fail("bytes follow its end");
  if (!io.ok()) return io.error(what);
  return value;
}

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc) {
  crc = ~crc;
  const std::byte* p = bytes.data();
  size_t n = bytes.size();
  for (; n >= 8; n -= 8, p += 8) {
    uint32_t a = crc ^ word_at(p), b = word_at(p + 4);
    crc = kCrc[7][a & 255] ^ kCrc[6][a >> 8 & 255] ^ kCrc[5][a >> 16 & 255] ^ kCrc[4][a >> 24] ^
          kCrc[3][b & 255] ^ kCrc[2][b >> 8 & 255] ^ kCrc[1][b >> 16 & 255] ^ kCrc[0][b >> 24];
  }
  for (; n > 0; --n, ++p) crc = crc >> 8 ^ kCrc[0][(crc ^ static_cast<uint32_t>(*p)) & 255];
  return ~crc;
}

const char* record_name(RecordKind kind) {
  static constexpr const char* kNames[] = {
      "header",    "state",  "plan in flight", "arrival", "cancel", "plan",
      "idle plan", "result", "append",         "masks",   "end"};
  return kNames[static_cast<size_t>(kind)];
}

// ---- writing ----

size_t begin_record(RecordKind kind, Bytes& out) {
  size_t begun = out.size();
  out.resize(begun + kHead);
  out[begun + 4] = static_cast<std::byte>(kind);
  return begun;
}

void end_record(size_t begun, Bytes& out) {
  size_t payload = out.size() - begun - kHead;
  CHECK(payload <= UINT32_MAX);
  put_word(&out[begun], static_cast<uint32_t>(payload));
  put_word(&out[begun + 5], record_crc(&out[begun], payload));
}

void begin_segment(const RecordingHeader& header, Bytes& out) {
  for (char c : kRecordingMagic) out.push_back(static_cast<std::byte>(c));
  size_t at = begin_record(RecordKind::header, out);
  Writer w(out);
  header_fields(w, header);
  encode_config(header.config, out);
  end_record(at, out);
}

void record_state(const Scheduler& scheduler, Bytes& out, const TokenMap* map) {
  size_t at = begin_record(RecordKind::state, out);
  encode_state(scheduler, out, map);
  end_record(at, out);
}

void record_arrival(
    const Request& request, const SamplingSpec& asked, Time now, Bytes& out, const TokenMap* map) {
  size_t at = begin_record(RecordKind::arrival, out);
  Writer(out).time(now);
  encode_request(request, asked, out, map);
  end_record(at, out);
}

void record_cancel(RequestId id, Time now, Bytes& out) {
  size_t at = begin_record(RecordKind::cancel, out);
  Writer w(out);
  w.time(now);
  w.number(id);
  end_record(at, out);
}

void record_plan(const StepPlan& plan, Time now, Bytes& out, const TokenMap* map) {
  size_t at = begin_record(plan.empty() ? RecordKind::idle : RecordKind::plan, out);
  Writer(out).time(now);
  if (!plan.empty()) encode(plan, out, map);
  end_record(at, out);
}

void record_result(const StepResult& result,
                   Time now,
                   std::span<const SeqId> stopped,
                   Bytes& out,
                   const TokenMap* map) {
  size_t at = begin_record(RecordKind::result, out);
  Writer w(out);
  w.time(now);
  w.list(stopped, [](Writer& i, const SeqId& id) { i.number(id.req), i.number(id.choice); });
  encode(result, out, map);
  end_record(at, out);
}

void record_append(SeqId id,
                   std::span<const Token> tokens,
                   bool stopped,
                   Time now,
                   Bytes& out,
                   const TokenMap* map) {
  size_t at = begin_record(RecordKind::append, out);
  Writer w(out, map);
  w.time(now);
  w.number(id.req);
  w.number(id.choice);
  w.flag(stopped);
  token_list(w, tokens);
  end_record(at, out);
}

void record_masks(const StepMasks& masks, Bytes& out) {
  size_t at = begin_record(RecordKind::masks, out);
  encode(masks, out);
  end_record(at, out);
}

// ---- reading ----

Result<RecordingHeader> RecordReader::header() {
  constexpr size_t kLetters = kRecordingMagic.size() - 1;
  if (bytes_.size() < kRecordingMagic.size() ||
      !std::equal(kRecordingMagic.begin(), kRecordingMagic.begin() + kLetters, bytes_.begin(),
                  [](char c, std::byte b) { return static_cast<std::byte>(c) == b; }))
    return Error{400, "this is no recording: it begins with other letters"};
  int version = static_cast<int>(bytes_[kLetters]);
  if (version != kRecordingVersion)
    return Error{400, strf("the recording has version %d and this build reads version %d: use the "
                           "build that wrote it",
                           version, int{kRecordingVersion})};
  at_ = kRecordingMagic.size();
  std::optional<Record> first = next();
  if (!first || first->kind != RecordKind::header)
    return Error{400, "the recording is cut off within its header, or damaged there"};
  Reader io(first->payload);
  RecordingHeader h;
  header_fields(io, h);
  if (!io.ok()) return io.error("header of the recording");
  if (h.vocab < 0 || h.vocab > 1 << 24)
    return Error{400, "the recording names no valid vocabulary"};
  Result<SchedulerConfig> config = decode_config(io.rest());
  if (!config) return config.error();
  h.config = std::move(*config);
  if (auto ok = check_config(h.config); !ok) return ok.error();
  return h;
}

std::optional<Record> RecordReader::next() {
  size_t left = bytes_.size() - at_;
  tail_ = Tail::whole;
  if (left == 0) return std::nullopt;
  tail_ = Tail::cut;
  if (left < kHead) return std::nullopt;
  const std::byte* head = bytes_.data() + at_;
  size_t payload = word_at(head);
  if (payload > left - kHead) return std::nullopt;
  auto kind = static_cast<int>(head[4]);
  if (kind >= kNumRecordKinds || record_crc(head, payload) != word_at(head + 5)) {
    tail_ = Tail::damaged;
    return std::nullopt;
  }
  Record r{static_cast<RecordKind>(kind), bytes_.subspan(at_ + kHead, payload), at_};
  at_ += kHead + payload;
  tail_ = Tail::whole;
  return r;
}

Result<RecordedArrival> read_arrival(std::span<const std::byte> payload) {
  Reader io(payload);
  RecordedArrival a;
  io.time(a.now);
  if (!io.ok()) return io.error("arrival");
  Result<Request> r = decode_request(io.rest());
  if (!r) return r.error();
  a.request = std::move(*r);
  return a;
}

Result<RecordedCancel> read_cancel(std::span<const std::byte> payload) {
  Reader io(payload);
  RecordedCancel c;
  io.time(c.now);
  io.number(c.id);
  return finish(io, "cancel", c);
}

Result<RecordedPlan> read_plan(std::span<const std::byte> payload) {
  Reader io(payload);
  RecordedPlan p;
  io.time(p.now);
  if (!io.ok()) return io.error("plan");
  Result<StepPlan> plan = decode_plan(io.rest());
  if (!plan) return plan.error();
  p.plan = std::move(*plan);
  return p;
}

Result<Time> read_idle(std::span<const std::byte> payload) {
  Reader io(payload);
  Time now{0};
  io.time(now);
  return finish(io, "idle plan", now);
}

Result<RecordedResult> read_result(std::span<const std::byte> payload) {
  Reader io(payload);
  RecordedResult c;
  io.time(c.now);
  io.list(c.stopped, [](Reader& i, SeqId& id) { i.number(id.req), i.number(id.choice); });
  if (!io.ok()) return io.error("result");
  Result<StepResult> r = decode_result(io.rest());
  if (!r) return r.error();
  c.result = std::move(*r);
  return c;
}

Result<RecordedAppend> read_append(std::span<const std::byte> payload) {
  Reader io(payload);
  RecordedAppend a;
  io.time(a.now);
  io.number(a.id.req);
  io.number(a.id.choice);
  io.flag(a.stopped);
  token_list(io, a.tokens);
  return finish(io, "append", std::move(a));
}

}  // namespace sluice

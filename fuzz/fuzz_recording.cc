// Any bytes as a recording: an error of one line, or a replay that ends. And every record alone,
// with its checksum made right: an error of one line, or a value. Run with -malloc_limit_mb=64.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/check.h"
#include "core/executor_content.h"
#include "core/recording.h"
#include "core/replay.h"
#include "core/scheduler_state.h"

using namespace sluice;

namespace {

// A pool of this size is as good as a large one, and fits a fuzzer's memory.
bool small(const SchedulerConfig& c) {
  return int64_t{c.num_blocks} * c.block_size <= 1 << 16 && c.max_seqs <= 1 << 10 &&
         c.budget <= 1 << 12 && c.max_len <= 1 << 12 &&
         int64_t{c.tiers.total()} * c.block_size <= 1 << 16 && c.num_pages() <= 1 << 16 &&
         c.pages.slot_blocks <= 1 << 12 && c.max_queued <= 1 << 20;
}

void one_line(const Error& e) {
  CHECK(!e.message.empty() && e.message.size() < 1000 && e.message.find('\n') == std::string::npos);
}
template <typename T>
void check(const Result<T>& value) {
  if (!value) one_line(value.error());
}

NeededBlocks everything(const SchedulerConfig& c) {
  NeededBlocks all;
  all.blocks.assign(static_cast<size_t>(c.num_blocks) + 1, true);
  all.places.assign(static_cast<size_t>(c.tiers.memory()) + 1, true);
  return all;
}

void check_replay(std::span<const std::byte> bytes) {
  Result<RecordingHeader> header = RecordReader(bytes).header();
  check(header);
  if (!header || !small(header->config) || header->vocab > 1 << 16) return;
  check(replay_schedule(bytes));
}

void check_records(std::span<const std::byte> bytes) {
  RecordReader reader(bytes);
  Result<RecordingHeader> header = reader.header();
  check(header);
  if (!header) return;
  while (std::optional<Record> r = reader.next()) {
    if (r->kind == RecordKind::state && small(header->config)) {
      Result<Scheduler> state = decode_state(r->payload, header->config, nullptr);
      check(state);
      if (state) check(content_of(*state, everything(header->config)));
    }
    if (r->kind == RecordKind::arrival) check(read_arrival(r->payload));
    if (r->kind == RecordKind::cancel) check(read_cancel(r->payload));
    if (r->kind == RecordKind::plan) check(read_plan(r->payload));
    if (r->kind == RecordKind::idle) check(read_idle(r->payload));
    if (r->kind == RecordKind::result) check(read_result(r->payload));
    if (r->kind == RecordKind::append) check(read_append(r->payload));
  }
}

// The same records, each with the checksum of its bytes.
Bytes repaired(std::span<const std::byte> bytes) {
  Bytes out(bytes.begin(), bytes.end());
  for (size_t at = kRecordingMagic.size(); out.size() - at >= 9;) {
    size_t length = 0;
    for (size_t k = 0; k < 4; ++k) length |= static_cast<size_t>(out[at + k]) << 8 * k;
    if (length > out.size() - at - 9) length = out.size() - at - 9;
    for (size_t k = 0; k < 4; ++k) out[at + k] = static_cast<std::byte>(length >> 8 * k);
    uint32_t crc = crc32c(std::span(out).subspan(at, 5));
    crc = crc32c(std::span(out).subspan(at + 9, length), crc);
    for (size_t k = 0; k < 4; ++k) out[at + 5 + k] = static_cast<std::byte>(crc >> 8 * k);
    at += 9 + length;
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  check_replay(bytes);
  if (size > kRecordingMagic.size()) check_records(repaired(bytes));
  return 0;
}

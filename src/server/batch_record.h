// A file of /v1/files and a batch of /v1/batches, as OpenAI's API shows them and as they lie on
// disk. Plain data.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/named.h"
#include "base/result.h"

namespace sluice {

// Bounds of an id, of expiry, and OpenAI's own of a batch.
inline constexpr int64_t kLeastFileSeconds = 3600, kMostFileSeconds = 30 * 86'400;
inline constexpr int64_t kBatchSeconds = 86'400;
inline constexpr size_t kMaxBatchRequests = 50'000;

struct FileRecord {
  std::string id, owner;  // owner: Keys::owner() of who made it
  std::string filename, purpose;
  uint64_t bytes = 0;
  int64_t created_at = 0, expires_at = 0;  // Unix time
};
json::object file_json(const FileRecord& file);  // without its owner

enum class BatchStatus : uint8_t {
  validating,
  in_progress,
  finalizing,
  completed,
  failed,
  expired,
  cancelling,
  cancelled
};
inline constexpr NamedValue<BatchStatus> kBatchStatuses[] = {
    {"validating", BatchStatus::validating}, {"in_progress", BatchStatus::in_progress},
    {"finalizing", BatchStatus::finalizing}, {"completed", BatchStatus::completed},
    {"failed", BatchStatus::failed},         {"expired", BatchStatus::expired},
    {"cancelling", BatchStatus::cancelling}, {"cancelled", BatchStatus::cancelled}};
inline constexpr size_t kNumBatchStatuses = 8;
// It will not change any more.
bool is_over(BatchStatus status);

struct BatchRecord {
  std::string id, owner, endpoint, input_file;
  // Ids that its results will have. They are shown once the files are there.
  std::string output_file, error_file;
  bool has_output = false, has_errors = false;
  BatchStatus status = BatchStatus::validating;
  // What a batch that is being finalised comes to.
  BatchStatus end = BatchStatus::completed;
  std::array<int64_t, kNumBatchStatuses> since{};  // when it got each status; 0: never
  int64_t created_at = 0, expires_at = 0;
  int64_t file_seconds = kMostFileSeconds;  // how long its results are kept
  uint64_t total = 0, completed = 0, failed = 0;
  json::value metadata;  // an object, or null
  std::string problem, problem_code;

  void become(BatchStatus next, int64_t now) {
    status = next;
    since[static_cast<size_t>(next)] = now;
  }
};
json::object batch_json(const BatchRecord& batch);  // as the API shows it

// What is kept on disk, and back. A text of another form is an error.
std::string stored_text(const FileRecord& file);
std::string stored_text(const BatchRecord& batch);
Result<FileRecord> stored_file(std::string_view text);
Result<BatchRecord> stored_batch(std::string_view text);

}  // namespace sluice

// The folder behind /v1/files and /v1/batches: contents of files, and a record of each file and
// batch, which outlive the process. Every record is written to a file of its own that is renamed
// into place, so that whenever the process ends the folder holds the old one or the new one.
//
//   files/ID, files/ID.json        a file's content and its record
//   batches/ID.json                a batch's record
//   batches/ID.results.jsonl       results of one that runs (BatchOutput)
//
// Bounded by bytes and number, in all and by owner. Any thread may call; calls wait for the disk.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "server/batch_record.h"

namespace sluice {

struct BatchLimits {
  uint64_t bytes = uint64_t{1} << 30;  // of files, and of results that are not files yet
  size_t files = 4096, batches = 4096;
  bool shared = false;  // between keys: one may have a quarter
};

class BatchStore {
 public:
  // Makes the folder where there is none. One process at a time.
  static Result<std::unique_ptr<BatchStore>> open(const std::string& folder,
                                                  const BatchLimits& limits);
  ~BatchStore();

  // `file.bytes` is set here. Error 413: there is no room for it; 429: there are too many.
  Result<FileRecord> add_file(FileRecord file, std::string_view content);
  // A file that lies at `path`, which is taken away; in place of one with the same id.
  Result<void> adopt_file(FileRecord file, const std::string& path);
  std::optional<FileRecord> file(const std::string& id, const std::string& owner) const;
  std::vector<FileRecord> files(const std::string& owner) const;  // the oldest first
  // Error 404: there is none; 409: a batch that runs needs it.
  Result<void> erase_file(const std::string& id, const std::string& owner);
  std::string file_path(const std::string& id) const;

  // Beyond the limit the oldest that are over are forgotten; error 429: all of them run.
  Result<void> add_batch(const BatchRecord& batch);
  std::optional<BatchRecord> batch(const std::string& id, const std::string& owner) const;
  std::vector<BatchRecord> batches(const std::string& owner) const;  // the oldest first
  std::vector<BatchRecord> unfinished() const;                       // of all owners, oldest first
  // Asks a batch to end. Error 404: there is none; 409: it is over, or about to be.
  Result<BatchRecord> cancel(const std::string& id, const std::string& owner, int64_t now);
  bool cancelling(const std::string& id) const;
  // A new state of a batch that runs, by whoever runs it. It does not undo cancel().
  Result<void> update(const BatchRecord& batch);
  void count(const std::string& id, uint64_t completed, uint64_t failed);  // in memory only
  void count_line(bool failed);  // one more result of any batch
  struct Counts {
    std::array<uint64_t, kNumBatchStatuses> batches{};  // that are kept, by status
    uint64_t waiting = 0;                               // requests without a result, of all
    uint64_t completed = 0, failed = 0;                 // results since the start
  };
  Counts counts() const;
  std::string results_path(const std::string& id) const;
  // Bytes of results that are not files yet; false: there is no room.
  bool reserve(uint64_t bytes);
  void unreserve(uint64_t bytes);

  // Drops files whose time is up, but for those that a batch needs.
  void expire(int64_t now);

 private:
  BatchStore(std::string folder, const BatchLimits& limits);
  Result<void> load();
  static bool is_temp(std::string_view name);
  Result<void> load_records(const std::string& folder, bool batches);
  bool load_file(const std::string& path, const std::string& id);
  bool load_batch(const std::string& path, const std::string& id);
  Result<void> check_room(const std::string& owner, uint64_t bytes) const;
  Result<void> put_record(const std::string& path, const std::string& text) const;
  bool in_use(const std::string& file_id) const;
  void drop_file(const std::string& id);
  bool drop_old_batch(const std::string& owner);
  std::string record_path(const FileRecord& f) const { return file_path(f.id) + ".json"; }
  std::string record_path(const BatchRecord& b) const;

  const std::string folder_;
  const BatchLimits limits_;
  int lock_ = -1;
  mutable std::mutex mutex_;  // of all below
  std::map<std::string, FileRecord> files_;
  std::map<std::string, BatchRecord> batches_;
  uint64_t bytes_ = 0;  // of files and results
  uint64_t num_completed_ = 0, num_failed_ = 0;
  uint64_t next_temp_ = 0;
};

}  // namespace sluice

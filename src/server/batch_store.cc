#include "server/batch_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "base/log.h"
#include "base/str.h"

namespace sluice {

namespace fs = std::filesystem;

namespace {

constexpr size_t kMaxRecord = 256 << 10;  // bytes
constexpr std::string_view kRecordEnd = ".json";

Error disk_error(const char* what, const std::string& path) {
  return {500, strf("cannot %s %s: %s", what, quote(path, 400).c_str(), std::strerror(errno))};
}

// Ids become names of files: letters, digits, - and _ alone.
bool is_id(std::string_view id) {
  return !id.empty() && id.size() <= 64 && std::ranges::all_of(id, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '-' || c == '_';
  });
}

Result<void> write_file(const std::string& path, std::string_view bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return disk_error("write", path);
  bool good = true;
  while (good && !bytes.empty()) {
    const ssize_t put = ::write(fd, bytes.data(), bytes.size());
    if (put > 0) bytes.remove_prefix(static_cast<size_t>(put));
    good = put > 0 || errno == EINTR;
  }
  good = good && ::fsync(fd) == 0;
  Result<void> done = good ? Result<void>() : disk_error("write", path);
  ::close(fd);
  if (!good) ::unlink(path.c_str());
  return done;
}

// So that a file's new name outlives a loss of power.
void sync_folder(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  (void)::fsync(fd);
  ::close(fd);
}

Result<void> rename_file(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) return disk_error("write", to);
  sync_folder(fs::path(to).parent_path());
  return {};
}

// Empty: it cannot be read, or is too long for one.
std::string read_record(const std::string& path) {
  std::error_code error;
  if (fs::file_size(path, error) > kMaxRecord || error) return "";
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

template <typename Record>
bool older(const Record& a, const Record& b) {
  return a.created_at != b.created_at ? a.created_at < b.created_at : a.id < b.id;
}

template <typename Record>
std::vector<Record> sorted_of(const std::map<std::string, Record>& all, const std::string& owner) {
  std::vector<Record> out;
  for (const auto& [id, record] : all)
    if (record.owner == owner) out.push_back(record);
  std::ranges::sort(out, older<Record>);
  return out;
}

}  // namespace

BatchStore::BatchStore(std::string folder, const BatchLimits& limits)
    : folder_(std::move(folder)), limits_(limits) {}

BatchStore::~BatchStore() {
  if (lock_ >= 0) ::close(lock_);
}

Result<std::unique_ptr<BatchStore>> BatchStore::open(const std::string& folder,
                                                     const BatchLimits& limits) {
  std::unique_ptr<BatchStore> store(new BatchStore(folder, limits));
  std::error_code error;
  for (const char* name : {"files", "batches"}) {
    fs::create_directories(fs::path(folder) / name, error);
    if (error)
      return Error{400, strf("--batch-dir %s: cannot make the folder: %s",
                             quote(folder, 400).c_str(), error.message().c_str())};
  }
  (void)::chmod(folder.c_str(), 0700);  // it holds prompts and answers
  const std::string lock = folder + "/lock";
  store->lock_ = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (store->lock_ < 0)
    return Error{400, strf("--batch-dir %s: cannot write there: %s", quote(folder, 400).c_str(),
                           std::strerror(errno))};
  if (::flock(store->lock_, LOCK_EX | LOCK_NB) != 0)
    return Error{400, strf("--batch-dir %s: another server uses it", quote(folder, 400).c_str())};
  if (auto ok = store->load(); !ok) return ok.error();
  return store;
}

Result<void> BatchStore::load() {
  if (auto ok = load_records(folder_ + "/files", false); !ok) return ok;
  return load_records(folder_ + "/batches", true);
}

// "temp-7" of an upload, "temp-file-…" or "temp-batch_…" of what is written anew.
bool BatchStore::is_temp(std::string_view name) {
  name.remove_prefix(std::string_view("temp-").size());
  return name.starts_with("file-") || name.starts_with("batch_") ||
         name.find_first_not_of("0123456789") == name.npos;
}

// What an interrupted write, deletion or end of a batch has left behind goes. A record that cannot
// be read is left alone and named in the log.
Result<void> BatchStore::load_records(const std::string& folder, bool batches) {
  std::error_code error;
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder, error))
    names.insert(entry.path().filename());
  if (error)
    return Error{400, strf("--batch-dir: cannot read %s: %s", quote(folder, 400).c_str(),
                           error.message().c_str())};
  for (const std::string& name : names) {
    const std::string path = folder + "/" + name;
    const bool record = name.ends_with(kRecordEnd);
    const std::string id = name.substr(0, name.find('.'));
    const bool ours = is_id(id) && id.starts_with(batches ? "batch_" : "file-");
    const bool lone = !record && !names.contains(id + std::string(kRecordEnd));
    if ((name.starts_with("temp-") && is_temp(name)) || (lone && ours)) {
      ::unlink(path.c_str());
    } else if (record && !(batches ? load_batch(path, id) : load_file(path, id))) {
      LOG(warn, "--batch-dir: %s cannot be read and is left alone", quote(path, 400).c_str());
    }
  }
  return {};
}

bool BatchStore::load_file(const std::string& path, const std::string& id) {
  Result<FileRecord> f = stored_file(read_record(path));
  if (!f || f->id != id || !is_id(id)) return false;
  std::error_code error;
  f->bytes = fs::file_size(file_path(id), error);
  if (error) return ::unlink(path.c_str()), true;
  bytes_ += f->bytes;
  files_.emplace(id, std::move(*f));
  return true;
}

bool BatchStore::load_batch(const std::string& path, const std::string& id) {
  Result<BatchRecord> b = stored_batch(read_record(path));
  if (!b || b->id != id || !is_id(id)) return false;
  if (is_over(b->status)) ::unlink(results_path(id).c_str());
  batches_.emplace(id, std::move(*b));
  return true;
}

std::string BatchStore::file_path(const std::string& id) const { return folder_ + "/files/" + id; }
std::string BatchStore::results_path(const std::string& id) const {
  return folder_ + "/batches/" + id + ".results.jsonl";
}
std::string BatchStore::record_path(const BatchRecord& b) const {
  return folder_ + "/batches/" + b.id + std::string(kRecordEnd);
}

Result<void> BatchStore::put_record(const std::string& path, const std::string& text) const {
  const std::string temp =
      (fs::path(path).parent_path() / ("temp-" + fs::path(path).filename().string())).string();
  if (auto ok = write_file(temp, text); !ok) return ok;
  return rename_file(temp, path);
}

// ---- files ----

Result<void> BatchStore::check_room(const std::string& owner, uint64_t bytes) const {
  const uint64_t share = limits_.shared ? 4 : 1;
  uint64_t own_bytes = 0;
  size_t own_files = 0;
  for (const auto& [id, f] : files_) {
    if (f.owner != owner) continue;
    own_bytes += f.bytes;
    ++own_files;
  }
  if (bytes_ + bytes > limits_.bytes || own_bytes + bytes > limits_.bytes / share)
    return Error{413, strf("there is no room for %s: delete files that are not needed any more",
                           human_bytes(bytes).c_str())};
  if (files_.size() >= limits_.files || own_files >= limits_.files / share)
    return Error{429, "there are too many files: delete some that are not needed any more"};
  return {};
}

Result<FileRecord> BatchStore::add_file(FileRecord file, std::string_view content) {
  file.bytes = content.size();
  std::string temp;
  {
    std::lock_guard lock(mutex_);
    if (auto ok = check_room(file.owner, file.bytes); !ok) return ok.error();
    bytes_ += file.bytes;
    temp = folder_ + "/files/temp-" + std::to_string(next_temp_++);
  }
  Result<void> done = write_file(temp, content);
  std::lock_guard lock(mutex_);
  if (done) done = put_record(record_path(file), stored_text(file));
  if (done) done = rename_file(temp, file_path(file.id));
  if (!done) {
    bytes_ -= file.bytes;
    ::unlink(temp.c_str());
    ::unlink(record_path(file).c_str());
    return done.error();
  }
  return files_[file.id] = std::move(file);
}

Result<void> BatchStore::adopt_file(FileRecord file, const std::string& path) {
  std::error_code error;
  file.bytes = fs::file_size(path, error);
  if (error) return Error{500, "cannot read " + quote(path, 400)};
  std::lock_guard lock(mutex_);
  if (auto ok = put_record(record_path(file), stored_text(file)); !ok) return ok;
  if (auto ok = rename_file(path, file_path(file.id)); !ok) return ok;
  if (auto old = files_.find(file.id); old != files_.end()) bytes_ -= old->second.bytes;
  bytes_ += file.bytes;
  files_[file.id] = std::move(file);
  return {};
}

std::optional<FileRecord> BatchStore::file(const std::string& id, const std::string& owner) const {
  std::lock_guard lock(mutex_);
  const auto at = files_.find(id);
  if (at == files_.end() || at->second.owner != owner) return std::nullopt;
  return at->second;
}

std::vector<FileRecord> BatchStore::files(const std::string& owner) const {
  std::lock_guard lock(mutex_);
  return sorted_of(files_, owner);
}

bool BatchStore::in_use(const std::string& file_id) const {
  return std::ranges::any_of(batches_, [&](const auto& b) {
    return b.second.input_file == file_id && !is_over(b.second.status);
  });
}

void BatchStore::drop_file(const std::string& id) {
  const auto at = files_.find(id);
  ::unlink(file_path(id).c_str());
  ::unlink(record_path(at->second).c_str());
  bytes_ -= at->second.bytes;
  files_.erase(at);
}

Result<void> BatchStore::erase_file(const std::string& id, const std::string& owner) {
  std::lock_guard lock(mutex_);
  const auto at = files_.find(id);
  if (at == files_.end() || at->second.owner != owner) return Error{404, "there is no such file"};
  if (in_use(id)) return Error{409, "a batch that is not over needs this file: cancel it first"};
  drop_file(id);
  return {};
}

void BatchStore::expire(int64_t now) {
  std::lock_guard lock(mutex_);
  std::vector<std::string> late;
  for (const auto& [id, f] : files_)
    if (f.expires_at != 0 && f.expires_at <= now && !in_use(id)) late.push_back(id);
  for (const std::string& id : late) drop_file(id);
}

// ---- batches ----

bool BatchStore::drop_old_batch(const std::string& owner) {
  for (const BatchRecord& b : sorted_of(batches_, owner)) {
    if (!is_over(b.status)) continue;
    ::unlink(record_path(b).c_str());
    batches_.erase(b.id);
    return true;
  }
  return false;
}

Result<void> BatchStore::add_batch(const BatchRecord& batch) {
  std::lock_guard lock(mutex_);
  const auto own = static_cast<size_t>(std::ranges::count_if(
      batches_, [&](const auto& b) { return b.second.owner == batch.owner; }));
  const size_t most_own = limits_.batches / (limits_.shared ? 4 : 1);
  if ((batches_.size() >= limits_.batches || own >= most_own) && !drop_old_batch(batch.owner))
    return Error{429, "there are too many batches that are not over: wait, or cancel some"};
  if (auto ok = put_record(record_path(batch), stored_text(batch)); !ok) return ok;
  batches_[batch.id] = batch;
  return {};
}

std::optional<BatchRecord> BatchStore::batch(const std::string& id,
                                             const std::string& owner) const {
  std::lock_guard lock(mutex_);
  const auto at = batches_.find(id);
  if (at == batches_.end() || at->second.owner != owner) return std::nullopt;
  return at->second;
}

std::vector<BatchRecord> BatchStore::batches(const std::string& owner) const {
  std::lock_guard lock(mutex_);
  return sorted_of(batches_, owner);
}

std::vector<BatchRecord> BatchStore::unfinished() const {
  std::vector<BatchRecord> out;
  std::lock_guard lock(mutex_);
  for (const auto& [id, b] : batches_)
    if (!is_over(b.status)) out.push_back(b);
  std::ranges::sort(out, older<BatchRecord>);
  return out;
}

Result<BatchRecord> BatchStore::cancel(const std::string& id,
                                       const std::string& owner,
                                       int64_t now) {
  std::lock_guard lock(mutex_);
  const auto at = batches_.find(id);
  if (at == batches_.end() || at->second.owner != owner)
    return Error{404, "there is no such batch"};
  BatchRecord next = at->second;
  if (next.status == BatchStatus::cancelling) return next;
  if (is_over(next.status) || next.status == BatchStatus::finalizing)
    return Error{409, strf("the batch is %s", name_of(kBatchStatuses, next.status))};
  next.become(BatchStatus::cancelling, now);
  if (auto ok = put_record(record_path(next), stored_text(next)); !ok) return ok.error();
  return at->second = std::move(next);
}

bool BatchStore::cancelling(const std::string& id) const {
  std::lock_guard lock(mutex_);
  const auto at = batches_.find(id);
  return at != batches_.end() && at->second.status == BatchStatus::cancelling;
}

Result<void> BatchStore::update(const BatchRecord& batch) {
  std::lock_guard lock(mutex_);
  const auto at = batches_.find(batch.id);
  if (at == batches_.end()) return {};
  BatchRecord next = batch;
  const BatchRecord& now = at->second;
  if (now.status == BatchStatus::cancelling && !is_over(next.status) &&
      next.status != BatchStatus::finalizing)
    next.status = now.status;
  constexpr auto kCancelling = static_cast<size_t>(BatchStatus::cancelling);
  next.since[kCancelling] = std::max(next.since[kCancelling], now.since[kCancelling]);
  if (auto ok = put_record(record_path(next), stored_text(next)); !ok) return ok;
  at->second = std::move(next);
  return {};
}

void BatchStore::count(const std::string& id, uint64_t completed, uint64_t failed) {
  std::lock_guard lock(mutex_);
  const auto at = batches_.find(id);
  if (at == batches_.end()) return;
  at->second.completed = completed;
  at->second.failed = failed;
}

void BatchStore::count_line(bool failed) {
  std::lock_guard lock(mutex_);
  ++(failed ? num_failed_ : num_completed_);
}

BatchStore::Counts BatchStore::counts() const {
  Counts c;
  std::lock_guard lock(mutex_);
  c.completed = num_completed_;
  c.failed = num_failed_;
  for (const auto& [id, b] : batches_) {
    ++c.batches[static_cast<size_t>(b.status)];
    if (const uint64_t done = b.completed + b.failed; !is_over(b.status) && b.total > done)
      c.waiting += b.total - done;
  }
  return c;
}

bool BatchStore::reserve(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  if (bytes_ + bytes > limits_.bytes) return false;
  bytes_ += bytes;
  return true;
}

void BatchStore::unreserve(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  bytes_ -= bytes;
}

}  // namespace sluice

#include "hub/download.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <filesystem>
#include <numeric>
#include <optional>
#include <thread>

#include "base/sha.h"
#include "base/str.h"
#include "net/digest.h"

namespace sluice {

namespace {

constexpr uint64_t kProgress = 1 << 20;  // so many bytes more, and earlier failures are forgotten

struct Fd {
  explicit Fd(int n) : fd(n) {}
  ~Fd() {
    if (fd >= 0) ::close(fd);
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int fd;
};

// The hash that the hub has of a file, if any.
class FileHash {
 public:
  explicit FileHash(const RepoFile& file) : file_(file) { restart(); }
  void restart() {
    sha256_ = {};
    sha1_ = {};
    std::string head = strf("blob %llu", static_cast<unsigned long long>(file_.size));
    sha1_.update(std::string_view(head.c_str(), head.size() + 1));
  }
  void update(std::string_view bytes) {
    if (!file_.sha256.empty()) return sha256_.update(bytes);
    if (!file_.git_sha1.empty()) sha1_.update(bytes);
  }
  // Empty where it is as it should be, else what it is; ends the hash.
  std::string mismatch() {
    if (!file_.sha256.empty()) {
      std::string is = sha256_.hex();
      return is == file_.sha256 ? "" : "SHA-256 " + is + ", and the hub says " + file_.sha256;
    }
    if (file_.git_sha1.empty()) return "";
    std::string is = sha1_.hex();
    return is == file_.git_sha1 ? "" : "Git hash " + is + ", and the hub says " + file_.git_sha1;
  }

 private:
  const RepoFile& file_;
  FileDigest sha256_;
  Sha1 sha1_;
};

std::string header(const HttpHeaders& headers, std::string_view name) {
  for (const auto& [key, value] : headers)
    if (key == name) return value;
  return "";
}

// One file, on one thread.
class FileDownload {
 public:
  FileDownload(const Download& d,
               const DownloadOptions& o,
               HttpGetter& getter,
               std::atomic<uint64_t>& done,
               const std::atomic<bool>& stop)
      : d_(d), o_(o), getter_(getter), done_(done), stop_(stop), hash_(d.file) {}

  Result<void> run();

 private:
  Result<void> take_partial(int fd);
  Result<void> start_over();
  // One request for what is missing. True: what came is all there is to get by asking.
  HttpReply ask();
  bool on_head(int status, const HttpHeaders& headers);
  bool on_body(std::string_view bytes);
  Error broken(const std::string& why) const {
    return Error{500, d_.file.path + " of " + o_.what + ": " + why};
  }
  Error system_error(const char* what) const {
    return broken(
        strf("cannot %s %s: %s", what, quote(partial_, 400).c_str(), std::strerror(errno)));
  }

  const Download& d_;
  const DownloadOptions& o_;
  HttpGetter& getter_;
  std::atomic<uint64_t>& done_;  // bytes of all files
  const std::atomic<bool>& stop_;
  FileHash hash_;
  std::string partial_;
  int fd_ = -1;
  uint64_t have_ = 0;
  bool resumed_ = false;         // some of have_ is from an earlier run
  bool taking_ = false;          // the body of the answer is the file's
  std::optional<Error> failed_;  // no use to go on
};

// What an earlier run left counts, and is hashed again.
Result<void> FileDownload::take_partial(int fd) {
  struct stat st = {};
  if (fstat(fd, &st) != 0) return system_error("read");
  if (static_cast<uint64_t>(st.st_size) > d_.file.size) return start_over();
  std::vector<char> buffer(1 << 20);
  while (have_ < static_cast<uint64_t>(st.st_size) && !stop_) {
    ssize_t n = ::pread(fd, buffer.data(), buffer.size(), static_cast<off_t>(have_));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return system_error("read");
    hash_.update({buffer.data(), static_cast<size_t>(n)});
    have_ += static_cast<uint64_t>(n);
    done_ += static_cast<uint64_t>(n);
  }
  resumed_ = have_ > 0;
  return {};
}

Result<void> FileDownload::start_over() {
  done_ -= have_;
  have_ = 0;
  resumed_ = false;
  hash_.restart();
  if (ftruncate(fd_, 0) != 0) return system_error("empty");
  return {};
}

bool FileDownload::on_head(int status, const HttpHeaders& headers) {
  taking_ = status == 200 || status == 206;
  if (!taking_) return true;         // a short text that nobody reads
  if (status == 200 && have_ > 0) {  // the server knows no ranges
    if (auto ok = start_over(); !ok) failed_ = ok.error();
  }
  const std::string range = header(headers, "content-range");
  if (status == 206) {
    const std::string begin = strf("bytes %llu-", static_cast<unsigned long long>(have_));
    const std::string end = strf("/%llu", static_cast<unsigned long long>(d_.file.size));
    if (!range.starts_with(begin) || !(range.ends_with(end) || range.ends_with("/*")))
      failed_ =
          broken(strf("the server sent another part than was asked for (%s): the file has "
                      "changed; pull again",
                      quote(range).c_str()));
  } else if (std::string length = header(headers, "content-length");
             !length.empty() && length != std::to_string(d_.file.size)) {
    failed_ =
        broken(strf("the server has %s bytes of it and the hub lists %llu: the file has "
                    "changed; pull again",
                    quote(length).c_str(), static_cast<unsigned long long>(d_.file.size)));
  }
  return !failed_;
}

bool FileDownload::on_body(std::string_view bytes) {
  if (stop_ || failed_) return false;
  if (!taking_) return true;
  if (bytes.size() > d_.file.size - have_) {
    failed_ = broken("the server sends more than the hub lists: the file has changed; pull again");
    return false;
  }
  for (std::string_view rest = bytes; !rest.empty();) {
    ssize_t n = ::pwrite(fd_, rest.data(), rest.size(),
                         static_cast<off_t>(have_ + (bytes.size() - rest.size())));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      failed_ = system_error("write");
      return false;
    }
    rest.remove_prefix(static_cast<size_t>(n));
  }
  hash_.update(bytes);
  have_ += bytes.size();
  done_ += bytes.size();
  return true;
}

HttpReply FileDownload::ask() {
  HttpGetter::Request request = d_.request;
  if (have_ > 0)
    request.headers.emplace_back("Range",
                                 strf("bytes=%llu-", static_cast<unsigned long long>(have_)));
  HttpGetter::Sink sink;
  sink.on_head = [this](int status, const HttpHeaders& headers) {
    return on_head(status, headers);
  };
  sink.on_body = [this](std::string_view bytes) { return on_body(bytes); };
  taking_ = false;
  return getter_.get(request, sink);
}

Result<void> FileDownload::run() {
  partial_ = partial_path(d_.file, d_.path);
  Fd file(::open(partial_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  fd_ = file.fd;
  if (fd_ < 0) return system_error("open");
  if (auto ok = take_partial(fd_); !ok) return ok;
  Patience patience(o_.say);
  while (true) {
    while (have_ < d_.file.size) {
      if (stop_) return broken("stopped");
      const uint64_t before = have_;
      HttpReply reply = ask();
      if (failed_) return *failed_;
      if (stop_) return broken("stopped");
      if (have_ == d_.file.size) break;
      if (have_ - std::min(before, have_) >= kProgress) patience.forget();
      if (reply.status == 416) {  // what is here is not the beginning of what is there
        if (auto ok = start_over(); !ok) return ok;
      }
      // A whole answer that is too short, and an address that has expired, are as a lost
      // connection.
      bool again = taking_ || reply.status == 416 || is_passing(reply) ||
                   (reply.status == 403 && have_ > before);
      if (!again) return refusal(reply, o_.what, o_.settings);
      std::string why = taking_ && reply.failure == HttpFailure::none ? "the connection ended early"
                                                                      : failure_words(reply);
      if (!patience.wait(d_.file.path + ": " + why, reply))
        return refusal(reply, o_.what, o_.settings);
    }
    const std::string wrong = hash_.mismatch();
    if (wrong.empty()) break;
    if (!resumed_) {
      ::unlink(partial_.c_str());
      done_ -= have_;
      return broken("is damaged (" + wrong + "); it was removed: pull again");
    }
    if (o_.say) o_.say(d_.file.path + " is damaged (" + wrong + "); getting it anew");
    if (auto ok = start_over(); !ok) return ok;
  }
  if (fsync(fd_) != 0) return system_error("write");
  if (::rename(partial_.c_str(), d_.path.c_str()) != 0) return system_error("rename");
  return {};
}

Result<void> run_one(const Download& d,
                     const DownloadOptions& o,
                     HttpGetter& getter,
                     std::atomic<uint64_t>& done,
                     const std::atomic<bool>& stop) {
  try {
    return FileDownload(d, o, getter, done, stop).run();
  } catch (const std::exception& e) {  // no memory
    return Error{500, o.what + ": " + e.what()};
  }
}

}  // namespace

std::string partial_path(const RepoFile& file, const std::string& path) {
  std::string hash = !file.sha256.empty() ? file.sha256 : file.git_sha1;
  return path + "." + (hash.empty() ? "unknown" : hash.substr(0, 16)) + ".partial";
}

Result<void> download_all(const std::vector<Download>& files, const DownloadOptions& options) {
  uint64_t total = 0;
  std::vector<size_t> order(files.size());
  std::iota(order.begin(), order.end(), size_t{0});
  for (const Download& d : files) total += d.file.size;
  std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return files[i].file.size; });

  std::vector<std::optional<Error>> errors(files.size());  // each written by one thread
  std::atomic<size_t> next = 0, num_ended = 0, first_error = SIZE_MAX;
  std::atomic<uint64_t> done = 0;
  std::atomic<bool> stop = false;
  auto work = [&] {
    HttpGetter getter;
    for (size_t i; !stop && (i = next++) < files.size();) {
      size_t at = order[i];
      if (auto ok = run_one(files[at], options, getter, done, stop); !ok) {
        errors[at] = ok.error();
        size_t none = SIZE_MAX;
        first_error.compare_exchange_strong(none, at);
        stop = true;
      }
    }
    ++num_ended;
  };
  const size_t num_threads = std::min(files.size(), static_cast<size_t>(options.connections));
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < num_threads; ++i) threads.emplace_back(work);
    while (num_ended < num_threads) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      if (options.progress) options.progress(done, total);
    }
  }
  if (size_t at = first_error; at != SIZE_MAX) return *errors[at];
  return {};
}

}  // namespace sluice

#include "exec/block_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <string_view>
#include <system_error>

#include "base/str.h"

namespace sluice {

namespace {

constexpr size_t kPage = 4096;
constexpr uint32_t kFileVersion = 1, kLabelMagic = 0x4b4c4253;

struct FileHead {
  char magic[8] = {'s', 'l', 'u', 'i', 'c', 'e', 'K', 'V'};
  uint32_t version = kFileVersion, block_size = 0;
  uint64_t block_bytes = 0;
  char content[64] = {};
  uint64_t sum = 0;  // of what is before it
};

// Followed by the tokens.
struct LabelHead {
  uint32_t magic = kLabelMagic, group = 0;
  uint64_t place = 0, tenant = 0, hash_a = 0, hash_b = 0;
  uint64_t block_sum = 0;
  uint64_t sum = 0;  // of all other fields and the tokens
};

size_t label_bytes(int block_size) {
  return sizeof(LabelHead) + static_cast<size_t>(block_size) * sizeof(Token);
}

Error system_error(const std::string& what) {
  int code = errno;
  return {500, strf("%s: %s", what.c_str(), std::generic_category().message(code).c_str())};
}

// Whole, or an error; short reads at the end of the file leave `got` short.
Result<size_t> read_at(int fd, std::span<std::byte> to, int64_t at) {
  size_t got = 0;
  while (got < to.size()) {
    ssize_t n = pread(fd, to.data() + got, to.size() - got, at + static_cast<int64_t>(got));
    if (n == 0) break;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error("reading");
    got += static_cast<size_t>(n);
  }
  return got;
}

Result<void> write_at(int fd, std::span<const std::byte> from, int64_t at) {
  size_t done = 0;
  while (done < from.size()) {
    ssize_t n = pwrite(fd, from.data() + done, from.size() - done, at + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return system_error("writing");
    done += static_cast<size_t>(n);
  }
  return {};
}

Result<void> make_private_dir(const std::filesystem::path& dir) {
  if (dir.empty()) return Error{400, "there is no cache folder: give --prefix-disk-dir"};
  std::error_code failed;
  if (dir.has_parent_path()) std::filesystem::create_directories(dir.parent_path(), failed);
  if (mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST) return system_error(dir.string());
  struct stat info {};
  if (stat(dir.c_str(), &info) != 0) return system_error(dir.string());
  if (!S_ISDIR(info.st_mode)) return Error{400, strf("%s is not a directory", dir.c_str())};
  if (info.st_uid != geteuid() || (info.st_mode & 077) != 0)
    return Error{400, strf("%s is open to others: chmod 700 it, or choose another", dir.c_str())};
  return {};
}

// A regular file of this user's that nobody else can open.
Result<int> open_private(const std::filesystem::path& path, int flags) {
  int fd = ::open(path.c_str(), flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
  if (fd < 0) return system_error(path.string());
  struct stat info {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != geteuid() ||
      (info.st_mode & 077) != 0) {
    close(fd);
    return Error{400, strf("%s is not a private file: remove it", path.c_str())};
  }
  return fd;
}

using Secret = std::array<uint64_t, 4>;

Result<Secret> read_secret(const std::filesystem::path& path) {
  Result<int> fd = open_private(path, O_RDONLY);
  if (!fd) return fd.error();
  Secret secret{};
  Result<size_t> got = read_at(*fd, std::as_writable_bytes(std::span(secret)), 0);
  close(*fd);
  if (!got) return got.error();
  if (*got != sizeof(secret)) return Error{400, strf("%s is cut off: remove it", path.c_str())};
  return secret;
}

// The directory's secret, made by whoever comes first: it gets its name when it is whole.
Result<Secret> load_secret(const std::filesystem::path& dir) {
  std::filesystem::path path = dir / "secret";
  if (access(path.c_str(), F_OK) == 0) return read_secret(path);
  std::random_device random;
  Secret secret{};
  for (uint64_t& word : secret) word = uint64_t{random()} << 32 | random();
  std::filesystem::path draft = dir / strf("secret.%d", static_cast<int>(getpid()));
  unlink(draft.c_str());
  Result<int> fd = open_private(draft, O_WRONLY | O_CREAT | O_EXCL);
  if (!fd) return fd.error();
  Result<void> written = write_at(*fd, std::as_bytes(std::span(secret)), 0);
  close(*fd);
  if (written && link(draft.c_str(), path.c_str()) != 0 && errno != EEXIST)
    written = system_error(path.string());
  unlink(draft.c_str());
  if (!written) return written.error();
  return read_secret(path);
}

}  // namespace

BlockFile::BlockFile(BlockFileConfig config, int fd, const std::array<uint64_t, 4>& secret)
    : config_(std::move(config)),
      fd_(fd),
      secret_(secret),
      label_(label_bytes(config_.block_size)) {}

BlockFile::~BlockFile() {
  if (fd_ >= 0) close(fd_);
}

size_t BlockFile::place_bytes(int block_size, size_t block_bytes) {
  return (label_bytes(block_size) + block_bytes + kPage - 1) / kPage * kPage;
}

int64_t BlockFile::place_at(int place) const {
  return static_cast<int64_t>(kPage + (static_cast<size_t>(place) - 1) *
                                          place_bytes(config_.block_size, config_.block_bytes));
}

uint64_t BlockFile::checksum(std::span<const std::byte> bytes) const {
  return keyed_hash({secret_[0], secret_[1]},
                    {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

Result<BlockFile> BlockFile::open(const BlockFileConfig& config) {
  if (auto ok = make_private_dir(config.dir); !ok) return ok.error();
  Result<Secret> secret = load_secret(config.dir);
  if (!secret) return secret.error();
  std::filesystem::path path = config.dir / ("blocks-" + config.content.substr(0, 16));
  Result<int> fd = open_private(path, O_RDWR | O_CREAT);
  if (!fd) return fd.error();
  BlockFile file(config, *fd, *secret);
  if (flock(*fd, LOCK_EX | LOCK_NB) != 0)
    return Error{400, strf("%s is in use by another process: give each its --prefix-disk-dir",
                           path.c_str())};
  if (auto ok = file.prepare(); !ok) return ok.error();
  return file;
}

// A file of another version, model or format is emptied; one of another size is cut or grows.
Result<void> BlockFile::prepare() {
  FileHead expected, found;
  expected.block_size = static_cast<uint32_t>(config_.block_size);
  expected.block_bytes = config_.block_bytes;
  config_.content.copy(expected.content, sizeof(expected.content));
  auto bytes = std::as_bytes(std::span(&expected, 1));
  expected.sum = checksum(bytes.first(offsetof(FileHead, sum)));
  Result<size_t> got = read_at(fd_, std::as_writable_bytes(std::span(&found, 1)), 0);
  if (!got) return got.error();
  bool same = *got == sizeof(found) && std::memcmp(&found, &expected, sizeof(found)) == 0;
  if (!same && ftruncate(fd_, 0) != 0) return system_error("emptying the file of blocks");
  if (ftruncate(fd_, place_at(config_.num_places + 1)) != 0)
    return system_error("sizing the file of blocks");
  return same ? Result<void>() : write_at(fd_, bytes, 0);
}

// Into label_.
void BlockFile::make_label(int place, const BlockLabel& label, uint64_t block_sum) {
  LabelHead head;
  head.group = static_cast<uint32_t>(label.key.group);
  head.place = static_cast<uint64_t>(place);
  head.tenant = label.key.tenant;
  head.hash_a = label.key.hash.a;
  head.hash_b = label.key.hash.b;
  head.block_sum = block_sum;
  std::memcpy(label_.data(), &head, sizeof(head));
  std::memcpy(label_.data() + sizeof(head), label.tokens.data(), label.tokens.size_bytes());
  head.sum = checksum(label_);
  std::memcpy(label_.data(), &head, sizeof(head));
}

std::vector<StoredBlock> BlockFile::list() {
  std::vector<StoredBlock> all;
  struct stat info {};
  if (fstat(fd_, &info) != 0) return all;
  std::vector<std::byte> found(label_.size());
  for (int place = 1; place <= config_.num_places; ++place) {
    // Places that were never written are holes: the next data may be far away.
    int64_t at = place_at(place);
    off_t data = lseek(fd_, at, SEEK_DATA);
    if (data < 0) break;
    if (data >= place_at(place + 1)) {
      auto skipped = (data - place_at(1)) / (place_at(2) - place_at(1));
      place = static_cast<int>(skipped);
      continue;
    }
    Result<size_t> got = read_at(fd_, found, at);
    if (!got || *got != found.size()) continue;
    LabelHead head;
    std::memcpy(&head, found.data(), sizeof(head));
    if (head.magic != kLabelMagic) continue;
    StoredBlock b;
    b.place = place;
    b.key = {{head.hash_a, head.hash_b}, static_cast<int>(head.group), head.tenant};
    b.tokens.resize(static_cast<size_t>(config_.block_size));
    std::memcpy(b.tokens.data(), found.data() + sizeof(head), b.tokens.size() * sizeof(Token));
    make_label(place, {b.key, b.tokens}, head.block_sum);
    if (label_ == found) all.push_back(std::move(b));
  }
  return all;
}

Result<void> BlockFile::write(int place,
                              const BlockLabel& label,
                              std::span<const std::byte> block) {
  make_label(place, label, checksum(block));
  int64_t at = place_at(place);
  if (auto ok = write_at(fd_, block, at + static_cast<int64_t>(label_.size())); !ok) return ok;
  return write_at(fd_, label_, at);
}

Result<bool> BlockFile::read(int place, const BlockLabel& label, std::span<std::byte> block) {
  int64_t at = place_at(place);
  std::vector<std::byte> found(label_.size());
  Result<size_t> got = read_at(fd_, found, at);
  if (!got) return got.error();
  if (*got != found.size()) return false;
  got = read_at(fd_, block, at + static_cast<int64_t>(label_.size()));
  if (!got) return got.error();
  if (*got != block.size()) return false;
  make_label(place, label, checksum(block));
  return label_ == found;
}

}  // namespace sluice

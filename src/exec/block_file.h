// KV blocks in a file that outlives the process. A record holds a block, what it is filed under,
// and checksums of both; whatever does not match on reading is a miss, so torn or damaged records
// need no repair. One thread at a time. Bounded: places are numbered from 1, and a record stays in
// its place.
//
// The directory and its files are the owner's alone (0700, 0600). A random secret lies beside the
// records: it keys the checksums and the ids of tenants, so that both last across restarts and
// nobody else can make records.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/keyed_hash.h"
#include "base/result.h"
#include "base/token.h"
#include "core/tier_cache.h"

namespace sluice {

struct BlockFileConfig {
  std::filesystem::path dir;
  std::string content;  // what tells its blocks from those of other models and formats: hex digits
  int num_places = 0;
  int block_size = 0;      // tokens
  size_t block_bytes = 0;  // K and V of a block
};

// What a block is filed under.
struct BlockLabel {
  PrefixKey key;
  std::span<const Token> tokens;
};

class BlockFile {
 public:
  // Makes the directory, the secret and the file where they are missing. The error says what to do.
  static Result<BlockFile> open(const BlockFileConfig& config);
  // Bytes of one place, labels and padding included.
  static size_t place_bytes(int block_size, size_t block_bytes);
  ~BlockFile();
  BlockFile(BlockFile&& other) noexcept
      : config_(std::move(other.config_)),
        fd_(std::exchange(other.fd_, -1)),
        secret_(other.secret_),
        label_(std::move(other.label_)) {}
  BlockFile& operator=(BlockFile&&) = delete;

  const BlockFileConfig& config() const { return config_; }
  // For TenantIds.
  HashKey tenant_key() const { return {secret_[2], secret_[3]}; }

  // Records whose labels are whole. Their blocks are checked when they are read.
  std::vector<StoredBlock> list();
  // Errors are the file system's: the disk is full, or fails.
  Result<void> write(int place, const BlockLabel& label, std::span<const std::byte> block);
  // False: that content is not there.
  Result<bool> read(int place, const BlockLabel& label, std::span<std::byte> block);

 private:
  BlockFile(BlockFileConfig config, int fd, const std::array<uint64_t, 4>& secret);
  Result<void> prepare();
  int64_t place_at(int place) const;
  void make_label(int place, const BlockLabel& label, uint64_t block_sum);
  uint64_t checksum(std::span<const std::byte> bytes) const;

  BlockFileConfig config_;
  int fd_ = -1;
  std::array<uint64_t, 4> secret_{};  // two words for checksums, two for tenants
  std::vector<std::byte> label_;
};

}  // namespace sluice

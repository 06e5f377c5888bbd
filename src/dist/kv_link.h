// One connection between two servers that move KV blocks: hello, then frames with their MACs. The
// side that connects is the client. One thread, which may wait.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "dist/kv_frame.h"
#include "net/byte_stream.h"

namespace sluice {

// What both sides must agree on.
struct KvIdentity {
  std::string key;      // shared; empty: none, and no MACs
  Digest256 content{};  // sha256() of Session::shared_content()
  size_t block_bytes = 0;
  int block_size = 0;       // positions of a block
  uint32_t max_blocks = 0;  // of a prompt, in one cache group
  int num_groups = 1;
  bool windowed = false;  // some groups keep only a window
  // Cached prefixes move only between servers that prove a key: whoever asks for one says the
  // prompt, and learns who else had it.
  bool moves_prefixes() const { return !key.empty() && !windowed; }
};
// At least 16 bytes in a file, less the end of the line.
Result<std::string> read_kv_key(const std::string& path);

class KvLink {
 public:
  static constexpr std::chrono::milliseconds kIdle{1000};  // without a byte

  KvLink(std::unique_ptr<ByteStream> stream, const KvIdentity& identity)
      : stream_(std::move(stream)), identity_(identity) {}
  // An error says why the two do not go together. With a key the peer has proved it after that.
  Result<void> greet(bool is_client, WaitUntil until);
  Result<void> send(const KvFrame& frame, WaitUntil until);
  // Its bytes are valid until the next call.
  Result<KvFrame> receive(WaitUntil until, std::chrono::milliseconds idle = kIdle) {
    return receive(until, idle, SIZE_MAX);
  }
  void shut() noexcept { stream_->shut(); }
  void finish() noexcept { stream_->finish(); }

 private:
  Result<void> prove(WaitUntil until);
  // One of more than `most` bytes is not read.
  Result<KvFrame> receive(WaitUntil until, std::chrono::milliseconds idle, size_t most);

  std::unique_ptr<ByteStream> stream_;
  const KvIdentity& identity_;
  std::optional<KvSeal> out_, in_;
  FrameBytes sent_, received_;
};

}  // namespace sluice

// Peers that say anything: their connections end, nothing stays held, and whoever comes next is
// served. SLUICE_TEST_FULL=1: a million frames.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "dist/kv_pair.h"
#include "net/shm_peer.h"
#include "net/stream_socket.h"

namespace sluice {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Draw = std::mt19937_64;

size_t num_hostile_frames() {
  return std::getenv("SLUICE_TEST_FULL") != nullptr ? 340'000 : 2'000;  // of each of three kinds
}

WaitUntil in_a_minute() { return std::chrono::steady_clock::now() + seconds(60); }

// A connection that can say that no more comes, and still be answered.
class HalfStream final : public ByteStream {
 public:
  explicit HalfStream(uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
    const timeval limit{60, 0};
    EXPECT_EQ(::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  }
  ~HalfStream() override { ::close(fd_); }
  Result<void> send(std::span<const std::byte> bytes, milliseconds, WaitUntil) override {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return Error{503, "it is closed"};
      bytes = bytes.subspan(static_cast<size_t>(n));
    }
    return {};
  }
  Result<void> receive(std::span<std::byte> bytes, milliseconds, WaitUntil) override {
    while (!bytes.empty()) {
      const ssize_t n = ::recv(fd_, bytes.data(), bytes.size(), 0);
      if (n <= 0) return Error{503, "it is closed"};
      bytes = bytes.subspan(static_cast<size_t>(n));
    }
    return {};
  }
  void shut() noexcept override { ::shutdown(fd_, SHUT_RDWR); }
  // False: the other side has not closed within a minute.
  bool read_to_the_end() {
    ::shutdown(fd_, SHUT_WR);
    std::byte some[4096];
    ssize_t n = 0;
    while ((n = ::recv(fd_, some, sizeof some, 0)) > 0) {
    }
    return n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
  }

 private:
  int fd_;
};

uint32_t some_number(Draw& draw) {
  switch (draw() % 4) {
    case 0:
      return static_cast<uint32_t>(draw());
    case 1:
      return 0xffffffff - static_cast<uint32_t>(draw() % 3);
    default:
      return static_cast<uint32_t>(draw() % 12);
  }
}

// A frame of any kind. `lease` and `keys` are true ones, which it sometimes names.
KvFrame some_frame(Draw& draw, const LeaseName& lease, std::span<const Digest256> keys) {
  static const FrameBytes content(std::max(kBytes, 4 * kFrameTokens), std::byte{7});
  LeaseName name = lease;
  if (draw() % 3 == 0) name[0] ^= std::byte{1};
  const uint32_t index = some_number(draw);
  Digest256 key{};
  if (draw() % 4 > 0) key = keys[index < keys.size() ? index : 0];
  const uint32_t group = draw() % 4 > 0 ? 0 : some_number(draw);
  switch (draw() % 12) {
    case 0:
      return KvGet{name, index};
    case 1:
      return KvBlock{index, group, key, std::span(content).first(kBytes)};
    case 2:
      return KvDone{index};
    case 3:
      return KvGone{};
    case 4:
      return KvRelease{name};
    case 5:
      return KvFind{draw() % 9, index, some_number(draw)};
    case 6:
      return KvTokens{std::span(content).first(4 * kFrameTokens)};
    case 7:
      return KvProof{};
    case 8:
      if (draw() % 100 > 0) return KvReady{};
      return KvAwait{name};  // rarely: it waits for a lease that may still come
    case 9:
      return KvReady{};
    case 10:
      return KvWait{};
    default:
      break;
  }
  const uint64_t at = draw() % 3 > 0 ? 0 : draw() % 2 ? draw() : draw() % (kBytes + 2);
  const size_t size = 1 + draw() % kBytes;
  return KvLayers{index, group, at, key, std::span(content).first(size)};
}

void add_frame(const KvFrame& frame, FrameBytes& out) {
  encode_frame(frame, kBytes, out);
  const std::span<const std::byte> content = frame_content(frame);
  out.insert(out.end(), content.begin(), content.end());
}

// Changes a few bytes, drops, repeats or adds some.
void mutate(Draw& draw, FrameBytes& bytes) {
  for (uint64_t k = draw() % 4; k > 0 && !bytes.empty(); --k) {
    const auto at = static_cast<ptrdiff_t>(draw() % bytes.size());
    const auto end = std::min(at + static_cast<ptrdiff_t>(1 + draw() % 40), std::ssize(bytes));
    switch (draw() % 4) {
      case 0:
        bytes[static_cast<size_t>(at)] ^= static_cast<std::byte>(1 + draw() % 255);
        break;
      case 1:
        bytes.erase(bytes.begin() + at, bytes.begin() + end);
        break;
      case 2:
        bytes.resize(static_cast<size_t>(at));
        break;
      default: {
        const FrameBytes again(bytes.begin() + at, bytes.begin() + end);
        bytes.insert(bytes.begin() + at, again.begin(), again.end());
      }
    }
  }
}

// A hundred connections at a time, with a lease that they may name; then the lease is fetched as it
// should be, if it is still there.
void run_clients(Pair& pair, const std::function<size_t(Draw&, const LeaseName&)>& connection) {
  Draw draw(20);
  size_t num = 0;
  for (Token first = 1; num < num_hostile_frames(); first = first % 50'000 + 50) {
    const PromptBlocks prompt = some_prompt(21, 7, first);
    const LeaseStore::Opened lease = prefill(pair.from, prompt);
    for (int k = 0; k < 100; ++k) num += connection(draw, lease.name);
    const KvFetcher::Outcome o = pair.move(some_prompt(21, 0, first), lease.name);
    ASSERT_TRUE(o.error.empty() || o.error == "the lease is gone") << o.error;
    ASSERT_TRUE(o.num_came == (o.error.empty() ? 5 : 0));
    expect_freed(pair.from);
    ASSERT_EQ(pair.to.num_held(), 0);
    ASSERT_FALSE(testing::Test::HasFailure());
  }
}

std::vector<Digest256> some_keys() { return prompt_keys(*some_prompt(21, 7).prompt, kSize); }

// By sockets, and by memory that the server reads.
class KvHostileBy : public KvTransferBy {};
INSTANTIATE_TEST_SUITE_P(Transports,
                         KvHostileBy,
                         testing::Values(Transport::tcp, Transport::shm),
                         [](const auto& p) { return name_of(kTransports, p.param); });

struct HostileClient {
  explicit HostileClient(uint16_t port) {
    if (transport_of_test == Transport::shm) {
      auto peer = std::make_unique<ShmPeer>(port);
      EXPECT_TRUE(peer->connected() && peer->greet());
      read_to_the_end = [p = peer.get()] { return p->read_to_the_end(); };
      stream = std::move(peer);
    } else {
      auto half = std::make_unique<HalfStream>(port);
      read_to_the_end = [p = half.get()] { return p->read_to_the_end(); };
      stream = std::move(half);
    }
  }
  std::unique_ptr<ByteStream> stream;
  std::function<bool()> read_to_the_end;  // while the stream exists
};

TEST_P(KvHostileBy, BytesThatAreNearlyFrames) {
  Pair pair("", "");
  const std::vector<Digest256> keys = some_keys();
  run_clients(pair, [&](Draw& draw, const LeaseName& lease) {
    HostileClient client(pair.port->port());
    FrameBytes bytes;
    encode_hello({false, pair.from.identity.content, {}}, bytes);
    const size_t num = 1 + draw() % 8;
    for (size_t k = 0; k < num; ++k) add_frame(some_frame(draw, lease, keys), bytes);
    mutate(draw, bytes);
    static_cast<void>(client.stream->send(bytes, seconds(1), in_a_minute()));
    EXPECT_TRUE(client.read_to_the_end());
    return num;
  });
}

// With the right key, so that every frame is read.
TEST_P(KvHostileBy, FramesThatNobodyAskedFor) {
  Pair pair(kSharedKey, kSharedKey);
  const std::vector<Digest256> keys = some_keys();
  run_clients(pair, [&](Draw& draw, const LeaseName& lease) {
    HostileClient client(pair.port->port());
    KvLink link(std::move(client.stream), pair.from.identity);
    EXPECT_TRUE(link.greet(true, in_a_minute()));
    const size_t num = 1 + draw() % 8;
    for (size_t k = 0; k < num; ++k)
      static_cast<void>(link.send(some_frame(draw, lease, keys), in_a_minute()));
    EXPECT_TRUE(client.read_to_the_end());
    return num;
  });
}

// Gives what it was given, and counts.
class Scripted final : public ByteStream {
 public:
  Scripted(FrameBytes bytes, size_t& num_read) : bytes_(std::move(bytes)), num_read_(num_read) {}
  Result<void> send(std::span<const std::byte>, milliseconds, WaitUntil) override { return {}; }
  Result<void> receive(std::span<std::byte> out, milliseconds, WaitUntil) override {
    if (out.size() > bytes_.size() - num_read_) return Error{503, "it is closed"};
    std::copy_n(bytes_.begin() + static_cast<ptrdiff_t>(num_read_), out.size(), out.begin());
    num_read_ += out.size();
    return {};
  }
  void shut() noexcept override {}

 private:
  FrameBytes bytes_;
  size_t& num_read_;
};

TEST(KvHostile, OfPeersWithoutTheKeyNothingLongIsRead) {
  const KvIdentity identity{kSharedKey, sha256("m"), kBytes, kSize, 32, 1};
  const std::vector<Digest256> keys = some_keys();
  const FrameBytes block(kBytes);
  for (const KvFrame& frame :
       {KvFrame(KvBlock{0, 0, keys[0], block}), KvFrame(KvLayers{0, 0, 0, keys[0], block}),
        KvFrame(KvTokens{block}), KvFrame(KvGet{})}) {
    FrameBytes bytes;
    encode_hello({true, identity.content, {}}, bytes);
    add_frame(frame, bytes);
    bytes.resize(bytes.size() + kMacBytes);
    size_t num_read = 0;
    KvLink link(std::make_unique<Scripted>(bytes, num_read), identity);
    EXPECT_FALSE(link.greet(false, in_a_minute()));
    EXPECT_EQ(num_read, kHelloBytes + kFrameHeadBytes);
  }
}

TEST(KvHostile, Servers) {
  Side to;
  KvFetcher fetcher({.time = seconds(60), .rest = milliseconds(0)}, *to.engine, to.places,
                    to.identity);
  Result<ListenSocket> listen = ListenSocket::open("127.0.0.1", 0);
  ASSERT_TRUE(listen);
  Draw draw(21);
  Token first = 1;
  for (size_t num = 0; num < num_hostile_frames(); first = first % 50'000 + 50) {
    const PromptBlocks prompt = some_prompt(21, 7, first);
    const std::vector<Digest256> keys = prompt_keys(*prompt.prompt, kSize);
    FrameBytes bytes;
    const size_t frames = 1 + draw() % 8;
    num += frames;
    for (size_t k = 0; k < frames; ++k) add_frame(some_frame(draw, {}, keys), bytes);
    mutate(draw, bytes);
    std::future<void> server = std::async(std::launch::async, [&] {
      StreamSocket socket(listen->accept(seconds(60)));
      FrameBytes heard(kHelloBytes);
      if (!socket.receive(heard, seconds(60), in_a_minute())) return;
      FrameBytes all;
      encode_hello({false, to.identity.content, {}}, all);
      all.insert(all.end(), bytes.begin(), bytes.end());
      static_cast<void>(socket.send(all, seconds(60), in_a_minute()));
    });
    const KvFetcher::Outcome o = fetch(fetcher, listen->port(), LeaseName{}, prompt);
    server.get();
    ASSERT_FALSE(o.error.empty() && o.num_came < o.num_wanted);
    ASSERT_EQ(to.num_held(), 0);
  }
  fetcher.stop();
  to.engine.reset();
}

}  // namespace
}  // namespace sluice

// Connections by shared memory: bytes whole and in order, limits of time, and peers that write
// anything into the memory, or end at any time.
#include "net/shm_stream.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <future>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "net/byte_stream.h"
#include "net/shm_peer.h"
#include "net/shm_ring.h"
#include "net/stream_socket.h"

namespace sluice {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ShmBytes = std::vector<std::byte>;

constexpr milliseconds kLong = seconds(60), kShort{100};

WaitUntil shm_until(milliseconds time = kLong) { return steady_clock::now() + time; }

ShmBytes some_bytes(size_t size, uint64_t seed) {
  std::mt19937_64 draw(seed);
  ShmBytes out(size);
  for (std::byte& b : out) b = static_cast<std::byte>(draw());
  return out;
}

std::unique_ptr<ByteListener> listen_here(Transport transport = Transport::shm) {
  return std::move(listen_bytes(transport, "127.0.0.1", 0)).value();
}

// A listener, and both ends of a connection.
struct StreamPair {
  explicit StreamPair(Transport transport = Transport::shm) : listener(listen_here(transport)) {
    client = transport == Transport::shm
                 ? connect_shm("127.0.0.1", listener->port())
                 : connect_bytes(transport, "127.0.0.1", listener->port(), shm_until()).value();
    server = listener->accept(kLong);
  }
  std::unique_ptr<ByteListener> listener;
  std::unique_ptr<ByteStream> client, server;
};

class StreamBy : public testing::TestWithParam<Transport> {};
INSTANTIATE_TEST_SUITE_P(Transports,
                         StreamBy,
                         testing::Values(Transport::tcp, Transport::shm),
                         [](const auto& p) { return name_of(kTransports, p.param); });

// Both sides send at once, and then receive; rings wrap at any offset.
TEST_P(StreamBy, BytesComeWholeAndInOrder) {
  StreamPair pair(GetParam());
  ASSERT_TRUE(pair.client && pair.server);
  constexpr size_t kTotal = 12'345'678;
  const ShmBytes up = some_bytes(kTotal, 1), down = some_bytes(kTotal, 2);
  const auto side = [](ByteStream& stream, const ShmBytes& out, bool is_client) {
    std::mt19937_64 draw(3);  // the same sizes on both sides
    ShmBytes in(kTotal);
    size_t at[2]{};  // up, down
    while (at[0] < kTotal || at[1] < kTotal) {
      size_t num[2];
      for (int k : {0, 1}) num[k] = std::min(kTotal - at[k], draw() % 40'000);
      const int o = is_client ? 0 : 1, i = 1 - o;
      if (!stream.send(std::span(out).subspan(at[o], num[o]), kLong, shm_until())) break;
      if (!stream.receive(std::span(in).subspan(at[i], num[i]), kLong, shm_until())) break;
      for (int k : {0, 1}) at[k] += num[k];
    }
    return in;
  };
  std::future<ShmBytes> server =
      std::async(std::launch::async, [&] { return side(*pair.server, down, false); });
  EXPECT_TRUE(side(*pair.client, up, true) == down);
  EXPECT_TRUE(server.get() == up);
}

// More than a ring holds in one call, read by a side that is sometimes slow.
TEST_P(StreamBy, OneLongMessage) {
  StreamPair pair(GetParam());
  const ShmBytes all = some_bytes(5 * kShmRing + 4321, 5);
  std::future<bool> sent = std::async(
      std::launch::async, [&] { return pair.client->send(all, kLong, shm_until()).has_value(); });
  ShmBytes got(all.size());
  std::mt19937_64 draw(6);
  for (size_t at = 0; at < got.size();) {
    const size_t num = std::min(got.size() - at, 1 + draw() % 400'000);
    ASSERT_TRUE(pair.server->receive(std::span(got).subspan(at, num), kLong, shm_until()));
    if (draw() % 8 == 0) std::this_thread::sleep_for(milliseconds(3));
    at += num;
  }
  EXPECT_TRUE(sent.get());
  EXPECT_TRUE(got == all);
}

TEST_P(StreamBy, ASilentPeerIsWaitedForSoLong) {
  StreamPair pair(GetParam());
  std::byte one[1];
  EXPECT_EQ(pair.client->receive(one, kShort, shm_until()).error().code, 504);
  EXPECT_EQ(pair.server->receive(one, kShort, shm_until()).error().code, 504);
  EXPECT_EQ(pair.client->receive(one, kLong, shm_until(kShort)).error().code, 504);
  EXPECT_EQ(pair.client->receive(one, kLong, shm_until() - kLong * 2).error().code, 504);
  // Nobody reads.
  const ShmBytes much(64 << 20);
  EXPECT_EQ(pair.client->send(much, kShort, shm_until()).error().code, 504);
}

// All that was sent before is still read; also by a side that has not read the hello before.
TEST_P(StreamBy, APeerMayCloseWithBytesOnTheWay) {
  StreamPair pair(GetParam());
  const ShmBytes all = some_bytes(100'000, 7);
  ASSERT_TRUE(pair.client->send(all, kLong, shm_until()));
  pair.client.reset();
  ShmBytes got(all.size());
  ASSERT_TRUE(pair.server->receive(got, kLong, shm_until()));
  EXPECT_TRUE(got == all);
  EXPECT_EQ(pair.server->receive(std::span(got).first(1), kLong, shm_until()).error().code, 503);
}

// Though nothing waits, and there is room for what is sent.
TEST_P(StreamBy, WhoSendsNoticesThatThePeerIsGone) {
  StreamPair pair(GetParam());
  std::byte one[1]{};
  ASSERT_TRUE(pair.client->send(one, kLong, shm_until()));
  ASSERT_TRUE(pair.server->receive(one, kLong, shm_until()));
  pair.client.reset();
  Result<void> sent;
  for (int k = 0; sent && k < 10'000; ++k) {
    sent = pair.server->send(one, kLong, shm_until());
    std::this_thread::sleep_for(milliseconds(1));
  }
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().code, 503);
}

TEST_P(StreamBy, AnyThreadEndsWhatWaits) {
  for (const bool sends : {false, true}) {
    StreamPair pair(GetParam());
    ShmBytes much(64 << 20);
    std::future<Result<void>> waits = std::async(std::launch::async, [&]() -> Result<void> {
      return sends ? pair.server->send(much, kLong, shm_until())
                   : pair.server->receive(much, kLong, shm_until());
    });
    std::byte one[1]{};
    ASSERT_TRUE(pair.client->send(one, kLong, shm_until()));
    if (sends) {  // it has begun
      ASSERT_TRUE(pair.client->receive(one, kLong, shm_until()));
    }
    EXPECT_EQ(waits.wait_for(milliseconds(50)), std::future_status::timeout);
    pair.server->shut();
    EXPECT_EQ(waits.get().error().code, 503);
    EXPECT_EQ(pair.client->receive(much, kLong, shm_until()).error().code, 503);
  }
}

// Those of one machine that have no shared memory, or another transport, are reached too.
TEST(ShmStream, TcpWhereThereIsNoSharedMemory) {
  const auto plain = listen_here(Transport::tcp), both = listen_here();
  EXPECT_FALSE(connect_shm("127.0.0.1", plain->port()));
  EXPECT_FALSE(connect_shm("nowhere", both->port()));
  EXPECT_FALSE(connect_bytes(Transport::shm, "nowhere", both->port(), shm_until()));
  const std::pair<Transport, ByteListener*> ways[] = {
      {Transport::shm, plain.get()}, {Transport::tcp, both.get()}, {Transport::shm, both.get()}};
  for (const auto& [transport, listener] : ways) {
    auto client = connect_bytes(transport, "127.0.0.1", listener->port(), shm_until());
    ASSERT_TRUE(client);
    const auto server = listener->accept(kLong);
    ASSERT_TRUE(server);
    std::byte one[] = {std::byte{42}}, got[1];
    EXPECT_TRUE((*client)->send(one, kLong, shm_until()));
    EXPECT_TRUE(server->receive(got, kLong, shm_until()));
    EXPECT_EQ(got[0], one[0]);
  }
}

TEST(ShmStream, BothWaysAreAcceptedByTurns) {
  const auto listener = listen_here();
  std::vector<std::unique_ptr<ByteStream>> local, tcp, accepted;
  for (int k = 0; k < 6; ++k) {
    local.push_back(connect_shm("127.0.0.1", listener->port()));
    if (k < 2)
      tcp.push_back(
          connect_bytes(Transport::tcp, "127.0.0.1", listener->port(), shm_until()).value());
  }
  std::byte one[1]{};
  for (auto& stream : tcp) ASSERT_TRUE(stream->send(one, kLong, shm_until()));
  std::this_thread::sleep_for(kShort);  // all of it has arrived
  size_t num = 0;
  for (int k = 0; k < 4; ++k) {
    accepted.push_back(listener->accept(kLong));
    ASSERT_TRUE(accepted.back());
    num += accepted.back()->receive(one, kShort, shm_until()).has_value();
  }
  EXPECT_EQ(num, 2u);  // those by TCP did not wait for all others
}

TEST(ShmStream, NamesAreOfAddresses) {
  const auto text = [](const char* address) {
    const auto name = shm_socket_name(address, 7);
    return name ? std::string(name->address.sun_path + 1) : std::string();
  };
  EXPECT_EQ(text("::1"), text("0:0:0:0:0:0:0:1"));
  EXPECT_NE(text("127.0.0.1"), text("127.0.0.2"));
  EXPECT_EQ(text("localhost"), "");
  EXPECT_EQ(text(""), "");
  const OwnedFd first = listen_shm("127.0.0.3", 7);
  ASSERT_TRUE(first);
  EXPECT_FALSE(listen_shm("127.0.0.3", 7));  // taken
}

// Another process, which sends a few bytes and then waits for a signal.
struct OtherProcess {
  explicit OtherProcess(uint16_t port) : id(fork()) {
    if (id != 0) return;
    const auto stream = connect_shm("127.0.0.1", port);
    const std::byte bytes[1000]{};
    if (!stream || !stream->send(bytes, kLong, shm_until())) _exit(1);
    for (;;) pause();
  }
  ~OtherProcess() {
    kill(id, SIGKILL);
    waitpid(id, nullptr, 0);
  }
  const pid_t id;
};

TEST(ShmStream, PeersThatAreKilledOrStopped) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    const auto listener = listen_here();
    OtherProcess other(listener->port());
    const auto server = listener->accept(kLong);
    ASSERT_TRUE(server);
    ShmBytes got(900);
    ASSERT_TRUE(server->receive(got, kLong, shm_until()));
    kill(other.id, signal);
    EXPECT_TRUE(server->receive(std::span(got).first(100), kLong, shm_until()));
    const milliseconds idle = signal == SIGSTOP ? kShort : kLong;
    const int code = signal == SIGSTOP ? 504 : 503;
    EXPECT_EQ(server->receive(got, idle, shm_until()).error().code, code);
    const ShmBytes much(4 * kShmRing);
    EXPECT_EQ(server->send(much, idle, shm_until()).error().code, code);
  }
}

// Runs `what` as a user that is not ours; false: that is not possible.
template <typename F>
bool as_nobody(F what) {
  if (geteuid() != 0) return false;
  const pid_t id = fork();
  if (id == 0) _exit(setuid(65'534) == 0 && what() ? 0 : 1);
  int status = 0;
  return waitpid(id, &status, 0) == id && status == 0;
}

TEST(ShmStream, OtherUsersGoByTcp) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  const auto listener = listen_here();
  EXPECT_TRUE(as_nobody([&] { return !connect_shm("127.0.0.1", listener->port()); }));
  // Nor is one accepted that does not look.
  EXPECT_TRUE(as_nobody([&] { return ShmPeer(listener->port()).connected(); }));
  EXPECT_FALSE(listener->accept(kLong));
  EXPECT_FALSE(listener->accept(kLong));
  EXPECT_TRUE(as_nobody([&] {
    auto stream = connect_bytes(Transport::shm, "127.0.0.1", listener->port(), shm_until());
    const std::byte one[] = {std::byte{1}};
    return stream && (*stream)->send(one, kLong, shm_until());
  }));
  std::unique_ptr<ByteStream> server;
  for (int k = 0; k < 2 && !server; ++k) server = listener->accept(kLong);  // both its attempts
  ASSERT_TRUE(server);
  std::byte one[1];
  EXPECT_TRUE(server->receive(one, kLong, shm_until()));
}

// It wakes the other side all the time, and sends nothing.
TEST(ShmStream, AFloodOfWakesPutsNothingOff) {
  const auto listener = listen_here();
  ShmPeer peer(listener->port());
  ASSERT_TRUE(peer.connected() && peer.greet());
  const auto server = listener->accept(kLong);
  std::atomic<bool> over{false};
  std::thread flood([&] {
    while (!over.load()) peer.wake();
  });
  std::byte one[1];
  EXPECT_EQ(server->receive(one, kShort, shm_until()).error().code, 504);
  EXPECT_EQ(server->receive(one, kLong, shm_until(kShort)).error().code, 504);
  const ShmBytes much(4 * kShmRing);
  EXPECT_EQ(server->send(much, kShort, shm_until()).error().code, 504);
  over.store(true);
  flood.join();
}

OwnedFd some_memory(off_t size, int seals) {
  OwnedFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), size), 0);
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

TEST(ShmStream, HellosThatAreNone) {
  const auto listener = listen_here();
  const ShmHello good{.ring_bytes = kShmRing};
  constexpr int kSealed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  constexpr off_t kSize{ShmMemory::kBytes};
  const auto code = [&](const ShmHello& hello, size_t size, const std::vector<int>& fds) {
    ShmPeer peer(listener->port());
    EXPECT_TRUE(peer.connected());
    const auto server = listener->accept(kLong);
    if (size > 0) {
      EXPECT_TRUE(peer.say(std::as_bytes(std::span(&hello, 1)).first(size), fds));
    }
    std::byte one[1];
    const Result<void> got = server->receive(one, kShort, shm_until());
    return got ? 0 : got.error().code;
  };
  const OwnedFd sealed = some_memory(kSize, kSealed), open = some_memory(kSize, 0);
  const OwnedFd shrinks = some_memory(kSize, F_SEAL_GROW | F_SEAL_SEAL);
  const OwnedFd small = some_memory(kSize - 1, kSealed), large = some_memory(kSize + 1, kSealed);
  const OwnedFd no_writes = some_memory(kSize, kSealed | F_SEAL_WRITE);
  const OwnedFd file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  constexpr size_t kAll = sizeof good;
  EXPECT_EQ(code(good, kAll, {sealed.get()}), 504);  // as it should be: it waits for bytes
  EXPECT_EQ(code(good, 0, {}), 504);
  EXPECT_EQ(code(good, kAll, {}), 400);
  EXPECT_EQ(code(good, kAll - 1, {sealed.get()}), 400);
  EXPECT_EQ(code(good, kAll, {sealed.get(), sealed.get()}), 400);
  EXPECT_EQ(code({.version = 2, .ring_bytes = kShmRing}, kAll, {sealed.get()}), 400);
  EXPECT_EQ(code({.ring_bytes = kShmRing * 2}, kAll, {sealed.get()}), 400);
  EXPECT_EQ(code({.magic = {'x'}, .ring_bytes = kShmRing}, kAll, {sealed.get()}), 400);
  for (const OwnedFd* fd : {&open, &shrinks, &small, &large, &file})
    EXPECT_EQ(code(good, kAll, {fd->get()}), 400);
  EXPECT_EQ(code(good, kAll, {no_writes.get()}), 503);
  // A peer that connects and ends.
  { ShmPeer peer(listener->port()); }
  std::byte one[1];
  EXPECT_EQ(listener->accept(kLong)->receive(one, kLong, shm_until()).error().code, 503);
}

TEST(ShmStream, RandomHellos) {
  const auto listener = listen_here();
  std::mt19937_64 draw(8);
  for (int k = 0; k < 200; ++k) {
    ShmPeer peer(listener->port());
    const auto server = listener->accept(kLong);
    const ShmBytes bytes = some_bytes(1 + draw() % 300, draw());
    EXPECT_TRUE(peer.say(bytes, {}));
    std::byte one[1];
    EXPECT_EQ(server->receive(one, kLong, shm_until()).error().code, 400);
  }
}

std::vector<uint64_t*> all_counters(const ShmMemory& memory) {
  return {&memory.counters(0).written, &memory.counters(0).read, &memory.counters(1).written,
          &memory.counters(1).read};
}

uint64_t some_count(std::mt19937_64& draw) {
  switch (draw() % 4) {
    case 0:
      return draw();
    case 1:
      return 0 - draw() % 3;
    case 2:
      return kShmRing + draw() % 3 - 1;
    default:
      return draw() % 1000;
  }
}

// An impossible counter is an error; a possible one means garbage at worst.
TEST(ShmStream, CountersThatCannotBe) {
  const auto listener = listen_here();
  std::mt19937_64 draw(9);
  for (int k = 0; k < 300; ++k) {
    ShmPeer peer(listener->port());
    ASSERT_TRUE(peer.greet());
    const auto server = listener->accept(kLong);
    const uint64_t written = some_count(draw), read = some_count(draw);
    std::atomic_ref(peer.memory().counters(0).written).store(written);
    std::atomic_ref(peer.memory().counters(1).read).store(read);
    std::byte bytes[10];
    const Result<void> in = server->receive(bytes, milliseconds(1), shm_until());
    const int in_code = written > kShmRing ? 400 : written < sizeof bytes ? 504 : 0;
    EXPECT_EQ(in ? 0 : in.error().code, in_code) << written;
    const Result<void> out = server->send(bytes, milliseconds(1), shm_until());
    EXPECT_EQ(out.has_value(), 0 - read <= kShmRing - sizeof bytes) << read;
  }
}

// All of it changes while it is used.
TEST(ShmStream, MemoryThatChangesAllTheTime) {
  const auto listener = listen_here();
  for (uint64_t seed = 0; seed < 5; ++seed) {
    ShmPeer peer(listener->port());
    ASSERT_TRUE(peer.greet());
    const auto server = listener->accept(kLong);
    std::atomic<bool> over{false};
    std::thread scribbles([&] {
      std::mt19937_64 draw(seed);
      const std::vector<uint64_t*> counters = all_counters(peer.memory());
      while (!over.load()) {
        std::atomic_ref(*counters[draw() % 4]).store(some_count(draw));
        std::atomic_ref(peer.memory().counters(draw() % 2).writer_waits).store(draw() % 2);
        std::atomic_ref(peer.memory().counters(draw() % 2).reader_waits).store(draw() % 2);
        if (draw() % 4 == 0) peer.wake();
      }
    });
    ShmBytes bytes(50'000);
    for (int k = 0; k < 100; ++k) {
      static_cast<void>(server->receive(bytes, milliseconds(1), shm_until()));
      static_cast<void>(server->send(bytes, milliseconds(1), shm_until()));
    }
    over.store(true);
    scribbles.join();
  }
}

// The side that connects trusts the other one no more.
TEST(ShmStream, AServerThatWritesAnything) {
  const auto tcp = ListenSocket::open("127.0.0.1", 0).value();
  const OwnedFd listen = listen_shm("127.0.0.1", tcp.port());
  ASSERT_TRUE(listen);
  for (const uint64_t count : {uint64_t{1}, uint64_t{kShmRing} + 1, ~uint64_t{0}}) {
    const auto client = connect_shm("127.0.0.1", tcp.port());
    ASSERT_TRUE(client);
    const OwnedFd socket(accept_connection(listen.get(), kLong));
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    ShmHello hello;
    iovec part{&hello, sizeof hello};
    msghdr message{};
    message.msg_iov = &part, message.msg_iovlen = 1;
    message.msg_control = control, message.msg_controllen = sizeof control;
    ASSERT_EQ(recvmsg(socket.get(), &message, 0), ssize_t{sizeof hello});
    EXPECT_TRUE(hello == ShmHello{.ring_bytes = kShmRing});
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    Result<ShmMemory> memory = ShmMemory::map(OwnedFd(fd));
    ASSERT_TRUE(memory);
    std::atomic_ref(memory->counters(1).written).store(count);
    std::byte one[1];
    const Result<void> got = client->receive(one, kLong, shm_until());
    EXPECT_EQ(got ? 0 : got.error().code, count == 1 ? 0 : 400);
  }
}

}  // namespace
}  // namespace sluice

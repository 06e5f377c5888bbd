#include "net/event_socket.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

namespace sluice {
namespace {

TEST(EventAddress, OthersNeedKeys) {
  for (const char* fine : {"tcp://127.0.0.1:5557", "tcp://127.0.0.1:*", "tcp://[::1]:5557",
                           "tcp://localhost:5557", "ipc:///run/sluice/kv"}) {
    EXPECT_TRUE(check_event_address(fine, false)) << fine;
  }
  for (const char* open : {"tcp://*:5557", "tcp://0.0.0.0:5557", "tcp://10.0.0.1:5557",
                           "tcp://eth0:5557", "tcp://[::]:5557"}) {
    EXPECT_FALSE(check_event_address(open, false)) << open;
    EXPECT_TRUE(check_event_address(open, true)) << open;
  }
  for (const char* bad : {"", "5557", "127.0.0.1:5557", "tcp://", "tcp://127.0.0.1", "tcp://:5557",
                          "tcp://127.0.0.1:0", "tcp://127.0.0.1:65536", "tcp://127.0.0.1:55x",
                          "udp://127.0.0.1:5557", "inproc://x", "ipc://"}) {
    EXPECT_FALSE(check_event_address(bad, true)) << bad;
  }
}

TEST(CurveKeys, OfASubscriberAreReadAndChecked) {
  const std::string key(40, 'a'), other(40, '0');
  std::string path = testing::TempDir() + "curve_client_keys";
  const auto read = [&](const std::string& text) {
    std::ofstream(path) << text;
    return read_curve_client_keys(path);
  };
  const Result<CurveClientKeys> keys = read("secret " + key + "\nserver " + other + "\n");
  ASSERT_TRUE(keys);
  EXPECT_EQ(keys->secret, key);
  EXPECT_EQ(keys->server, other);
  for (const std::string& bad :
       {"secret " + key, "server " + other, "secret " + key + "\nclient " + other,
        "secret " + key + "\nserver " + other + "\nserver " + key, std::string("secret x")})
    EXPECT_FALSE(read(bad)) << bad;
  std::remove(path.c_str());
}

TEST(CurveKeys, AreReadAndChecked) {
  const std::string key(40, 'a'), other(40, '0');
  std::string path = testing::TempDir() + "curve_keys";
  auto read = [&](const std::string& text) {
    std::ofstream(path) << text;
    return read_curve_keys(path);
  };
  Result<CurveKeys> keys = read("# ours\nsecret " + key + "\n\nclient " + other + "\r\n");
  ASSERT_TRUE(keys) << keys.error().message;
  EXPECT_EQ(keys->secret, key);
  EXPECT_EQ(keys->clients, std::vector<std::string>{other});
  for (const std::string& bad :
       {std::string(), "secret " + key, "client " + key, "secret " + key + "\nclient " + key + "x",
        "secret " + key + "\nsecret " + key + "\nclient " + key, "public " + key,
        "secret " + std::string(39, 'a') + "~\nclient " + key}) {
    EXPECT_FALSE(read(bad)) << bad;
  }
  std::remove(path.c_str());
  EXPECT_FALSE(read_curve_keys(path));
}

}  // namespace
}  // namespace sluice

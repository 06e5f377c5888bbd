#include "tools/route/dns_watch.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace sluice {

namespace {

using Addresses = std::vector<std::string>;

// Answers in turn, the last one for ever; waits until all were given.
struct ScriptedNames {
  explicit ScriptedNames(std::vector<Result<Addresses>> a) : answers(std::move(a)) {}

  Result<Addresses> operator()() {
    std::lock_guard lock(mutex);
    const size_t at = std::min(asked++, answers.size() - 1);
    changed.notify_all();
    return answers[at];
  }
  void wait_for_all() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return asked > answers.size(); });
  }
  std::vector<Result<Addresses>> answers;
  std::mutex mutex;
  std::condition_variable changed;
  size_t asked = 0;
};

}  // namespace

TEST(DnsWatch, TellsWhatItFinds) {
  // The thread may ask once more after the watch is gone.
  const auto names = std::make_shared<ScriptedNames>(std::vector<Result<Addresses>>{
      Error{503, "no server"}, Addresses{"10.0.0.2", "10.0.0.1", "10.0.0.2"},
      Addresses{"10.0.0.1", "10.0.0.2"}, Error{503, "no server"}, Addresses{},
      Addresses{"10.0.0.2", "10.0.0.1"}, Addresses{"10.0.0.3"}});
  std::vector<Addresses> told;
  {
    DnsWatch watch(
        "workers", std::chrono::milliseconds(1),
        [names](const std::string& name) {
          EXPECT_EQ(name, "workers");
          return (*names)();
        },
        [&](Addresses a) { told.push_back(std::move(a)); });
    names->wait_for_all();
  }
  const Addresses both = {"10.0.0.1", "10.0.0.2"};
  ASSERT_GE(told.size(), 4u);
  told.resize(4);
  EXPECT_EQ(told, (std::vector<Addresses>{both, both, both, {"10.0.0.3"}}));
}

TEST(DnsWatch, TheSystemKnowsLocalhost) {
  const Result<Addresses> found = resolve_by_system("localhost");
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_TRUE(std::ranges::count(*found, "127.0.0.1") + std::ranges::count(*found, "::1") > 0);
  const auto is_six = [](const std::string& a) { return a.find(':') != std::string::npos; };
  const auto num_six = static_cast<size_t>(std::ranges::count_if(*found, is_six));
  EXPECT_TRUE(num_six == 0 || num_six == found->size());  // one family
  EXPECT_FALSE(resolve_by_system("no-such-name.invalid"));
}

}  // namespace sluice

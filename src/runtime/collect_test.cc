#include "runtime/collect.h"

#include <gtest/gtest.h>

#include "base/str.h"
#include "core/fake_executor.h"

namespace sluice {
namespace {

// Tokens 1, 2 and 3 are the bytes of one character, the others words.
std::unique_ptr<Tokenizer> collected_words() {
  VocabSpec spec;
  spec.kind = VocabSpec::Kind::spm;
  spec.tokens = {"<unk>", "<0xE2>", "<0x82>", "<0xAC>"};
  spec.types = {TokenType::unknown, TokenType::byte, TokenType::byte, TokenType::byte};
  for (int t = 4; t < 64; ++t) {
    spec.tokens.push_back(strf("\u2581word%d", t));
    spec.types.push_back(TokenType::normal);
  }
  spec.scores.assign(spec.tokens.size(), 0);
  spec.unk = 0;
  return std::move(Tokenizer::make(std::move(spec)).value());
}

std::vector<RequestOutput> collect(const Tokenizer& tokenizer, Collector::On on) {
  SchedulerConfig config;
  config.num_blocks = 256;
  config.block_size = 4;
  config.max_seqs = 4;
  config.max_len = 64;
  FakeExecutor executor{[](const StepPlan& plan, const Slice& s) {
    return static_cast<Token>((plan.step + static_cast<uint64_t>(s.pos)) % 60 + 1);
  }};
  RealClock clock;
  Engine engine(Scheduler(config, nullptr), executor, clock, {});
  Collector collector(engine, &tokenizer, on);
  for (int i = 0; i < 6; ++i) {
    Request r;
    r.prompt = std::make_shared<const std::vector<Token>>(static_cast<size_t>(3 + i), 7);
    r.sampling = std::make_shared<const SamplingSpec>();
    r.max_new = 20;
    r.n = i == 2 ? 2 : 1;
    collector.submit(std::move(r));
  }
  std::string seen;
  collector.wait([&](size_t, int, const std::string& text) { seen += text; });
  size_t all = 0;
  for (const RequestOutput& out : collector.outputs())
    for (const ChoiceOutput& c : out.choices) all += c.text.size();
  EXPECT_EQ(seen.size(), all);
  return collector.outputs();
}

// `bench throughput --text`: who makes the text does not change it. Which step samples a token
// depends on when requests arrive, so each run is held against its own tokens.
TEST(Collector, TextIsTheSameWhoeverMakesIt) {
  const std::unique_ptr<Tokenizer> tokenizer = collected_words();
  for (Collector::On on : {Collector::On::caller, Collector::On::engine}) {
    for (const RequestOutput& out : collect(*tokenizer, on)) {
      EXPECT_EQ(out.num_terminal, 1);
      for (const ChoiceOutput& c : out.choices) {
        EXPECT_EQ(c.tokens.size(), 20u);
        TextStream stream(*tokenizer, {});
        std::string want;
        for (size_t i = 0; i < c.tokens.size(); ++i) {
          Event e;
          e.token = c.tokens[i];
          if (i + 1 == c.tokens.size()) e.finish = Finish::length;
          want += stream.take(e);
        }
        EXPECT_EQ(c.text, want);
      }
    }
  }
}

}  // namespace
}  // namespace sluice

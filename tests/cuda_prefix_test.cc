// Sequences with a common prefix on a GPU, whole models through the engine: with --deterministic
// the same tokens and log-probabilities whether attention reads the prefix once for all of them or
// for each, in captured steps and in steps that mix prompts and decodes. Skipped without a GPU.
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "cuda_device.h"
#include "runtime/collect.h"
#include "runtime/session.h"

namespace sluice {
namespace {

Token some_token(uint32_t index, int position) {
  return static_cast<Token>(draw_u32({23, index, position, 1}) % 1000);
}

// Three documents, two of which begin alike; every request goes on in its own way.
std::vector<Request> requests(int num, int length) {
  std::vector<Request> list;
  for (int i = 0; i < num; ++i) {
    const auto document = static_cast<uint32_t>(i % 3);
    auto prompt = std::make_shared<std::vector<Token>>();
    for (int p = 0; p < length; ++p)
      prompt->push_back(some_token(document == 2 && p < length / 2 ? 1 : document, p));
    for (int p = 0; p < 5 + i; ++p)
      prompt->push_back(some_token(100 + static_cast<uint32_t>(i), p));
    auto sampling = std::make_shared<SamplingSpec>();
    sampling->temperature = i % 2 == 0 ? 0 : 0.8f;
    sampling->seed = static_cast<uint64_t>(i);
    sampling->num_logprobs = 0;
    Request r;
    r.prompt = std::move(prompt);
    r.sampling = std::move(sampling);
    r.max_new = 8 + i % 5;
    list.push_back(std::move(r));
  }
  return list;
}

struct Outputs {
  std::vector<std::vector<Token>> tokens;
  std::vector<float> logprobs;
  uint64_t shared = 0;
  bool operator==(const Outputs& o) const { return tokens == o.tokens && logprobs == o.logprobs; }
};

// kv f32: the type of the format.
Outputs run(const char* format, KvType kv, bool cascade, int lanes) {
  EngineOptions o;
  o.model = "random:qwen2.5-0.5b";
  o.format = format;
  o.device.kind = DeviceChoice::Kind::cuda;
  o.deterministic = true;
  o.cascade = cascade;
  o.ctx = 12'000;
  o.quiet = true;
  o.scheduler.max_seqs = 64;
  if (lanes > 1) o.scheduler.pipeline = Pipeline::interleave;
  if (kv.type != DType::f32) o.kv_type = kv;
  auto session = Session::open(o);
  EXPECT_TRUE(session) << session.error().message;
  Outputs out;
  if (!session) return out;
  constexpr int kNum = 60, kLength = 10'000;
  for (int round = 0; round < 2; ++round) {  // the first fills the prefix cache
    Collector collector((*session)->engine(), nullptr);
    for (Request& r : requests(round == 0 ? 3 : kNum, kLength)) collector.submit(std::move(r));
    collector.wait();
    for (const RequestOutput& got : collector.outputs()) {
      EXPECT_FALSE(got.refused);
      if (got.refused) continue;
      out.tokens.push_back(got.choices[0].tokens);
      for (const ScoredToken& t : got.choices[0].logprobs) out.logprobs.push_back(t.token.logprob);
    }
  }
  out.shared = (*session)->device_executor()->positions_shared();
  return out;
}

TEST(CudaPrefix, SameBitsAsEachRowOnItsOwn) {
  if (!test_device(DType::f16)) GTEST_SKIP() << "no GPU";
  struct Case {
    const char* format;
    KvType kv;
    int lanes;
  };
  const KvType own = DType::f32;
  for (const Case& c : {Case{"bf16", own, 1}, Case{"f16", own, 1}, Case{"bf16", DType::f8, 1},
                        Case{"f16", {DType::i8, 32}, 1}, Case{"bf16", own, 2}}) {
    SCOPED_TRACE(testing::Message()
                 << c.format << " K and V " << static_cast<int>(c.kv.type) << " lanes " << c.lanes);
    const Outputs alone = run(c.format, c.kv, false, c.lanes);
    const Outputs together = run(c.format, c.kv, true, c.lanes);
    EXPECT_EQ(alone.shared, 0u);
    EXPECT_GT(together.shared, 500'000u);
    EXPECT_TRUE(alone == together);
  }
}

}  // namespace
}  // namespace sluice

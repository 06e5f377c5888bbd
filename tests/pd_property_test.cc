// Prefill and decode apart, over random workloads: two engines with the same tiny model and host
// memory of their own, connected by TCP or shared memory, with a key or without. Prompts are
// computed by the one, whose K and V the other fetches, at the prompt's end, as steps end or as
// layers are computed; beside them each computes requests of its own. Whatever the presets, chunk
// sizes, pools, preemption, beams and pipelines of both, and whatever is lost on the way, a
// request's tokens and log-probabilities are bit for bit those of the request alone, it has exactly
// one terminal event, and no block or place is held at the end. SLUICE_TEST_FULL=1 runs ten times
// as many; SLUICE_TEST_SEED runs one.
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "pd_run.h"
#include "pd_workload.h"
#include "property_run.h"
#include "property_subjects.h"

namespace sluice {
namespace {

void check_workload(Subject& subject, uint64_t seed, PdTally* tally) {
  const PdWorkload w = make_pd_workload(seed, subject);
  SCOPED_TRACE(subject.name + ", seed " + std::to_string(seed));
  const std::vector<Output> outputs = run_pd(subject, w, tally);
  if (testing::Test::HasFailure()) return;
  for (size_t k = 0; k < w.requests.size(); ++k) {
    const Request& r = w.requests[k].request;
    Tally none;
    const auto solo = run(subject, alone(w.to), {r}, {}, 0, &none);
    expect_same(subject, r, outputs[k], solo.at(r.id), w.requests[k].cancel_after > 0,
                &tally->outputs);
    if (testing::Test::HasFailure()) return;
  }
}

// Else the workloads prove too little. What depends on the seeds alone has limits of about half of
// what comes; what depends on how the threads meet has a sixth or less.
void expect_enough(const PdTally& t, uint64_t num) {
  EXPECT_GT(t.handed_over, 3 * num);
  EXPECT_GT(t.outputs.constrained, num) << "few requests have a constraint";
  EXPECT_GT(t.outputs.thinking, num) << "few requests have a budget of thinking";
  EXPECT_GT(t.fetched(), num / 2) << "few prompts are fetched";
  EXPECT_GT(t.fetched_at_end, num / 8);
  EXPECT_GT(t.fetched_by_steps, num / 8);
  EXPECT_GT(t.fetched_by_layers, num / 8);
  EXPECT_GT(t.sent_by_layers, num / 2) << "few blocks leave as layers are computed";
  EXPECT_GT(t.fetched_tcp, num / 6);
  EXPECT_GT(t.fetched_shm, num / 6);
  EXPECT_GT(t.fetched_keyed, num / 6);
  EXPECT_GT(t.fetched_windowed, num / 16) << "few prompts of models with windows are fetched";
  EXPECT_GT(t.lost, num / 8) << "few transfers fail";
  EXPECT_GT(t.expired, num / 20) << "few leases expire";
  EXPECT_GT(t.preemptions, num / 8);
  EXPECT_GT(t.prefixes, 0u) << "no prefix is fetched";
  EXPECT_GT(t.lost_in_middle, 0u) << "no transfer fails in the middle";
  EXPECT_GT(t.preempted, 0u) << "no request is preempted whose prompt was fetched";
  EXPECT_GT(t.restored, 0u) << "no sequence comes back from host memory";
}

TEST(PdProperty, OutputDependsOnTheRequestAlone) {
  if (on_gpu()) GTEST_SKIP() << "both engines are the CPU's";
  const char* full = std::getenv("SLUICE_TEST_FULL");
  const char* from = std::getenv("SLUICE_TEST_SEED");  // replay one
  const uint64_t num = from ? 1 : full && *full == '1' ? 800 : 80;
  const uint64_t first = from ? std::strtoull(from, nullptr, 10) : 1;
  PdTally tally;
  for (uint64_t seed = first; seed < first + num; ++seed) {
    // Each model by both transports.
    check_workload(subjects()[seed / 2 % subjects().size()], seed, &tally);
    if (HasFailure()) return;
  }
  if (!from) expect_enough(tally, num);
}

}  // namespace
}  // namespace sluice

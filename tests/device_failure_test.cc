// A launch that fails on a device, at each point of it, with memory mapped by pages and with masks:
// its requests end with an error, all blocks and pages come back, and the next request works.
#include <gtest/gtest.h>

#include <map>

#include "core/policy.h"
#include "engine/loop.h"
#include "exec/device_executor.h"
#include "exec/device_fake.h"
#include "tiny_constraints.h"

namespace sluice {
namespace {

using Fail = NotingDevice::Fail;

struct Case {
  bool pages = false, masks = false;
  Pipeline pipeline;
  Fail at = Fail::prepare;
  int after = 0;  // iterations before it
};

class Engine {
 public:
  explicit Engine(const Case& c) : case_(c) {
    ExecutorConfig e;
    e.block_size = config_.block_size = 4;
    e.max_len = config_.max_len = 64;
    e.max_seqs = config_.max_seqs = 4;
    e.kv_type = DType::f32;
    e.pipeline = config_.pipeline = c.pipeline;
    e.groups = cache_groups(model_.shape());
    config_.num_blocks = e.num_blocks = 64;
    config_.budget = 32;
    config_.prefix_cache = false;
    if (c.pages) {
      config_.allocator = KvAllocator::virtual_;
      config_.pages.block_bytes = 4 * 8 * sizeof(float);
      config_.pages.page_bytes = static_cast<int64_t>(device_.page_bytes());
      // A page for each slot, and two more.
      config_.num_blocks =
          static_cast<int>(6 * config_.pages.page_bytes / config_.pages.block_bytes);
    }
    scheduler_.emplace(config_, nullptr);
    const SchedulerConfig& used = scheduler_->config();
    e.max_step_tokens = scheduler_->max_step_tokens();
    if (c.pages) e.num_pages = used.num_pages(), e.slot_blocks = used.pages.slot_blocks;
    executor_ = std::make_unique<DeviceExecutor>(device_, model_, e, clock_, true);
    loop_.emplace(*scheduler_, *executor_, clock_, c.pipeline);
  }

  void add(RequestId id) {
    Request r;
    r.id = id;
    r.prompt = std::make_shared<const std::vector<Token>>(std::vector<Token>{1, 2, 3, 4, 5});
    r.sampling = std::make_shared<const SamplingSpec>();
    r.max_new = 3;
    // The device samples nothing but token 0, an "a", which this constraint allows three times.
    if (case_.masks) r.constraint = tiny_constraint(0, model_.shape().vocab);
    auto ok = scheduler_->add(std::move(r), clock_.now());
    ASSERT_TRUE(ok) << ok.error().message;
  }
  void iterate() { loop_->iterate(events_); }
  // Until nothing is left to do; each request's finish.
  std::map<RequestId, Finish> run() {
    for (int k = 0; k < 1000 && loop_->busy(); ++k) iterate();
    EXPECT_FALSE(loop_->busy());
    std::map<RequestId, Finish> out;
    for (const Event& e : events_.list) {
      if (!e.last) continue;
      EXPECT_FALSE(out.contains(e.req));
      out[e.req] = e.finish;
    }
    events_.clear();
    return out;
  }
  NotingDevice& device() { return device_; }
  void expect_all_back() const {
    BlockCounts blocks = scheduler_->count_blocks();
    EXPECT_TRUE(blocks.conserved());
    EXPECT_EQ(blocks.owned + blocks.pending, 0);
    EXPECT_EQ(scheduler_->stats().available_blocks, scheduler_->stats().total_blocks);
    EXPECT_EQ(scheduler_->num_constrained(), 0);
  }

 private:
  Case case_;
  RealClock clock_;
  NotingDevice device_;
  NotingModel model_;
  SchedulerConfig config_;
  std::optional<Scheduler> scheduler_;
  std::unique_ptr<DeviceExecutor> executor_;
  std::optional<Loop> loop_;
  Events events_;
};

void check(const Case& c) {
  SCOPED_TRACE(strf("pages %d masks %d depth %d lanes %d at %d after %d", c.pages, c.masks,
                    c.pipeline.depth, c.pipeline.lanes, static_cast<int>(c.at), c.after));
  Engine engine(c);
  for (RequestId id = 1; id <= 6; ++id) engine.add(id);
  for (int k = 0; k < c.after; ++k) engine.iterate();
  engine.device().fail_next = c.at;
  int failed = 0;
  for (const auto& [id, finish] : engine.run()) {
    failed += finish == Finish::failed;
    EXPECT_TRUE(finish == Finish::failed || finish == Finish::length) << finish_name(finish);
  }
  EXPECT_GT(failed, 0);
  engine.expect_all_back();
  for (RequestId id = 7; id <= 12; ++id) engine.add(id);
  std::map<RequestId, Finish> after = engine.run();
  EXPECT_EQ(after.size(), 6u);
  for (const auto& [id, finish] : after) EXPECT_EQ(finish, Finish::length) << "request " << id;
  engine.expect_all_back();
}

TEST(DeviceFailure, AFailedLaunchEndsItsRequestsAndNoMore) {
  for (bool pages : {false, true}) {
    for (bool masks : {false, true}) {
      for (Pipeline pipeline : {Pipeline::sync, Pipeline::overlap, Pipeline::interleave}) {
        for (Fail at : {Fail::upload, Fail::prepare, Fail::sample}) {
          for (int after : {0, 1, 2}) check({pages, masks, pipeline, at, after});
        }
      }
    }
  }
}

}  // namespace
}  // namespace sluice

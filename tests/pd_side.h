// One of two engines with a real model, its blocks in host memory, and what a server has for moving
// them. Free blocks are overwritten after every step.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "dist/kv_end.h"
#include "exec/model_executor.h"
#include "property_executor.h"
#include "property_run.h"
#include "property_subjects.h"

namespace sluice {

// Passes on what the executor says of blocks that leave, and pauses, so that the other
// side can fetch a layer before the next one is written.
class PausingSender final : public KvExporter {
 public:
  explicit PausingSender(KvExporter& to) : to_(to) {}
  void offered(LeaseId lease) noexcept override { to_.offered(lease); }
  bool exported(LeaseId lease, const PlacedBlock& block) noexcept override {
    return to_.exported(lease, block);
  }
  void lost(LeaseId lease, const PlacedBlock& block) noexcept override { to_.lost(lease, block); }
  void leaving(LeaseId lease, const PlacedBlock& block, uint64_t step) noexcept override {
    to_.leaving(lease, block, step);
  }
  void written(uint64_t step, size_t num_bytes) noexcept override;
  void cleared() noexcept override { to_.cleared(); }

 private:
  KvExporter& to_;
};

class ModelSide : public KvEnd {
 public:
  // `sends`: blocks of prompts leave as layers are computed.
  ModelSide(Subject& subject,
            const Setup& setup,
            const std::string& key,
            bool sends,
            std::chrono::milliseconds lease_time);
  ~ModelSide();

  uint64_t num_sent_by_layers() const { return num_sent_.load(); }
  // Waits until nothing runs: blocks are conserved and nobody's.
  void expect_idle();

 private:
  std::map<TransferId, Transfer> transfers(const Scheduler& scheduler) const;
  void after_step(const StepReport& report, const StepPlan& plan, const Scheduler& scheduler);

  PausingSender sender_{leases};
  Scheduler scheduler_;  // the engine begins with a copy of it
  ModelExecutor executor_;
  EncodingExecutor encoding_;
  std::atomic<uint64_t> num_sent_{0};
};

}  // namespace sluice

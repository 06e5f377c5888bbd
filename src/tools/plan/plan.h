// sluice plan: what a model, a device and a workload come to, simulated with the engine's own
// scheduler. Options of its commands; for cli_plan.cc.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/options.h"
#include "tools/plan/figures.h"
#include "tools/plan/serve_command.h"

namespace sluice {

// What steps cost and on what.
struct PlanDeviceOptions {
  std::string device;  // cpu, or a row of the device table; empty: the cost file's, else cpu
  std::string cost;    // file of `plan calibrate`; empty: from the device's limits
  double price = 0;    // US dollars per hour; 0: the table's
};

struct PlanOptions {
  EngineOptions engine;
  std::vector<GivenOption> given;  // those of the engine that the user named
  PlanDeviceOptions on;
  WorkloadOptions workload;
  std::string slo;  // as bench serve takes it
  int replicas = 1;
  std::optional<int> max_replicas;  // that the search tries; absent: kMostReplicas
  double link = 25;                 // Gbit/s of a worker, for K and V of prefill workers
  bool search = true, json = false;
  std::string html;  // file for a page
};

struct CalibrateOptions {
  EngineOptions engine;
  std::string out;  // empty: stdout
  double limit = 45;
};

struct PlanTableOptions {
  std::string model, format = "bf16";
  std::vector<std::string> devices;  // empty: all
  std::vector<int> batches = {1, 8, 32, 128};
  int context = 1024, prompt = 512;
  std::string cost;  // a row of its own
  double price = 0;
  bool json = false;
};

struct PlanCompareOptions {
  EngineOptions engine;
  std::string cost;
  double limit = 45;  // of a calibration, without a cost file
  WorkloadOptions workload;
  std::string slo;
  int repeat = 1;
  bool json = false;
};

struct PlanClusterOptions {
  EngineOptions engine;
  PlanDeviceOptions on;
  WorkloadOptions workload;
  std::string slo;
  int workers = 16;
  // Workers that compute prompts and that decode, instead; 0: none. Both or neither.
  int prefill = 0, decode = 0;
  bool fetch = false;               // also with cached prefixes fetched from worker to worker
  bool balance = false;             // also with roles that follow the mix of requests
  double link = 25;                 // Gbit/s of each worker's link, for K and V between those
  std::vector<std::string> routes;  // policies; empty: all, side by side
  bool json = false;
};

int cmd_plan(const PlanOptions& options);
int cmd_plan_cluster(const PlanClusterOptions& options);
int cmd_plan_calibrate(const CalibrateOptions& options);
int cmd_plan_table(const PlanTableOptions& options);
int cmd_plan_compare(const PlanCompareOptions& options);

}  // namespace sluice

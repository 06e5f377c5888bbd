// Runs the batches of a store through the service's own routes, on a thread of its own. Batches
// have what others leave: a request is sent while nobody waits in the engine's queue and at most
// half of its slots are taken by batches, with the lowest priority. A few batches run at a time and
// take turns. What is in flight when the server stops is done again after the next start.
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server/batch_file.h"
#include "server/batch_store.h"

namespace sluice {

class Service;
struct BatchFlight;  // a request that is being answered
struct BatchInbox;   // answers on their way to the thread

class BatchRunner {
 public:
  BatchRunner(Service& service, BatchStore& store);
  ~BatchRunner();
  void start();
  void stop();  // gives up what is in flight; once
  void poke();  // there is a batch to run or to cancel; any thread

 private:
  using Steady = std::chrono::steady_clock;
  struct Run {
    BatchRecord record;
    BatchInput input;
    BatchOutput output;
    std::deque<size_t> waiting;
    std::vector<uint8_t> tries;
    std::optional<int> key;  // none: its key is not valid, so that it waits
    size_t in_flight = 0;
    uint64_t reserved = 0;  // bytes of the store
  };
  using Runs = std::map<std::string, std::unique_ptr<Run>>;  // by the batch's id

  void loop();
  void turn();
  Steady::duration patience() const;
  void adopt();
  void begin(BatchRecord record);
  void look_after();  // cancellations, expiry, keys
  void fill();
  bool may_send() const;
  Run* next_run();
  bool send(Run& run);
  void take(const std::shared_ptr<BatchFlight>& flight);
  void take_or_repeat(const std::shared_ptr<BatchFlight>& flight);
  void keep(Run& run, size_t index, BatchResult result);
  void drop_flights(const Run& run);
  void end_early(Run& run, BatchStatus end, const char* code, const char* message);
  void finish_done();
  void finalize(BatchRecord record, uint64_t reserved);
  Result<void> publish(BatchRecord& record);
  void fail(BatchRecord record, std::string problem, const char* code);

  Service& service_;
  BatchStore& store_;
  const std::shared_ptr<BatchInbox> inbox_;
  std::thread thread_;
  // Of the thread.
  Runs runs_;
  std::string last_;  // the batch whose turn it was
  std::map<uint64_t, std::shared_ptr<BatchFlight>> flights_;
  uint64_t next_flight_ = 0;
  size_t sent_ = 0;  // since the last turn
  Steady::time_point pause_until_{}, adopt_at_{}, look_at_{}, expire_at_{};
};

}  // namespace sluice

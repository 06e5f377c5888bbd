#include "server/batch_metrics.h"

#include "base/metrics.h"

namespace sluice {

std::string expose_batches(const BatchStore::Counts& counts) {
  Metrics metrics;
  for (const NamedValue<BatchStatus>& s : kBatchStatuses)
    metrics.gauge("sluice_batches", "Batches that are kept.", {{"status", s.name}})
        .set(static_cast<double>(counts.batches[static_cast<size_t>(s.value)]));
  metrics.gauge("sluice_batch_lines_waiting", "Requests of batches that have no result yet.")
      .set(static_cast<double>(counts.waiting));
  const char* help = "Requests of batches that got a result, since the start.";
  metrics.counter("sluice_batch_lines_total", help, {{"result", "completed"}})
      .add(static_cast<double>(counts.completed));
  metrics.counter("sluice_batch_lines_total", help, {{"result", "failed"}})
      .add(static_cast<double>(counts.failed));
  return metrics.expose();
}

}  // namespace sluice

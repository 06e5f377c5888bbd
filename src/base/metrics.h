// Counters, gauges and histograms in the Prometheus text format, and exact percentiles for
// benchmarks. A Metrics is owned by whoever serves it (no global registry). Register at start, keep
// the reference, update from any thread: an update is one or two relaxed atomic operations.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice {

using MetricLabels = std::vector<std::pair<std::string, std::string>>;  // name, value

class Counter {
 public:
  // Negative and NaN amounts are ignored: a counter only rises.
  void add(double amount = 1) {
    if (amount > 0) value_.fetch_add(amount, std::memory_order_relaxed);
  }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

class Gauge {
 public:
  void set(double value) { value_.store(value, std::memory_order_relaxed); }
  void add(double amount) { value_.fetch_add(amount, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

class Histogram {
 public:
  // Upper bounds, ascending and inclusive; one more bucket takes what is above the last.
  explicit Histogram(std::vector<double> bounds);
  void observe(double value);  // NaN is ignored

  const std::vector<double>& bounds() const { return bounds_; }
  uint64_t bucket(size_t i) const { return counts_[i].load(std::memory_order_relaxed); }
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  std::vector<double> bounds_;
  std::vector<std::atomic<uint64_t>> counts_;  // bounds + 1, not cumulative
  std::atomic<double> sum_{0};
};

// `count` bounds from `first`, each `factor` times the one before.
std::vector<double> exponential_bounds(double first, double factor, int count);

class Metrics {
 public:
  // The metric of that name and those labels, made on first use; valid as long as *this.
  // Names are ours: one that the format forbids, or that is used with two types, is a bug.
  Counter& counter(std::string_view name, std::string_view help, const MetricLabels& labels = {});
  Gauge& gauge(std::string_view name, std::string_view help, const MetricLabels& labels = {});
  Histogram& histogram(std::string_view name,
                       std::string_view help,
                       std::vector<double> bounds,
                       const MetricLabels& labels = {});

  // Content type "text/plain; version=0.0.4". Families in order of registration.
  std::string expose() const;

 private:
  enum class Kind { counter, gauge, histogram };
  struct Series {
    std::string labels;  // `a="x",b="y"`, escaped
    std::unique_ptr<Counter> counter;
    std::unique_ptr<Gauge> gauge;
    std::unique_ptr<Histogram> histogram;
  };
  struct Family {
    std::string name, help;
    Kind kind;
    std::vector<Series> series;
  };
  Series& series(Kind kind,
                 std::string_view name,
                 std::string_view help,
                 const MetricLabels& labels);
  static void append(const Family& family, const Series& series, std::string& out);

  mutable std::mutex mutex_;  // registration and expose; updates do not take it
  std::vector<Family> families_;
};

// All values kept, for benchmarks. One thread.
class Percentiles {
 public:
  void add(double value) {
    values_.push_back(value);
    sorted_ = false;
  }
  size_t count() const { return values_.size(); }
  const std::vector<double>& values() const { return values_; }  // in any order
  double mean() const;
  // q in [0, 1], linear between neighbours; 0 when there are no values.
  double at(double q);

 private:
  std::vector<double> values_;
  bool sorted_ = true;
};

}  // namespace sluice

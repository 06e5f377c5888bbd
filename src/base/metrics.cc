#include "base/metrics.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace sluice {

namespace {

bool valid_name(std::string_view s, bool colon) {
  if (s.empty()) return false;
  for (size_t i = 0; i < s.size(); ++i) {
    char c = s[i];
    bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    bool digit = c >= '0' && c <= '9' && i > 0;
    if (!letter && !digit && !(colon && c == ':')) return false;
  }
  return true;
}

std::string escaped(std::string_view s, bool quotes) {
  std::string out;
  for (char c : s) {
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\\' || (quotes && c == '"')) {
      out += '\\';
      out += c;
    } else {
      out += c;
    }
  }
  return out;
}

// Shortest text that reads back as the same value.
std::string number(double v) {
  if (std::isnan(v)) return "NaN";
  if (std::isinf(v)) return v > 0 ? "+Inf" : "-Inf";
  char text[32];
  auto end = std::to_chars(text, text + sizeof text, v).ptr;
  return {text, end};
}

void append_line(std::string& out,
                 std::string_view name,
                 std::string_view suffix,
                 std::string_view labels,
                 std::string_view value) {
  out.append(name).append(suffix);
  if (!labels.empty()) out.append("{").append(labels).append("}");
  out.append(" ").append(value).append("\n");
}

}  // namespace

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {
  for (size_t i = 0; i < bounds_.size(); ++i) {
    CHECK(std::isfinite(bounds_[i]) && (i == 0 || bounds_[i - 1] < bounds_[i]));
  }
}

void Histogram::observe(double value) {
  if (std::isnan(value)) return;
  auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[static_cast<size_t>(at)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

std::vector<double> exponential_bounds(double first, double factor, int count) {
  std::vector<double> bounds;
  for (int i = 0; i < count; ++i, first *= factor) bounds.push_back(first);
  return bounds;
}

Metrics::Series& Metrics::series(Kind kind,
                                 std::string_view name,
                                 std::string_view help,
                                 const MetricLabels& labels) {
  CHECK(valid_name(name, true));
  std::string text;
  for (const auto& [label, value] : labels) {
    CHECK(valid_name(label, false) && label != "le");
    if (!text.empty()) text += ',';
    text += label + "=\"" + escaped(value, true) + '"';
  }
  auto family = std::find_if(families_.begin(), families_.end(),
                             [&](const Family& f) { return f.name == name; });
  if (family == families_.end()) {
    families_.push_back({std::string(name), std::string(help), kind, {}});
    family = families_.end() - 1;
  }
  CHECK(family->kind == kind);
  for (Series& s : family->series) {
    if (s.labels == text) return s;
  }
  return family->series.emplace_back(Series{text, nullptr, nullptr, nullptr});
}

Counter& Metrics::counter(std::string_view name,
                          std::string_view help,
                          const MetricLabels& labels) {
  std::lock_guard lock(mutex_);
  Series& s = series(Kind::counter, name, help, labels);
  if (!s.counter) s.counter = std::make_unique<Counter>();
  return *s.counter;
}

Gauge& Metrics::gauge(std::string_view name, std::string_view help, const MetricLabels& labels) {
  std::lock_guard lock(mutex_);
  Series& s = series(Kind::gauge, name, help, labels);
  if (!s.gauge) s.gauge = std::make_unique<Gauge>();
  return *s.gauge;
}

Histogram& Metrics::histogram(std::string_view name,
                              std::string_view help,
                              std::vector<double> bounds,
                              const MetricLabels& labels) {
  std::lock_guard lock(mutex_);
  Series& s = series(Kind::histogram, name, help, labels);
  if (!s.histogram) s.histogram = std::make_unique<Histogram>(std::move(bounds));
  return *s.histogram;
}

void Metrics::append(const Family& family, const Series& s, std::string& out) {
  switch (family.kind) {
    case Kind::counter:
      return append_line(out, family.name, "", s.labels, number(s.counter->value()));
    case Kind::gauge:
      return append_line(out, family.name, "", s.labels, number(s.gauge->value()));
    case Kind::histogram: {
      const Histogram& h = *s.histogram;
      std::string prefix = s.labels.empty() ? "le=\"" : s.labels + ",le=\"";
      uint64_t total = 0;  // summed here, so that _count and +Inf agree while others observe
      for (size_t i = 0; i <= h.bounds().size(); ++i) {
        total += h.bucket(i);
        std::string bound = i < h.bounds().size() ? number(h.bounds()[i]) : "+Inf";
        append_line(out, family.name, "_bucket", prefix + bound + '"', std::to_string(total));
      }
      append_line(out, family.name, "_sum", s.labels, number(h.sum()));
      append_line(out, family.name, "_count", s.labels, std::to_string(total));
    }
  }
}

std::string Metrics::expose() const {
  static constexpr const char* kKinds[] = {"counter", "gauge", "histogram"};
  std::lock_guard lock(mutex_);
  std::string out;
  for (const Family& f : families_) {
    out += "# HELP " + f.name + " " + escaped(f.help, false) + "\n";
    out += "# TYPE " + f.name + " " + kKinds[static_cast<int>(f.kind)] + "\n";
    for (const Series& s : f.series) append(f, s, out);
  }
  return out;
}

double Percentiles::mean() const {
  if (values_.empty()) return 0;
  return std::accumulate(values_.begin(), values_.end(), 0.0) / static_cast<double>(values_.size());
}

double Percentiles::at(double q) {
  if (values_.empty()) return 0;
  if (!sorted_) std::sort(values_.begin(), values_.end());
  sorted_ = true;
  double x = std::clamp(q, 0.0, 1.0) * static_cast<double>(values_.size() - 1);
  auto i = static_cast<size_t>(x);
  if (i + 1 >= values_.size()) return values_.back();
  return values_[i] + (values_[i + 1] - values_[i]) * (x - static_cast<double>(i));
}

}  // namespace sluice

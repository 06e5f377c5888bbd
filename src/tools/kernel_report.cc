#include "tools/kernel_report.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "base/json.h"
#include "base/metrics.h"
#include "base/str.h"

namespace sluice {

namespace {

constexpr const char* kKind = "sluice kernels 1";

Error bad(const char* what) { return Error{400, strf("no %s in it", what)}; }

// Four digits tell all that a measurement does.
double rounded(double v) { return std::strtod(strf("%.4g", v).c_str(), nullptr); }

struct Fields {
  const json::object& o;
  const char* missing = nullptr;

  std::string text(const char* key) {
    const json::value* v = o.if_contains(key);
    if (v && v->is_string()) return std::string(v->as_string());
    missing = key;
    return {};
  }
  double number(const char* key, bool may_be_zero = false) {
    const json::value* v = o.if_contains(key);
    double d = v && v->is_number() ? v->to_number<double>() : -1;
    if (std::isfinite(d) && (d > 0 || (may_be_zero && d == 0))) return d;
    missing = key;
    return 0;
  }
  int count(const char* key) {
    double d = number(key);
    if (d == std::floor(d) && d <= 1 << 20) return static_cast<int>(d);
    missing = key;
    return 0;
  }
};

json::object timing_json(const KernelTiming& t) {
  json::array passes;
  for (double f : t.passes) passes.push_back(rounded(f));
  return {{"kernel", t.kernel},
          {"shape", t.shape},
          {"product", t.product},
          {"m", t.m},
          {"best_s", rounded(t.best)},
          {"median_s", rounded(t.median)},
          {"bytes", t.bytes},
          {"ops", t.ops},
          {"gb_per_s", rounded(t.bytes / t.best / 1e9)},
          {"gop_per_s", rounded(t.ops / t.best / 1e9)},
          {"of_limit", rounded(t.of_limit)},
          {"of_best", rounded(t.of_best)},
          {"passes", passes},
          {"noise", rounded(t.noise)},
          {"bound", t.by_memory ? "memory" : "compute"}};
}

Result<KernelTiming> parse_timing(const json::value& v) {
  if (!v.is_object()) return bad("row");
  Fields f{v.as_object()};
  KernelTiming t;
  t.kernel = f.text("kernel");
  t.shape = f.text("shape");
  t.product = f.text("product");
  t.m = f.count("m");
  t.best = f.number("best_s");
  t.median = f.number("median_s");
  t.bytes = f.number("bytes");
  t.ops = f.number("ops");
  t.of_limit = f.number("of_limit");
  t.of_best = f.number("of_best");
  t.noise = f.number("noise", true);
  t.by_memory = f.text("bound") == "memory";
  if (f.missing) return bad(f.missing);
  const json::value* passes = v.as_object().if_contains("passes");
  if (!passes || !passes->is_array() || passes->as_array().empty()) return bad("passes");
  for (const json::value& pass : passes->as_array()) {
    double d = pass.is_number() ? pass.to_number<double>() : 0;
    if (!(d > 0 && std::isfinite(d))) return bad("passes");
    t.passes.push_back(d);
  }
  return t;
}

void add_pass(KernelTiming& t, const KernelTiming& more) {
  auto n = static_cast<double>(t.passes.size());
  t.passes.insert(t.passes.end(), more.passes.begin(), more.passes.end());
  if (more.best < t.best) {
    t.best = more.best;
    t.median = more.median;
  }
  Percentiles all;
  for (double f : t.passes) all.add(f);
  t.of_limit = all.at(0.5);
  t.of_best += (more.of_best - t.of_best) / (n + 1);
  t.by_memory = more.by_memory;
  t.noise = std::max({t.noise, more.noise, (all.at(1) - all.at(0)) / t.of_limit});
}

}  // namespace

std::string KernelTiming::key() const {
  return strf("%s %s %s %d", kernel.c_str(), shape.c_str(), product.c_str(), m);
}

const KernelTiming* KernelReport::find(const std::string& key) const {
  auto at = std::ranges::find_if(rows, [&](const KernelTiming& t) { return t.key() == key; });
  return at == rows.end() ? nullptr : &*at;
}

std::string report_to_json(const KernelReport& r) {
  json::object head{{"kind", kKind},   {"cpu", r.id.cpu},      {"cores", r.id.cores},
                    {"isa", r.id.isa}, {"threads", r.threads}, {"measured", r.measured}};
  std::string text = json::serialize(head);
  text.pop_back();
  text += ",\"rows\":[";
  for (size_t i = 0; i < r.rows.size(); ++i)
    text += (i > 0 ? ",\n" : "\n") + json::serialize(timing_json(r.rows[i]));
  return text + "\n]}\n";
}

Result<KernelReport> parse_report(std::string_view from) {
  Result<json::value> v = parse_json(from);
  if (!v) return v.error();
  if (!v->is_object()) return bad("JSON object");
  Fields f{v->as_object()};
  if (f.text("kind") != kKind) return Error{400, "it is no report of bench kernels"};
  KernelReport r;
  r.id = {f.text("cpu"), f.count("cores"), f.text("isa")};
  r.threads = f.count("threads");
  r.measured = f.text("measured");
  if (f.missing) return bad(f.missing);
  const json::value* rows = v->as_object().if_contains("rows");
  if (!rows || !rows->is_array()) return bad("rows");
  for (const json::value& row : rows->as_array()) {
    Result<KernelTiming> t = parse_timing(row);
    if (!t) return t.error();
    r.rows.push_back(std::move(*t));
  }
  return r;
}

void add_pass(KernelReport& report, const KernelReport& more) {
  std::unordered_map<std::string, size_t> at;
  for (size_t i = 0; i < report.rows.size(); ++i) at[report.rows[i].key()] = i;
  for (const KernelTiming& t : more.rows) {
    auto known = at.find(t.key());
    if (known == at.end()) {
      report.rows.push_back(t);
    } else {
      add_pass(report.rows[known->second], t);
    }
  }
  report.measured = more.measured;
}

std::vector<KernelChange> compare_reports(const KernelReport& before,
                                          const KernelReport& after,
                                          double least) {
  std::unordered_map<std::string, const KernelTiming*> old;
  for (const KernelTiming& t : before.rows) old[t.key()] = &t;
  std::vector<KernelChange> changes;
  for (const KernelTiming& t : after.rows) {
    auto was = old.find(t.key());
    if (was == old.end()) continue;
    double tolerance = std::max(least, was->second->noise + t.noise);
    changes.push_back({t.key(), was->second->of_limit, t.of_limit, tolerance});
  }
  return changes;
}

}  // namespace sluice

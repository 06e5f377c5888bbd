#include "tools/bench_kernels/report.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "base/json.h"
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
  for (const KernelPass& p : t.passes)
    passes.push_back(json::array{rounded(p.time), rounded(p.limit), rounded(p.best_limit)});
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
    double v3[3] = {};
    if (!pass.is_array() || pass.as_array().size() != 3) return bad("passes");
    for (size_t i = 0; i < 3; ++i) {
      const json::value& number = pass.as_array()[i];
      v3[i] = number.is_number() ? number.to_number<double>() : 0;
      if (!(v3[i] > 0 && std::isfinite(v3[i]))) return bad("passes");
    }
    t.passes.push_back({v3[0], v3[1], v3[2]});
  }
  return t;
}

// Of all passes but one (-1: of all).
KernelPass best_of(const std::vector<KernelPass>& passes, int without) {
  KernelPass best;
  auto lower = [](double& to, double v) { to = to == 0 ? v : std::min(to, v); };
  for (size_t i = 0; i < passes.size(); ++i) {
    if (static_cast<int>(i) == without) continue;
    lower(best.time, passes[i].time);
    lower(best.limit, passes[i].limit);
    lower(best.best_limit, passes[i].best_limit);
  }
  return best;
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
  std::string text = plain_json(head);
  text.pop_back();
  text += ",\"rows\":[";
  for (size_t i = 0; i < r.rows.size(); ++i)
    text += (i > 0 ? ",\n" : "\n") + plain_json(timing_json(r.rows[i]));
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

void summarise_passes(KernelTiming& t) {
  KernelPass all = best_of(t.passes, -1);
  t.best = all.time;
  t.of_limit = all.limit / all.time;
  t.of_best = all.best_limit / all.time;
  if (t.passes.size() < 2) return;
  double least = t.of_limit, most = t.of_limit;
  for (int i = 0; i < static_cast<int>(t.passes.size()); ++i) {
    KernelPass p = best_of(t.passes, i);
    least = std::min(least, p.limit / p.time);
    most = std::max(most, p.limit / p.time);
  }
  t.noise = (most - least) / t.of_limit;
}

void add_pass(KernelReport& report, const KernelReport& more) {
  std::unordered_map<std::string, size_t> at;
  for (size_t i = 0; i < report.rows.size(); ++i) at[report.rows[i].key()] = i;
  for (const KernelTiming& t : more.rows) {
    auto known = at.find(t.key());
    if (known == at.end()) {
      report.rows.push_back(t);
    } else {
      KernelTiming& row = report.rows[known->second];
      if (t.best < row.best) row.median = t.median;
      row.by_memory = t.by_memory;
      row.passes.insert(row.passes.end(), t.passes.begin(), t.passes.end());
      summarise_passes(row);
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
    constexpr double kMost = 0.5;
    double tolerance = std::max(least, std::min(kMost, 2 * (was->second->noise + t.noise)));
    changes.push_back({t.key(), was->second->of_limit, t.of_limit, tolerance});
  }
  return changes;
}

}  // namespace sluice

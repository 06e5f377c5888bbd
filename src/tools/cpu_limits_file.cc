// Machine limits as a file, and what machine this is.
#include <unistd.h>

#include <cctype>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "backend/cpu/features.h"
#include "base/build_id.h"
#include "base/cache_dir.h"
#include "base/json.h"
#include "base/str.h"
#include "tools/cpu_limits.h"

namespace sluice {

namespace {

constexpr const char* kKind = "sluice machine limits 2";
constexpr int kMaxThreads = 1 << 16;
constexpr uintmax_t kMaxFileBytes = 1 << 20;

std::string field(std::string_view cpuinfo, std::string_view key) {
  size_t at = 0;
  while (at < cpuinfo.size()) {
    size_t end = std::min(cpuinfo.find('\n', at), cpuinfo.size());
    std::string_view line = cpuinfo.substr(at, end - at);
    at = end + 1;
    size_t colon = line.find(':');
    if (colon == std::string_view::npos || !line.starts_with(key)) continue;
    if (line.substr(key.size(), colon - key.size()).find_first_not_of(" \t") !=
        std::string_view::npos)
      continue;
    size_t value = line.find_first_not_of(" \t", colon + 1);
    return value == std::string_view::npos ? "" : std::string(line.substr(value));
  }
  return {};
}

Error bad(const char* what) { return Error{400, strf("no %s in it", what)}; }

Result<double> positive(const json::object& o, const char* key) {
  const json::value* v = o.if_contains(key);
  if (!v || !v->is_number()) return bad(key);
  auto d = v->to_number<double>();
  if (!(d > 0 && std::isfinite(d))) return bad(key);
  return d;
}

Result<std::string> text(const json::object& o, const char* key) {
  const json::value* v = o.if_contains(key);
  if (!v || !v->is_string() || v->as_string().empty()) return bad(key);
  return std::string(v->as_string());
}

Result<int> count(const json::object& o, const char* key) {
  const json::value* v = o.if_contains(key);
  if (!v || !v->is_int64() || v->as_int64() < 1 || v->as_int64() > kMaxThreads) return bad(key);
  return static_cast<int>(v->as_int64());
}

const json::array* list(const json::object& o, const char* key) {
  const json::value* v = o.if_contains(key);
  return v && v->is_array() && !v->as_array().empty() ? &v->as_array() : nullptr;
}

Result<std::vector<ReadRate>> parse_reads(const json::object& o, int cores) {
  const json::array* reads = list(o, "reads");
  if (!reads) return bad("reads");
  std::vector<ReadRate> out;
  for (const json::value& v : *reads) {
    if (!v.is_object()) return bad("reads");
    auto threads = count(v.as_object(), "threads");
    auto rate = positive(v.as_object(), "bytes_per_s");
    if (!threads) return threads.error();
    if (!rate) return rate.error();
    if (*threads > cores || (!out.empty() && *threads <= out.back().threads))
      return Error{400, "its reads are not in ascending order of threads"};
    out.push_back({*threads, *rate});
  }
  return out;
}

Result<std::vector<PeakRate>> parse_peaks(const json::object& o) {
  const json::value* peaks = o.if_contains("peaks");
  if (!peaks || !peaks->is_array()) return bad("peaks");
  std::vector<PeakRate> out;
  for (const json::value& v : peaks->as_array()) {
    if (!v.is_object()) return bad("peaks");
    auto name = text(v.as_object(), "name"), type = text(v.as_object(), "type");
    auto one = positive(v.as_object(), "one_ops_per_s"),
         all = positive(v.as_object(), "all_ops_per_s");
    if (!name) return name.error();
    if (!type) return type.error();
    if (!one) return one.error();
    if (!all) return all.error();
    out.push_back({*name, *type, *one, *all});
  }
  return out;
}

Result<std::vector<KernelRate::Point>> parse_points(const json::object& o) {
  const json::array* points = list(o, "points");
  if (!points) return bad("points");
  std::vector<KernelRate::Point> out;
  for (const json::value& v : *points) {
    if (!v.is_object()) return bad("points");
    auto rows = positive(v.as_object(), "rows"), seconds = positive(v.as_object(), "seconds");
    if (!rows) return rows.error();
    if (!seconds) return seconds.error();
    if (!out.empty() && *rows <= out.back().rows)
      return Error{400, "its points are not in ascending order of rows"};
    out.push_back({*rows, *seconds});
  }
  return out;
}

Result<std::vector<KernelRate>> parse_kernels(const json::object& o) {
  const json::value* kernels = o.if_contains("kernels");
  if (!kernels || !kernels->is_array()) return bad("kernels");
  std::vector<KernelRate> out;
  for (const json::value& v : kernels->as_array()) {
    if (!v.is_object()) return bad("kernels");
    auto name = text(v.as_object(), "kernel");
    auto threads = count(v.as_object(), "threads");
    auto points = parse_points(v.as_object());
    if (!name) return name.error();
    if (!threads) return threads.error();
    if (!points) return points.error();
    out.push_back({*name, *threads, *points});
  }
  return out;
}

json::array kernels_json(const std::vector<KernelRate>& kernels) {
  json::array out;
  for (const KernelRate& k : kernels) {
    json::array points;
    for (const KernelRate::Point& p : k.points)
      points.push_back(json::object{{"rows", p.rows}, {"seconds", p.seconds}});
    out.push_back(json::object{{"kernel", k.kernel}, {"threads", k.threads}, {"points", points}});
  }
  return out;
}

}  // namespace

std::string cpu_name(std::string_view cpuinfo) {
  std::string name = field(cpuinfo, "model name");
  std::string family = field(cpuinfo, "cpu family"), model = field(cpuinfo, "model");
  if (!family.empty() && !model.empty()) {
    if (!name.empty()) name += " ";
    name += family + "-" + model;
  }
  std::string implementer = field(cpuinfo, "CPU implementer"), part = field(cpuinfo, "CPU part");
  if (name.empty() && !implementer.empty()) name = "arm " + implementer + " " + part;
  return name.empty() ? "unknown" : name;
}

std::string MachineId::file_stem() const {
  std::string stem;
  for (char c : cpu + "-" + std::to_string(cores) + "-" + isa) {
    auto u = static_cast<unsigned char>(c);
    if (std::isalnum(u)) {
      stem += static_cast<char>(std::tolower(u));
    } else if (!stem.empty() && stem.back() != '-') {
      stem += '-';
    }
  }
  return stem;
}

MachineId this_machine() {
  std::ifstream in("/proc/cpuinfo");
  std::stringstream all;
  all << in.rdbuf();
  return {cpu_name(all.str()), static_cast<int>(usable_cores().size()), isa_name(cpu_features())};
}

std::string limits_to_json(const CpuLimits& m) {
  json::array reads, peaks;
  for (const ReadRate& r : m.reads)
    reads.push_back(json::object{{"threads", r.threads}, {"bytes_per_s", r.bytes_per_s}});
  for (const PeakRate& p : m.peaks)
    peaks.push_back(json::object{
        {"name", p.name}, {"type", p.type}, {"one_ops_per_s", p.one}, {"all_ops_per_s", p.all}});
  return plain_json(json::object{{"kind", kKind},
                                 {"cpu", m.id.cpu},
                                 {"cores", m.id.cores},
                                 {"isa", m.id.isa},
                                 {"measured", m.measured},
                                 {"reads", reads},
                                 {"peaks", peaks},
                                 {"build", m.build},
                                 {"kernels", kernels_json(m.kernels)}});
}

Result<CpuLimits> parse_limits(std::string_view from) {
  Result<json::value> v = parse_json(from);
  if (!v) return v.error();
  if (!v->is_object()) return bad("JSON object");
  const json::object& o = v->as_object();
  auto kind = text(o, "kind"), cpu = text(o, "cpu"), isa = text(o, "isa"),
       measured = text(o, "measured");
  if (!kind) return kind.error();
  if (*kind != kKind) return Error{400, strf("it is of kind %s", quote(*kind).c_str())};
  if (!cpu) return cpu.error();
  if (!isa) return isa.error();
  if (!measured) return measured.error();
  auto cores = count(o, "cores");
  if (!cores) return cores.error();
  auto reads = parse_reads(o, *cores);
  if (!reads) return reads.error();
  auto peaks = parse_peaks(o);
  if (!peaks) return peaks.error();
  const json::value* build = o.if_contains("build");  // empty where the linker leaves none
  if (!build || !build->is_string()) return bad("build");
  auto kernels = parse_kernels(o);
  if (!kernels) return kernels.error();
  return CpuLimits{
      {*cpu, *cores, *isa}, *measured, *reads, *peaks, std::string(build->as_string()), *kernels};
}

std::string limits_path(const MachineId& id) {
  std::filesystem::path dir = user_cache_dir();
  if (dir.empty()) return {};
  return (dir / ("machine-" + id.file_stem() + ".json")).string();
}

Result<CpuLimits> load_limits(const std::string& path, const MachineId& id) {
  std::error_code ec;
  uintmax_t bytes = std::filesystem::file_size(path, ec);
  if (ec) return Error{404, strf("cannot read %s", quote(path, 400).c_str())};
  std::ifstream in(path);
  std::stringstream all;
  if (bytes <= kMaxFileBytes) all << in.rdbuf();
  Result<CpuLimits> m = bytes > kMaxFileBytes ? Error{400, "it is too large"}
                        : in                  ? parse_limits(all.str())
                                              : Error{400, "it cannot be read"};
  if (m && m->id != id) m = Error{400, "it is of another machine"};
  if (!m) {
    return Error{400, strf("%s does not hold this machine's limits: %s", quote(path, 400).c_str(),
                           m.error().message.c_str())};
  }
  if (m->build != build_id()) m->kernels.clear();
  return m;
}

Result<void> save_limits(const std::string& path, const CpuLimits& limits) {
  std::error_code ec;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ec);
  std::string partial = path + "." + std::to_string(getpid());
  std::ofstream out(partial);
  out << limits_to_json(limits) << '\n';
  out.close();
  if (out) std::filesystem::rename(partial, path, ec);
  if (out && !ec) return {};
  std::filesystem::remove(partial, ec);
  return Error{500, strf("cannot write %s", quote(path, 400).c_str())};
}

CpuLimits cached_limits(const std::string& path,
                        const MachineId& id,
                        const std::function<CpuLimits()>& measure,
                        const std::function<void(const std::string&)>& say) {
  if (!path.empty()) {
    Result<CpuLimits> kept = load_limits(path, id);
    if (kept) return *kept;
    if (kept.error().code != 404) say(kept.error().message + "; measured again");
  }
  CpuLimits m = measure();
  if (!path.empty()) {
    if (auto ok = save_limits(path, m); !ok) say(ok.error().message);
  }
  return m;
}

}  // namespace sluice

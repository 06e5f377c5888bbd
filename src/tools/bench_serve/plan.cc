#include "tools/bench_serve/plan.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "base/json.h"
#include "base/random.h"
#include "base/str.h"

namespace sluice {

namespace {

constexpr int kMaxTokens = 10'000'000;
constexpr size_t kMaxTrace = 10'000'000;

// The whole of `text` as a number.
template <typename T>
bool parse_number(std::string_view text, T& to) {
  auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), to);
  return ec == std::errc() && end == text.data() + text.size() && !text.empty();
}

std::string_view next_field(std::string_view& rest, char separator) {
  size_t at = rest.find(separator);
  std::string_view field = rest.substr(0, at);
  rest = at == std::string_view::npos ? std::string_view() : rest.substr(at + 1);
  return field;
}

// Days since 1970-01-01 of a date of the Gregorian calendar.
int64_t days_of(int year, int month, int day) {
  int64_t y = month <= 2 ? year - 1 : year;
  int64_t era = (y >= 0 ? y : y - 399) / 400;
  int64_t year_of_era = y - era * 400;
  int64_t day_of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  return era * 146'097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year -
         719'468;
}

// "2023-11-16 18:15:46.6805900" in seconds, or a plain number of them.
bool parse_timestamp(std::string_view text, double& to) {
  if (parse_number(text, to)) return std::isfinite(to);
  std::string copy(text.substr(0, 40));
  int year = 0, month = 0, day = 0, hour = 0, minute = 0, used = 0;
  if (std::sscanf(copy.c_str(), "%4d-%2d-%2d%*1[ T]%2d:%2d:%n", &year, &month, &day, &hour, &minute,
                  &used) != 5 ||
      used == 0)
    return false;
  double second = 0;
  std::string_view rest = std::string_view(copy).substr(static_cast<size_t>(used));
  if (rest.ends_with('Z')) rest.remove_suffix(1);
  if (rest.ends_with("+00:00")) rest.remove_suffix(6);
  if (!parse_number(rest, second) || month < 1 || month > 12 || day < 1 || day > 31) return false;
  to = static_cast<double>(days_of(year, month, day)) * 86'400 + hour * 3600 + minute * 60 + second;
  return true;
}

Error bad_lengths() { return {400, strf("a length is not from 1 to %d", kMaxTokens)}; }

Result<TraceEntry> parse_json_line(std::string_view line) {
  Result<json::value> v = parse_json(line);
  if (!v) return v.error();
  const json::object* o = v->if_object();
  const json::value *t = o ? o->if_contains("timestamp") : nullptr,
                    *in = o ? o->if_contains("input_length") : nullptr,
                    *out = o ? o->if_contains("output_length") : nullptr,
                    *ids = o ? o->if_contains("hash_ids") : nullptr;
  if (!t || !t->is_number() || !in || !in->is_int64() || !out || !out->is_int64())
    return Error{400, "no timestamp, input_length and output_length in it"};
  TraceEntry e;
  e.at = t->to_number<double>() / 1e3;
  int64_t input = in->as_int64(), output = out->as_int64();
  if (input < 1 || input > kMaxTokens || output < 1 || output > kMaxTokens) return bad_lengths();
  e.input = static_cast<int>(input);
  e.output = static_cast<int>(output);
  if (ids && ids->is_array()) {
    for (const json::value& id : ids->as_array()) {
      if (!id.is_int64()) return Error{400, "a hash id is not a whole number"};
      e.blocks.push_back(static_cast<uint64_t>(id.as_int64()));
    }
  }
  return e;
}

}  // namespace

int LengthRange::pick(uint64_t seed, uint64_t index, uint32_t draw) const {
  if (median > 0) {
    const auto at = static_cast<int64_t>(index);
    const double u = 1 - draw_double({seed, 12, at, draw}), v = draw_double({seed, 13, at, draw});
    const double normal = std::sqrt(-2 * std::log(u)) * std::cos(2 * M_PI * v);
    return static_cast<int>(std::clamp<double>(std::round(median * std::exp(normal)), lo, hi));
  }
  auto span = static_cast<uint32_t>(hi - lo) + 1;
  return lo + static_cast<int>(draw_u32({seed, 11, static_cast<int64_t>(index), draw}) % span);
}

Result<LengthRange> parse_length_range(const std::string& text, const char* what) {
  std::string_view rest = text;
  LengthRange r;
  bool fine = false;
  if (constexpr std::string_view kLognormal = "lognormal:"; rest.starts_with(kLognormal)) {
    rest.remove_prefix(kLognormal.size());
    const std::string_view median = next_field(rest, ':');
    fine = parse_number(median, r.median) && parse_number(rest, r.hi) && r.median >= 1 &&
           r.median <= r.hi;
    r.lo = 1;
  } else {
    const std::string_view first = next_field(rest, '-');
    fine = parse_number(first, r.lo);
    r.hi = r.lo;
    if (first.size() < text.size()) fine = fine && parse_number(rest, r.hi);
  }
  if (!fine || r.lo < 1 || r.hi < r.lo || r.hi > kMaxTokens)
    return Error{400,
                 strf("%s %s: write N, LO-HI or lognormal:MEDIAN:MOST", what, quote(text).c_str())};
  return r;
}

Result<double> parse_seconds(std::string_view text) {
  double unit = 1;
  std::string_view number = text;
  for (auto [suffix, factor] :
       {std::pair<std::string_view, double>{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {"m", 60}}) {
    if (!number.ends_with(suffix)) continue;
    number.remove_suffix(suffix.size());
    unit = factor;
    break;
  }
  double v = 0;
  if (!parse_number(number, v) || !(v > 0) || !std::isfinite(v))
    return Error{400, strf("%s is not a time like 200ms or 1.5s", quote(text).c_str())};
  return v * unit;
}

Result<Slo> parse_slo(const std::string& text) {
  Slo slo;
  for (std::string_view rest = text; !rest.empty();) {
    std::string_view item = next_field(rest, ',');
    std::string_view value = item;
    std::string_view name = next_field(value, '=');
    double* to = name == "ttft"   ? &slo.ttft
                 : name == "tpot" ? &slo.tpot
                 : name == "itl"  ? &slo.itl
                 : name == "e2e"  ? &slo.e2e
                                  : nullptr;
    if (!to)
      return Error{400, strf("--slo %s: write like ttft=200ms,tpot=30ms,itl=50ms,e2e=10s",
                             quote(text).c_str())};
    Result<double> limit = parse_seconds(value);
    if (!limit) return Error{400, "--slo: " + limit.error().message};
    *to = *limit;
  }
  return slo;
}

Result<std::vector<double>> parse_list(const std::string& text, const char* what, bool whole) {
  std::vector<double> out;
  for (std::string_view rest = text; !rest.empty();) {
    double v = 0;
    if (!parse_number(next_field(rest, ','), v) || !(v > 0) || v > 1e6 ||
        (whole && v != std::floor(v)))
      return Error{400, strf("%s %s: write numbers above 0, like %s", what, quote(text).c_str(),
                             whole ? "1,8,64" : "0.5,2,10")};
    out.push_back(v);
  }
  if (text.ends_with(','))
    return Error{400, strf("%s %s: a number is missing", what, quote(text).c_str())};
  return out;
}

Result<TraceEntry> parse_trace_line(std::string_view line) {
  if (line.starts_with('{')) return parse_json_line(line);
  TraceEntry e;
  std::string_view rest = line;
  std::string_view time = next_field(rest, ','), input = next_field(rest, ','),
                   output = next_field(rest, ',');
  if (!parse_timestamp(time, e.at)) return Error{400, "no time in its first column"};
  if (!parse_number(input, e.input) || !parse_number(output, e.output))
    return Error{400, "no lengths in its second and third columns"};
  if (e.input < 1 || e.input > kMaxTokens || e.output < 1 || e.output > kMaxTokens)
    return bad_lengths();
  return e;
}

Result<std::vector<TraceEntry>> read_trace(const std::string& path, std::optional<int> limit) {
  std::ifstream in(path);
  if (!in) return Error{404, strf("cannot read %s", quote(path, 400).c_str())};
  const size_t most = limit ? static_cast<size_t>(std::max(*limit, 0)) : kMaxTrace;
  std::vector<TraceEntry> out;
  std::string line;
  for (int number = 1; out.size() < most && std::getline(in, line); ++number) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (line.empty() || (number == 1 && line.find("ContextTokens") != std::string::npos)) continue;
    Result<TraceEntry> e = parse_trace_line(line);
    if (!e)
      return Error{
          400, strf("%s line %d: %s", quote(path, 400).c_str(), number, e.error().message.c_str())};
    out.push_back(std::move(*e));
  }
  if (out.empty()) return Error{400, strf("%s holds no requests", quote(path, 400).c_str())};
  std::stable_sort(out.begin(), out.end(),
                   [](const TraceEntry& a, const TraceEntry& b) { return a.at < b.at; });
  double first = out.front().at;
  for (TraceEntry& e : out) e.at -= first;
  return out;
}

std::string RunPoint::label() const {
  if (concurrency > 0) return strf("%d at once", concurrency);
  if (rate > 0) return strf("%g/s %s", rate, poisson ? "Poisson" : "fixed");
  return "trace";
}

double ArrivalTimes::next() {
  int64_t i = index_++;
  if (!point_.poisson) return static_cast<double>(i) / point_.rate;
  return at_ -= std::log(1 - draw_double({seed_, 12, i, 0})) / point_.rate;
}

}  // namespace sluice

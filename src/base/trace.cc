#include "base/trace.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "base/json.h"
#include "base/str.h"

namespace sluice {

namespace {

std::string json_text(std::string_view s) {
  return json::serialize(json::string(valid_utf8(s) ? std::string(s) : quote(s, 200)));
}

// JSON has neither NaN nor infinity.
std::string json_number(double v) { return std::isfinite(v) ? strf("%.15g", v) : "null"; }

// Microseconds, the unit of the format, without losing nanoseconds.
std::string micros(Time t) {
  int64_t ns = t.count();
  uint64_t size = ns < 0 ? 0 - static_cast<uint64_t>(ns) : static_cast<uint64_t>(ns);
  return strf("%s%llu.%03llu", ns < 0 ? "-" : "", static_cast<unsigned long long>(size / 1000),
              static_cast<unsigned long long>(size % 1000));
}

}  // namespace

TraceTrack::TraceTrack(std::string name, size_t max_events)
    : name_(std::move(name)), max_events_(max_events) {
  events_.reserve(max_events);
}

void TraceTrack::push(const Event& event) {
  std::lock_guard lock(mutex_);
  if (events_.size() >= max_events_) {
    ++num_dropped_;
    return;
  }
  events_.push_back(event);
}

void TraceTrack::span(const char* name,
                      Time begin,
                      Time end,
                      std::initializer_list<TraceArg> args) {
  Event event{name, begin, std::max(begin, end), {}};
  std::copy_n(args.begin(), std::min(args.size(), kMaxArgs), event.args.begin());
  push(event);
}

void TraceTrack::counter(const char* name, Time at, double value) {
  push({name, at, at - Time(1), {TraceArg{"value", value}}});
}

void TraceTrack::append_json(std::string& out, size_t tid) const {
  std::lock_guard lock(mutex_);
  out +=
      strf("{\"ph\":\"M\",\"pid\":1,\"tid\":%zu,\"name\":\"thread_name\",\"args\":{\"name\":%s}}",
           tid, json_text(name_).c_str());
  for (const Event& e : events_) {
    bool is_counter = e.end < e.begin;
    out += strf(",\n{\"ph\":\"%s\",\"pid\":1,\"tid\":%zu,\"name\":%s,\"ts\":%s",
                is_counter ? "C" : "X", tid, json_text(e.name).c_str(), micros(e.begin).c_str());
    if (!is_counter) out += ",\"dur\":" + micros(e.end - e.begin);
    const char* separator = ",\"args\":{";
    for (const TraceArg& a : e.args) {
      if (!a.name) break;
      out += separator + json_text(a.name) + ":" + json_number(a.value);
      separator = ",";
    }
    out += e.args[0].name ? "}}" : "}";
  }
}

Trace::Trace(size_t max_events_per_track) : max_events_(max_events_per_track) {}

TraceTrack* Trace::track(std::string name) {
  std::lock_guard lock(mutex_);
  return tracks_.emplace_back(std::make_unique<TraceTrack>(std::move(name), max_events_)).get();
}

uint64_t Trace::num_dropped() const {
  std::lock_guard lock(mutex_);
  uint64_t n = 0;
  for (const auto& t : tracks_) {
    std::lock_guard track_lock(t->mutex_);
    n += t->num_dropped_;
  }
  return n;
}

std::string Trace::to_json() const {
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  {
    std::lock_guard lock(mutex_);
    for (size_t i = 0; i < tracks_.size(); ++i) {
      if (i > 0) out += ",\n";
      tracks_[i]->append_json(out, i + 1);
    }
  }
  return out + strf("\n],\"otherData\":{\"dropped_events\":\"%llu\"}}\n",
                    static_cast<unsigned long long>(num_dropped()));
}

Result<void> Trace::write(const std::string& path) const {
  std::string text = to_json();
  // A full disk is the machine's fault, a wrong path the user's.
  auto failed = [&](const char* what) {
    bool full = errno == ENOSPC || errno == EDQUOT || errno == EIO || errno == EMFILE;
    return Error{full ? 500 : 400, strf("cannot %s trace file %s: %s", what, quote(path).c_str(),
                                        std::strerror(errno))};
  };
  std::FILE* f = std::fopen(path.c_str(), "wb");
  if (!f) return failed("open");
  bool ok = std::fwrite(text.data(), 1, text.size(), f) == text.size();
  if (std::fclose(f) != 0 || !ok) return failed("write");
  return {};
}

}  // namespace sluice

#include "tools/replay/replay.h"

#include <cstdio>
#include <vector>

#include "base/json_escape.h"
#include "base/build_id.h"
#include "base/str.h"
#include "core/replay.h"
#include "tools/commands.h"

namespace sluice {

namespace {

using Number = unsigned long long;

const char* tail_words(RecordReader::Tail tail) {
  switch (tail) {
    case RecordReader::Tail::whole:
      return "";
    case RecordReader::Tail::cut:
      return "; the file ends within a record, which is left out";
    case RecordReader::Tail::damaged:
      return "; DAMAGED: a checksum is wrong, and what follows is left out";
  }
  return "";
}

std::string json_text(const std::string& text) {
  std::string out = "\"";
  for (char c : text) append_json_char(out, c);
  return out + "\"";
}

void print_segment(const SegmentFile& file, const ScheduleReport& r) {
  std::printf(
      "  segment %u: %llu plans (steps %llu to %llu, %.1f s), %llu arrivals, %llu cancels, "
      "%llu results",
      file.header.segment, static_cast<Number>(r.num_plans), static_cast<Number>(r.first_step),
      static_cast<Number>(r.last_step), seconds(r.last - r.first),
      static_cast<Number>(r.num_arrivals), static_cast<Number>(r.num_cancels),
      static_cast<Number>(r.num_results));
  if (r.num_failed > 0) std::printf(" (%llu failed)", static_cast<Number>(r.num_failed));
  if (r.num_live > 0)
    std::printf("; begins with %d sequences and %d steps in flight", r.num_live, r.num_in_flight);
  std::printf("%s\n    %s\n", tail_words(r.tail),
              r.difference.empty() ? "equal plans" : ("DIFFERENT: " + r.difference).c_str());
}

std::string segment_json(const SegmentFile& file, const ScheduleReport& r) {
  static constexpr const char* kTails[] = {"whole", "cut", "damaged"};
  return strf(
      "{\"file\":%s,\"segment\":%u,\"follows\":%s,\"plans\":%llu,\"results\":%llu,"
      "\"arrivals\":%llu,\"cancels\":%llu,\"appends\":%llu,\"live\":%d,\"in_flight\":%d,"
      "\"tail\":\"%s\",\"equal\":%s,\"difference\":%s}",
      json_text(file.path).c_str(), file.header.segment, file.header.follows ? "true" : "false",
      static_cast<Number>(r.num_plans), static_cast<Number>(r.num_results),
      static_cast<Number>(r.num_arrivals), static_cast<Number>(r.num_cancels),
      static_cast<Number>(r.num_appends), r.num_live, r.num_in_flight,
      kTails[static_cast<size_t>(r.tail)], r.difference.empty() ? "true" : "false",
      json_text(r.difference).c_str());
}

}  // namespace

std::string this_build() {
  const std::string id = build_id();
  return id.empty() ? SLUICE_VERSION : strf("%s, build %s", SLUICE_VERSION, id.c_str());
}

int replay_schedules(const RecordingFiles& files, bool json) {
  bool same = true;
  uint64_t plans = 0, segments = 0;
  std::string list;
  std::vector<std::string> left_out = files.unreadable;
  for (const RecordedRun& run : files.runs) {
    const RecordingHeader& h = run.header();
    if (!json)
      std::printf("run %016llx of %s (%s): %zu segments, %s\n", static_cast<Number>(h.run),
                  h.model.c_str(), h.build.c_str(), run.segments.size(),
                  h.text ? "with text" : "tokens are pseudonyms");
    if (!json && h.build != this_build())
      std::printf("  another build wrote it; this is %s: where plans differ, that may be why\n",
                  this_build().c_str());
    for (const SegmentFile& file : run.segments) {
      Result<Bytes> bytes = read_bytes(file.path);
      if (!bytes) {  // a server that runs took it out of its ring
        left_out.push_back(bytes.error().message);
        continue;
      }
      Result<ScheduleReport> r = replay_schedule(*bytes);
      if (!r) {  // 422: its process ended before the state was written
        same = same && r.error().code == 422;
        left_out.push_back(file.path + ": " + r.error().message);
        continue;
      }
      same = same && r->difference.empty() && r->tail != RecordReader::Tail::damaged;
      plans += r->num_plans;
      ++segments;
      if (json) {
        list += (list.empty() ? "" : ",") + segment_json(file, *r);
      } else {
        print_segment(file, *r);
      }
    }
  }
  std::string names;
  for (const std::string& f : left_out) {
    if (!json) std::printf("left out: %s\n", f.c_str());
    names += (names.empty() ? "" : ",") + json_text(f);
  }
  if (segments == 0) same = false;
  if (json) {
    std::printf("{\"equal\":%s,\"plans\":%llu,\"segments\":[%s],\"left_out\":[%s]}\n",
                same ? "true" : "false", static_cast<Number>(plans), list.c_str(), names.c_str());
  } else {
    std::printf("%llu plans of %llu segments: %s\n", static_cast<Number>(plans),
                static_cast<Number>(segments), same ? "all equal" : "NOT all equal");
  }
  return same ? kExitOk : kExitFailure;
}

int cmd_replay(const ReplayOptions& o) {
  Result<RecordingFiles> files = find_recordings(o.path);
  if (!files) return report(files.error());
  if (files->runs.empty())
    return report({400, strf("%s has no recording that can be read: %s", quote(o.path).c_str(),
                             files->unreadable.front().c_str())});
  int code = kExitOk;
  const bool simulates = o.stall || !o.what_if.empty();
  if (o.schedule || (o.engine.model.empty() && !simulates)) code = replay_schedules(*files, o.json);
  if (code == kExitOk && !o.engine.model.empty()) code = replay_model(*files, o);
  if (code == kExitOk && simulates) code = replay_what_if(*files, o);
  return code;
}

}  // namespace sluice

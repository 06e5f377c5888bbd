#include "server/observe_explain.h"

#include <algorithm>
#include <map>
#include <span>

#include "server/observe_words.h"
#include "server/trace_context.h"

namespace sluice {

const char* state_name(const RequestRecord& r) {
  switch (r.state) {
    case RequestState::waiting:
      return "waiting";
    case RequestState::prefill:
      return "prefill";
    case RequestState::decode:
      return "decode";
    case RequestState::preempted:
      return "preempted";
    case RequestState::done:
      return finish_name(r.why);
    case RequestState::refused:
      return "refused";
  }
  return "?";
}

namespace {

constexpr size_t kMaxSegments = 300, kMaxNeighbours = 20, kMaxPromptSteps = 100;

json::array parts_json(const RequestParts& p) {
  struct Row {
    const char *kind, *what;
    Time time;
  };
  const Row rows[] = {
      {"prepare", "parsed, templated, tokenised", p.prepare},
      {"compile", "its constraint compiled", p.compile},
      {"fetch", "its prompt fetched from another server", p.fetch},
      {"queued", "in the queue", p.queued},
      {"prefill", "steps with its prompt", p.prefill},
      {"decode", "decode steps", p.decode},
      {"crowded", "decode steps shared with prompts of others", p.crowded},
      {"preempted", "put back for want of KV blocks", p.preempted},
      {"others", "steps it had no part in", p.others},
      {"gaps", "between steps", p.gaps},
      {"delivery", "from the engine to the socket", p.delivery},
  };
  json::array out;
  for (const Row& r : rows) {
    double share = p.total > Time{0} ? seconds(r.time) / seconds(p.total) : 0;
    out.push_back(json::object{
        {"kind", r.kind}, {"what", r.what}, {"seconds", seconds(r.time)}, {"share", share}});
  }
  return out;
}

json::object turn_json(const RequestRecord& r) {
  const bool alike = r.turn.part == TurnPart::none;
  return {
      {"after_request", r.turn.after},
      {"its_tokens", r.turn.num_tokens},
      {"same_tokens", r.turn.num_same},
      {"differs_in", alike ? json::value(nullptr) : json::value(name_of(kTurnParts, r.turn.part))},
      {"reused_tokens", r.num_cached},
      {"computed_tokens", r.num_prompt - r.num_cached}};
}

struct Segment {
  const char* kind;
  Time begin, end;
};

// Neighbouring steps of one kind become one segment; with too many, across larger gaps.
std::vector<Segment> merge(const std::vector<Segment>& in) {
  std::vector<Segment> out;
  for (Time gap = std::chrono::milliseconds(1);; gap *= 4) {
    out.clear();
    for (const Segment& s : in) {
      if (!out.empty() && out.back().kind == s.kind && s.begin - out.back().end <= gap) {
        out.back().end = s.end;
      } else {
        out.push_back(s);
      }
    }
    if (out.size() <= kMaxSegments || gap > std::chrono::hours(1)) break;
  }
  if (out.size() > kMaxSegments) out.resize(kMaxSegments);
  return out;
}

struct Neighbour {
  int32_t steps = 0;
  int64_t prefill = 0, decode = 0;
};

// A step that computed a part of the request's prompt.
struct PromptStep {
  uint64_t step = 0;
  Time begin{0}, time{0};
  int64_t own = 0, other_prefill = 0, other_decode = 0;
};

// What the known steps say of a request.
struct Course {
  std::vector<Segment> segments;
  std::vector<PromptStep> prompt;
  std::map<RequestId, Neighbour> neighbours;
  Time others{0};  // of steps without it
};

void add_step(const StepRecord& st, std::span<const SliceRecord> in, RequestId id, Course& course) {
  auto mine = std::find_if(in.begin(), in.end(), [&](const auto& s) { return s.req == id; });
  if (mine == in.end()) {
    course.others += st.end - st.begin;
    return;
  }
  const char* kind = mine->prefill ? "prefill" : st.num_prefill > 0 ? "crowded" : "decode";
  course.segments.push_back({kind, st.begin, st.end});
  PromptStep prompt{st.step, st.begin, st.end - st.begin, 0, st.num_prefill, st.num_decode};
  RequestId counted = id;
  for (const SliceRecord& s : in) {
    if (s.req == id) {
      prompt.own += s.count;
      (s.prefill ? prompt.other_prefill : prompt.other_decode) -= s.count;
      continue;
    }
    Neighbour& n = course.neighbours[s.req];
    (s.prefill ? n.prefill : n.decode) += s.count;
    if (s.req != counted) ++n.steps;
    counted = s.req;
  }
  if (mine->prefill) course.prompt.push_back(prompt);
}

// Those it shared most tokens with. `reader`: other keys' requests have no number.
json::array neighbours_json(const Course& course,
                            const Recorder& recorder,
                            std::optional<int> reader) {
  std::vector<std::pair<RequestId, Neighbour>> ranked(course.neighbours.begin(),
                                                      course.neighbours.end());
  std::sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) {
    return a.second.prefill + a.second.decode > b.second.prefill + b.second.decode;
  });
  if (ranked.size() > kMaxNeighbours) ranked.resize(kMaxNeighbours);
  json::array out;
  for (const auto& [req, n] : ranked) {
    RequestRecord r;
    bool shown = !reader || (recorder.request(req, r) && r.key == *reader);
    out.push_back(json::object{{"request", shown ? json::value(req) : json::value(nullptr)},
                               {"steps", n.steps},
                               {"prefill_tokens", n.prefill},
                               {"decode_tokens", n.decode}});
  }
  return out;
}

json::array prompt_json(const Course& course, Time begin) {
  json::array out;
  for (const PromptStep& p : course.prompt) {
    if (out.size() == kMaxPromptSteps) break;
    out.push_back(json::object{{"step", p.step},
                               {"at", seconds(p.begin - begin)},
                               {"seconds", seconds(p.time)},
                               {"tokens", p.own},
                               {"other_prefill_tokens", p.other_prefill},
                               {"other_decode_tokens", p.other_decode}});
  }
  return out;
}

}  // namespace

json::object summarize_request(const RequestRecord& r, Time now) {
  RequestParts p = divide(r, now, Time{0});
  json::object o;
  o["request"] = r.id;
  o["state"] = state_name(r);
  if (r.trace[0] != 0 || r.trace[1] != 0) o["trace_id"] = trace_id(r.trace);
  o["choices"] = r.n;
  o["prompt_tokens"] = r.num_prompt;
  o["cached_tokens"] = r.num_cached;
  o["output_tokens"] = r.num_output;
  o["preemptions"] = r.num_preemptions;
  o["age"] = seconds(now - begin_of(r));
  o["seconds"] = seconds(p.total);
  if (r.first_token != Time{0}) o["ttft"] = seconds(r.first_token - r.arrival);
  return o;
}

std::optional<json::object> explain_request(const Recorder& recorder,
                                            RequestId id,
                                            Time now,
                                            std::optional<int> reader) {
  RequestRecord r;
  if (!recorder.request(id, r) || (reader && r.key != *reader)) return {};
  std::vector<StepRecord> steps;
  std::vector<SliceRecord> slices;
  recorder.steps(r.first_step, r.last_step, Recorder::kSteps, steps, slices);
  Course course;
  for (const StepRecord& st : steps) {
    add_step(st, {slices.data() + st.slice_at, static_cast<size_t>(st.num_slices)}, id, course);
  }
  Time in_steps = r.prefill.time + r.decode.time + r.crowded.time;
  Time busy = r.live() ? r.device_before + in_steps + course.others : r.device_after;
  RequestParts p = divide(r, now, busy);
  json::array timeline;
  for (const Segment& s : merge(course.segments)) {
    timeline.push_back(
        json::array{s.kind, seconds(s.begin - begin_of(r)), seconds(s.end - begin_of(r))});
  }

  json::object o;
  o["request"] = r.id;
  o["state"] = state_name(r);
  if (r.trace[0] != 0 || r.trace[1] != 0) o["trace_id"] = trace_id(r.trace);
  o["key"] = r.key < 0 ? json::value(nullptr) : json::value(r.key);
  o["choices"] = r.n;
  o["prompt_tokens"] = r.num_prompt;
  o["cached_tokens"] = r.num_cached;
  o["output_tokens"] = r.num_output;
  o["max_tokens"] = r.max_new;
  o["preemptions"] = r.num_preemptions;
  if (r.constraint) {
    o["constraint"] = name_of(constrain::kConstraintKinds, *r.constraint);
    o["compile_seconds"] = seconds(r.compile);
    o["masked_tokens"] = r.num_masked;
  }
  if (r.fetched) {
    o["fetched_tokens"] = r.fetched->num_tokens;
    o["fetch_seconds"] = seconds(r.fetched->took);
  }
  o["recomputed_tokens"] = r.num_recomputed;
  if (r.turn.after != 0) o["turn"] = turn_json(r);
  o["first_step"] = r.first_step;
  o["last_step"] = r.last_step;
  o["seconds"] = seconds(p.total);
  if (r.first_token != Time{0}) o["ttft"] = seconds(r.first_token - r.arrival);
  o["parts"] = parts_json(p);
  o["waited_for_prompts"] = seconds(prompts_cost(r));
  o["sentences"] = story_sentences(r, p);
  o["prompt_steps"] = prompt_json(course, begin_of(r));
  o["with"] = neighbours_json(course, recorder, reader);
  o["num_with"] = course.neighbours.size();
  o["timeline"] = std::move(timeline);
  return o;
}

std::optional<json::object> explain_step(const Recorder& recorder, uint64_t step) {
  StepRecord st;
  std::vector<SliceRecord> slices;
  if (!recorder.step(step, st, slices)) return {};
  json::array list;
  for (const SliceRecord& s : slices) {
    list.push_back(json::object{{"request", s.req},
                                {"choice", s.choice},
                                {"pos", s.pos},
                                {"count", s.count},
                                {"prefill", s.prefill}});
  }
  auto us = [](Time t) { return seconds(t) * 1e6; };
  json::object o;
  o["step"] = st.step;
  o["prefill_tokens"] = st.num_prefill;
  o["decode_tokens"] = st.num_decode;
  o["num_slices"] = st.num_slices;
  o["running"] = st.running;
  o["waiting"] = st.waiting;
  o["available_blocks"] = st.available;
  o["plan_us"] = us(st.plan_end - st.plan_begin);
  o["wait_us"] = us(st.begin - st.plan_end);
  o["device_us"] = us(st.end - st.begin);
  o["complete_us"] = us(st.complete_end - st.complete_begin);
  o["slices"] = std::move(list);
  return o;
}

}  // namespace sluice

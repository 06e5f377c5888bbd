#include "server/observe_explain.h"

#include <algorithm>
#include <map>

#include "base/str.h"

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

constexpr size_t kMaxSegments = 300, kMaxNeighbours = 20;

std::string time_text(Time t) {
  double s = seconds(t);
  if (s >= 1) return strf("%.2f s", s);
  if (s >= 0.01) return strf("%.0f ms", s * 1e3);
  return strf("%.2f ms", s * 1e3);
}

std::string count_text(int64_t n, const char* one, const char* many) {
  return strf("%lld %s", static_cast<long long>(n), n == 1 ? one : many);
}

std::string tokens_text(int64_t n) { return count_text(n, "token", "tokens"); }

// A request's time in parts that add up to the whole.
struct Parts {
  Time total{0}, prepare{0}, queued{0}, prefill{0}, decode{0}, crowded{0}, preempted{0}, others{0},
      gaps{0}, delivery{0};
};

Parts divide(const RequestRecord& r, Time now, Time device_busy) {
  Parts p;
  Time begin = r.received != Time{0} ? r.received : r.arrival;
  Time finish = r.finish != Time{0} ? r.finish : now;
  Time end = r.delivered != Time{0} ? r.delivered : finish;
  p.total = end - begin;
  p.prepare = r.arrival - begin;
  p.delivery = end - finish;
  if (r.first_scheduled == Time{0}) {
    p.queued = finish - r.arrival;
    return p;
  }
  p.queued = r.first_scheduled - r.arrival;
  Time rest = finish - r.first_scheduled;
  auto take = [&rest](Time wanted) {
    Time t = std::clamp(wanted, Time{0}, std::max(rest, Time{0}));
    rest -= t;
    return t;
  };
  p.prefill = take(r.prefill.time);
  p.decode = take(r.decode.time);
  p.crowded = take(r.crowded.time);
  Time out = r.preempted;
  if (r.preempt_begin != Time{0}) out += finish - r.preempt_begin;
  p.preempted = take(out);
  Time in_steps = r.prefill.time + r.decode.time + r.crowded.time;
  p.others = r.preempted == Time{0} ? take(device_busy - r.device_before - in_steps) : Time{0};
  p.gaps = rest;
  return p;
}

json::array parts_json(const Parts& p) {
  struct Row {
    const char *kind, *what;
    Time time;
  };
  const Row rows[] = {
      {"prepare", "parsed, templated, tokenised", p.prepare},
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

std::string prompt_sentence(const RequestRecord& r) {
  const StepShare& s = r.prefill;
  std::string text = strf("Its prompt of %s", tokens_text(r.num_prompt).c_str());
  if (r.num_cached > 0) text += strf(" (%d of them from the prefix cache)", r.num_cached);
  text += strf(" took %s of %s", count_text(s.steps, "step", "steps").c_str(),
               time_text(s.time).c_str());
  if (s.other_prefill + s.other_decode > 0) {
    int64_t all = s.own + s.other_prefill + s.other_decode;
    text += strf(", which also computed %s of other prompts and %lld decodes: its share is %.0f %%",
                 tokens_text(s.other_prefill).c_str(), static_cast<long long>(s.other_decode),
                 100.0 * static_cast<double>(s.own) / static_cast<double>(all));
  } else {
    text += " that it had to itself";
  }
  return text + ".";
}

const char* part_text(TurnPart part) {
  switch (part) {
    case TurnPart::none:
      return "";
    case TurnPart::conversation:
      return "before that answer: the template wrote the conversation differently (system text, "
             "tools, a date)";
    case TurnPart::opening:
      return "in the words with which the template opened that answer";
    case TurnPart::thinking:
      return "in the thinking, which the template leaves out of earlier turns";
    case TurnPart::answer:
      return "in that answer, which came back or was written differently";
  }
  return "";
}

std::string turn_sentence(const RequestRecord& r) {
  const TurnDifference& t = r.turn;
  std::string text =
      strf("It goes on from request %llu, whose prompt and answer had %s: the first %s the same",
           static_cast<unsigned long long>(t.after), tokens_text(t.num_tokens).c_str(),
           count_text(t.num_same, "is", "are").c_str());
  text += t.part == TurnPart::none
              ? ", and nothing of that turn was written differently."
              : strf("; position %d is the first that differs, %s.", t.num_same, part_text(t.part));
  if (r.first_step == 0) return text;
  return text + strf(" Of its prompt, %s reused and %d computed.",
                     count_text(r.num_cached, "token was", "tokens were").c_str(),
                     r.num_prompt - r.num_cached);
}

std::string decode_sentence(const RequestRecord& r) {
  const StepShare &a = r.decode, &b = r.crowded;
  std::string text = strf("%s came out of %s", tokens_text(r.num_output).c_str(),
                          count_text(a.steps + b.steps, "decode step", "decode steps").c_str());
  if (a.steps > 0) {
    text +=
        strf(", %d without prompts (%s each, beside %.1f others on average)", a.steps,
             time_text(a.time / a.steps).c_str(), static_cast<double>(a.other_decode) / a.steps);
  }
  if (b.steps > 0) {
    text += strf(", %d together with %s of other prompts (%s each)", b.steps,
                 tokens_text(b.other_prefill).c_str(), time_text(b.time / b.steps).c_str());
    if (a.steps > 0 && b.time / b.steps > a.time / a.steps) {
      Time extra = b.time - a.time / a.steps * b.steps;
      text += strf(": those prompts cost it about %s", time_text(extra).c_str());
    }
  }
  return text + ".";
}

json::array sentences(const RequestRecord& r, const Parts& p) {
  json::array out;
  auto say = [&out](std::string text) { out.push_back(json::value(std::move(text))); };
  const char* end = r.live() ? "so far" : "in all";
  say(strf("%s %s, from the request being read to its last bytes being handed on.",
           time_text(p.total).c_str(), end));
  if (r.state == RequestState::refused) {
    say("The scheduler refused it.");
    return out;
  }
  if (r.first_scheduled == Time{0}) {
    say(strf("It has been in the queue for %s, waiting for a slot, for blocks or for its turn.",
             time_text(p.queued).c_str()));
    return out;
  }
  if (p.queued > Time(1'000'000))
    say(strf("It waited %s in the queue.", time_text(p.queued).c_str()));
  if (r.constraint) {
    say(strf("Its output had to match a constraint (%s), which %s.",
             name_of(constrain::kConstraintKinds, *r.constraint),
             r.compile == Time{0}
                 ? "was compiled already"
                 : strf("took %s to compile", time_text(r.compile).c_str()).c_str()));
  }
  if (r.turn.after != 0) say(turn_sentence(r));
  if (r.prefill.steps > 0) say(prompt_sentence(r));
  if (r.decode.steps + r.crowded.steps > 0) say(decode_sentence(r));
  if (r.num_preemptions > 0) {
    say(strf("It was put back %s for want of KV blocks, waited %s for them and computed %s again.",
             count_text(r.num_preemptions, "time", "times").c_str(), time_text(p.preempted).c_str(),
             tokens_text(r.num_recomputed).c_str()));
  }
  if (p.others > p.total / 50)
    say(strf("Steps it had no part in took %s meanwhile.", time_text(p.others).c_str()));
  if (p.gaps > p.total / 50) {
    say(strf("%s passed between steps: the step in flight when it came, planning, results.",
             time_text(p.gaps).c_str()));
  }
  if (r.delivered != Time{0} && p.delivery > Time(1'000'000))
    say(strf("Its end was written %s after the engine had it.", time_text(p.delivery).c_str()));
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

}  // namespace

std::optional<json::object> explain_request(const Recorder& recorder, RequestId id, Time now) {
  RequestRecord r;
  if (!recorder.request(id, r)) return {};
  std::vector<StepRecord> steps;
  std::vector<SliceRecord> slices;
  recorder.steps(r.first_step, r.last_step, Recorder::kSteps, steps, slices);

  std::vector<Segment> segments;
  std::map<RequestId, Neighbour> neighbours;
  Time others{0};  // of known steps without it
  for (const StepRecord& st : steps) {
    std::span<const SliceRecord> in(slices.data() + st.slice_at,
                                    static_cast<size_t>(st.num_slices));
    auto mine = std::find_if(in.begin(), in.end(), [&](const auto& s) { return s.req == id; });
    if (mine == in.end()) {
      others += st.end - st.begin;
      continue;
    }
    const char* kind = mine->prefill ? "prefill" : st.num_prefill > 0 ? "crowded" : "decode";
    segments.push_back({kind, st.begin, st.end});
    RequestId counted = id;
    for (const SliceRecord& s : in) {
      if (s.req == id) continue;
      Neighbour& n = neighbours[s.req];
      (s.prefill ? n.prefill : n.decode) += s.count;
      if (s.req != counted) ++n.steps;
      counted = s.req;
    }
  }
  Time in_steps = r.prefill.time + r.decode.time + r.crowded.time;
  Time busy = r.live() ? r.device_before + in_steps + others : r.device_after;
  Parts p = divide(r, now, busy);

  std::vector<std::pair<RequestId, Neighbour>> ranked(neighbours.begin(), neighbours.end());
  std::sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) {
    return a.second.prefill + a.second.decode > b.second.prefill + b.second.decode;
  });
  if (ranked.size() > kMaxNeighbours) ranked.resize(kMaxNeighbours);
  json::array with, timeline;
  for (const auto& [req, n] : ranked) {
    with.push_back(json::object{{"request", req},
                                {"steps", n.steps},
                                {"prefill_tokens", n.prefill},
                                {"decode_tokens", n.decode}});
  }
  Time begin = r.received != Time{0} ? r.received : r.arrival;
  for (const Segment& s : merge(segments))
    timeline.push_back(json::array{s.kind, seconds(s.begin - begin), seconds(s.end - begin)});

  json::object o;
  o["request"] = r.id;
  o["state"] = state_name(r);
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
  }
  o["recomputed_tokens"] = r.num_recomputed;
  if (r.turn.after != 0) o["turn"] = turn_json(r);
  o["first_step"] = r.first_step;
  o["last_step"] = r.last_step;
  o["seconds"] = seconds(p.total);
  if (r.first_token != Time{0}) o["ttft"] = seconds(r.first_token - r.arrival);
  o["parts"] = parts_json(p);
  o["sentences"] = sentences(r, p);
  o["with"] = std::move(with);
  o["num_with"] = neighbours.size();
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

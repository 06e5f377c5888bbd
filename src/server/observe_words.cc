#include "server/observe_words.h"

#include <algorithm>

#include "base/str.h"

namespace sluice {

Time begin_of(const RequestRecord& r) { return r.received != Time{0} ? r.received : r.arrival; }

Time prompts_cost(const RequestRecord& r) {
  const StepShare &a = r.decode, &b = r.crowded;
  if (a.steps == 0 || b.steps == 0) return Time{0};
  return std::max(b.time - a.time / a.steps * b.steps, Time{0});
}

RequestParts divide(const RequestRecord& r, Time now, Time device_busy) {
  RequestParts p;
  Time begin = begin_of(r);
  Time finish = r.finish != Time{0} ? r.finish : now;
  Time end = r.delivered != Time{0} ? r.delivered : finish;
  p.total = end - begin;
  p.compile = std::clamp(r.compile, Time{0}, std::max(r.arrival - begin, Time{0}));
  if (r.fetched)
    p.fetch =
        std::clamp(r.fetched->took, Time{0}, std::max(r.arrival - begin - p.compile, Time{0}));
  p.prepare = r.arrival - begin - p.compile - p.fetch;
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

namespace {

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
    if (Time extra = prompts_cost(r); extra > Time{0})
      text += strf(": those prompts cost it about %s", time_text(extra).c_str());
  }
  return text + ".";
}

}  // namespace

json::array story_sentences(const RequestRecord& r, const RequestParts& p) {
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
    say(strf("Its output had to match a constraint (%s), which %s; %s sampled under a mask.",
             name_of(constrain::kConstraintKinds, *r.constraint),
             r.compile == Time{0}
                 ? "was compiled already"
                 : strf("took %s to compile", time_text(r.compile).c_str()).c_str(),
             count_text(r.num_masked, "token was", "tokens were").c_str()));
  }
  if (r.fetched) {
    say(strf("Another server computed its prompt: K and V of %s came from there in %s%s.",
             tokens_text(r.fetched->num_tokens).c_str(), time_text(p.fetch).c_str(),
             r.fetched->whole ? "" : ", and the rest was computed here"));
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

}  // namespace sluice

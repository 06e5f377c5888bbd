// Runs the scenarios in tests/scheduler/*.plan against the scheduler. A scenario is data:
//
//   pool blocks=16 size=4              (first line)
//   groups 0 8                         windows of the cache groups, before policy; 0 = sees all
//   policy preset=sarathi budget=16    any knob: chunk mixed short batching prefill mix
//                                      order aging(=MS) admission predict delay prompts fill(=MS)
//                                      max_seqs max_len watermark prefix queue pipeline
//                                      allocator
//   add a prompt=10 max_new=2          also n= priority= shared=FAMILY:LEN tenant= account= score
//                                      stop=TOKEN text=STRING min= deadline=MS predicted=TOKENS
//   refuse b prompt=0 -> text          add must fail, its message holding the text
//   step -> a[0,10)* b[0,4)            plan, run, complete. '*' samples, '?' scores, '+' chained
//   input events -> a:length b:preempted     what the step or launch before it did to sequences
//   launch -> a[10,11)*+               plan without completing
//   done -> a:length                   complete the oldest step; expected finishes
//   emit a 7                           what the next sample of a gives
//   cancel a -> a:cancelled
//   flush 3                            forget cached prefixes; how many blocks became free
//   at 20                              milliseconds from now on
//   fail -> a:failed                   the oldest step comes back as a device failure
//   expect free=3 cached=2 pending=0 waiting=1 running=2 preemptions=0 copies=1 hits=8
//          unfilled=5 largest=8        of KvUse: positions
//
// After every line blocks are conserved; a copy of the scheduler plans the same and stays equal.
// Unknown verbs, keys and values fail, and so do finishes and preemptions that no line names.
#include "core/scheduler.h"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "core/fake_executor.h"
#include "core/policy.h"

namespace sluice {
namespace {

std::string format_plan(const StepPlan& plan, const std::map<Slot, std::string>& names) {
  std::string out;
  for (const Slice& s : plan.slices) {
    if (!out.empty()) out += ' ';
    out += names.at(s.slot) + "[" + std::to_string(s.pos) + "," + std::to_string(s.pos + s.count) +
           ")";
    if (s.want == Want::last || s.want == Want::all) out += '*';
    if (s.want == Want::score || s.want == Want::all) out += '?';
    if (s.chained) out += '+';
  }
  return out;
}

class Scenario {
 public:
  void run(const std::string& path) {
    std::ifstream in(path);
    ASSERT_TRUE(in.good()) << path;
    std::string line;
    for (int number = 1; std::getline(in, line); ++number) {
      line = line.substr(0, line.find('#'));
      std::istringstream words(line);
      std::string verb;
      if (!(words >> verb)) continue;
      SCOPED_TRACE(path + ":" + std::to_string(number) + ": " + line);
      std::string args = line.substr(line.find(verb) + verb.size()), want;
      if (size_t arrow = args.find("->"); arrow != std::string::npos) {
        want = trim(args.substr(arrow + 2));
        args = args.substr(0, arrow);
      }
      execute(verb, args, want);
      if (scheduler_) {
        EXPECT_TRUE(scheduler_->count_blocks().conserved());
      }
      if (testing::Test::HasFailure()) return;
    }
    ASSERT_TRUE(scheduler_) << path << " has no policy";
    EXPECT_EQ(take_events(), "") << path << ": an event at the end that no line names";
  }

 private:
  static std::string trim(const std::string& s) {
    size_t a = s.find_first_not_of(" \t"), b = s.find_last_not_of(" \t");
    return a == std::string::npos ? "" : s.substr(a, b - a + 1);
  }
  using Options = std::map<std::string, std::string>;
  // KEY=VALUE and flags, each of `keys` (with spaces around them).
  static Options options(std::istringstream& in, const std::string& keys) {
    Options m;
    for (std::string w; in >> w;) {
      size_t eq = w.find('=');
      std::string key = w.substr(0, eq);
      EXPECT_NE(keys.find(" " + key + " "), std::string::npos) << "unknown key " << key;
      EXPECT_FALSE(m.contains(key)) << key << " twice";
      m[key] = eq == std::string::npos ? "1" : w.substr(eq + 1);
    }
    return m;
  }
  template <typename T>
  static void choose(Options& o, const char* key, T& to, const std::map<std::string, T>& values) {
    if (!o.contains(key)) return;
    ASSERT_TRUE(values.contains(o[key])) << "unknown value of " << key;
    to = values.at(o[key]);
  }
  template <typename T, size_t n>
  static std::map<std::string, T> by_name(const NamedValue<T> (&table)[n]) {
    std::map<std::string, T> values;
    for (const auto& [name, value] : table) values[name] = value;
    return values;
  }
  // The rest of the line.
  template <typename T>
  static T only(std::istringstream& in) {
    T value{};
    std::string rest;
    EXPECT_TRUE(in >> value) << "a word is missing";
    EXPECT_FALSE(in >> rest) << "unknown word " << rest;
    return value;
  }

  void execute(const std::string& verb, const std::string& args, const std::string& want) {
    std::istringstream in(args);
    if (verb == "pool") return pool(options(in, " blocks size "));
    if (verb == "groups") {
      config_.group_windows.clear();
      for (int window; in >> window;) config_.group_windows.push_back(window);
      ASSERT_TRUE(in.eof()) << "a window is a number";
      return;
    }
    if (verb == "policy") {
      return policy(
          options(in,
                  " preset budget chunk mixed short batching prefill mix order aging "
                  "admission predict delay prompts fill max_seqs max_len watermark prefix "
                  "queue pipeline allocator "));
    }
    ASSERT_TRUE(scheduler_) << "policy must come first";
    if (verb == "add" || verb == "refuse") return add(in, verb == "refuse", want);
    if (verb == "emit") {
      std::string name;
      in >> name;
      emits_[name] = only<Token>(in);
    } else if (verb == "at") {
      now_ = std::chrono::milliseconds(only<int64_t>(in));
    } else if (verb == "flush") {
      EXPECT_EQ(scheduler_->flush_prefixes(), only<int>(in));
    } else if (verb == "cancel") {
      scheduler_->cancel(ids_.at(only<std::string>(in)), now_, events_);
      note_finishes();
      check_events(want);
    } else if (verb == "events") {
      EXPECT_EQ(take_events(), want);
    } else if (verb == "launch") {
      launch(want);
    } else if (verb == "done") {
      complete("");
      check_events(want);
    } else if (verb == "fail") {
      complete("device lost");
      check_events(want);
    } else if (verb == "step") {
      launch(want);
      if (!flights_.empty()) complete("");
    } else if (verb == "expect") {
      expect(options(in,
                     " free cached owned pending waiting running preemptions copies hits unfilled "
                     "largest "));
    } else {
      FAIL() << "unknown verb " << verb;
    }
  }

  void pool(Options o) {
    config_.num_blocks = std::stoi(o.at("blocks"));
    config_.block_size = std::stoi(o.at("size"));
    config_.max_len = 1000;
    config_.watermark = 0;
  }

  void policy(Options o) {
    if (o.contains("preset")) {
      ASSERT_TRUE(apply_preset(o["preset"], config_));
    }
    auto number = [&](const char* key, int& to) {
      if (o.contains(key)) to = std::stoi(o[key]);
    };
    number("budget", config_.budget);
    number("chunk", config_.chunk);
    number("mixed", config_.mixed_budget);
    number("max_seqs", config_.max_seqs);
    number("delay", config_.prefill_delay);
    number("prompts", config_.prefill_batch);
    number("max_len", config_.max_len);
    number("queue", config_.max_queued);
    if (o.contains("short")) config_.short_share = std::stof(o["short"]);
    if (o.contains("watermark")) config_.watermark = std::stof(o["watermark"]);
    choose(o, "prefix", config_.prefix_cache, {{"on", true}, {"off", false}});
    choose(o, "batching", config_.batching,
           {{"static", Batching::static_}, {"continuous", Batching::continuous}});
    choose(o, "prefill", config_.prefill,
           {{"whole", Prefill::whole}, {"chunked", Prefill::chunked}});
    choose(o, "mix", config_.mix, by_name(kMixes));
    choose(o, "order", config_.order, by_name(kOrders));
    choose(o, "admission", config_.admission, by_name(kAdmissions));
    choose(o, "allocator", config_.allocator, by_name(kAllocators));
    if (o.contains("predict")) config_.predictor = parse_predictor(o["predict"]).value();
    if (o.contains("aging")) config_.aging = std::chrono::milliseconds(std::stoi(o["aging"]));
    if (o.contains("fill")) config_.fill_wait = std::chrono::milliseconds(std::stoi(o["fill"]));
    choose(o, "pipeline", config_.pipeline, by_name(kPipelines));
    auto text = std::make_shared<TokenText>();
    for (int t = 0; t < 128; ++t) text->add(std::string(1, static_cast<char>(t)));
    scheduler_.emplace(config_, text);
  }

  void add(std::istringstream& in, bool refuse, const std::string& want) {
    std::string name;
    in >> name;
    auto o =
        options(in,
                " prompt max_new n priority shared tenant account score stop text min deadline "
                "predicted ");
    auto get = [&](const char* key, int fallback) {
      return o.contains(key) ? std::stoi(o[key]) : fallback;
    };
    Request r;
    r.id = next_id_++;
    auto prompt = std::make_shared<std::vector<Token>>();
    int shared = 0, family = 0;
    if (o.contains("shared")) {
      family = o["shared"][0];
      shared = std::stoi(o["shared"].substr(o["shared"].find(':') + 1));
    }
    for (int i = 0; i < get("prompt", 1); ++i) {
      prompt->push_back(i < shared ? family * 10000 + i : static_cast<Token>(r.id) * 1000000 + i);
    }
    r.prompt = prompt;
    auto spec = std::make_shared<SamplingSpec>();
    if (o.contains("score")) spec->prompt_logprobs = 0;
    spec->min_tokens = get("min", 0);
    r.sampling = spec;
    r.max_new = get("max_new", 1);
    r.predicted_output = get("predicted", 0);
    r.n = get("n", 1);
    r.priority = get("priority", 0);
    r.tenant = static_cast<TenantId>(get("tenant", 0));
    r.account = static_cast<TenantId>(get("account", 0));
    if (o.contains("stop")) r.stop.tokens = {std::stoi(o["stop"])};
    if (o.contains("text")) r.stop.strings = {o["text"]};
    if (o.contains("deadline")) r.deadline = now_ + std::chrono::milliseconds(get("deadline", 0));
    r.arrival = now_;
    RequestId id = r.id;
    auto ok = scheduler_->add(std::move(r), now_);
    if (refuse) {
      ASSERT_FALSE(ok);
      EXPECT_NE(ok.error().message.find(want), std::string::npos) << ok.error().message;
      return;
    }
    ASSERT_TRUE(ok) << ok.error().message;
    ids_[name] = id;
    names_[id] = name;
    choices_[id] = get("n", 1);
  }

  std::string name_of(SeqId id) const {
    return names_.at(id.req) + (choices_.at(id.req) > 1 ? "." + std::to_string(id.choice) : "");
  }

  void launch(const std::string& want) {
    EXPECT_EQ(take_events(), "") << "an event before this line that no line names";
    Scheduler copy = *scheduler_;
    EXPECT_TRUE(copy == *scheduler_);
    StepPlan plan, again;
    Events other;
    scheduler_->plan(now_, plan, events_);
    if (!plan.empty()) {
      EXPECT_FALSE(copy == *scheduler_);
    }
    copy.plan(now_, again, other);
    EXPECT_EQ(plan, again);
    EXPECT_TRUE(copy == *scheduler_);
    for (const TableEdit& e : plan.edits) EXPECT_LT(e.group, config_.group_windows.size());
    note_finishes();
    for (const RowOp& op : plan.rows) {
      if (op.kind == RowOp::open) slots_[op.slot] = name_of(op.id);
      // A row that closes before its sequence has finished.
      if (op.kind == RowOp::close && !finished_.contains(op.id)) preempted_.push_back(op.id);
    }
    int tokens = 0;
    for (size_t i = 0; i < plan.slices.size(); ++i) {
      tokens += plan.slices[i].count;
      EXPECT_EQ(plan.slices[i].count == 1, static_cast<int>(i) < plan.num_decode);
    }
    EXPECT_EQ(tokens, plan.num_tokens);
    EXPECT_LE(tokens, scheduler_->max_step_tokens());
    num_copies_ += static_cast<int>(plan.transfers.size());
    EXPECT_EQ(format_plan(plan, slots_), want);
    if (plan.empty()) return;
    std::map<Slot, std::string> names = slots_;
    flights_.push_back({plan, names});
  }

  void complete(const std::string& failure) {
    ASSERT_FALSE(flights_.empty());
    auto [plan, names] = std::move(flights_.front());
    flights_.pop_front();
    StepResult r;
    auto draw = [&, &slots = names](const StepPlan&, const Slice& s) {
      auto emit = emits_.extract(slots.at(s.slot));
      return emit ? emit.mapped() : Token{1000 + s.pos + s.count};
    };
    FakeExecutor::answer(plan, draw, r);
    r.failure = failure;
    scheduler_->complete(r, now_, events_);
    note_finishes();
  }

  void note_finishes() {
    for (const Event& e : events_.list) {
      if (e.finish != Finish::none) finished_.insert({e.req, e.choice});
    }
  }
  // Finishes that no line has named yet.
  std::string take_finishes() {
    std::string got;
    for (const Event& e : events_.list) {
      if (e.finish == Finish::none) continue;
      if (!got.empty()) got += ' ';
      got += name_of({e.req, e.choice}) + ":" + finish_name(e.finish);
      if (e.last) {
        EXPECT_TRUE(ended_.insert({e.req, true}).second) << "a second terminal event";
      }
    }
    events_.clear();
    return got;
  }
  // The same with preemptions.
  std::string take_events() {
    std::string got = take_finishes();
    for (SeqId id : std::exchange(preempted_, {})) {
      if (!got.empty()) got += ' ';
      got += name_of(id) + ":preempted";
    }
    return got;
  }
  void check_events(const std::string& want) { EXPECT_EQ(take_finishes(), want); }

  void expect(Options o) {
    BlockCounts c = scheduler_->count_blocks();
    SchedulerStats st = scheduler_->stats();
    KvUse use = scheduler_->kv_use();
    std::map<std::string, int> have = {{"free", c.free},
                                       {"cached", c.cached},
                                       {"owned", c.owned},
                                       {"pending", c.pending},
                                       {"waiting", st.num_waiting},
                                       {"running", st.num_running},
                                       {"preemptions", static_cast<int>(st.num_preemptions)},
                                       {"copies", num_copies_},
                                       {"hits", static_cast<int>(st.prefix_hits)},
                                       {"unfilled", static_cast<int>(use.unfilled)},
                                       {"largest", static_cast<int>(use.largest)}};
    for (const auto& [key, value] : o) {
      ASSERT_TRUE(have.contains(key)) << key;
      EXPECT_EQ(have[key], std::stoi(value)) << key;
    }
  }

  SchedulerConfig config_;
  std::optional<Scheduler> scheduler_;
  std::map<std::string, RequestId> ids_;
  std::map<RequestId, std::string> names_;
  std::map<RequestId, int> choices_;
  std::map<RequestId, bool> ended_;
  std::set<SeqId> finished_;
  std::vector<SeqId> preempted_;  // since the last line that names events
  std::map<Slot, std::string> slots_;
  std::map<std::string, Token> emits_;
  std::deque<std::pair<StepPlan, std::map<Slot, std::string>>> flights_;
  Events events_;
  Time now_{0};
  RequestId next_id_ = 1;
  int num_copies_ = 0;
};

std::vector<std::string> scenarios() {
  std::vector<std::string> files;
  for (const auto& e : std::filesystem::directory_iterator(SLUICE_SOURCE_DIR "/tests/scheduler")) {
    if (e.path().extension() == ".plan") files.push_back(e.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

class SchedulerScenario : public testing::TestWithParam<std::string> {};

TEST_P(SchedulerScenario, Plays) { Scenario().run(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Files,
                         SchedulerScenario,
                         testing::ValuesIn(scenarios()),
                         [](const auto& test) {
                           std::string s = std::filesystem::path(test.param).stem();
                           std::replace(s.begin(), s.end(), '-', '_');
                           return s;
                         });

}  // namespace
}  // namespace sluice

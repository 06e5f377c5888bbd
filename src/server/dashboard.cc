#include "server/dashboard.h"

#include <pthread.h>

#include <algorithm>
#include <charconv>

#include "base/failure.h"
#include "base/str.h"
#include "core/policy.h"
#include "server/block_map.h"
#include "server/observe_explain.h"
#include "server/routes.h"
#include "server/write_json.h"

namespace sluice {

namespace {

void append_number(std::string& out, int64_t n) {
  char text[24];
  out.append(text, std::to_chars(text, text + sizeof text, n).ptr);
}

int64_t micros(Time t) { return t.count() / 1000; }

// [a,b,c] of numbers.
void append_row(std::string& out, std::initializer_list<int64_t> numbers) {
  char before = '[';
  for (int64_t n : numbers) {
    out += before;
    append_number(out, n);
    before = ',';
  }
  out += ']';
}

// "name":[row,row], each made by `row`.
template <typename List, typename Row>
void append_list(std::string& out, const char* name, const List& list, Row row) {
  out += strf(",\"%s\":[", name);
  bool some = false;
  for (const auto& item : list) {
    if (some) out += ',';
    some = true;
    row(item);
  }
  out += ']';
}

std::string preset_name(const SchedulerConfig& c) {
  for (const std::string& name : preset_names()) {
    SchedulerConfig p = c;
    if (!apply_preset(name, p)) continue;
    if (p.batching == c.batching && p.prefill == c.prefill && p.mix == c.mix &&
        p.admission == c.admission)
      return name;
  }
  return "custom";
}

void append_percentiles(std::string& out, const char* name, const Buckets& b) {
  out += strf("\"%s\":{\"count\":%llu,\"p50\":%.6f,\"p90\":%.6f,\"p99\":%.6f}", name,
              static_cast<unsigned long long>(b.total), b.percentile(0.5), b.percentile(0.9),
              b.percentile(0.99));
}

}  // namespace

std::string hello_json(const Session& session,
                       const std::string& name,
                       const std::string& version) {
  const EngineOptions& o = session.options();
  const SchedulerConfig& c = o.scheduler;
  json::object h;
  h["model"] = name;
  h["version"] = version;
  h["now"] = micros(session.clock().now());
  h["device"] = session.backend().describe();
  h["preset"] = preset_name(c);
  h["pipeline"] = name_of(kPipelines, c.pipeline);
  h["order"] = name_of(kOrders, c.order);
  h["allocator"] = name_of(kAllocators, c.allocator);
  h["prefix_cache"] = c.prefix_cache;
  h["budget"] = c.budget;
  bool chunked = c.mix == Mix::mixed && c.prefill == Prefill::chunked;
  h["chunk"] = chunked ? c.chunk : 0;
  h["mixed_budget"] = chunked ? c.mixed_budget : 0;
  h["short_share"] = chunked ? c.short_share : 0;
  h["slo"] = c.slo.any() ? slo_target_name(c.slo) : "";
  h["max_seqs"] = std::min(c.max_seqs, c.budget);
  h["max_len"] = c.max_len;
  h["num_blocks"] = c.num_blocks;
  h["block_size"] = c.block_size;
  const Ledger& l = session.ledger();
  h["weights_bytes"] = l.weights;
  h["kv_bytes"] = l.kv;
  h["tier_bytes"] = l.tiers;
  h["disk_blocks"] = c.tiers.disk;
  h["workspace_bytes"] = l.workspace;
  h["vocabulary"] = session.model().shape().vocab;
  h["chat"] = session.chat_template() != nullptr;
  return plain_json(h);
}

void append_frame(std::string& out, const Recorder::Snapshot& s, Time now, bool first) {
  out += "{\"now\":";
  append_number(out, micros(now));
  // step, plan begin, plan end, device begin, device end, complete begin, complete end; prompt
  // tokens, decode tokens, slices, running, waiting, available blocks. Times in us.
  append_list(out, "steps", s.steps, [&](const StepRecord& r) {
    append_row(out,
               {static_cast<int64_t>(r.step), micros(r.plan_begin), micros(r.plan_end),
                micros(r.begin), micros(r.end), micros(r.complete_begin), micros(r.complete_end),
                r.num_prefill, r.num_decode, r.num_slices, r.running, r.waiting, r.available});
  });
  // Launched and not completed: step, plan begin, plan end; prompt tokens, decode tokens, slices.
  append_list(out, "in_flight", s.in_flight, [&](const StepRecord& r) {
    append_row(out, {static_cast<int64_t>(r.step), micros(r.plan_begin), micros(r.plan_end),
                     r.num_prefill, r.num_decode, r.num_slices});
  });
  out += ",\"skipped\":";
  append_number(out, static_cast<int64_t>(s.num_skipped));
  // second; output, prompt tokens; requests finished; TTFT p50, p95, ITL p50, p95 in us; most
  // running, most waiting; busy time of the device in us.
  append_list(out, "seconds", s.seconds, [&](const Second& r) {
    auto us = [](const Buckets& b, double p) {
      return static_cast<int64_t>(b.percentile(p) * 1e6);
    };
    append_row(out, {r.second, r.output_tokens, r.prefill_tokens, r.finished, us(r.ttft, 0.5),
                     us(r.ttft, 0.95), us(r.itl, 0.5), us(r.itl, 0.95), r.running, r.waiting,
                     micros(r.busy)});
  });
  append_list(out, "requests", s.requests, [&](const RequestRecord& r) {
    out += strf("[%llu,\"%s\",%d,", static_cast<unsigned long long>(r.id), state_name(r), r.key);
    append_number(out, micros(r.arrival));
    // prompt, cached, output, most output, preemptions, choices; TTFT and time in all, in us
    for (int64_t n : {int64_t{r.num_prompt}, int64_t{r.num_cached}, int64_t{r.num_output},
                      int64_t{r.max_new}, int64_t{r.num_preemptions}, int64_t{r.n},
                      r.first_token == Time{0} ? -1 : micros(r.first_token - r.arrival),
                      r.live() ? -1 : micros(r.finish - r.arrival)}) {
      out += ',';
      append_number(out, n);
    }
    out += ']';
  });
  out += strf(",\"live\":%zu,\"latency\":{", s.num_live);
  append_percentiles(out, "ttft", s.ttft);
  out += ',';
  append_percentiles(out, "itl", s.itl);
  out += '}';
  if (s.map_changed) {
    std::array<int64_t, kNumBlockUses> counts{};
    for (BlockUse use : s.blocks) ++counts[static_cast<size_t>(use)];
    size_t scale = 1;
    std::string map = block_map(s.blocks, Dashboard::kMaxCells, scale);
    out += strf(",\"blocks\":{\"scale\":%zu,\"counts\":", scale);
    append_row(out, {counts[0], counts[1], counts[2], counts[3], counts[4], counts[5]});
    out += ",\"map\":\"" + map + "\"}";
  }
  if (!first && !s.hits.empty())
    append_list(out, "hits", s.hits, [&](BlockId b) { append_number(out, b - 1); });
  const SchedulerStats& t = s.totals.stats;
  out += ",\"totals\":";
  // steps, output tokens, prompt tokens, finished, preemptions, prefix queries, prefix hits,
  // running, waiting, available blocks; blocks that went out and came in, tokens of prefix hits
  // that came in, and of those, that came from disk
  append_row(
      out, {static_cast<int64_t>(s.totals.steps), static_cast<int64_t>(s.totals.output_tokens),
            static_cast<int64_t>(s.totals.prefill_tokens), static_cast<int64_t>(s.totals.finished),
            static_cast<int64_t>(t.num_preemptions), static_cast<int64_t>(t.prefix_queries),
            static_cast<int64_t>(t.prefix_hits), t.num_running, t.num_waiting, t.available_blocks,
            static_cast<int64_t>(t.tiers.blocks_out), static_cast<int64_t>(t.tiers.blocks_in),
            static_cast<int64_t>(t.tiers.prefix_hits), static_cast<int64_t>(t.tiers.disk_hits)});
  if (t.slo.num_learnt > 0) {
    // prompt tokens that the last choice allows; what the last step was to take and took, in us;
    // tokens beyond the target, of a million
    auto millionths = [](double v) { return static_cast<int64_t>(v * 1e6); };
    out += ",\"slo\":";
    append_row(out, {t.slo.prompt_tokens, millionths(t.slo.last_predicted),
                     millionths(t.slo.last_seconds), millionths(t.slo.late)});
  }
  out += '}';
}

Dashboard::~Dashboard() {
  drain();
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Dashboard::attach(Session& session) {
  std::lock_guard lock(mutex_);
  session_ = &session;
}

void Dashboard::forget_closed() {
  std::erase_if(watchers_, [](const Watcher& w) { return w.out->closed(); });
}

bool Dashboard::add(std::shared_ptr<Responder> out,
                    HttpResponse head,
                    std::string_view hello,
                    std::chrono::milliseconds interval) {
  {
    std::lock_guard lock(mutex_);
    forget_closed();
    if (draining_ || watchers_.size() >= kMaxWatchers) return false;
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    watchers_.reserve(kMaxWatchers);
    out->start(std::move(head));
    try {
      out->write(hello);
    } catch (...) {
      out->abort();
      throw;
    }
    watchers_.push_back({std::move(out), interval, std::chrono::steady_clock::now(), {}, false});
    recorder_.watch(true);
    session_->engine().poke();
  }
  changed_.notify_all();
  return true;
}

void Dashboard::drain() {
  std::lock_guard lock(mutex_);
  draining_ = true;
  for (Watcher& w : watchers_) {
    try {
      w.out->write("event: bye\ndata: {\"reason\":\"the server is shutting down\"}\n\n");
      w.out->finish();
    } catch (...) {
      w.out->abort();
    }
  }
  watchers_.clear();
  recorder_.watch(false);
}

void Dashboard::send(Watcher& w) {
  Time now = session_->clock().now();
  recorder_.read(w.cursor, {}, now, snapshot_);
  text_ = "event: frame\ndata: ";
  append_frame(text_, snapshot_, now, !w.begun);
  text_ += "\n\n";
  w.begun = true;
  w.out->write(text_);
}

void Dashboard::run() {
  pthread_setname_np(pthread_self(), "dashboard");
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    forget_closed();
    if (watchers_.empty()) {
      recorder_.watch(false);
      changed_.wait(lock, [&] { return stopping_ || !watchers_.empty(); });
      continue;
    }
    auto next = std::min_element(watchers_.begin(), watchers_.end(),
                                 [](const auto& a, const auto& b) { return a.due < b.due; });
    auto now = std::chrono::steady_clock::now();
    if (next->due > now) {
      changed_.wait_until(lock, next->due);
      continue;
    }
    try {
      send(*next);
    } catch (
        ...) {  // its cursor may have moved: a frame was lost, so the watcher has to begin again
      log_exception("dashboard");
      next->out->abort();
      watchers_.erase(next);
      continue;
    }
    // A tick that comes late is not made up for.
    next->due = std::max(next->due + next->interval, now);
    session_->engine().poke();  // for blocks as they are at the next tick
  }
}

// ---- routes ----

void serve_watch(Service& s, Call call) {
  if (Refusal r = s.check_ready()) return s.fail(call, *r);
  int interval = 250;
  std::string_view query = call.http.query;
  constexpr std::string_view kName = "interval=";
  if (query.starts_with(kName)) {
    query.remove_prefix(kName.size());
    auto [end, error] = std::from_chars(query.data(), query.data() + query.size(), interval);
    if (error != std::errc{} || end != query.data() + query.size() || interval < 100 ||
        interval > 5000)
      return s.fail(call, {400, "interval must be 100 to 5000 (ms)", "interval", ""});
  }
  HttpResponse head;
  head.content_type = "text/event-stream; charset=utf-8";
  head.headers = {{"Cache-Control", "no-store"},
                  {"X-Accel-Buffering", "no"},
                  {"X-Content-Type-Options", "nosniff"},
                  {"x-request-id", call.id}};
  std::string hello = "event: hello\ndata: " +
                      hello_json(s.session(), s.options().model_names[0], s.options().version) +
                      "\n\n";
  if (s.dashboard().add(call.out, std::move(head), hello, std::chrono::milliseconds(interval))) {
    s.log(call, 200);
    return s.meters().on_response(200);
  }
  s.fail(call, {429, strf("%zu are watching already", Dashboard::kMaxWatchers), "", "watchers"});
}

namespace {

// The number at the end of the path, 0 where there is none.
uint64_t last_number(const std::string& path) {
  uint64_t n = 0;
  const char* begin = path.data() + path.rfind('/') + 1;
  const char* end = path.data() + path.size();
  auto [stop, error] = std::from_chars(begin, end, n);
  return error == std::errc{} && stop == end ? n : 0;
}

}  // namespace

void serve_step_story(Service& s, Call call) {
  if (Refusal r = s.check_ready()) return s.fail(call, *r);
  auto story = explain_step(s.recorder(), last_number(call.http.path));
  if (story) return s.reply_json(call, *story);
  s.fail(call, {404, "there is no such step, or it was too long ago", "", "not_found"});
}

}  // namespace sluice

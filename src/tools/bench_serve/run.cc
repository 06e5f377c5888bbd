#include "tools/bench_serve/run.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>

#include "base/str.h"
#include "net/sse_reader.h"
#include "tools/bench_serve/chunk.h"

namespace sluice {

namespace {

using std::chrono::steady_clock;

constexpr double kTick = 0.02, kPause = 0.1;
constexpr size_t kMaxAnswer = size_t{64} << 20;

double thread_cpu() {
  rusage u{};
  getrusage(RUSAGE_THREAD, &u);
  auto s = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return s(u.ru_utime) + s(u.ru_stime);
}

Fate fate_of(HttpFailure f) {
  switch (f) {
    case HttpFailure::none:
      return Fate::ok;
    case HttpFailure::connect:
      return Fate::connect;
    case HttpFailure::timeout:
      return Fate::timeout;
    case HttpFailure::stalled:
      return Fate::stalled;
    case HttpFailure::closed:
      return Fate::closed;
    case HttpFailure::broken:
      return Fate::broken;
    case HttpFailure::malformed:
      return Fate::malformed;
    case HttpFailure::cancelled:
      return Fate::cancelled;
  }
  return Fate::broken;
}

class Run;

// One request in flight.
class Exchange final : public HttpListener {
 public:
  explicit Exchange(Run& run) : run_(run) {}
  LoadRecord record;

  void on_begin() override;
  void on_sent() override;
  void on_head(int status, const HttpHeaders& headers) override;
  void on_body(std::string_view bytes) override;
  void on_end(HttpFailure failure, const std::string& detail) override;

 private:
  void on_event(std::string_view data);
  void take(const ChunkInfo& chunk);
  void judge(HttpFailure failure, const std::string& detail);

  Run& run_;
  SseReader sse_;
  ChunkInfo chunk_;
  std::string body_;  // of what is not a stream
  double now_ = 0;    // when the bytes at hand came
  bool stream_ = false, done_ = false, bad_ = false, error_ = false;
};

class Run {
 public:
  Run(const Target& target, const RunSetup& setup)
      : target_(target), setup_(setup), arrivals_(setup.point, setup.seed) {}

  RunResult go();

  double now() const { return std::chrono::duration<double>(steady_clock::now() - start_).count(); }
  void count_token(double time);
  void over(Exchange& exchange);
  const RunSetup& setup() const { return setup_; }
  RunResult result;

 private:
  bool open_loop() const { return setup_.point.concurrency == 0; }
  bool more() const;
  void send_next(double due);
  void schedule_next();
  void on_tick();
  // Calls `f` at that time of the run, unless the run is over by then.
  template <typename F>
  void at(double time, F f) {
    auto when = start_ + std::chrono::duration_cast<steady_clock::duration>(
                             std::chrono::duration<double>(time));
    target_.client.at(when, [weak = std::weak_ptr<bool>(alive_), f] {
      if (weak.lock()) f();
    });
  }

  const Target& target_;
  const RunSetup& setup_;
  ArrivalTimes arrivals_;
  steady_clock::time_point start_;
  uint64_t sent_ = 0, done_ = 0, failed_ = 0, tokens_ = 0;
  std::map<uint64_t, std::unique_ptr<Exchange>> live_;
  std::vector<std::unique_ptr<Exchange>> ended_;  // freed by the tick: one may be on the stack
  double next_tick_ = 0;
  uint64_t num_ticks_ = 0;
  bool arrivals_over_ = false, ending_ = false;
  size_t pausing_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

void Exchange::on_begin() { record.begin = run_.now(); }

void Exchange::on_sent() { record.sent = run_.now(); }

void Exchange::on_head(int status, const HttpHeaders& headers) {
  record.status = status;
  for (const auto& [name, value] : headers) {
    if (name == "content-type" && status == 200) stream_ = value.starts_with("text/event-stream");
    if (name == "retry-after") record.retry_after = std::atof(value.c_str());
  }
}

void Exchange::on_body(std::string_view bytes) {
  now_ = run_.now();
  if (!stream_) {
    if (body_.size() + bytes.size() > kMaxAnswer) {
      bad_ = true;
    } else {
      body_ += bytes;
    }
    return;
  }
  if (bad_) return;
  if (!sse_.feed(bytes, [&](std::string_view data) { on_event(data); })) bad_ = true;
}

void Exchange::on_event(std::string_view data) {
  if (data == "[DONE]") {
    done_ = true;
    return;
  }
  if (!read_chunk(data, run_.setup().keep_text, chunk_)) {
    bad_ = true;
    if (record.message.empty()) record.message = "not JSON: " + quote(data);
    return;
  }
  take(chunk_);
}

void Exchange::take(const ChunkInfo& c) {
  if (c.is_error) {
    error_ = true;
    record.message = quote(c.message, 200);
  }
  if (c.has_text) {
    if (record.first < 0) {
      record.first = now_;
    } else {
      double gap = now_ - record.last;
      record.max_gap = std::max(record.max_gap, gap);
      record.gaps.add(gap);
      run_.result.gaps.add(gap);
    }
    record.last = now_;
    ++record.chunks;
    run_.count_token(now_);
  }
  if (run_.setup().keep_text) record.text += c.text;
  if (!c.finish.empty()) record.finish = c.finish;
  if (c.has_usage) {
    record.has_usage = true;
    record.input_tokens = c.prompt_tokens;
    record.output_tokens = c.completion_tokens;
    record.cached_tokens = c.cached_tokens;
  }
}

void Exchange::judge(HttpFailure failure, const std::string& detail) {
  record.fate = fate_of(failure);
  if (failure != HttpFailure::none) {
    record.message = detail;
    return;
  }
  if (record.status != 200) {
    record.fate = Fate::http_status;
    ChunkInfo c;
    record.message =
        quote(read_chunk(body_, false, c) && c.is_error ? c.message : body_.substr(0, 200), 200);
    return;
  }
  if (!stream_ && !bad_) {
    if (read_chunk(body_, run_.setup().keep_text, chunk_) && chunk_.has_choice) {
      take(chunk_);
    } else {
      bad_ = true;
      record.message = "not an answer: " + quote(body_);
    }
  }
  if (error_) {
    record.fate = Fate::error_event;
  } else if (bad_) {
    record.fate = Fate::malformed;
  } else if (stream_ && (record.finish.empty() || sse_.within_event())) {
    record.fate = Fate::broken;
    record.message = "the stream ended without a finish_reason";
  } else if (stream_ && !done_) {
    record.fate = Fate::broken;
    record.message = "the stream ended without [DONE]";
  } else if (run_.setup().want_all_tokens && record.has_usage && record.max_tokens > 0 &&
             record.output_tokens < record.max_tokens) {
    record.fate = Fate::short_answer;
    record.message =
        strf("%lld of %d tokens, finish_reason %s", static_cast<long long>(record.output_tokens),
             record.max_tokens, quote(record.finish).c_str());
  }
}

void Exchange::on_end(HttpFailure failure, const std::string& detail) {
  record.end = run_.now();
  if (record.begin < 0) record.begin = record.end;  // cancelled while it waited for a connection
  now_ = record.end;
  judge(failure, detail);
  if (record.has_usage) {
    if (record.chunks > record.output_tokens) ++run_.result.odd_counts;
  } else {
    record.output_tokens = record.chunks;
  }
  run_.over(*this);
}

bool Run::more() const {
  const RunLimits& l = setup_.limits;
  if (ending_ || (l.requests && sent_ >= *l.requests)) return false;
  if (setup_.trace && sent_ >= setup_.trace->size()) return false;
  return !l.duration || now() < *l.duration;
}

void Run::send_next(double due) {
  auto exchange = std::make_unique<Exchange>(*this);
  LoadRecord& r = exchange->record;
  r.index = sent_++;
  r.due = due;
  std::string body = setup_.make_body(r.index, r);
  std::string bytes = http_request_bytes(target_.url, "POST", setup_.path, target_.headers, body);
  Exchange& e = *exchange;
  live_[r.index] = std::move(exchange);
  target_.client.send(std::move(bytes), e);
}

// Open loop: everything that is due, then a timer for the next.
void Run::schedule_next() {
  while (more()) {
    double due = setup_.trace ? (*setup_.trace)[sent_].at / setup_.time_scale : arrivals_.next();
    if (setup_.limits.duration && due >= *setup_.limits.duration) break;
    if (due > now()) {
      at(due, [this, due] {
        if (ending_) return;
        send_next(due);
        schedule_next();
      });
      return;
    }
    send_next(due);
  }
  arrivals_over_ = true;
}

void Run::count_token(double time) {
  ++tokens_;
  auto bin = static_cast<size_t>(std::max(time, 0.0) / kBinSeconds);
  if (bin >= result.tokens_per_bin.size() && bin < 10'000'000)
    result.tokens_per_bin.resize(bin + 1);
  if (bin < result.tokens_per_bin.size()) ++result.tokens_per_bin[bin];
}

void Run::over(Exchange& e) {
  ++done_;
  if (e.record.failed()) ++failed_;
  Fate fate = e.record.fate;
  auto node = live_.find(e.record.index);
  result.records.push_back(std::move(e.record));
  ended_.push_back(std::move(node->second));
  live_.erase(node);
  if (open_loop() || !more()) return;
  if (fate == Fate::ok) return send_next(now());
  // A server that refuses is asked again a little later, as a client would.
  ++pausing_;
  at(now() + kPause, [this] {
    --pausing_;
    if (more()) send_next(now());
  });
}

void Run::on_tick() {
  double t = now();
  result.lag.add(std::max(t - next_tick_, 0.0));
  ended_.clear();
  if (!ending_ && setup_.interrupted && setup_.interrupted()) {
    ending_ = arrivals_over_ = true;
    result.interrupted = true;
    target_.client.cancel_all();
    ended_.clear();
  }
  if (setup_.progress && num_ticks_++ % 5 == 0)
    setup_.progress({t, sent_, done_, failed_, tokens_, live_.size()});
  next_tick_ = t + kTick;
  at(next_tick_, [this] { on_tick(); });
}

RunResult Run::go() {
  result.point = setup_.point;
  HttpClient::Stats before = target_.client.stats();
  start_ = steady_clock::now();
  double cpu = thread_cpu();
  on_tick();
  if (open_loop()) {
    schedule_next();
  } else {
    for (int i = 0; i < setup_.point.concurrency && more(); ++i) send_next(now());
    arrivals_over_ = true;
  }
  target_.client.run_until(
      [&] { return (ending_ || arrivals_over_) && live_.empty() && (pausing_ == 0 || !more()); });
  HttpClient::Stats after = target_.client.stats();
  result.connections = after.connections - before.connections;
  result.stale = after.stale - before.stale;
  std::sort(result.records.begin(), result.records.end(),
            [](const LoadRecord& a, const LoadRecord& b) { return a.index < b.index; });
  double begin = 1e300, end = 0, last_send = 0;
  for (const LoadRecord& r : result.records) {
    begin = std::min(begin, r.begin);
    end = std::max(end, r.end);
    last_send = std::max(last_send, r.begin);
    result.lateness.add(std::max(r.begin - r.due, 0.0));
  }
  result.elapsed = std::max(end - begin, 1e-9);
  result.send_window = std::max(last_send - begin, 0.0);
  result.client_cpu = (thread_cpu() - cpu) / std::max(now(), 1e-9);
  return std::move(result);
}

}  // namespace

const char* fate_name(Fate fate) {
  static constexpr const char* kNames[kNumFates] = {
      "ok",        "connect",     "timeout",     "stalled",      "closed",       "broken",
      "malformed", "http_status", "error_event", "short_answer", "text_differs", "cancelled"};
  return kNames[static_cast<size_t>(fate)];
}

bool LoadRecord::good(const Slo& slo) const {
  if (!ok() || first < 0) return false;
  auto keeps = [](double value, double limit) { return limit <= 0 || value <= limit; };
  return keeps(ttft(), slo.ttft) && keeps(tpot(), slo.tpot) && keeps(max_gap, slo.itl) &&
         keeps(e2e(), slo.e2e);
}

RunResult run_load(const Target& target, const RunSetup& setup) { return Run(target, setup).go(); }

}  // namespace sluice

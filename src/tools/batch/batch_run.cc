#include "tools/batch/batch_run.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/str.h"

namespace sluice {

namespace {

using Steady = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kMaxAnswer = size_t{64} << 20;
constexpr double kFirstPause = 0.5, kMostPause = 10, kMostRetryAfter = 60;  // seconds

Steady::duration in_seconds(double s) {
  return std::chrono::duration_cast<Steady::duration>(std::chrono::duration<double>(s));
}

struct Job {
  size_t index = 0;
  int tries = 0;  // that failed
};

// What the servers' threads share.
class Queue {
 public:
  Queue(BatchInput& input, BatchOutput& output) : input_(input), output_(output) {
    for (size_t i = 0; i < input.size(); ++i)
      if (!output.done()[i]) waiting_.push_back({i, 0});
    left_ = waiting_.size();
  }

  // The next request and its line; nothing: none waits now, or the run is over.
  std::optional<std::pair<Job, BatchLine>> take() {
    std::lock_guard lock(mutex_);
    if (stopped_ || waiting_.empty()) return std::nullopt;
    const Job job = waiting_.front();
    Result<BatchLine> line = input_.read(job.index);
    if (!line) return stop_locked(line.error().message), std::nullopt;
    waiting_.pop_front();
    return std::pair(job, std::move(*line));
  }
  void put_first(const Job& job) {  // it was not the request's fault
    std::lock_guard lock(mutex_);
    waiting_.push_front(job);
  }
  void put_last(const Job& job) {  // so that another server may have it
    std::lock_guard lock(mutex_);
    waiting_.push_back(job);
  }
  void finish(const Job& job, const BatchResult& result) {
    std::lock_guard lock(mutex_);
    if (auto ok = output_.add(job.index, result); !ok) return stop_locked(ok.error().message);
    failed_ += result.status == 0 || result.status >= 500;
    --left_;
  }
  void stop(const std::string& why) {
    std::lock_guard lock(mutex_);
    stop_locked(why);
  }

  bool over() const {
    std::lock_guard lock(mutex_);
    return stopped_ || left_ == 0;
  }
  bool stopped() const {
    std::lock_guard lock(mutex_);
    return stopped_;
  }
  size_t num_done() const {
    std::lock_guard lock(mutex_);
    return output_.num_done();
  }
  BatchEnd end() const {
    std::lock_guard lock(mutex_);
    return {failed_, false, why_};
  }

 private:
  void stop_locked(const std::string& why) {
    if (!stopped_) why_ = why;
    stopped_ = true;
  }

  BatchInput& input_;
  BatchOutput& output_;
  mutable std::mutex mutex_;  // of all here, and of both files
  std::deque<Job> waiting_;
  size_t left_ = 0, failed_ = 0;
  bool stopped_ = false;
  std::string why_;
};

class Server;

// One request in flight.
class Exchange final : public HttpListener {
 public:
  Exchange(Server& server, Job which, std::string custom_id) : server_(server), job(which) {
    result.custom_id = std::move(custom_id);
  }
  void on_head(int status, const HttpHeaders& headers) override {
    result.status = status;
    for (const auto& [name, value] : headers) {
      if (name == "x-request-id") result.request_id = value;
      if (name == "retry-after") retry_after = std::atof(value.c_str());
    }
  }
  void on_body(std::string_view bytes) override {
    too_long |= result.body.size() + bytes.size() > kMaxAnswer;
    if (!too_long) result.body.append(bytes);
  }
  void on_end(HttpFailure failure, const std::string& detail) override;

 private:
  Server& server_;

 public:
  const Job job;
  BatchResult result;
  double retry_after = 1;  // seconds
  bool too_long = false;
};

// A server and the thread that talks to it.
class Server {
 public:
  Server(const BatchRunOptions& options,
         const HttpClient::Options& to,
         Queue& queue,
         std::unique_ptr<HttpClient> client)
      : options_(options), url_(to.url), queue_(queue), client_(std::move(client)) {}

  void start() {
    thread_ = std::thread([this] { serve(); });
  }
  void join() { thread_.join(); }
  size_t in_flight() const { return in_flight_.load(std::memory_order_relaxed); }
  // Since when it takes no requests; nothing: it does.
  std::optional<Steady::time_point> down_since() const {
    const int64_t t = down_since_.load(std::memory_order_relaxed);
    if (t == 0) return std::nullopt;
    return Steady::time_point(Steady::duration(t));
  }
  std::string trouble() const {
    std::lock_guard lock(mutex_);
    return trouble_;
  }

  void over(Exchange& exchange, HttpFailure failure, const std::string& detail);

 private:
  void serve() {
    client_->run_until([&] {
      ended_.clear();  // not while one of them is on the stack
      if (queue_.stopped() && !live_.empty()) client_->cancel_all();
      fill();
      return live_.empty() && queue_.over();
    });
  }
  void fill() {
    while (static_cast<int>(live_.size()) < options_.concurrency && Steady::now() >= pause_until_) {
      // After a failure one request finds out whether the server is back.
      if (down_since() && !live_.empty()) return;
      auto next = queue_.take();
      if (!next) return;
      send(next->first, std::move(next->second));
    }
  }
  void send(const Job& job, BatchLine line) {
    if (!options_.model.empty()) line.body["model"] = options_.model;
    auto exchange = std::make_unique<Exchange>(*this, job, std::move(line.custom_id));
    Exchange& e = *exchange;
    live_.emplace(&e, std::move(exchange));
    in_flight_.store(live_.size(), std::memory_order_relaxed);
    client_->send(
        http_request_bytes(url_, "POST", line.url, options_.headers, plain_json(line.body)), e);
  }
  void is_down(const std::string& why, double wait) {
    std::lock_guard lock(mutex_);
    trouble_ = http_authority(url_) + ": " + why;
    pause_until_ = Steady::now() + in_seconds(wait);
    if (!down_since())
      down_since_.store(Steady::now().time_since_epoch().count(), std::memory_order_relaxed);
  }
  void is_up() {
    down_since_.store(0, std::memory_order_relaxed);
    pause_ = kFirstPause;
  }
  double next_pause() { return std::exchange(pause_, std::min(2 * pause_, kMostPause)); }

  const BatchRunOptions& options_;
  const HttpUrl url_;
  Queue& queue_;
  std::unique_ptr<HttpClient> client_;
  std::thread thread_;
  std::map<Exchange*, std::unique_ptr<Exchange>> live_;
  std::vector<std::unique_ptr<Exchange>> ended_;
  Steady::time_point pause_until_{};
  double pause_ = kFirstPause;
  std::atomic<size_t> in_flight_{0};
  std::atomic<int64_t> down_since_{0};  // 0: it is not
  mutable std::mutex mutex_;            // of trouble_
  std::string trouble_;
};

void Exchange::on_end(HttpFailure failure, const std::string& detail) {
  server_.over(*this, failure, detail);
}

void Server::over(Exchange& e, HttpFailure failure, const std::string& detail) {
  const auto at = live_.find(&e);
  ended_.push_back(std::move(at->second));
  live_.erase(at);
  in_flight_.store(live_.size(), std::memory_order_relaxed);
  const std::string why =
      std::string(http_failure_name(failure)) + (detail.empty() ? "" : ", ") + detail;
  const int status = e.result.status;
  if (failure == HttpFailure::cancelled) return queue_.put_first(e.job);
  if (failure == HttpFailure::connect) {
    is_down(why, next_pause());
    return queue_.put_first(e.job);
  }
  const bool answered = failure == HttpFailure::none && !e.too_long;
  if (answered && (status == 429 || (status >= 502 && status <= 504))) {
    const double most = std::min(kMostRetryAfter, options_.patience / 2);
    const double wait = std::clamp(e.retry_after, kFirstPause, std::max(kFirstPause, most));
    if (live_.empty())
      is_down(strf("it answers %d", status), wait);
    else  // it is full, and works
      pause_until_ = Steady::now() + in_seconds(wait);
    return queue_.put_first(e.job);
  }
  if (answered && (status == 401 || status == 403 || (status >= 300 && status < 400))) {
    queue_.put_first(e.job);
    return queue_.stop(
        strf("%s answers %d: check --url and --api-key-env", http_authority(url_).c_str(), status));
  }
  const bool failed = !answered || status >= 500;
  if (!failed) is_up();
  if (failed && failure != HttpFailure::timeout)
    is_down(answered ? strf("it answers %d", status) : why, next_pause());
  if (failed && e.job.tries + 1 < options_.tries)
    return queue_.put_last({e.job.index, e.job.tries + 1});
  if (!answered) {
    e.result.status = 0;
    e.result.error = e.too_long ? "the answer is longer than 64 MiB" : why;
  }
  queue_.finish(e.job, e.result);
}

}  // namespace

Result<BatchEnd> run_batch(BatchInput& input,
                           BatchOutput& output,
                           const BatchRunOptions& options,
                           const std::function<bool(const BatchProgress&)>& watch) {
  Queue queue(input, output);
  std::vector<std::unique_ptr<Server>> servers;
  for (HttpClient::Options to : options.servers) {
    to.max_connections = static_cast<size_t>(options.concurrency);
    Result<std::unique_ptr<HttpClient>> client = HttpClient::open(to);
    if (!client) return client.error();
    servers.push_back(std::make_unique<Server>(options, to, queue, std::move(*client)));
  }
  for (auto& server : servers) server->start();
  bool interrupted = false;
  while (!queue.over()) {
    BatchProgress progress{queue.num_done(), 0, 0};
    bool hopeless = true;
    for (auto& server : servers) {
      const auto down = server->down_since();
      progress.in_flight += server->in_flight();
      progress.servers += !down;
      hopeless &=
          down && server->in_flight() == 0 && Steady::now() - *down > in_seconds(options.patience);
    }
    if (hopeless)
      queue.stop(strf("no server has taken a request for %.0f s (%s)", options.patience,
                      servers[0]->trouble().c_str()));
    if (!interrupted && !watch(progress)) {
      interrupted = true;
      queue.stop("");
    }
    std::this_thread::sleep_for(milliseconds(100));
  }
  for (auto& server : servers) server->join();
  BatchEnd end = queue.end();
  end.interrupted = interrupted;
  if (auto ok = output.sync(); !ok && end.error.empty()) end.error = ok.error().message;
  return end;
}

}  // namespace sluice

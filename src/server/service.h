// The API in front of one engine: routes, keys, admission, state. Made before the model is loaded;
// attach() makes it ready. handle() runs on io threads; the engine thread only ever touches the
// counters and the outboxes.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "net/http.h"
#include "runtime/session.h"
#include "server/access_log.h"
#include "server/admission.h"
#include "server/batch_runner.h"
#include "server/browser_guard.h"
#include "server/chat_reading.h"
#include "server/constraint_cache.h"
#include "server/dashboard.h"
#include "server/health.h"
#include "server/keys.h"
#include "server/kv_events.h"
#include "server/kv_transfer.h"
#include "server/meters.h"
#include "server/openai.h"
#include "server/outbox.h"
#include "server/response_store.h"
#include "server/trace_context.h"
#include "server/turn_log.h"
#include "server/worker.h"

namespace sluice {

struct ServiceOptions {
  std::vector<std::string> model_names;  // the first is the one that answers carry
  std::string model_path;                // as it was given, for Dynamo
  std::string version;
  RequestLimits limits;
  Pooling pooling = Pooling::last;  // of embeddings that do not say
  FormatFlags formats;
  bool tokenizer_info = false;  // /tokenizer_info shows special tokens and chat template
  AdmissionLimits admission;
  double request_share = 0.75;  // of the engine's slots, for the sequences of one request
  double request_timeout = 0;   // seconds; 0: none
  double stall_seconds = 60;    // without a step, with work to do: not healthy
  int failed_steps = 6;         // one after the other: not healthy (one failure may take two)
  double resume_seconds = 30;   // a stream without a client is kept for so long; 0: never
  double ping_seconds = 15;     // a stream that is silent for so long gets a comment; 0: never
  bool log_requests = true;     // a line in the log for each
  BrowserGuard::Options browsers;
  std::shared_ptr<BatchStore> batches;  // null: no /v1/files and /v1/batches
  KvTransfer* transfer = nullptr;       // outlives it; null: prompts stay here
  size_t heavy_bytes = 256 << 10;       // a larger body is parsed and tokenised off the io threads
};

// A request on its way through the routes.
struct Call {
  HttpRequest http;
  std::shared_ptr<Responder> out;
  std::string id;  // x-request-id
  int key = -1;
  Time received{0};                  // by the service's clock
  bool heavy = false;                // not on its io thread
  ErrorStyle errors{};               // of its route
  std::optional<CallUsage> usage{};  // of one that generates
  TraceContext trace{};
  double seconds_left = 0;  // of a gRPC call, until its client's deadline; 0: it has none
};

class Generation;

class Service {
 public:
  Service(ServiceOptions options, Keys keys);

  // `post` runs a function on an io thread. Before the first request.
  void connect(std::function<void(size_t, std::function<void()>)> post, size_t threads);
  void attach(Session& session);  // ready from now on
  // Engine thread, after each iteration.
  void on_iteration(const StepReport& report, const Scheduler& scheduler);
  // Where /metrics learns of the server's connections; any thread may call `stats`.
  void count_connections(std::function<HttpServer::Stats()> stats);
  // Who publishes KV events, from now on; lives longer than this.
  void set_kv_events(const KvPublisher& events) { kv_events_.store(&events); }
  const KvPublisher* kv_events() const { return kv_events_.load(); }  // null: nobody
  void drain() {
    draining_.store(true);
    dashboard_.drain();
    if (runner_) runner_->stop();
  }
  void cancel_all();
  // Every request that runs ends with that error.
  void end_all(const ApiError& error);
  // Once a second or so, one thread: asks every thread for a sign of life.
  void beat();
  // The last of what runs off the io threads; while session and server still exist.
  void finish_work() {
    worker_.stop();
    renderer_.stop();
    disk_.stop();
    constraints_.stop();
  }

  void handle(HttpRequest request, std::shared_ptr<Responder> out);
  // A request of our own for a route that generates, as if `key` had sent it. On the io thread of
  // `out`.
  void handle_own(HttpRequest request, std::shared_ptr<Responder> out, int key);
  // A gRPC call, as a POST of its message to its method; answered by frames (grpc_frames.h).
  void handle_grpc(HttpRequest request, std::shared_ptr<Responder> out, double seconds_left);
  // Ends requests that `key` sent under these request_ids.
  void abort_requests(const std::set<std::string>& ids, int key);
  size_t num_io_threads() const { return outboxes_.size(); }
  HttpResponse refusal(const ApiError& error,
                       ErrorStyle style = ErrorStyle::openai,
                       std::string_view request_id = {}) const;
  // For bytes that are no request, so that they have neither path nor id.
  HttpResponse refuse_unread(int status, std::string_view reason) const;

  // For the routes.
  // As each API names it.
  static void add_request_id(const Call& call, HttpResponse& response);
  void reply(const Call& call, HttpResponse response);
  // With a body that is made as the client reads it.
  void reply(const Call& call, HttpResponse head, Responder::Producer body);
  void reply_json(const Call& call, const json::value& body);
  void fail(const Call& call, const ApiError& error);
  // Every answer is told to the access log once; reply() and fail() do it.
  void log(const Call& call, int status, const char* code = nullptr) const {
    if (options_.log_requests) log_access(call, status, clock_.now(), code);
  }
  // Sampling as the model has it, for a request to change.
  const SamplingSpec& sampling_defaults() const { return session_->sampling_defaults().spec; }
  // Inside a catch block: an error, or without memory for one the end of the connection.
  void fail_by_exception(const Call& call) noexcept;
  // The body as JSON, or nothing once the call has been answered.
  std::optional<json::value> body(const Call& call);
  bool ready() const { return ready_.load(std::memory_order_acquire) && !draining_.load(); }
  bool draining() const { return draining_.load(); }
  Refusal check_model(const std::string& name) const;
  Refusal check_ready() const;
  // Texts become token ids; ids stay. `param` is the field they are from. What is surely longer
  // than the context is refused before it is tokenised, unless `fields` has it cut.
  Refusal encode_prompts(std::vector<PromptField>& prompts,
                         const char* param,
                         bool add_special,
                         const GenerateFields& fields,
                         std::vector<std::vector<Token>>& out) const;
  Refusal check_length(std::span<const TextSegment> text,
                       const char* param,
                       const GenerateFields& fields) const;
  // Runs `f` on that io thread.
  void post(size_t thread, std::function<void()> f) { post_(thread, std::move(f)); }
  // The conversation as tokens; `bounded`: for the model, so not longer than its context.
  // `reading`: how the answer is to be read.
  Refusal encode_chat(const ChatFields& chat,
                      bool bounded,
                      std::vector<Token>& out,
                      ChatReading* reading = nullptr) const;
  // Fills in what the request asks of the thinking before its answer.
  Refusal plan_thinking(const ChatReading& reading, ChatFields& fields);
  std::string expose_metrics();
  void note_unknown(const std::vector<std::string>& names);
  AdmissionControl& admission() { return admission_; }
  ConstraintCache& constraints() { return constraints_; }
  ResponseStore& responses() { return responses_; }
  BatchRunner& batches() { return *runner_; }  // where options().batches is
  TurnLog& turns() { return turns_; }
  std::string new_id(const char* prefix);
  uint64_t new_seed();
  void live(const std::shared_ptr<Generation>& generation);
  // Streams that may be resumed, by the id of their response. keep() is false: there are too many,
  // in all or of this key, which may have a quarter.
  bool keep(const std::string& id, const std::shared_ptr<Generation>& generation);
  void forget(const std::string& id);
  std::shared_ptr<Generation> kept(const std::string& id);
  // Once a second or so, any thread: silent streams get a sign of life.
  void tick();

  const ServiceOptions& options() const { return options_; }
  const Keys& keys() const { return keys_; }
  Keys& keys() { return keys_; }
  Health& health() { return health_; }
  Session& session() const { return *session_; }
  Meters& meters() { return meters_; }
  Recorder& recorder() { return recorder_; }
  Dashboard& dashboard() { return dashboard_; }
  const Clock& clock() const { return clock_; }
  const std::shared_ptr<Outbox>& outbox(size_t thread) const { return outboxes_[thread]; }
  int64_t started_at() const { return started_at_; }
  int retry_after_ms() const;

 private:
  std::vector<std::shared_ptr<Generation>> all_live();
  Call open_call(HttpRequest request, std::shared_ptr<Responder> out);
  Refusal authorize(Call& call) const;
  void ping_silent();
  void tend_kept();
  ChatReading reading(const ChatFields& chat) const;
  void run_elsewhere(Worker& worker, const struct Route& route, Call call);
  void run(const struct Route& route, Call call);

  ServiceOptions options_;
  Keys keys_;
  BrowserGuard guard_;
  Meters meters_;
  Health health_;
  std::mutex engine_mutex_;
  std::function<void()> engine_answer_;  // of engine_mutex_: owed by the next iteration
  std::atomic<bool> engine_asked_{false};
  Recorder recorder_;
  Dashboard dashboard_{recorder_};
  RealClock clock_;
  Session* session_ = nullptr;
  dialect::OutputFormat format_;  // of the model's own template
  std::shared_ptr<const std::vector<Token>> format_tokens_;
  std::atomic<bool> ready_{false}, draining_{false};
  int64_t started_at_;  // Unix time
  std::vector<std::shared_ptr<Outbox>> outboxes_;
  std::function<void(size_t, std::function<void()>)> post_;
  AdmissionControl admission_;
  std::atomic<uint64_t> next_random_{0};
  uint64_t random_key_;
  std::mutex marks_mutex_;  // held while marks are made, some milliseconds once per format
  std::map<const dialect::ThinkFormat*, std::shared_ptr<const constrain::ThinkMarks>> think_marks_;
  std::atomic<const KvPublisher*> kv_events_{nullptr};
  std::mutex mutex_;  // of the four below
  std::function<HttpServer::Stats()> stats_;
  std::set<std::string> unknown_;
  std::vector<std::weak_ptr<Generation>> live_;
  std::map<std::string, std::shared_ptr<Generation>> kept_;
  // Long bodies, chat templates, and what waits for the disk: a slow one holds up no stream.
  Worker worker_{{64, size_t{512} << 20}};
  Worker renderer_{{16'384, size_t{256} << 20}, "renderer"};
  Worker disk_{{256, size_t{256} << 20}, "disk"};
  ConstraintCache constraints_;
  ResponseStore responses_;
  TurnLog turns_;
  std::unique_ptr<BatchRunner> runner_;  // of options_.batches
};

}  // namespace sluice

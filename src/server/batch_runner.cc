#include "server/batch_runner.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <cstdio>
#include <ctime>
#include <mutex>

#include "base/failure.h"
#include "base/log.h"
#include "base/str.h"
#include "server/service.h"

namespace sluice {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kMaxRuns = 4;
constexpr size_t kMaxAnswer = size_t{60} << 20;  // with its envelope less than a line may have
constexpr uint8_t kTries = 3;                    // of a request that fails by our fault
constexpr size_t kMaxBurst = 8;       // requests sent before the engine is looked at again
constexpr uint64_t kLineBytes = 512;  // of a result, beside the answer
constexpr milliseconds kTurn{20};
constexpr seconds kPause{1}, kRetry{5}, kExpiry{60};

int64_t unix_now() { return std::time(nullptr); }

}  // namespace

struct BatchInbox {
  std::mutex mutex;  // of all below
  std::condition_variable changed;
  std::vector<std::shared_ptr<BatchFlight>> answered;
  bool poked = false, stopping = false;
};

// Its answer is collected on an io thread, then looked at by the runner's.
struct BatchFlight {
  uint64_t number = 0;
  std::string batch;
  size_t index = 0, io_thread = 0;
  std::string custom_id;
  std::shared_ptr<Responder> out;
  std::string bytes;    // of the answer, with its head
  bool broken = false;  // there is no answer
};

namespace {

struct ParsedAnswer {
  int status = 0;  // 0: not an answer
  std::string request_id, body;
};

// What a Responder made: a head whose form we know, and the body as it is.
ParsedAnswer parse_answer(std::string&& bytes) {
  constexpr std::string_view kBegin = "HTTP/1.1 ", kId = "\r\nx-request-id: ";
  ParsedAnswer a;
  const size_t end = bytes.find("\r\n\r\n");
  if (!bytes.starts_with(kBegin) || end == bytes.npos) return a;
  std::from_chars(bytes.data() + kBegin.size(), bytes.data() + end, a.status);
  if (const size_t id = bytes.find(kId); id < end) {
    const size_t from = id + kId.size();
    a.request_id = bytes.substr(from, bytes.find('\r', from) - from);
  }
  bytes.erase(0, end + 4);
  a.body = std::move(bytes);
  return a;
}

// Allocates nothing: the runner makes room for all that are in flight.
void deliver(BatchInbox& inbox, std::shared_ptr<BatchFlight> flight) {
  std::lock_guard lock(inbox.mutex);
  inbox.answered.push_back(std::move(flight));
  inbox.changed.notify_one();
}

// Takes what the responder has, a piece at a time so that others of the io thread go on between.
void collect(Service& service,
             const std::shared_ptr<BatchInbox>& inbox,
             const std::shared_ptr<BatchFlight>& flight) try {
  Responder& out = *flight->out;
  if (out.closed()) return;
  std::string piece;
  const Responder::Progress p = out.take(piece);
  flight->broken = p.too_slow || flight->bytes.size() + piece.size() > kMaxAnswer;
  if (!flight->broken) flight->bytes += piece;
  out.wrote();
  if (p.done || flight->broken) {
    out.close(p.done && !flight->broken);
    return deliver(*inbox, flight);
  }
  if (!piece.empty() || p.made)
    service.post(flight->io_thread, [&service, inbox, flight] { collect(service, inbox, flight); });
} catch (...) {
  log_exception("batch");
  flight->broken = true;
  flight->out->close(false);
  deliver(*inbox, flight);
}

// One end's file of results on its way to be a file of its own.
class ResultsFile {
 public:
  explicit ResultsFile(std::string path) : path_(std::move(path)) {}
  ~ResultsFile() {
    if (file_) std::fclose(file_);
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  Result<void> add(std::string_view line) {
    if (!file_) file_ = std::fopen(path_.c_str(), "wb");
    if (file_ && std::fwrite(line.data(), 1, line.size(), file_) == line.size()) return {};
    return Error{500, "cannot write " + quote(path_, 400)};
  }
  bool empty() const { return !file_; }
  // All of it is on disk now.
  Result<std::string> close() {
    bool good = std::fflush(file_) == 0 && ::fsync(::fileno(file_)) == 0;
    good &= std::fclose(std::exchange(file_, nullptr)) == 0;
    if (!good) return Error{500, "cannot write " + quote(path_, 400)};
    return path_;
  }

 private:
  std::string path_;
  std::FILE* file_ = nullptr;
};

}  // namespace

BatchRunner::BatchRunner(Service& service, BatchStore& store)
    : service_(service), store_(store), inbox_(std::make_shared<BatchInbox>()) {}

BatchRunner::~BatchRunner() { stop(); }

void BatchRunner::start() {
  thread_ = std::thread([this] { loop(); });
}

void BatchRunner::stop() {
  {
    std::lock_guard lock(inbox_->mutex);
    inbox_->stopping = true;
    inbox_->changed.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void BatchRunner::poke() {
  std::lock_guard lock(inbox_->mutex);
  inbox_->poked = true;
  inbox_->changed.notify_one();
}

void BatchRunner::loop() {
  std::vector<std::shared_ptr<BatchFlight>> answered;
  size_t taken = 0;  // of them
  for (;;) {
    {
      std::unique_lock lock(inbox_->mutex);
      BatchInbox& in = *inbox_;
      in.changed.wait_for(lock, patience(),
                          [&] { return in.poked || in.stopping || !in.answered.empty(); });
      if (in.stopping) break;
      if (std::exchange(in.poked, false)) adopt_at_ = look_at_ = {};
    }
    try {
      if (taken == answered.size()) {
        answered.clear();
        answered.reserve(flights_.size());
        taken = 0;
        std::lock_guard lock(inbox_->mutex);
        answered.swap(inbox_->answered);
      }
      while (taken < answered.size()) take_or_repeat(std::move(answered[taken++]));
      turn();
    } catch (...) {
      log_exception("batch");
      pause_until_ = Steady::now() + kRetry;
    }
  }
  try {
    for (const auto& [id, run] : runs_) drop_flights(*run);
  } catch (...) {
    log_exception("batch");
  }
}

BatchRunner::Steady::duration BatchRunner::patience() const {
  const bool waiting =
      std::ranges::any_of(runs_, [](const auto& r) { return !r.second->waiting.empty(); });
  return waiting ? Steady::duration(kTurn) : Steady::duration(kPause);
}

void BatchRunner::turn() {
  const auto now = Steady::now();
  sent_ = 0;
  if (now >= expire_at_) {
    expire_at_ = now + kExpiry;
    store_.expire(unix_now());
  }
  if (now >= look_at_) {
    look_at_ = now + kPause;
    look_after();
  }
  if (now >= adopt_at_) {
    adopt_at_ = now + kRetry;
    adopt();
  }
  fill();
  finish_done();
}

// ---- a batch's beginning ----

void BatchRunner::adopt() {
  for (BatchRecord& b : store_.unfinished()) {
    if (std::ranges::count_if(runs_, [](const auto& r) { return r.second->key.has_value(); }) >=
        static_cast<std::ptrdiff_t>(kMaxRuns))
      return;  // those whose key was taken away only wait for their end
    if (runs_.contains(b.id) || !service_.keys().find_owner(b.owner)) continue;
    if (b.status == BatchStatus::finalizing)
      finalize(std::move(b), 0);
    else
      begin(std::move(b));
  }
}

void BatchRunner::begin(BatchRecord record) {
  const std::optional<FileRecord> file = store_.file(record.input_file, record.owner);
  BatchInput::Rules rules{file ? file->filename : record.input_file, record.endpoint,
                          kMaxBatchRequests};
  Result<BatchInput> input = BatchInput::open(store_.file_path(record.input_file), rules);
  if (!input) return fail(std::move(record), input.error().message, "invalid_input_file");
  Result<BatchOutput> output = BatchOutput::open(store_.results_path(record.id), *input);
  if (!output) {
    LOG(error, "batch %s: %s", record.id.c_str(), output.error().message.c_str());
    return fail(std::move(record), "the results so far cannot be read", "server_error");
  }
  const uint64_t bytes = output->bytes();
  auto run = std::make_unique<Run>(Run{std::move(record),
                                       std::move(*input),
                                       std::move(*output),
                                       {},
                                       {},
                                       {},
                                       0,
                                       store_.reserve(bytes) ? bytes : 0});
  run->tries.resize(run->input.size());
  for (size_t i = 0; i < run->input.size(); ++i)
    if (!run->output.done()[i]) run->waiting.push_back(i);
  run->key = service_.keys().find_owner(run->record.owner);
  run->record.total = run->input.size();
  if (run->record.status == BatchStatus::validating)
    run->record.become(BatchStatus::in_progress, unix_now());
  if (auto ok = store_.update(run->record); !ok)
    LOG(error, "batch %s: %s", run->record.id.c_str(), ok.error().message.c_str());
  store_.count(run->record.id, run->output.num_done() - run->output.num_refused(),
               run->output.num_refused());
  runs_.emplace(run->record.id, std::move(run));
  look_at_ = {};  // it may have been cancelled, or have expired, while nobody looked
}

void BatchRunner::fail(BatchRecord record, std::string problem, const char* code) {
  const bool cancelled = store_.cancelling(record.id);
  record.problem = std::move(problem);
  record.problem_code = code;
  record.become(cancelled ? BatchStatus::cancelled : BatchStatus::failed, unix_now());
  if (auto ok = store_.update(record); !ok)
    LOG(error, "batch %s: %s", record.id.c_str(), ok.error().message.c_str());
}

// ---- its requests ----

bool BatchRunner::may_send() const {
  const int slots = service_.session().engine().config().max_seqs;
  return sent_ < kMaxBurst && flights_.size() < static_cast<size_t>(std::max(slots / 2, 1)) &&
         Steady::now() >= pause_until_ && service_.meters().num_waiting() == 0;
}

// The batch behind the one whose turn it was last.
BatchRunner::Run* BatchRunner::next_run() {
  auto at = runs_.upper_bound(last_);
  for (size_t i = 0; i < runs_.size(); ++i, ++at) {
    if (at == runs_.end()) at = runs_.begin();
    if (at->second->waiting.empty() || !at->second->key) continue;
    last_ = at->first;
    return at->second.get();
  }
  return nullptr;
}

void BatchRunner::fill() {
  while (may_send()) {
    Run* run = next_run();
    if (!run || !send(*run)) return;
    ++sent_;
  }
}

bool BatchRunner::send(Run& run) {
  const size_t index = run.waiting.front();
  Result<BatchLine> line = run.input.read(index);
  if (!line) {
    LOG(error, "batch %s: %s", run.record.id.c_str(), line.error().message.c_str());
    end_early(run, BatchStatus::failed, "server_error", "the input file cannot be read any more");
    return false;
  }
  line->body["priority"] = INT32_MAX;
  auto flight = std::make_shared<BatchFlight>();
  flight->number = next_flight_++;
  flight->batch = run.record.id;
  flight->index = index;
  flight->custom_id = std::move(line->custom_id);
  flight->io_thread = flight->number % service_.num_io_threads();
  Responder::Options o;
  o.thread = flight->io_thread;
  o.chunked = o.keep_alive = false;
  o.max_pending = kMaxAnswer;
  o.wake = [&service = service_, inbox = inbox_, weak = std::weak_ptr(flight), t = o.thread] {
    service.post(t, [&service, inbox, weak] {
      if (auto f = weak.lock()) collect(service, inbox, f);
    });
  };
  flight->out = std::make_shared<Responder>(std::move(o));
  HttpRequest request;
  request.method = "POST";
  request.path = line->url;
  request.headers = {{"content-type", "application/json"}};
  request.body = plain_json(line->body);
  {
    std::lock_guard lock(inbox_->mutex);
    inbox_->answered.reserve(flights_.size() + 1);
  }
  auto shared = std::make_shared<HttpRequest>(std::move(request));
  flights_.emplace(flight->number, flight);
  try {
    service_.post(flight->io_thread, [&s = service_, shared, out = flight->out, key = *run.key] {
      try {
        s.handle_own(std::move(*shared), out, key);
      } catch (...) {
        log_exception("batch");
        out->abort();
      }
    });
  } catch (...) {
    flights_.erase(flight->number);
    throw;
  }
  ++run.in_flight;
  run.waiting.pop_front();
  return true;
}

void BatchRunner::take_or_repeat(const std::shared_ptr<BatchFlight>& flight) {
  try {
    take(flight);
  } catch (...) {
    log_exception("batch");
    const auto run = runs_.find(flight->batch);
    if (run == runs_.end() || run->second->output.done()[flight->index]) return;
    pause_until_ = Steady::now() + kRetry;
    run->second->waiting.push_back(flight->index);
  }
}

void BatchRunner::take(const std::shared_ptr<BatchFlight>& flight) {
  if (flights_.erase(flight->number) == 0) return;  // given up meanwhile
  Run& run = *runs_.at(flight->batch);
  --run.in_flight;
  ParsedAnswer answer;
  if (!flight->broken) answer = parse_answer(std::move(flight->bytes));
  if (answer.status == 429 || answer.status == 503) {  // not the request's fault
    pause_until_ = Steady::now() + kPause;
    return run.waiting.push_front(flight->index);
  }
  if ((answer.status == 0 || answer.status >= 500) && ++run.tries[flight->index] < kTries)
    return run.waiting.push_back(flight->index);
  BatchResult result;
  result.custom_id = flight->custom_id;
  result.request_id = std::move(answer.request_id);
  result.status = answer.status;
  result.body = std::move(answer.body);
  if (result.status == 0) result.error = "there was no answer, or one of more than 60 MiB";
  keep(run, flight->index, std::move(result));
}

void BatchRunner::keep(Run& run, size_t index, BatchResult result) {
  const uint64_t bytes = result.body.size() + kLineBytes;
  if (!store_.reserve(bytes))
    return end_early(
        run, BatchStatus::failed, "storage_full",
        "there is no room for more results: delete files that are not needed any more");
  run.reserved += bytes;
  const uint64_t refused = run.output.num_refused();
  if (auto ok = run.output.add(index, result); !ok) {
    LOG(error, "batch %s: %s", run.record.id.c_str(), ok.error().message.c_str());
    store_.unreserve(bytes);
    run.reserved -= bytes;
    pause_until_ = Steady::now() + kRetry;
    return run.waiting.push_front(index);
  }
  store_.count(run.record.id, run.output.num_done() - run.output.num_refused(),
               run.output.num_refused());
  store_.count_line(run.output.num_refused() > refused);
}

// ---- its end ----

void BatchRunner::look_after() {
  std::vector<Run*> all;
  for (const auto& [id, run] : runs_) all.push_back(run.get());
  for (Run* run : all) {
    run->key = service_.keys().find_owner(run->record.owner);
    if (store_.cancelling(run->record.id))
      end_early(*run, BatchStatus::cancelled, "batch_cancelled", "the batch was cancelled");
    else if (run->record.expires_at <= unix_now())
      end_early(*run, BatchStatus::expired, "batch_expired",
                "the batch's completion window was over before this request's turn");
  }
}

void BatchRunner::drop_flights(const Run& run) {
  for (auto at = flights_.begin(); at != flights_.end();) {
    if (at->second->batch != run.record.id) {
      ++at;
      continue;
    }
    const std::shared_ptr<BatchFlight>& f = at->second;
    service_.post(f->io_thread, [out = f->out] { out->close(false); });
    at = flights_.erase(at);
  }
}

// Requests that are not done get a result that says why. Where the disk does not take it, they wait
// for another try.
void BatchRunner::end_early(Run& run, BatchStatus end, const char* code, const char* message) {
  drop_flights(run);
  run.in_flight = 0;
  run.waiting.clear();
  run.record.end = end;
  if (end == BatchStatus::failed) run.record.problem = message, run.record.problem_code = code;
  for (size_t i = 0; i < run.input.size(); ++i) {
    if (run.output.done()[i]) continue;
    Result<BatchLine> line = run.input.read(i);
    if (!line) continue;  // the file is gone
    BatchResult result;
    result.custom_id = std::move(line->custom_id);
    result.error = message;
    result.code = code;
    if (auto ok = run.output.add(i, result); !ok) {
      if (run.waiting.empty())
        LOG(error, "batch %s: %s", run.record.id.c_str(), ok.error().message.c_str());
      pause_until_ = Steady::now() + kRetry;
      run.waiting.push_back(i);
    } else {
      store_.count_line(true);
    }
  }
}

void BatchRunner::finish_done() {
  std::vector<std::unique_ptr<Run>> done;
  for (auto at = runs_.begin(); at != runs_.end();) {
    Run& run = *at->second;
    if (!run.waiting.empty() || run.in_flight > 0) {
      ++at;
      continue;
    }
    done.push_back(std::move(at->second));
    at = runs_.erase(at);
  }
  for (auto& run : done) {
    adopt_at_ = {};  // there is room for another
    BatchRecord record = std::move(run->record);
    record.failed = run->output.num_refused();
    record.completed = run->output.num_done() - record.failed;
    record.become(BatchStatus::finalizing, unix_now());
    Result<void> ok = run->output.sync();
    if (ok) ok = store_.update(record);
    const uint64_t reserved = run->reserved;
    run.reset();  // closes the results
    if (ok) {
      finalize(std::move(record), reserved);
      continue;
    }
    LOG(error, "batch %s: %s", record.id.c_str(), ok.error().message.c_str());
    store_.unreserve(reserved);  // begin() reserves again
    adopt_at_ = Steady::now() + kRetry;
  }
}

// May be repeated: results are removed last.
void BatchRunner::finalize(BatchRecord record, uint64_t reserved) {
  Result<void> ok = publish(record);
  store_.unreserve(reserved);
  if (ok) {
    record.become(record.end, unix_now());
    ok = store_.update(record);
  }
  if (!ok) {  // adopt() comes back to it
    LOG(error, "batch %s: %s", record.id.c_str(), ok.error().message.c_str());
    adopt_at_ = Steady::now() + kRetry;
    return;
  }
  ::unlink(store_.results_path(record.id).c_str());
  LOG(info, "batch %s %s: %llu of %llu requests answered", record.id.c_str(),
      name_of(kBatchStatuses, record.status), static_cast<unsigned long long>(record.completed),
      static_cast<unsigned long long>(record.total));
}

// Makes the files with its results: answers in one, all else in the other.
Result<void> BatchRunner::publish(BatchRecord& record) {
  ResultsFile output(store_.file_path("temp-" + record.output_file));
  ResultsFile errors(store_.file_path("temp-" + record.error_file));
  auto ok = each_batch_result(
      store_.results_path(record.id),
      [&](std::string_view line, bool good) { return (good ? output : errors).add(line); });
  auto adopt = [&](ResultsFile& from, const std::string& id, const char* end) -> Result<void> {
    Result<std::string> path = from.close();
    if (!path) return path.error();
    const int64_t now = unix_now();
    FileRecord file;
    file.id = id, file.owner = record.owner;
    file.filename = record.id + end, file.purpose = "batch_output";
    file.created_at = now;
    file.expires_at = now + record.file_seconds;
    return store_.adopt_file(std::move(file), *path);
  };
  record.has_output = !output.empty();
  record.has_errors = !errors.empty();
  if (ok && record.has_output) ok = adopt(output, record.output_file, "_output.jsonl");
  if (ok && record.has_errors) ok = adopt(errors, record.error_file, "_error.jsonl");
  return ok;
}

}  // namespace sluice

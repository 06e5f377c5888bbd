#include "server/service.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <random>

#include "base/failure.h"
#include "base/log.h"
#include "base/random.h"
#include "base/str.h"
#include "runtime/constraint_vocab.h"
#include "server/batch_metrics.h"
#include "server/generation.h"
#include "server/routes.h"
#include "server/vllm_control.h"

namespace sluice {

Service::Service(ServiceOptions options, Keys keys)
    : options_(std::move(options)),
      keys_(std::move(keys)),
      guard_(options_.browsers),
      meters_(options_.model_names.at(0)),
      health_(options_.stall_seconds),
      started_at_(std::time(nullptr)),
      admission_(options_.admission, keys_.num_indices()),
      constraints_([this] {
        return constraint_vocab(*session_->tokenizer(), session_->model().shape().vocab);
      }),
      responses_(keys_.needed() ? kMaxResponseBytes / 4 : kMaxResponseBytes) {
  std::random_device random;
  random_key_ = uint64_t{random()} << 32 | random();
}

void Service::connect(std::function<void(size_t, std::function<void()>)> post, size_t threads) {
  post_ = post;
  for (size_t i = 0; i < threads; ++i) {
    outboxes_.push_back(
        std::make_shared<Outbox>([post, i](std::function<void()> f) { post(i, std::move(f)); }));
  }
}

void Service::attach(Session& session) {
  session_ = &session;
  if (session.tenant_key()) keys_.set_secret(*session.tenant_key());
  if (options_.transfer && options_.transfer->tenant_key())
    keys_.set_secret(*options_.transfer->tenant_key());
  if (const ChatTemplate* t = session.chat_template(); t && session.tokenizer()) {
    format_ = choose_format(options_.formats, t->source());
    format_tokens_ =
        std::make_shared<const std::vector<Token>>(mark_tokens(format_, *session.tokenizer()));
  }
  for (size_t i = 0; i < outboxes_.size(); ++i) {
    const std::string name = strf("io-%zu", i);
    outboxes_[i]->trace(session.trace_track(name));
    health_.watch(name, [this, i](auto answer) { post_(i, std::move(answer)); });
  }
  health_.watch("worker", [this](auto answer) { worker_.ask(std::move(answer)); });
  health_.watch("renderer", [this](auto answer) { renderer_.ask(std::move(answer)); });
  health_.watch("disk", [this](auto answer) { disk_.ask(std::move(answer)); });
  health_.watch("compiler", [this](auto answer) { constraints_.ask(std::move(answer)); });
  auto ask_engine = [this](std::function<void()> answer) {
    {
      std::lock_guard lock(engine_mutex_);
      engine_answer_ = std::move(answer);
    }
    engine_asked_.store(true);
    session_->engine().poke();
  };
  health_.watch("engine", ask_engine, [&session] { return session.backend().progress(); });
  meters_.on_ready(session.engine().config());
  recorder_.begin(session.engine().config());
  dashboard_.attach(session);
  if (options_.batches) runner_ = std::make_unique<BatchRunner>(*this, *options_.batches);
  ready_.store(true, std::memory_order_release);
  if (runner_) runner_->start();
}

void Service::count_connections(std::function<HttpServer::Stats()> stats) {
  std::lock_guard lock(mutex_);
  stats_ = std::move(stats);
}

std::string Service::expose_metrics() {
  {
    std::lock_guard lock(mutex_);
    if (stats_) {
      HttpServer::Stats s = stats_();
      meters_.connections.set(static_cast<double>(s.connections));
      meters_.unread_bytes.set(static_cast<double>(s.unread));
      meters_.slow_readers.add(static_cast<double>(s.slow_readers) - meters_.slow_readers.value());
    }
    if (const KvPublisher* events = kv_events()) meters_.on_kv_events(events->stats());
    if (options_.transfer) meters_.on_kv_transfer(options_.transfer->stats());
  }
  meters_.waiting_tokens.set(static_cast<double>(admission_.waiting_tokens()));
  // With an empty queue nobody waits, whatever it was like before.
  meters_.expected_wait.set(meters_.num_waiting() > 0 ? meters_.queue_seconds() : 0);
  meters_.ready.set(check_ready() ? 0 : 1);
  meters_.constraint_bytes.set(static_cast<double>(constraints_.bytes()));
  meters_.response_bytes.set(static_cast<double>(responses_.bytes()));
  std::string out = meters_.expose();
  if (options_.batches) out += expose_batches(options_.batches->counts());
  return out;
}

void Service::live(const std::shared_ptr<Generation>& generation) {
  std::lock_guard lock(mutex_);
  // Swept when it has doubled since the last time: constant work per request.
  if (live_.size() == live_.capacity())
    std::erase_if(live_, [](const auto& weak) { return weak.expired(); });
  live_.push_back(generation);
}

std::vector<std::shared_ptr<Generation>> Service::all_live() {
  std::vector<std::shared_ptr<Generation>> all;
  std::lock_guard lock(mutex_);
  for (const auto& weak : live_) {
    if (auto g = weak.lock()) all.push_back(std::move(g));
  }
  return all;
}

void Service::on_iteration(const StepReport& report, const Scheduler& scheduler) {
  Time now = clock_.now();
  meters_.on_step(report, now);
  if (meters_.wants_kv_use(report, now)) meters_.on_kv_use(scheduler.kv_use());
  if (!engine_asked_.load(std::memory_order_relaxed)) return;
  engine_asked_.store(false);
  std::lock_guard lock(engine_mutex_);
  if (engine_answer_) std::exchange(engine_answer_, nullptr)();
}

void Service::beat() {
  Time now = clock_.now();
  if (health_.beat(now)) meters_.on_progress(now);
}

void Service::end_all(const ApiError& error) {
  for (const auto& g : all_live()) post_(g->thread(), [g, error] { g->end(error); });
}

void Service::abort_requests(const std::set<std::string>& ids, int key) {
  const ApiError aborted{499, "the request was aborted", "", "aborted"};
  for (const auto& g : all_live()) {
    if (g->key() == key && ids.contains(g->fields().request_id))
      post_(g->thread(), [g, aborted] { g->end(aborted); });
  }
}

void Service::cancel_all() {
  for (const auto& g : all_live()) post_(g->thread(), [g] { g->cancel(); });
}

bool Service::keep(const std::string& id, const std::shared_ptr<Generation>& generation) {
  const size_t most_of_key = keys_.needed() ? kMaxKeptStreams / 4 : kMaxKeptStreams;
  auto of_key = [&](const auto& k) { return k.second->key() == generation->key(); };
  auto full = [&] {
    return kept_.size() >= kMaxKeptStreams ||
           static_cast<size_t>(std::count_if(kept_.begin(), kept_.end(), of_key)) >= most_of_key;
  };
  std::lock_guard lock(mutex_);
  if (full()) std::erase_if(kept_, [](const auto& k) { return k.second->settled(); });
  return !full() && kept_.emplace(id, generation).second;
}

void Service::forget(const std::string& id) {
  std::shared_ptr<Generation> last;  // ends outside of the lock
  std::lock_guard lock(mutex_);
  if (auto it = kept_.find(id); it != kept_.end()) {
    last = std::move(it->second);
    kept_.erase(it);
  }
}

std::shared_ptr<Generation> Service::kept(const std::string& id) {
  std::lock_guard lock(mutex_);
  auto it = kept_.find(id);
  return it == kept_.end() ? nullptr : it->second;
}

void Service::tend_kept() {
  std::vector<std::shared_ptr<Generation>> all;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, g] : kept_) all.push_back(g);
  }
  for (const auto& g : all) post_(g->thread(), [g] { g->tend(); });
}

void Service::tick() {
  try {
    tend_kept();
    constraints_.trim();
    if (options_.ping_seconds > 0) ping_silent();
  } catch (...) {
    log_exception("ping");  // there is another tick
  }
}

void Service::ping_silent() {
  Time before = clock_.now() - Time(static_cast<int64_t>(options_.ping_seconds * 1e9));
  for (const auto& g : all_live()) {
    if (g->fields().stream) post_(g->thread(), [g, before] { g->ping(before); });
  }
}

uint64_t Service::new_seed() {
  auto n = static_cast<int64_t>(next_random_.fetch_add(1, std::memory_order_relaxed));
  return draw_bits({random_key_, 0, n, 0});
}

std::string Service::new_id(const char* prefix) {
  return strf("%s%016llx%016llx", prefix, static_cast<unsigned long long>(new_seed()),
              static_cast<unsigned long long>(new_seed()));
}

namespace {
constexpr double kMostRetryMs = 3'600'000;
}  // namespace

int Service::retry_after_ms() const {
  return static_cast<int>(std::clamp(meters_.queue_seconds() * 1e3, 100.0, 30'000.0));
}

HttpResponse Service::refusal(const ApiError& error,
                              ErrorStyle style,
                              std::string_view request_id) const {
  HttpResponse r;
  r.status = error.status;
  r.body = error_json(error, style, request_id);
  if (error.status == 429 || error.status == 503) {
    int ms = error.status == 429 ? retry_after_ms() : 1000;
    if (error.retry_after > 0)
      ms = static_cast<int>(std::clamp(std::ceil(error.retry_after * 1e3), 1.0, kMostRetryMs));
    r.headers.emplace_back("Retry-After", std::to_string((ms + 999) / 1000));
    r.headers.emplace_back("retry-after-ms", std::to_string(ms));
  }
  if (error.status == 401) r.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (error.status == 504) r.headers.emplace_back("x-should-retry", "false");
  return r;
}

HttpResponse Service::refuse_unread(int status, std::string_view reason) const {
  if (options_.log_requests)
    LOG(info, "- - %d %.*s", status, static_cast<int>(reason.size()), reason.data());
  return refusal({status, std::string(reason), "", ""});
}

void Service::add_request_id(const Call& call, HttpResponse& response) {
  response.headers.emplace_back("x-request-id", call.id);
  if (call.errors == ErrorStyle::anthropic) response.headers.emplace_back("request-id", call.id);
}

void Service::reply(const Call& call, HttpResponse response) {
  meters_.on_response(response.status);
  log(call, response.status);
  add_request_id(call, response);
  call.out->send(std::move(response));
}

void Service::reply(const Call& call, HttpResponse head, Responder::Producer body) {
  meters_.on_response(head.status);
  log(call, head.status);
  add_request_id(call, head);
  call.out->send(std::move(head), std::move(body));
}

void Service::reply_json(const Call& call, const json::value& body) {
  HttpResponse r;
  r.body = plain_json(body);
  reply(call, std::move(r));
}

void Service::fail(const Call& call, const ApiError& error) {
  reply(call, refusal(error, call.errors, call.id));
}

void Service::fail_by_exception(const Call& call) noexcept {
  log_exception("request failed");
  try {
    fail(call, current_api_error());
  } catch (...) {
    call.out->abort();
  }
}

std::optional<json::value> Service::body(const Call& call) {
  std::string_view type = call.http.header("content-type");
  type = type.substr(0, type.find(';'));
  while (!type.empty() && type.back() == ' ') type.remove_suffix(1);
  Refusal refused = check_ready();
  // Ollama takes any type, and its users leave curl's own. What a browser sends must be JSON by
  // type, so that it needs a preflight.
  const bool any_type = call.errors == ErrorStyle::ollama && call.http.header("origin").empty() &&
                        call.http.header("sec-fetch-site").empty();
  if (!refused && !any_type && !type.empty() && type != "application/json")
    refused = ApiError{415, "the body must be application/json", "", ""};
  if (!refused) {
    Result<json::value> v = parse_json(call.http.body, kRequestJson);
    if (v) return std::move(*v);
    refused = ApiError{400, v.error().message, "", "invalid_json"};
  }
  fail(call, *refused);
  return {};
}

Refusal Service::check_ready() const {
  if (auto f = health_.failure()) return ApiError{503, f->reason, "", f->code};
  if (ready()) return {};
  return ApiError{503, draining() ? "the server is shutting down" : "the model is loading", "",
                  draining() ? "shutting_down" : "loading"};
}

Refusal Service::check_model(const std::string& name) const {
  const auto& names = options_.model_names;
  if (name.empty() || std::find(names.begin(), names.end(), name) != names.end()) return {};
  return ApiError{404,
                  strf("the model %s does not exist; this server has %s", quote(name).c_str(),
                       quote(names[0]).c_str()),
                  "model", "model_not_found"};
}

namespace {

// Less the space around it: templates strip messages.
std::string_view stripped(std::string_view content) {
  constexpr std::string_view kSpace = " \t\r\n";
  size_t first = content.find_first_not_of(kSpace);
  if (first == content.npos) return {};
  return content.substr(first, content.find_last_not_of(kSpace) + 1 - first);
}

// A template that does not know a role may leave its messages out without a word.
Refusal check_roles(const json::array& messages, const std::vector<TextSegment>& text) {
  std::string all;
  for (size_t i = 0; i < messages.size(); ++i) {
    const json::object& m = messages[i].get_object();
    std::string_view role = m.at("role").get_string();
    if (role == "system" || role == "user" || role == "assistant" || role == "tool") continue;
    if (all.empty()) all = joined(text);
    if (all.find(stripped(m.at("content").get_string())) != all.npos) continue;
    return ApiError{400,
                    strf("the chat template has no role %s: its message would be left out",
                         quote(role).c_str()),
                    strf("messages[%zu].role", i), ""};
  }
  return {};
}

// Ends the text after the last place where it says `content`.
bool cut_after(std::vector<TextSegment>& text, std::string_view content) {
  content = stripped(content);
  if (content.empty()) return false;
  std::string all = joined(text);
  size_t at = all.rfind(content);
  if (at == all.npos) return false;
  size_t left = at + content.size();
  size_t keep = 0;
  while (left > 0) {
    std::string& s = text[keep++].text;
    s.resize(std::min(s.size(), left));
    left -= s.size();
  }
  text.resize(keep);
  return true;
}

}  // namespace

Refusal Service::check_length(std::span<const TextSegment> text,
                              const char* param,
                              const GenerateFields& fields) const {
  const Tokenizer* tokenizer = session_->tokenizer();
  size_t most = tokenizer->most_bytes(), bytes = 0;
  if (most == 0 || fields.truncate_prompt) return {};
  for (const TextSegment& t : text) bytes += tokenizer->counted_bytes(t.text);
  auto max_len = static_cast<size_t>(session_->engine().config().max_len);
  if (bytes / most <= max_len) return {};
  return ApiError{400,
                  strf("this model's maximum context length is %zu tokens and the %s has at least "
                       "%zu: shorten it",
                       max_len, param, bytes / most),
                  param, "context_length_exceeded"};
}

Refusal Service::encode_prompts(std::vector<PromptField>& prompts,
                                const char* param,
                                bool add_special,
                                const GenerateFields& fields,
                                std::vector<std::vector<Token>>& out) const {
  const Tokenizer* tokenizer = session_->tokenizer();
  for (PromptField& p : prompts) {
    if (auto* ids = std::get_if<std::vector<Token>>(&p)) {
      out.push_back(std::move(*ids));
      continue;
    }
    if (!tokenizer) return ApiError{400, "the model has no vocabulary: send token ids", param, ""};
    const TextSegment text{std::move(std::get<std::string>(p)), false};
    if (Refusal refused = check_length({&text, 1}, param, fields)) return refused;
    Result<std::vector<Token>> ids = tokenizer->encode(text.text, {.add_special = add_special});
    if (!ids) return ApiError{ids.error().code, ids.error().message, param, ""};
    out.push_back(std::move(*ids));
  }
  return {};
}

ChatReading Service::reading(const ChatFields& chat) const {
  ChatReading r;
  r.parser.format = format_;
  r.keep = format_tokens_;
  if (!chat.chat_template.empty()) {
    r.parser.format = choose_format(options_.formats, chat.chat_template);
    r.keep = std::make_shared<const std::vector<Token>>(
        mark_tokens(r.parser.format, *session_->tokenizer()));
  }
  if (chat.tools.active()) r.parser.tools = chat.tools.set;
  if (!chat.separate_reasoning) r.parser.format.think = nullptr;
  r.parallel = chat.tools.parallel;
  r.include_reasoning = chat.include_reasoning;
  return r;
}

Refusal Service::encode_chat(const ChatFields& chat,
                             bool bounded,
                             std::vector<Token>& out,
                             ChatReading* reading) const {
  auto wrong = [](const Error& e) { return ApiError{e.code, e.message, "messages", ""}; };
  const Tokenizer* tokenizer = session_->tokenizer();
  if (!tokenizer || (!session_->chat_template() && chat.chat_template.empty()))
    return wrong({400, "the model has no chat template: use /v1/completions"});
  ChatReading read = this->reading(chat);
  const std::string& source =
      chat.chat_template.empty() ? session_->chat_template()->source() : chat.chat_template;
  if (Refusal refused = check_tools(chat.tools, options_.formats, read.parser.format, source))
    return refused;
  TemplateInputs in;
  in.messages = chat.messages;
  in.documents = chat.documents;
  if (chat.tools.active()) in.tools = chat.tools.list;
  in.extra = chat.template_kwargs;
  in.add_generation_prompt = chat.add_generation_prompt;
  if (tokenizer->bos() != kNoToken) in.bos_token = tokenizer->spelling(tokenizer->bos());
  if (tokenizer->eos() != kNoToken) in.eos_token = tokenizer->spelling(tokenizer->eos());
  std::time_t now = std::time(nullptr);
  localtime_r(&now, &in.now);
  Result<std::vector<TextSegment>> text = Error{};
  if (chat.chat_template.empty()) {
    text = session_->chat_template()->render(in);
  } else {
    Result<ChatTemplate> own = ChatTemplate::parse(chat.chat_template);
    if (!own) return wrong(own.error());
    text = own->render(in);
  }
  if (!text) return wrong(text.error());
  if (Refusal refused = check_roles(chat.messages, *text)) return refused;
  if (chat.continue_final) {
    if (!cut_after(*text, chat.messages.back().at("content").get_string()))
      return wrong({400, "the chat template changes the last message, so it cannot be continued"});
  }
  if (reading) {
    const dialect::ThinkFormat* think = read.parser.format.think;
    if (!think) think = dialect::find_think_format(source);
    if (think && !text->empty())
      read.thinking_open = dialect::opens_thinking(*think, text->back().text);
    read.parser.thinking = read.thinking_open && read.parser.format.think;
    read.think = think;
    *reading = std::move(read);
  }
  if (bounded) {
    if (Refusal refused = check_length(*text, "prompt", chat)) return refused;
  }
  Result<std::vector<Token>> ids =
      tokenizer->encode(*text, {.add_special = chat.add_special_tokens});
  if (!ids) return wrong(ids.error());
  out = std::move(*ids);
  return {};
}

Refusal Service::plan_thinking(const ChatReading& reading, ChatFields& fields) {
  if (!plans_thinking(reading, fields)) return {};
  const std::string& name =
      fields.thinking_budget ? fields.thinking_budget->name : fields.constraint->name;
  auto refuse = [&](const char* why) {
    return ApiError{400, name + ": " + why, name, "unsupported_parameter"};
  };
  if (!reading.think)
    return refuse("this model thinks in a channel, which cannot be ended for it: leave it out");
  std::shared_ptr<const constrain::ThinkMarks> marks;
  {
    std::lock_guard lock(marks_mutex_);
    std::shared_ptr<const constrain::ThinkMarks>& kept = think_marks_[reading.think];
    if (!kept)
      kept = think_marks(*session_->tokenizer(), session_->model().shape().vocab,
                         reading.think->begin, reading.think->end);
    marks = kept;
  }
  if (marks->closing(0).empty())
    return refuse("this model's vocabulary cannot spell the end of its thinking");
  constrain::Thinking thinking{std::move(marks), reading.thinking_open};
  if (fields.thinking_budget) thinking.budget = fields.thinking_budget->tokens;
  fields.thinking = std::make_shared<const constrain::Thinking>(std::move(thinking));
  return {};
}

void Service::note_unknown(const std::vector<std::string>& names) {
  if (names.empty()) return;
  std::lock_guard lock(mutex_);
  for (const std::string& name : names) {
    if (unknown_.size() < 256 && unknown_.insert(name).second)
      LOG(warn, "ignored: the request field %s", quote(name).c_str());
  }
}

namespace {

// Two headers contradict each other: as if there was none.
std::string_view only_header(const HttpRequest& request, std::string_view name) {
  std::string_view value;
  int num = 0;
  for (const auto& [n, v] : request.headers) {
    if (n == name) value = v, ++num;
  }
  return num == 1 ? value : std::string_view{};
}

// A client's id is echoed when it is harmless in a header and a log.
std::string checked_id(std::string_view given) {
  bool fine =
      !given.empty() && given.size() <= 128 && std::all_of(given.begin(), given.end(), [](char c) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
               c == '-' || c == '_' || c == '.' || c == ':';
      });
  return fine ? std::string(given) : std::string();
}

}  // namespace

void Service::run_elsewhere(Worker& worker, const Route& route, Call call) {
  call.heavy = true;
  Call kept{{}, call.out, call.id, call.key, call.received};
  kept.errors = call.errors;
  kept.trace = call.trace;
  kept.http.method = call.http.method;
  kept.http.path = call.http.path;
  size_t bytes = call.http.body.size();
  auto shared = std::make_shared<Call>(std::move(call));
  auto work = [this, &route, shared, kept] {
    try {
      route.run(*this, std::move(*shared));
    } catch (...) {
      fail_by_exception(kept);
    }
  };
  bool taken = worker.push(std::move(work), bytes);
  if (taken) return;
  meters_.refusals.add();
  fail(kept, {429, "too many requests are waiting: try again later", "", "queue_full"});
}

namespace {

bool is_route(std::string_view route, std::string_view path) {
  const size_t star = route.find('*');
  if (star == route.npos) {
    const bool prefix = route.size() > 1 && route.back() == '/';
    return prefix ? path.starts_with(route) : path == route;
  }
  const std::string_view before = route.substr(0, star), behind = route.substr(star + 1);
  if (path.size() < route.size() || !path.starts_with(before) || !path.ends_with(behind))
    return false;
  path.remove_prefix(before.size());
  path.remove_suffix(behind.size());
  return path.find('/') == path.npos;
}

}  // namespace

void Service::run(const Route& route, Call call) {
  if (route.kind == Route::generates && admission_.full()) {  // before any work on it
    meters_.refusals.add();
    return fail(call, {429, "too many requests are waiting: try again later", "", "queue_full"});
  }
  if (route.where == Route::disk) return run_elsewhere(disk_, route, std::move(call));
  if (call.http.body.size() > options_.heavy_bytes)
    return run_elsewhere(worker_, route, std::move(call));
  if (route.where == Route::renderer) return run_elsewhere(renderer_, route, std::move(call));
  route.run(*this, std::move(call));
}

void Service::handle_own(HttpRequest request, std::shared_ptr<Responder> out, int key) {
  Call call{std::move(request), std::move(out), new_id("req-"), key};
  call.received = clock_.now();
  Call kept{{}, call.out, call.id, call.key, call.received};
  try {
    for (const Route& r : routes())
      if (r.kind == Route::generates && call.http.path == r.path && call.http.method == r.method)
        return run(r, std::move(call));
    fail(call, {404, "there is no such route", "", "not_found"});
  } catch (...) {
    fail_by_exception(kept);
  }
}

Call Service::open_call(HttpRequest request, std::shared_ptr<Responder> out) {
  Call call{std::move(request), std::move(out), "", -1};
  call.received = clock_.now();
  if (draining()) call.out->close_after();
  call.id = checked_id(call.http.header("x-request-id"));
  if (call.id.empty()) call.id = new_id("req-");
  call.trace = parse_traceparent(only_header(call.http, "traceparent"));
  if (call.trace) {
    call.trace.span = new_seed() | 1;  // 0 would be none
    call.out->add_header("traceparent", format_traceparent(call.trace));
  }
  return call;
}

Refusal Service::authorize(Call& call) const {
  if (!keys_.needed()) return {};
  call.key = keys_.find(call.http.header("authorization"), call.http.header("x-api-key"));
  if (call.key >= 0) return {};
  return ApiError{401, "a valid API key is needed (Authorization: Bearer KEY, or X-Api-Key)", "",
                  "invalid_api_key"};
}

void Service::handle_grpc(HttpRequest request, std::shared_ptr<Responder> out, double seconds) {
  Call call = open_call(std::move(request), std::move(out));
  call.errors = ErrorStyle::grpc;
  call.seconds_left = seconds;
  const Route* found = nullptr;
  for (const Route& r : grpc_routes())
    if (call.http.path == r.path) found = &r;
  if (!(found && found->open)) {
    if (Refusal refused = authorize(call)) return fail(call, *refused);
  }
  if (!found)
    return fail(call, {501, strf("there is no method %s here", quote(call.http.path).c_str()), "",
                       "not_found"});
  if (!found->open) {
    if (Refusal refused = check_ready()) return fail(call, *refused);
  }
  run(*found, std::move(call));
}

void Service::handle(HttpRequest request, std::shared_ptr<Responder> out) {
  Call call = open_call(std::move(request), std::move(out));
  const std::string& path = call.http.path;
  if (path.starts_with("/api/")) call.errors = ErrorStyle::ollama;  // also where there is no route
  const Route* found = nullptr;
  std::string allowed;
  bool starred = false;  // a route with * goes before one that only names the beginning
  for (const Route& r : routes()) {
    if (!is_route(r.path, path)) continue;
    const bool star = std::string_view(r.path).find('*') != std::string_view::npos;
    if (starred && !star) continue;
    if (star && !starred) allowed.clear(), found = nullptr;
    starred = star;
    if (call.http.method == r.method) found = &r;
    call.errors = r.errors;
    allowed += (allowed.empty() ? "" : ", ") + std::string(r.method);
  }
  if (Refusal refused = guard_.check(call.http, *call.out)) return fail(call, *refused);
  if (BrowserGuard::is_preflight(call.http))
    return reply(call, BrowserGuard::answer_preflight(call.http));
  if (!(found && found->open)) {
    if (Refusal refused = authorize(call)) return fail(call, *refused);
  }
  // A client that repeats its POST after a lost connection wants the rest, not another answer.
  if (found && found->kind == Route::generates && !call.http.header("last-event-id").empty())
    return serve_stream(*this, std::move(call));
  if (found) return run(*found, std::move(call));
  if (allowed.empty() || is_unserved(path))
    return fail(call, {404, strf("there is no %s here", quote(path).c_str()), "", "not_found"});
  HttpResponse r = refusal({405, strf("%s takes %s", quote(path).c_str(), allowed.c_str()), "", ""},
                           call.errors, call.id);
  r.headers.emplace_back("Allow", allowed);
  reply(call, std::move(r));
}

}  // namespace sluice

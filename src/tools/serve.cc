// sluice serve: the HTTP API in front of one model.
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "base/log.h"
#include "base/mailbox.h"
#include "base/str.h"
#include "net/http.h"
#include "runtime/collect.h"
#include "server/service.h"
#include "tools/commands.h"
#include "tools/notify.h"
#include "tools/terminal.h"

namespace sluice {

namespace {

using std::chrono::milliseconds;

std::string served_name(std::string model) {
  if (model.starts_with("random:")) return model;
  while (model.ends_with('/')) model.pop_back();  // a directory
  size_t slash = model.find_last_of('/');
  std::string name = slash == std::string::npos ? model : model.substr(slash + 1);
  if (name.ends_with(".gguf")) name.resize(name.size() - 5);
  return name.empty() ? "model" : name;
}

// SIGINT and SIGTERM become messages; while the model loads they end the process.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);  // before any thread exists, which inherits it
    thread_ = std::thread([this] { run(); });
  }
  ~Signals() {
    stopping_ = true;
    pthread_kill(thread_.native_handle(), SIGTERM);
    thread_.join();
  }
  void caught_from_now_on() { loading_ = false; }
  // Waits at most so long; 0: none came.
  int wait(std::chrono::nanoseconds time) {
    box_.wait_drain(batch_, time);
    return batch_.empty() ? 0 : batch_.front();
  }

 private:
  void run() {
    while (!stopping_) {
      int signal = 0;
      if (sigwait(&set_, &signal) != 0 || stopping_) continue;
      if (loading_) {
        std::fprintf(stderr, "\nsluice: stopped while loading\n");
        std::_Exit(kExitOk);
      }
      box_.push(signal);
    }
  }

  sigset_t set_;
  std::atomic<bool> loading_{true}, stopping_{false};
  Mailbox<int> box_;
  std::vector<int> batch_;
  std::thread thread_;
};

void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Touches what the first request would otherwise pay for: a full prompt chunk, then a few decodes.
void warm_up(Session& s) {
  const SchedulerConfig& c = s.engine().config();
  int vocab = s.model().shape().vocab;
  std::vector<Token> prompt(static_cast<size_t>(std::max(std::min(c.budget, c.max_len / 2), 1)));
  for (size_t i = 0; i < prompt.size(); ++i)
    prompt[i] = static_cast<Token>(i * 7919 % static_cast<size_t>(vocab));
  Request r;
  r.prompt = std::make_shared<const std::vector<Token>>(std::move(prompt));
  r.sampling = std::make_shared<const SamplingSpec>();
  r.max_new = std::min(8, c.max_len / 2);
  r.tenant = ~TenantId{0};
  Collector collector(s.engine(), nullptr);
  collector.submit(std::move(r));
  collector.wait();
}

ServiceOptions service_options(const ServeOptions& o) {
  ServiceOptions s;
  s.model_names = o.served_names;
  if (s.model_names.empty()) s.model_names.push_back(served_name(o.engine.model));
  s.version = SLUICE_VERSION;
  s.tokenizer_info = o.allow_tokenizer_info;
  s.pooling = o.pooling == "mean" ? Pooling::mean : Pooling::last;
  s.max_queue = o.max_queue;
  s.max_queue_tokens = o.max_queue_tokens;
  s.max_queue_per_key = o.max_queue_per_key;
  s.request_timeout = o.request_timeout;
  s.stall_seconds = o.stall_timeout;
  s.ping_seconds = o.ping;
  s.limits.request_template = o.allow_request_template;
  return s;
}

Result<std::shared_ptr<TlsContext>> read_tls(const ServeOptions& o) {
  if (o.tls_cert.empty() && o.tls_key.empty()) return std::shared_ptr<TlsContext>();
  if (o.tls_cert.empty() || o.tls_key.empty())
    return Error{400, "--tls-cert and --tls-key go together: give both or neither"};
  return TlsContext::server(o.tls_cert, o.tls_key);
}

HttpServer::Options http_options(const ServeOptions& o,
                                 std::shared_ptr<TlsContext> tls,
                                 Service& service) {
  HttpServer::Options h;
  h.tls = std::move(tls);
  h.host = o.host;
  h.port = static_cast<uint16_t>(o.port);
  h.threads = static_cast<size_t>(o.io_threads);
  h.limits.body_bytes = o.max_body;
  h.limits.connections = static_cast<size_t>(o.max_connections);
  h.limits.connections_per_ip = static_cast<size_t>(o.max_connections_per_ip);
  auto ms = [](double s) { return milliseconds(static_cast<int64_t>(s * 1e3)); };
  h.limits.header = ms(o.header_timeout);
  h.limits.body = ms(o.body_timeout);
  h.limits.idle = ms(o.idle_timeout);
  h.limits.send = ms(o.send_timeout);
  h.on_request = [&service](HttpRequest request, std::shared_ptr<Responder> out) {
    service.handle(std::move(request), std::move(out));
  };
  h.refuse = [&service](int status, std::string_view reason) {
    return service.refusal({status, std::string(reason), "", ""});
  };
  return h;
}

// For a shell.
std::string in_quotes(const std::string& text) {
  std::string out = "'";
  for (char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

void show_address(const ServeOptions& o,
                  const TlsContext* tls,
                  uint16_t port,
                  const Service& service,
                  bool chat) {
  bool six = o.host.find(':') != std::string::npos;
  std::string url =
      strf(six ? "%s://[%s]:%d" : "%s://%s:%d", tls ? "https" : "http", o.host.c_str(), port);
  std::string trust = tls && tls->self_signed() ? "--cacert " + in_quotes(o.tls_cert) + " " : "";
  std::string key = service.keys().needed() ? " -H \"Authorization: Bearer $KEY\"" : "";
  std::fprintf(stderr, "sluice: ready on %s as %s\n", url.c_str(),
               service.options().model_names[0].c_str());
  const char* body = chat ? "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}]}"
                          : "{\"prompt\": \"Once upon a time\"}";
  std::fprintf(stderr, "  curl %s%s/v1/%s%s -H 'Content-Type: application/json' -d '%s'\n",
               trust.c_str(), url.c_str(), chat ? "chat/completions" : "completions", key.c_str(),
               body);
}

// Until a signal, with an eye on the engine.
void watch(const ServeOptions& o, Service& service, Signals& signals) {
  bool warned = false;
  auto pause =
      milliseconds(o.ping > 0 ? std::clamp<int64_t>(int64_t(o.ping * 500), 50, 1000) : 1000);
  while (signals.wait(pause) == 0) {
    service.tick();
    double stalled = service.meters().stalled(service.clock().now());
    if (stalled > o.stall_timeout && !warned)
      LOG(error, "no step for %.0f s with requests to answer: /health says 503", stalled);
    warned = stalled > o.stall_timeout;
    if (!warned) notify_manager("WATCHDOG=1");
  }
}

// What is in flight finishes inside the grace time, or until a second signal.
void drain(const ServeOptions& o, Service& service, HttpServer& http, Signals& signals) {
  service.drain();
  int left = service.meters().outstanding();
  std::fprintf(stderr, "sluice: stopping; %d requests may take %.0f s to finish\n", left, o.grace);
  const Clock& clock = service.clock();
  Time end = clock.now() + Time(static_cast<int64_t>(o.grace * 1e9));
  auto busy = [&] { return service.meters().outstanding() > 0 || http.stats().busy > 0; };
  bool now = false;
  while (busy() && clock.now() < end && !now) now = signals.wait(milliseconds(20)) != 0;
  if (service.meters().outstanding() > 0) {
    LOG(warn, "cut off %d requests", service.meters().outstanding());
    service.cancel_all();
  }
  http.drain();
  end = clock.now() + std::chrono::seconds(1);  // for the last bytes
  while (!now && busy() && clock.now() < end) now = signals.wait(milliseconds(5)) != 0;
  service.finish_work();
  http.stop();
}

}  // namespace

int cmd_serve(const ServeOptions& o) {
  Keys keys;
  if (!o.api_key_file.empty()) {
    Result<Keys> read = Keys::read(o.api_key_file);
    if (!read) return report(read.error());
    keys = std::move(*read);
  }
  if (!keys.needed() && !o.allow_no_key && !is_loopback(o.host)) {
    return report({400, strf("%s can be reached by others: give --api-key-file, or say "
                             "--allow-no-key",
                             quote(o.host).c_str())});
  }
  Result<std::shared_ptr<TlsContext>> tls = read_tls(o);
  if (!tls) return report(tls.error());
  Signals signals;
  raise_descriptor_limit();
  Service service(service_options(o), std::move(keys));
  Result<std::unique_ptr<HttpServer>> http = HttpServer::start(http_options(o, *tls, service));
  if (!http) return report(http.error());
  HttpServer* server = http->get();
  service.connect([server](size_t t, std::function<void()> f) { server->post(t, std::move(f)); },
                  server->num_threads());

  EngineOptions engine = o.engine;
  engine.observer = [&service](const StepReport& r, const StepPlan& p, const Events& e,
                               const Scheduler& s) {
    service.meters().on_step(r, service.clock().now());
    service.recorder().observe(r, p, e, s);
  };
  Result<std::unique_ptr<Session>> session = open_session(engine);
  if (!session) {
    service.finish_work();
    server->stop();
    return report(session.error());
  }
  show_ledger(**session);
  warm_up(**session);
  signals.caught_from_now_on();
  service.attach(**session);
  show_address(o, tls->get(), server->port(), service, (*session)->chat_template() != nullptr);
  notify_manager("READY=1");
  watch(o, service, signals);
  notify_manager("STOPPING=1");
  drain(o, service, *server, signals);
  // The engine ends while what its sinks point to still exists.
  Result<void> written = (*session)->write_trace();
  session->reset();
  return written ? kExitOk : report(written.error());
}

}  // namespace sluice

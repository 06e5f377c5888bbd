// sluice serve: the HTTP API in front of one model.
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "base/log.h"
#include "base/str.h"
#include "core/policy.h"
#include "net/http.h"
#include "runtime/collect.h"
#include "server/service.h"
#include "tools/commands.h"
#include "tools/notify.h"
#include "tools/replay/replay.h"
#include "tools/resolved_options.h"
#include "tools/serve_limits.h"
#include "tools/serve_signals.h"
#include "tools/serve_watch.h"
#include "tools/simulated_cost.h"
#include "tools/terminal.h"

namespace sluice {

namespace {

using std::chrono::milliseconds;

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
  s.model_names = served_names(o);
  s.model_path = o.engine.model;
  s.version = SLUICE_VERSION;
  s.tokenizer_info = o.allow_tokenizer_info;
  s.pooling = o.pooling;
  s.formats = o.formats;
  s.admission = o.admission;
  s.admission.total.sequences = queue_limit(o);
  s.request_share = o.request_share;
  s.request_timeout = o.request_timeout;
  s.stall_seconds = o.stall_timeout;
  s.ping_seconds = o.ping;
  s.resume_seconds = o.resume;
  s.limits.request_template = o.allow_request_template;
  s.log_requests = o.log_requests;
  s.browsers.host = o.host;
  s.browsers.loopback = is_loopback(o.host);
  s.browsers.allowed_hosts = o.allowed_hosts;
  s.browsers.cors = o.cors;
  return s;
}

EngineOptions engine_options(const ServeOptions& o, bool has_keys) {
  EngineOptions engine = o.engine;
  engine.has_accounts = has_keys;
  engine.record_build = this_build();
  engine.front_end_bytes = serving_memory(o).records;
  if (!engine.record_dir.empty())
    engine.front_end_bytes += FlightRecorder::memory(engine.record_bytes);
  return engine;
}

Result<Keys> read_keys(const ServeOptions& o) {
  Result<Keys> keys = o.api_key_file.empty() ? Result<Keys>(Keys()) : Keys::read(o.api_key_file);
  if (keys && !keys->needed() && !o.allow_no_key && !is_loopback(o.host)) {
    return Error{400, strf("%s can be reached by others: give --api-key-file, or say "
                           "--allow-no-key",
                           quote(o.host).c_str())};
  }
  return keys;
}

Result<std::shared_ptr<TlsContext>> read_tls(const ServeOptions& o) {
  if (o.tls_cert.empty() && o.tls_key.empty()) return std::shared_ptr<TlsContext>();
  if (o.tls_cert.empty() || o.tls_key.empty())
    return Error{400, "--tls-cert and --tls-key go together: give both or neither"};
  return TlsContext::server(o.tls_cert, o.tls_key);
}

// Null without --kv-events.
Result<std::unique_ptr<KvPublisher>> open_kv_events(const ServeOptions& o) {
  if (o.kv_events.sockets.publish.empty()) return std::unique_ptr<KvPublisher>();
  if (!o.engine.scheduler.prefix_cache || o.engine.scheduler.contiguous())
    return Error{400, "--kv-events needs the prefix cache: there is none with these options"};
  return KvPublisher::open(o.kv_events);
}

// Null without --role.
Result<std::unique_ptr<KvTransfer>> open_transfer(const ServeOptions& o, EngineOptions& engine) {
  if (o.transfer.role == KvRole::none) return std::unique_ptr<KvTransfer>();
  if (!engine.scheduler.prefix_cache || engine.scheduler.contiguous())
    return Error{400, "--role needs the prefix cache: there is none with these options"};
  if (!engine.record_dir.empty())
    return Error{400, "--record does not go with --role: blocks from elsewhere are not recorded"};
  if (engine.prefix_host_bytes == 0) engine.prefix_host_bytes = KvTransfer::kHostBytes;
  Result<std::unique_ptr<KvTransfer>> transfer = KvTransfer::open(o.transfer);
  if (transfer) engine.exporter = (*transfer)->exporter();
  if (o.transfer.leave != KvLeave::automatic) engine.sends = o.transfer.leave == KvLeave::layers;
  return transfer;
}

// Null without --register.
std::unique_ptr<EtcdRegistration> register_server(const ServeOptions& o, int port) {
  if (o.registration.servers.empty()) return nullptr;
  auto started = EtcdRegistration::start(o.registration, o.host, port);
  if (started) return std::move(*started);
  LOG(error, "not registered: %s", started.error().message.c_str());
  return nullptr;
}

void start_transfer(KvTransfer& transfer, Session& session) {
  transfer.attach(session);
  if (const KvPort* p = transfer.port())
    log_plain("KV blocks for others on %s port %d%s", p->address().c_str(), int{p->port()},
              transfer.transport() == Transport::ucx   ? " by UCX"
              : transfer.transport() == Transport::shm ? " by shared memory or TCP"
                                                       : "");
}

Result<std::unique_ptr<Session>> open_serving(const ServeOptions& o, EngineOptions engine) {
  if (!o.cost.empty()) {
    // A simulated device has costs of whatever model.
    Result<StepCost> cost =
        o.simulate.empty() ? predicted_cost(engine, o.cost) : simulated_cost(engine, o.cost);
    if (!cost) return cost.error();
    engine.cost = std::move(*cost);
  }
  if (o.simulate.empty()) return open_session(engine);
  Result<StepCost> cost = simulated_cost(engine, o.simulate);
  if (!cost) return cost.error();
  log_plain("SIMULATED: steps take as long as %s says, nothing is computed, outputs are arbitrary",
            quote(o.simulate).c_str());
  return open_simulated(engine, *cost);
}

void start_kv_events(KvPublisher& events, Session& session, Service& service) {
  Engine* engine = &session.engine();
  events.start(static_cast<int>(engine->config().group_windows.size()),
               [engine] { engine->poke(); });
  service.set_kv_events(events);
  const std::string& replay = events.replay_address();
  log_plain("KV events on %s%s%s", events.publish_address().c_str(),
            replay.empty() ? "" : ", replay on ", replay.c_str());
}

HttpServer::Options http_options(const ServeOptions& o,
                                 std::shared_ptr<TlsContext> tls,
                                 Service& service) {
  HttpServer::Options h;
  h.tls = std::move(tls);
  h.host = o.host;
  h.port = static_cast<uint16_t>(o.port);
  h.threads = static_cast<size_t>(o.io_threads);
  h.limits = http_limits(o);
  h.on_request = [&service](HttpRequest request, std::shared_ptr<Responder> out) {
    service.handle(std::move(request), std::move(out));
  };
  h.refuse = [&service](int status, std::string_view reason) {
    return service.refuse_unread(status, reason);
  };
  return h;
}

struct FlushLog {
  ~FlushLog() { flush_log(milliseconds(500)); }
};

// For a shell.
std::string in_quotes(const std::string& text) {
  std::string out = "'";
  for (char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

void show_sampling(const Session& s) {
  const SamplingDefaults& d = s.sampling_defaults();
  log_plain("sampling by default: %s (%s)", describe_sampling(d.spec).c_str(), d.source.c_str());
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
  // A browser cannot open the address that stands for all of them.
  const bool any = o.host == "0.0.0.0" || o.host == "::";
  const std::string page =
      any ? strf("%s://localhost:%d/", tls ? "https" : "http", port) : url + "/";
  log_plain("sluice: ready on %s as %s", url.c_str(), service.options().model_names[0].c_str());
  log_plain("  chat in a browser: %s", page.c_str());
  const char* body = chat ? "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}]}"
                          : "{\"prompt\": \"Once upon a time\"}";
  log_plain("  curl %s%s/v1/%s%s -H 'Content-Type: application/json' -d '%s'", trust.c_str(),
            url.c_str(), chat ? "chat/completions" : "completions", key.c_str(), body);
}

// Null without --grpc-port. The certificate is read once.
Result<std::unique_ptr<GrpcServer>> open_grpc(const ServeOptions& o, GrpcFront& front) {
  if (!o.grpc_port) return std::unique_ptr<GrpcServer>();
  GrpcOptions g;
  g.host = o.host;
  g.port = static_cast<uint16_t>(*o.grpc_port);
  g.message_bytes = std::min<uint64_t>(o.max_body, INT32_MAX);
  g.memory_bytes = std::max<size_t>(g.memory_bytes, 2 * g.message_bytes);
  for (auto [path, to] : {std::pair{&o.tls_cert, &g.tls_cert}, {&o.tls_key, &g.tls_key}}) {
    if (path->empty()) continue;
    std::ifstream in(*path, std::ios::binary);
    to->assign(std::istreambuf_iterator<char>(in), {});
  }
  return start_grpc(g, front);
}

// Null without --batch-dir.
Result<std::unique_ptr<BatchStore>> open_batches(const ServeOptions& o, bool has_keys) {
  if (o.batch_dir.empty()) return std::unique_ptr<BatchStore>();
  BatchLimits limits;
  limits.bytes = static_cast<uint64_t>(o.batch_bytes);
  limits.shared = has_keys;
  return BatchStore::open(o.batch_dir, limits);
}

}  // namespace

int cmd_serve(const ServeOptions& o) {
  Result<Keys> read = read_keys(o);
  if (!read) return report(read.error());
  Keys keys = std::move(*read);
  if (auto ok = check_policies(o.engine.scheduler, keys.needed()); !ok) return report(ok.error());
  Result<std::shared_ptr<TlsContext>> tls = read_tls(o);
  if (!tls) return report(tls.error());
  // Bound before the model is loaded: an address that will not do costs no waiting.
  Result<std::unique_ptr<KvPublisher>> opened = open_kv_events(o);
  if (!opened) return report(opened.error());
  const std::unique_ptr<KvPublisher> kv_events = std::move(*opened);
  log_in_background();
  FlushLog flush_at_end;
  Signals signals(o.grace);
  raise_descriptor_limit();
  EngineOptions engine = engine_options(o, keys.needed());
  if (auto good = EtcdRegistration::check(o.registration, o.host, *tls != nullptr); !good)
    return report(good.error());
  Result<std::unique_ptr<KvTransfer>> transfer = open_transfer(o, engine);
  if (!transfer) return report(transfer.error());
  ServiceOptions options = service_options(o);
  options.transfer = transfer->get();
  options.browsers.needs_key = keys.needed();
  if (Result<void> good = BrowserGuard::check(options.browsers); !good) return report(good.error());
  Result<std::unique_ptr<BatchStore>> batches = open_batches(o, keys.needed());
  if (!batches) return report(batches.error());
  options.batches = std::move(*batches);
  Service service(std::move(options), std::move(keys));
  GrpcFront grpc_front(service, http_limits(o));
  Result<std::unique_ptr<HttpServer>> http = HttpServer::start(http_options(o, *tls, service));
  if (!http) return report(http.error());
  HttpServer* server = http->get();
  service.connect([server](size_t t, std::function<void()> f) { server->post(t, std::move(f)); },
                  server->num_threads());
  service.count_connections([server] { return server->stats(); });
  Result<std::unique_ptr<GrpcServer>> grpc = open_grpc(o, grpc_front);
  if (!grpc) return report(grpc.error());

  KvEventLog* kv_log = kv_events ? &kv_events->log() : nullptr;
  engine.kv_listener = kv_log;
  engine.observer = [&service, kv_log](const StepReport& r, const StepPlan& p, const Events& e,
                                       const Scheduler& s) {
    if (kv_log) kv_log->hand_over(s);
    service.on_iteration(r, s);
    service.recorder().observe(r, p, e, s);
  };
  Result<std::unique_ptr<Session>> session = open_serving(o, engine);
  if (!session) {
    if (*grpc) (*grpc)->stop();
    service.finish_work();
    server->stop();
    return report(session.error());
  }
  show_ledger(**session);
  if (!o.engine.quiet) show_sampling(**session);
  if (o.warm_up) warm_up(**session);
  signals.loaded();
  if (*transfer) start_transfer(**transfer, **session);
  service.attach(**session);
  if (kv_events) start_kv_events(*kv_events, **session, service);
  show_address(o, tls->get(), server->port(), service, (*session)->chat_template() != nullptr);
  if (*grpc) log_plain("  gRPC: %s port %d", o.host.c_str(), int{(*grpc)->port()});
  notify_manager("READY=1");
  const std::unique_ptr<EtcdRegistration> registration = register_server(o, server->port());
  Serving serving{o,          service, *server, tls->get(), signals, *grpc ? &grpc_front : nullptr,
                  grpc->get()};
  watch(serving);
  notify_manager("STOPPING=1");
  if (registration) registration->leave();
  drain(serving);
  // The engine ends while what its sinks point to still exists.
  Result<void> written = (*session)->write_trace();
  if (kv_events) kv_events->stop();
  if (*transfer) (*transfer)->stop();
  session->reset();
  if (!written) log_plain("sluice: %s", written.error().message.c_str());
  return written ? kExitOk : kExitFailure;
}

}  // namespace sluice

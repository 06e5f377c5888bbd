#include "tools/route/route.h"

#include "base/log.h"
#include "base/str.h"
#include "tools/bench_serve/plan.h"
#include "tools/commands.h"
#include "tools/notify.h"
#include "tools/plan/cost_file.h"
#include "tools/request_headers.h"
#include "tools/route/router.h"
#include "tools/serve_signals.h"

namespace sluice {

namespace {

using std::chrono::milliseconds;

// The KV of a token on its way to another worker, where nobody measured: 40 KB at 2 GB/s.
constexpr double kAssumedTransfer = 20e-6;

// Where nobody measured: 5 ms a step and 50 us a token, as a small model on a CPU might take. The
// conductor learns how far off it is from the first tokens that it sees.
StepCost assumed_cost() {
  StepCost c;
  c.rows = {{0, 5e-3}, {4096, 5e-3 + 4096 * 50e-6}};
  return c;
}

Result<HttpClient::Options> client_options(const RouteOptions& o, const std::string& text) {
  Result<HttpUrl> url = parse_http_url(text);
  if (!url) return url.error();
  HttpClient::Options to;
  to.url = *url;
  if (!url->tls) return to;
  Result<std::shared_ptr<TlsContext>> tls = TlsContext::client({o.ca_file, false});
  if (!tls) return tls.error();
  to.tls = std::move(*tls);
  return to;
}

Result<std::vector<HttpClient::Options>> worker_options(const RouteOptions& o) {
  if (o.workers.size() > kMostWorkers)
    return Error{400,
                 strf("%zu workers are too many: at most %zu", o.workers.size(), kMostWorkers)};
  std::vector<HttpClient::Options> out;
  for (const std::string& text : o.workers) {
    Result<HttpClient::Options> to = client_options(o, text);
    if (!to) return to.error();
    HttpUrl& url = to->url;
    if (url.path.ends_with("/v1")) url.path.resize(url.path.size() - 3);
    for (const HttpClient::Options& other : out)
      if (other.url.host == url.host && other.url.port == url.port)
        return Error{400, strf("--worker %s is there twice", quote(text, 400).c_str())};
    out.push_back(std::move(*to));
  }
  return out;
}

// Where the workers are that are not given.
Result<void> find_members(const RouteOptions& o, RouterOptions& r) {
  if (!o.workers_dns.empty()) {
    Result<HttpUrl> url = parse_http_url("http://" + o.workers_dns);
    if (!url || !url->path.empty() || o.workers_dns.find(':') == std::string::npos)
      return Error{400, strf("--workers-dns is NAME:PORT, not %s", quote(o.workers_dns).c_str())};
    r.dns_name = url->host;
    r.dns_port = url->port;
  }
  if (!o.etcd.empty()) {
    if (o.etcd_prefix.empty()) return Error{400, "--etcd-prefix is empty"};
    Result<EtcdClient> etcd = EtcdClient::make(o.etcd, o.ca_file, EtcdWatch::kPatience);
    if (!etcd) return etcd.error();
    r.etcd.emplace(std::move(*etcd));
    r.etcd_prefix = o.etcd_prefix;
  }
  if (r.workers.empty() && !r.changes())
    return Error{400, "a router needs workers: give --worker, --workers-dns or --etcd"};
  return {};
}

Result<RouterOptions> router_options(const RouteOptions& o) {
  RouterOptions r;
  Result<std::vector<HttpClient::Options>> workers = worker_options(o);
  if (!workers) return workers.error();
  r.workers = std::move(*workers);
  if (auto ok = find_members(o, r); !ok) return ok.error();
  Result<Slo> slo = parse_slo(o.slo);
  if (!slo) return slo.error();
  if (slo->itl > 0 || slo->e2e > 0)
    return Error{400, "--slo of a router takes ttft and tpot: the rest cannot be predicted"};
  r.routing.policy = o.policy;
  r.routing.ttft = slo->ttft;
  r.routing.tpot = slo->tpot;
  r.routing.reject = slo->ttft > 0 || slo->tpot > 0;
  r.routing.transfer = kAssumedTransfer;
  r.routing.fetch = o.fetch;
  r.routing.balance = o.balance;
  if (o.balance && !r.routing.reject)
    return Error{400, "--balance-roles needs --slo: roles are chosen to keep it"};
  r.worker.cost = assumed_cost();
  r.worker.budget = o.budget;
  if (!o.cost.empty()) {
    Result<CostFile> file = load_cost(o.cost);
    if (!file) return file.error();
    r.worker.cost = file->cost;
  }
  if (o.max_held / 2 < o.max_body)
    return Error{400, "--max-held must be at least twice --max-body: a body and its copy are held"};
  r.limits.requests = static_cast<size_t>(o.max_requests);
  r.limits.request_bytes = o.max_held;
  r.limits.silence = milliseconds(static_cast<int64_t>(o.silence * 1e3));
  r.tries = o.tries;
  r.kv_events = o.kv_events;
  r.kv_event_key = o.kv_event_key;
  r.session_header = o.session_header;
  for (char& c : r.session_header) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  return r;
}

Result<HttpServer::Options> route_http(const RouteOptions& o, Router& router) {
  HttpServer::Options h;
  h.host = o.host;
  h.port = static_cast<uint16_t>(o.port);
  h.limits.body_bytes = o.max_body;
  h.limits.connections = static_cast<size_t>(o.max_connections);
  if (o.tls_cert.empty() != o.tls_key.empty())
    return Error{400, "--tls-cert and --tls-key go together: give both or neither"};
  if (!o.tls_cert.empty()) {
    Result<std::shared_ptr<TlsContext>> tls = TlsContext::server(o.tls_cert, o.tls_key);
    if (!tls) return tls.error();
    h.tls = std::move(*tls);
  }
  h.on_request = [&router](HttpRequest request, std::shared_ptr<Responder> out) {
    router.handle(std::move(request), std::move(out));
  };
  h.refuse = Router::refuse;
  return h;
}

void finish_requests(HttpServer& server, Signals& signals, double grace) {
  log_plain("sluice: stopping; %zu requests may take %.0f s to finish", server.stats().busy, grace);
  RealClock clock;
  const Time end(static_cast<int64_t>(grace * 1e9));
  server.drain();
  while (server.stats().busy > 0 && clock.now() < end)
    if (signals.wait(milliseconds(20)) == Wake::stop) break;
  if (const size_t cut = server.stats().busy; cut > 0) LOG(warn, "cut off %zu requests", cut);
}

}  // namespace

int cmd_route(const RouteOptions& o) {
  if (!o.allow_others && !is_loopback(o.host))
    return report({400, strf("%s can be reached by others, and the router checks no keys (the "
                             "workers do, where they have some): say --allow-no-key",
                             quote(o.host).c_str())});
  Result<RouterOptions> options = router_options(o);
  if (!options) return report(options.error());
  log_in_background();
  Signals signals(o.grace);
  raise_descriptor_limit();
  Router router(std::move(*options));
  Result<HttpServer::Options> http = route_http(o, router);
  if (!http) return report(http.error());
  Result<std::unique_ptr<HttpServer>> server = HttpServer::start(std::move(*http));
  if (!server) return report(server.error());
  const Result<void> started = router.start(**server);
  if (!started) {
    (*server)->stop();
    router.close();  // its connections are on the server's thread
    return report(started.error());
  }
  signals.loaded();
  const bool six = o.host.find(':') != std::string::npos;
  const std::string named = !o.workers_dns.empty() ? " and those of " + o.workers_dns
                            : !o.etcd.empty()      ? " and those of etcd"
                                                   : "";
  log_plain(six ? "sluice: routing on %s://[%s]:%d to %zu workers%s, %s"
                : "sluice: routing on %s://%s:%d to %zu workers%s, %s",
            o.tls_cert.empty() ? "http" : "https", o.host.c_str(), (*server)->port(),
            o.workers.size(), named.c_str(), name_of(kRoutings, o.policy));
  notify_manager("READY=1");
  while (signals.wait(milliseconds(1000)) != Wake::stop) notify_manager("WATCHDOG=1");
  notify_manager("STOPPING=1");
  router.drain();
  finish_requests(**server, signals, o.grace);
  (*server)->stop();
  router.close();
  flush_log(milliseconds(500));
  return kExitOk;
}

}  // namespace sluice

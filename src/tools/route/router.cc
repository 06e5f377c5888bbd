#include "tools/route/router.h"

#include <algorithm>
#include <random>

#include "base/log.h"
#include "base/str.h"
#include "server/openai.h"
#include "tools/route/early_prefill.h"
#include "tools/route/exchange.h"
#include "tools/route/worker_probe.h"

namespace sluice {

namespace {

// Answers that a worker keeps for later (responses, streams to resume) are not passed on: nobody
// but that worker has them.
constexpr RoutedPath kRoutedPaths[] = {
    {"POST", "/v1/chat/completions", true, true},
    {"POST", "/v1/completions", true, true},
    {"POST", "/v1/embeddings", true},
    {"POST", "/v1/messages", true},
    {"POST", "/v1/messages/count_tokens"},
    {"POST", "/api/chat", true},
    {"POST", "/api/generate", true},
    {"POST", "/api/embed", true},
    {"POST", "/tokenize"},
    {"POST", "/detokenize"},
    {"GET", "/v1/models"},
    {"GET", "/v1/models/", false, false, true},
    {"GET", "/api/tags"},
    {"GET", "/version"},
};

HashKey draw_key() {
  std::random_device device;
  const auto word = [&] { return uint64_t{device()} << 32 | device(); };
  return {word(), word()};
}

HttpResponse routed_error(int status, const std::string& why, const char* code) {
  HttpResponse r;
  r.status = status;
  r.body = error_json({status, why, "", code});
  return r;
}

}  // namespace

Router::Router(RouterOptions options)
    : options_(std::move(options)),
      key_(draw_key()),
      conductor_(options_.routing,
                 std::vector<ConductorWorker>(
                     options_.changes() ? kMostWorkers : options_.workers.size(), options_.worker),
                 key_) {
  rejected_ = &metrics_.counter("sluice_route_rejected_total", "Requests rejected for load (429)");
  refused_ = &metrics_.counter("sluice_route_refused_total",
                               "Requests refused: too many at once, or no worker (503)");
  retried_ =
      &metrics_.counter("sluice_route_retries_total", "Requests that were sent to another worker");
  prompt_tokens_ = &metrics_.counter("sluice_route_prompt_tokens_total",
                                     "Prompt tokens sent to workers, estimated");
  cached_tokens_ = &metrics_.counter("sluice_route_cached_tokens_total",
                                     "Of those, expected to be cached by the worker");
  prefills_ = &metrics_.counter("sluice_route_prefills_total",
                                "Prompts that a prefill worker computed for another worker");
  fallbacks_ = &metrics_.counter(
      "sluice_route_fallbacks_total",
      "Requests of which one worker computes all, since a prefill or its handover failed");
  fetches_ = &metrics_.counter("sluice_route_fetches_total",
                               "Requests whose worker fetches a prefix from another worker");
  fetched_tokens_ = &metrics_.counter("sluice_route_fetched_tokens_total",
                                      "Prompt tokens of those prefixes, estimated");
  role_changes_ = &metrics_.counter("sluice_route_role_changes_total",
                                    "Roles that --balance-roles has given to workers");
  transfer_ = &metrics_.gauge("sluice_route_transfer_seconds",
                              "To hand over the KV of one token, as it is learned");
  for (const auto& r : kWorkerRoles)
    up_by_role_[static_cast<size_t>(r.value)] = &metrics_.gauge(
        "sluice_route_workers", "Workers that take requests, by role", {{"role", r.name}});
  held_requests_ = &metrics_.gauge("sluice_route_requests", "Requests being answered");
  held_bytes_ = &metrics_.gauge("sluice_route_request_bytes", "Bytes of their bodies");
  first_byte_ = &metrics_.histogram("sluice_route_first_byte_seconds",
                                    "From a request to the first byte of its answer",
                                    exponential_bounds(0.001, 2, 18));
}

Router::~Router() = default;

Result<void> Router::start(HttpServer& server) {
  to_.context = &server.context(0);
  to_.max_connections = options_.limits.requests;
  to_.connect = std::chrono::milliseconds(1500);
  to_.request = std::chrono::hours(24);
  to_.stall = options_.limits.silence;
  workers_.resize(conductor_.num_workers());
  for (size_t i = 0; i < workers_.size(); ++i)
    conductor_.set_alive(static_cast<int>(i), false);  // until it answers
  for (size_t i = 0; i < options_.workers.size(); ++i) {
    HttpClient::Options o = to_;
    o.url = options_.workers[i].url;
    o.tls = options_.workers[i].tls;
    if (auto ok = open_worker(i, std::move(o)); !ok) return ok.error();
  }
  if (options_.kv_events) {
    auto tell = [this, &server](KvFollower::News news) {
      auto kept = std::make_shared<KvFollower::News>(std::move(news));
      server.post(0, [this, kept] { on_kv_news(*kept); });
    };
    auto follower = KvFollower::open(workers_.size(), options_.kv_event_key, tell);
    if (!follower) return follower.error();
    follower_ = std::move(*follower);
  }
  server.post(0, [this] {
    started_ = true;
    for (Worker& w : workers_)
      if (w.probe) w.probe->run();
  });
  if (!options_.dns_name.empty()) {
    auto tell = [this, &server](std::vector<std::string> addresses) {
      std::vector<HttpUrl> members;
      for (std::string& a : addresses) {
        HttpUrl& url = members.emplace_back();
        url.host = std::move(a);
        url.port = options_.dns_port;
      }
      server.post(0, [this, list = std::move(members)] { set_members(list, true); });
    };
    dns_ = std::make_unique<DnsWatch>(options_.dns_name, options_.dns_every, options_.resolve,
                                      std::move(tell));
  }
  if (options_.etcd) {
    auto tell = [this, &server](EtcdWatch::News news) {
      server.post(0, [this, n = std::move(news)] { set_members(n.workers, n.settled); });
    };
    etcd_ = std::make_unique<EtcdWatch>(std::move(*options_.etcd), options_.etcd_prefix,
                                        std::move(tell));
  }
  return {};
}

void Router::close() {
  dns_.reset();
  etcd_.reset();
  follower_.reset();
  for (Worker& w : workers_) {
    w.probe.reset();
    w.client.reset();
    w.exchanges.clear();
    w.early.clear();
  }
}

HttpResponse Router::refuse(int status, std::string_view reason) {
  return routed_error(status, std::string(reason), "");
}

void Router::handle(HttpRequest request, std::shared_ptr<Responder> out) {
  if (!started_) return out->send(routed_error(503, "the router starts: try again", "no_worker"));
  if (request.method == "GET" && (request.path == "/health" || request.path == "/ready"))
    return serve_health(*out);
  if (request.method == "GET" && request.path == "/metrics") return serve_metrics(*out);
  const RoutedPath* found = nullptr;
  bool known = false;
  for (const RoutedPath& p : kRoutedPaths) {
    if (p.prefix ? !request.path.starts_with(p.path) : request.path != p.path) continue;
    known = true;
    if (request.method == p.method) found = &p;
  }
  if (!found) {
    const int status = known ? 405 : 404;
    return out->send(routed_error(
        status,
        strf("%s %s is not routed", quote(request.method).c_str(), quote(request.path).c_str()),
        known ? "method_not_allowed" : "not_found"));
  }
  if (num_requests_ >= options_.limits.requests ||
      num_bytes_ + 2 * request.body.size() > options_.limits.request_bytes) {
    refused_->add();
    HttpResponse r =
        routed_error(503, "the router holds too many requests: try again later", "router_full");
    r.headers.emplace_back("Retry-After", "1");
    return out->send(std::move(r));
  }
  place(std::make_shared<RoutedExchange>(*this, std::move(request), std::move(out), *found));
}

void Router::place(const std::shared_ptr<RoutedExchange>& exchange) {
  if (exchange->handed_over()) {
    const int decoder = conductor_.choose_decoder(exchange->ask(), now());
    if (decoder >= 0) return send_to(decoder, exchange, Leg::decode);
    exchange->do_whole(workers_[static_cast<size_t>(exchange->prefiller())].name,
                       "no worker takes over what it computed");
  }
  const RoutingChoice choice = conductor_.choose(exchange->ask(), now());
  if (static_cast<double>(conductor_.num_role_changes()) > role_changes_->value()) tell_roles();
  if (choice.rejected) {
    rejected_->add();
    return exchange->refuse(429, "the workers are busy: try again later", "overloaded",
                            std::max(1.0, choice.retry_after));
  }
  if (choice.worker < 0) {
    refused_->add();
    return exchange->refuse(503, "no worker takes requests now: try again later", "no_worker", 1);
  }
  const Leg leg = choice.decoder >= 0               ? Leg::prefill
                  : choice.estimate.fetch_from >= 0 ? Leg::fetch
                                                    : Leg::whole;
  if (leg == Leg::prefill && send_early(choice, exchange)) return;
  send_to(choice.worker, exchange, leg, choice.estimate);
}

void Router::send_to(int worker,
                     const std::shared_ptr<RoutedExchange>& exchange,
                     Leg leg,
                     const RoutingEstimate& estimate) {
  Worker& w = workers_[static_cast<size_t>(worker)];
  Conductor::Ask ask = exchange->ask();
  if (leg == Leg::fetch) {
    ask.fetch_from = estimate.fetch_from;
    ask.fetch_tokens = estimate.fetch_tokens;
    ask.fetch_wait = estimate.fetch_wait;
    exchange->fetch_prefix(estimate);
    fetches_->add();
    fetched_tokens_->add(static_cast<double>(estimate.fetch_tokens));
  }
  if (exchange->generates() && leg != Leg::decode) {
    prompt_tokens_->add(static_cast<double>(ask.tokens));
    cached_tokens_->add(static_cast<double>(conductor_.view(worker, ask, now()).cached));
  }
  exchange->sent_to(worker, conductor_.sent(worker, ask, now()), leg);
  ++w.num_requests;
  if (leg == Leg::prefill) ++w.num_prefills;
  w.exchanges.emplace(exchange.get(), exchange);
  w.client->send(exchange->bytes_for(w.url), *exchange);
}

void Router::left(RoutedExchange& exchange) {
  workers_[static_cast<size_t>(exchange.worker())].exchanges.erase(&exchange);
}

void Router::set_state(size_t worker, bool alive, bool draining, bool silent, const char* why) {
  const int i = static_cast<int>(worker);
  Worker& w = workers_[worker];
  draining = draining || w.leaving;
  const bool was_up = conductor_.alive(i) && !conductor_.draining(i), is_up = alive && !draining;
  const bool died = conductor_.alive(i) && !alive;
  if (was_up != is_up || died) LOG(info, "%s: %s", w.name.c_str(), is_up ? "takes requests" : why);
  if (alive && conductor_.suspect(i)) LOG(info, "%s: answers again", w.name.c_str());
  conductor_.set_alive(i, alive);
  conductor_.set_draining(i, draining);
  conductor_.set_suspect(i, false);
  if (!alive) set_events(worker, {});
  if (was_up != is_up) num_up_ += is_up ? size_t{1} : ~size_t{0};
  if (!silent) return;
  for (const auto& [ignored, exchange] : w.exchanges) exchange->worker_lost();
  for (const auto& [early, ignored] : w.early) early->cancel();
}

void Router::set_suspect(size_t worker, Time answered, bool doubtful) {
  const int i = static_cast<int>(worker);
  if (!conductor_.alive(i)) return;
  const Worker& w = workers_[worker];
  if (!conductor_.suspect(i)) LOG(info, "%s: has not answered a probe", w.name.c_str());
  conductor_.set_suspect(i, true);
  // A busy worker may be about to answer what it has had for longer.
  for (const auto& [ignored, exchange] : w.exchanges)
    if (doubtful || exchange->sent_at() >= answered) exchange->worker_suspect();
}

void Router::set_part(size_t worker, KvPart part) {
  const int i = static_cast<int>(worker);
  const WorkerRole r = part.role == "prefill"  ? WorkerRole::prefill
                       : part.role == "decode" ? WorkerRole::decode
                                               : WorkerRole::both;
  conductor_.set_role(i, r, part.role == "both", part.port != 0);
  tell_roles();
  conductor_.set_kv_tokens(i, part.tokens);
  workers_[worker].kv = std::move(part);
}

void Router::tell_roles() {
  for (size_t i = 0; i < workers_.size(); ++i) {
    const WorkerRole role = conductor_.role(static_cast<int>(i));
    if (workers_[i].name.empty() || workers_[i].role == role) continue;
    workers_[i].role = role;
    LOG(info, "%s: role %s", workers_[i].name.c_str(), name_of(kWorkerRoles, role));
  }
  const auto num = static_cast<double>(conductor_.num_role_changes());
  role_changes_->add(num - role_changes_->value());
}

void Router::set_events(size_t worker, std::optional<KvFollower::Source> source) {
  Worker& w = workers_[worker];
  if (!follower_ || w.events == source) return;
  if (source) LOG(info, "%s: KV events from %s", w.name.c_str(), source->sockets.publish.c_str());
  conductor_.kv().set_known(worker, false);
  w.events = source;
  follower_->follow(worker, ++w.events_turn, std::move(source));
}

void Router::on_kv_news(const KvFollower::News& news) {
  if (news.turn != workers_[news.worker].events_turn) return;
  conductor_.kv().set_known(news.worker, true);
  for (const KvUpdate& u : news.updates) conductor_.kv().apply(news.worker, u);
}

void Router::serve_health(Responder& out) {
  if (draining_) return out.send(routed_error(503, "the router is about to stop", "draining"));
  if (num_up_ == 0) return out.send(routed_error(503, "no worker takes requests", "no_worker"));
  HttpResponse r;
  size_t num = 0;
  for (const Worker& w : workers_) num += !w.name.empty() && !w.leaving;
  r.body = strf("{\"status\":\"ok\",\"workers\":%zu,\"up\":%zu}", num, num_up_.load());
  out.send(std::move(r));
}

void Router::serve_metrics(Responder& out) {
  held_requests_->set(static_cast<double>(num_requests_));
  held_bytes_->set(static_cast<double>(num_bytes_));
  transfer_->set(conductor_.transfer());
  double up_by_role[std::size(kWorkerRoles)] = {};
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].name.empty()) continue;
    const int n = static_cast<int>(i);
    const bool up = conductor_.alive(n) && !conductor_.draining(n);
    up_by_role[static_cast<size_t>(conductor_.role(n))] += up;
  }
  for (size_t r = 0; r < std::size(kWorkerRoles); ++r) up_by_role_[r]->set(up_by_role[r]);
  HttpResponse r;
  r.content_type = "text/plain; version=0.0.4; charset=utf-8";
  r.body = metrics_.expose() + worker_metrics();
  out.send(std::move(r));
}

}  // namespace sluice

#include "tools/route/worker_probe.h"

#include <algorithm>
#include <optional>
#include <system_error>

#include "base/json.h"
#include "net/stream_socket.h"

namespace sluice {

namespace {

constexpr size_t kMostInfo = 64 << 10;  // bytes of an answer

std::string text_at(const json::object& o, std::string_view key) {
  const json::value* v = o.if_contains(key);
  return v && v->is_string() ? std::string(v->as_string()) : "";
}

// One that listens on every address is where the worker is.
std::string event_address(std::string address, const HttpUrl& worker) {
  const bool six = worker.host.find(':') != std::string::npos;
  const std::string host = six ? "[" + worker.host + "]" : worker.host;
  for (std::string_view any : {"tcp://0.0.0.0:", "tcp://*:", "tcp://[::]:"})
    if (address.starts_with(any)) return "tcp://" + host + ":" + address.substr(any.size());
  return address;
}

// The sockets that /server_info names. Without a replay socket nobody could tell what was cached
// before.
std::optional<KvFollower::Source> events_in(std::string_view text, const HttpUrl& worker) {
  const Result<json::value> info = parse_json(text, kRequestJson);
  if (!info || !info->is_object()) return {};
  const json::value* events = info->as_object().if_contains("kv_events");
  if (!events || !events->is_object()) return {};
  const json::object& e = events->as_object();
  KvFollower::Source s;
  s.sockets = {event_address(text_at(e, "publish"), worker),
               event_address(text_at(e, "replay"), worker), text_at(e, "topic")};
  const std::string epoch = text_at(e, "epoch");
  s.epoch = std::strtoull(epoch.c_str(), nullptr, 10);
  if (s.sockets.publish.empty() || s.sockets.replay.empty() || epoch.empty()) return {};
  return s;
}

// What /ready says of a worker's KV blocks: how many, and its part in moving them.
KvPart part_in(std::string_view text) {
  const Result<json::value> ready = parse_json(text, kRequestJson);
  if (!ready || !ready->is_object()) return {};
  const json::object& o = ready->as_object();
  const auto port_at = [&](const char* key, const std::string& host) -> uint16_t {
    const json::value* port = o.if_contains(key);
    if (!port || !port->is_int64() || port->as_int64() <= 0 || port->as_int64() > 65535) return 0;
    return is_host_address(host) ? static_cast<uint16_t>(port->as_int64()) : uint16_t{0};
  };
  KvPart part;
  part.role = text_at(o, "kv_role");
  part.host = text_at(o, "kv_host");
  part.port = port_at("kv_port", part.host);
  part.lease_host = text_at(o, "kv_lease_host");
  part.lease_port = port_at("kv_lease_port", part.lease_host);
  const json::value* tokens = o.if_contains("kv_tokens");
  if (tokens && tokens->is_int64()) part.tokens = std::max<int64_t>(0, tokens->as_int64());
  return part;
}

}  // namespace

Result<void> WorkerProbe::open(HttpClient::Options o) {
  o.max_connections = 1;
  o.connect = o.request = o.stall = ProbeRule::kPatience;
  url_ = o.url;
  Result<std::unique_ptr<HttpClient>> client = HttpClient::open(o);
  if (!client) return client.error();
  client_ = std::move(*client);
  return {};
}

void WorkerProbe::move_to(const HttpUrl& url) {
  url_ = url;
  has_ready_ = true;
  rule_.reset();
  client_->move_to(url);
}

void WorkerProbe::run() {
  if (router_.is_gone(worker_)) {
    router_.set_state(worker_, false, false, false, "is gone");
    client_->at(std::chrono::steady_clock::now() + ProbeRule::kPause, [this] { run(); });
    return;
  }
  asking_info_ = false;
  ask(has_ready_ ? "/ready" : "/health");
}

void WorkerProbe::ask(const char* path) {
  status_ = 0;
  asking_ = true;
  body_.clear();
  asked_ = std::chrono::steady_clock::now();
  asked_at_ = router_.now();
  client_->send(http_request_bytes(url_, "GET", path, {}, ""), *this);
}

void WorkerProbe::on_body(std::string_view bytes) {
  if (body_.size() + bytes.size() <= kMostInfo) body_.append(bytes);
}

ProbeRule::Outcome WorkerProbe::outcome(HttpFailure failure, const std::string& detail) const {
  using enum ProbeRule::Outcome;
  if (failure == HttpFailure::none) return answered;
  if (std::chrono::steady_clock::now() - asked_ >= ProbeRule::kPatience) return missed;
  if (failure != HttpFailure::connect) return broken;
  // Errors of a link that is cut; the worker has not refused anything.
  for (std::errc e : {std::errc::host_unreachable, std::errc::network_unreachable})
    if (detail == std::make_error_code(e).message()) return missed;
  return refused;
}

void WorkerProbe::ask_again(ProbeRule::Verdict verdict) {
  using enum ProbeRule::Verdict;
  const auto now = std::chrono::steady_clock::now();
  auto next = now + ProbeRule::kPause;
  if (verdict == unsure) next = now;
  if (verdict == suspect) {
    next = std::max(now, asked_ + ProbeRule::kPatience);
    router_.set_suspect(worker_, answered_, rule_.doubtful());
  }
  client_->at(next, [this] { run(); });
}

// A worker without it is none whose events are followed; whether it is there says /ready.
void WorkerProbe::on_info(HttpFailure failure, const std::string& detail) {
  const bool ok = failure == HttpFailure::none;
  if (ok) router_.set_events(worker_, status_ == 200 ? events_in(body_, url_) : std::nullopt);
  const bool hangs = outcome(failure, detail) == ProbeRule::Outcome::missed;
  if (hangs) static_cast<void>(rule_.after(ProbeRule::Outcome::missed));
  ask_again(hangs ? ProbeRule::Verdict::unsure : ProbeRule::Verdict::up);
}

void WorkerProbe::on_answer() {
  if (status_ == 404 && has_ready_) {
    has_ready_ = false;
    return ask_again(ProbeRule::Verdict::unsure);
  }
  if (status_ == 200) router_.set_part(worker_, part_in(body_));
  router_.set_state(worker_, true, status_ != 200, false, "takes no new requests");
  if (!router_.follower_) return ask_again(ProbeRule::Verdict::up);
  asking_info_ = true;
  ask("/server_info");
}

void WorkerProbe::on_end(HttpFailure failure, const std::string& detail) {
  asking_ = false;
  if (asking_info_) return on_info(failure, detail);
  const ProbeRule::Verdict verdict = rule_.after(outcome(failure, detail));
  if (verdict == ProbeRule::Verdict::up) {
    answered_ = asked_at_;
    return on_answer();
  }
  if (verdict == ProbeRule::Verdict::refuses) {
    has_ready_ = true;  // another server may come back
    router_.set_state(worker_, false, false, false, "refuses connections");
  }
  if (verdict == ProbeRule::Verdict::hangs) {
    has_ready_ = true;
    router_.set_state(worker_, false, false, true, "does not answer");
  }
  ask_again(verdict);
}

}  // namespace sluice

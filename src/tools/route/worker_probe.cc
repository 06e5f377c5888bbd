#include "tools/route/worker_probe.h"

#include <algorithm>
#include <optional>

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
  o.connect = o.request = o.stall = kPatience;
  url_ = o.url;
  Result<std::unique_ptr<HttpClient>> client = HttpClient::open(o);
  if (!client) return client.error();
  client_ = std::move(*client);
  return {};
}

void WorkerProbe::move_to(const HttpUrl& url) {
  url_ = url;
  has_ready_ = true;
  num_missed_ = 0;
  client_->move_to(url);
}

void WorkerProbe::run() {
  if (router_.is_gone(worker_)) {
    router_.set_state(worker_, false, false, false, "is gone");
    client_->at(std::chrono::steady_clock::now() + kPause, [this] { run(); });
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
  client_->send(http_request_bytes(url_, "GET", path, {}, ""), *this);
}

void WorkerProbe::on_body(std::string_view bytes) {
  if (body_.size() + bytes.size() <= kMostInfo) body_.append(bytes);
}

// A worker without it is none whose events are followed; whether it is there says /ready.
void WorkerProbe::on_info(bool ok) {
  if (ok) router_.set_events(worker_, status_ == 200 ? events_in(body_, url_) : std::nullopt);
  const auto now = std::chrono::steady_clock::now();
  const bool hangs = !ok && now - asked_ >= kPatience;  // so it is asked at once
  if (hangs) ++num_missed_;
  client_->at(now + (hangs ? std::chrono::milliseconds(0) : kPause), [this] { run(); });
}

void WorkerProbe::on_end(HttpFailure failure, const std::string&) {
  asking_ = false;
  if (asking_info_) return on_info(failure == HttpFailure::none);
  auto pause = kPause;
  if (failure == HttpFailure::none) {
    num_missed_ = 0;
    if (status_ == 404 && has_ready_) {
      has_ready_ = false;
      pause = std::chrono::milliseconds(0);
    } else {
      if (status_ == 200) router_.set_part(worker_, part_in(body_));
      router_.set_state(worker_, true, status_ != 200, false, "takes no new requests");
      if (router_.follower_) {
        asking_info_ = true;
        return ask("/server_info");
      }
    }
  } else if (failure == HttpFailure::connect &&
             std::chrono::steady_clock::now() - asked_ < kPatience) {
    has_ready_ = true;  // another server may come back
    router_.set_state(worker_, false, false, false, "refuses connections");
  } else if (++num_missed_ >= kMostMissed) {
    has_ready_ = true;
    router_.set_state(worker_, false, false, true, "does not answer");
  } else {
    pause = std::chrono::milliseconds(0);
  }
  client_->at(std::chrono::steady_clock::now() + pause, [this] { run(); });
}

}  // namespace sluice

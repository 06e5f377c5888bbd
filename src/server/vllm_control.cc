#include "server/vllm_control.h"

#include <unistd.h>

#include <set>

#include "base/protobuf.h"
#include "base/str.h"
#include "server/grpc_frames.h"
#include "server/routes.h"

namespace sluice {

namespace {

void reply_message(Service& s, const Call& call, std::string_view message) {
  HttpResponse r;
  r.content_type = "application/grpc";
  append_grpc_message(r.body, message);
  s.reply(call, std::move(r));
}

void serve_grpc_health(Service& s, Call call) {
  std::string service, message;
  if (Refusal refused = read_health_request(call.http.body, service)) return s.fail(call, *refused);
  if (!is_health_service(service))
    return s.fail(
        call, {404, strf("there is no service %s here", quote(service).c_str()), "", "not_found"});
  ProtoWriter(message).varint(1, static_cast<uint64_t>(grpc_health(s)));
  reply_message(s, call, message);
}

void serve_vllm_server_info(Service& s, Call call) {
  const SchedulerConfig& c = s.session().engine().config();
  auto size = [](int64_t v) { return static_cast<uint64_t>(v); };
  std::string ranks, learning, out;
  ProtoWriter r(ranks);
  for (uint32_t field : {1u, 2u, 3u, 5u, 6u, 7u}) r.varint(field, 1);  // all but the rank
  ProtoWriter w(out);
  w.bytes(1, "sluice-" + s.options().version);
  w.bytes(2, "vllm");
  w.bytes(3, strf("sluice-%lld-%d", static_cast<long long>(s.started_at()),
                  static_cast<int>(::getpid())));
  w.bytes(4, ranks);
  w.varint(5, size(c.max_len));
  w.varint(6, size(c.block_size));
  w.varint(7, size(c.num_blocks));
  w.varint(8, size(c.max_seqs));
  w.varint(9, size(c.budget));
  w.bytes(11, learning);  // nothing of it
  w.varint(14, size(c.block_size));
  reply_message(s, call, out);
}

void serve_vllm_model_info(Service& s, Call call) {
  const std::vector<std::string>& names = s.options().model_names;
  std::string out;
  ProtoWriter w(out);
  w.bytes(1, s.options().model_path.empty() ? names[0] : s.options().model_path);
  w.bytes(2, names[0]);
  for (size_t i = 1; i < names.size(); ++i) w.bytes(3, names[i]);
  w.varint(20, s.session().tokenizer() != nullptr);
  w.varint(21, 1);
  reply_message(s, call, out);
}

void serve_vllm_kv_sources(Service& s, Call call) {
  std::string out;
  if (const KvPublisher* p = s.kv_events()) {
    std::string source;
    ProtoWriter w(source);
    w.bytes(1, "zmq");
    w.bytes(2, p->publish_address());
    if (!p->topic().empty()) w.bytes(3, p->topic());
    if (!p->replay_address().empty()) w.bytes(4, p->replay_address());
    w.varint(5, 0);
    w.bytes(6, "msgpack");
    w.varint(7, 1);
    ProtoWriter(out).bytes(1, source);
  }
  reply_message(s, call, out);
}

void serve_vllm_abort(Service& s, Call call) {
  std::set<std::string> ids;
  ProtoReader r(call.http.body);
  ProtoField f;
  while (r.next(f))
    if (f.number == 1 && f.type == ProtoType::bytes && !f.bytes.empty()) ids.emplace(f.bytes);
  if (!r.ok()) return s.fail(call, {400, "AbortRequest: these bytes are no such message", "", ""});
  if (!ids.empty()) s.abort_requests(ids, call.key);
  reply_message(s, call, {});
}

constexpr Route kGrpcRoutes[] = {
    {"POST", "/vllm.Inference/GenerateStream", false, serve_vllm_generate, Route::generates},
    {"POST", "/vllm.Inference/Generate", false, serve_vllm_generate, Route::generates},
    {"POST", "/vllm.Control/GetServerInfo", false, serve_vllm_server_info},
    {"POST", "/vllm.Control/GetModelInfo", false, serve_vllm_model_info},
    {"POST", "/vllm.Control/GetKvEventSources", false, serve_vllm_kv_sources},
    {"POST", "/vllm.Control/Abort", false, serve_vllm_abort},
    {"POST", "/grpc.health.v1.Health/Check", true, serve_grpc_health},
};

}  // namespace

std::span<const Route> grpc_routes() { return kGrpcRoutes; }

Refusal read_health_request(std::string_view message, std::string& service) {
  ProtoReader r(message);
  ProtoField f;
  while (r.next(f))
    if (f.number == 1) service = f.bytes;
  if (r.ok()) return {};
  return ApiError{400, "HealthCheckRequest: these bytes are no such message", "", ""};
}

bool is_health_service(std::string_view name) {
  return name.empty() || name == "vllm.Inference" || name == "vllm.Control";
}

int grpc_health(Service& s) {
  const bool well = !s.check_ready() && !s.health().problem(s.clock().now());
  return well ? kServing : kNotServing;
}

}  // namespace sluice

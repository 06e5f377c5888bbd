// gRPC's library behind net/grpc_server.h, as a shared object: the only file that includes it.
// Methods are not known here: every call is a stream of bytes (gRPC's generic service).
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>

#include "net/grpc_server.h"

namespace sluice {

namespace {

constexpr size_t kStatusBytes = 1000;  // of a status' text, which travels as a header
constexpr int kStreams = 8192;         // calls at once on one connection
constexpr int kMetadataBytes = 16 << 10;

// "ipv4:127.0.0.1:4242" and "ipv6:%5B::1%5D:4242" without the kind and the port.
std::string address_of(const std::string& peer) {
  const size_t from = peer.find(':') + 1, to = peer.rfind(':');
  return to > from && to != peer.npos ? peer.substr(from, to - from) : peer;
}

std::string text_of(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string text;
  if (!buffer.Dump(&slices).ok()) return text;
  text.reserve(buffer.Length());
  for (const grpc::Slice& s : slices)
    text.append(reinterpret_cast<const char*>(s.begin()), s.size());
  return text;
}

// Lives until OnDone, and as long as somebody holds it as a reply.
class Reactor final : public grpc::ServerGenericBidiReactor,
                      public GrpcReply,
                      public std::enable_shared_from_this<Reactor> {
 public:
  explicit Reactor(grpc::GenericCallbackServerContext* context) : context_(context) {}

  void begin(GrpcListener& listener, const std::shared_ptr<Reactor>& self) {
    self_ = self;
    call_ = listener.make_call(self);
    if (!call_) return Finish(grpc::Status(grpc::RESOURCE_EXHAUSTED, "out of memory"));
    StartRead(&in_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {  // it has closed its side, or is gone
      if (!context_->IsCancelled()) call_->on_gone();
      return;
    }
    GrpcRequest r;
    r.method = context_->method();
    r.peer = address_of(context_->peer());
    for (const auto& [name, value] : context_->client_metadata())
      r.metadata.emplace_back(std::string(name.data(), name.size()),
                              std::string(value.data(), value.size()));
    const auto deadline = context_->deadline(), now = std::chrono::system_clock::now();
    if (deadline < now + std::chrono::hours(24))
      r.seconds_left = std::max(std::chrono::duration<double>(deadline - now).count(), 1e-3);
    r.message = text_of(in_);
    in_.Clear();
    call_->on_request(std::move(r));
  }
  void OnWriteDone(bool ok) override {
    if (ok) call_->on_written();  // if not, OnCancel comes
  }
  void OnCancel() override {
    if (call_) call_->on_gone();
  }
  void OnDone() override {
    call_.reset();
    self_.reset();  // the last of it
  }

  void add_metadata(const std::string& name, const std::string& value) override {
    context_->AddInitialMetadata(name, value);
  }
  // Without a buffer hint: with it, the write that carries the initial metadata is done only when
  // something else makes the connection write.
  void write(std::string_view message) override {
    const grpc::Slice slice(message.data(), message.size());
    out_ = grpc::ByteBuffer(&slice, 1);
    StartWrite(&out_);
  }
  void finish(int code, std::string_view text) override {
    Finish(grpc::Status(static_cast<grpc::StatusCode>(code),
                        std::string(text.substr(0, kStatusBytes))));
  }
  void cut() override {
    context_->TryCancel();
    Finish(grpc::Status(grpc::CANCELLED, "cut"));
  }

 private:
  grpc::GenericCallbackServerContext* context_;
  std::shared_ptr<GrpcCall> call_;
  std::shared_ptr<Reactor> self_;
  grpc::ByteBuffer in_, out_;
};

class Calls final : public grpc::CallbackGenericService {
 public:
  explicit Calls(GrpcListener& listener) : listener_(listener) {}
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    auto reactor = std::make_shared<Reactor>(context);
    Reactor* raw = reactor.get();
    raw->begin(listener_, reactor);
    return raw;
  }

 private:
  GrpcListener& listener_;
};

class PluginServer final : public GrpcServer {
 public:
  explicit PluginServer(GrpcListener& listener) : calls_(listener) {}
  ~PluginServer() override { stop(); }

  bool start(const GrpcOptions& o) {
    grpc::ServerBuilder builder;
    std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
    if (!o.tls_cert.empty()) {
      grpc::SslServerCredentialsOptions tls;
      tls.pem_key_cert_pairs.push_back({o.tls_key, o.tls_cert});
      credentials = grpc::SslServerCredentials(tls);
    }
    const bool six = o.host.find(':') != o.host.npos;
    const std::string host = six ? "[" + o.host + "]" : o.host;
    builder.AddListeningPort(host + ":" + std::to_string(o.port), credentials, &port_);
    builder.RegisterCallbackGenericService(&calls_);
    builder.SetMaxReceiveMessageSize(static_cast<int>(o.message_bytes));
    grpc::ResourceQuota quota("sluice");
    quota.Resize(o.memory_bytes);
    builder.SetResourceQuota(quota);
    // A small message could become a large one.
    builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
    builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreams);
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMetadataBytes);
    // A client that is there but silent is asked; one that asks often is not cut.
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    server_ = builder.BuildAndStart();
    return server_ && port_ > 0;
  }
  uint16_t port() const override { return static_cast<uint16_t>(port_); }
  void stop() override {
    if (!server_) return;
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
    server_->Wait();
    server_.reset();
  }

 private:
  Calls calls_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

GrpcServer* start_plugin(const GrpcOptions& options,
                         GrpcListener& listener,
                         char* error,
                         size_t error_bytes) try {
  auto server = std::make_unique<PluginServer>(listener);
  if (server->start(options)) return server.release();
  std::snprintf(error, error_bytes, "cannot listen on %s port %d%s", options.host.c_str(),
                int{options.port},
                options.tls_cert.empty() ? "" : ", or the certificate is no good");
  return nullptr;
} catch (const std::exception& e) {
  std::snprintf(error, error_bytes, "%s", e.what());
  return nullptr;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const GrpcExports* sluice_grpc() {
  static constexpr GrpcExports kExports{kGrpcPluginVersion, start_plugin};
  return &kExports;
}

}  // namespace sluice

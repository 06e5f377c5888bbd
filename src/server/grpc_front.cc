#include "server/grpc_front.h"

#include <algorithm>
#include <charconv>

#include "base/failure.h"
#include "base/protobuf.h"
#include "server/grpc_frames.h"
#include "server/vllm_control.h"

namespace sluice {

namespace {

constexpr size_t kMaxHealthWatchers = 1024;

// Headers of an answer that a client gets as metadata.
bool is_passed_on(std::string_view name) {
  return name == "x-request-id" || name == "traceparent" || name == "retry-after" ||
         name == "x-kv-block" || name == "x-kv-fetched";
}

}  // namespace

// One call. Its state belongs to its io thread.
class GrpcExchange final : public GrpcCall, public std::enable_shared_from_this<GrpcExchange> {
 public:
  GrpcExchange(GrpcFront& front, std::shared_ptr<GrpcReply> reply, size_t thread)
      : front_(front), reply_(std::move(reply)), thread_(thread) {
    ++front_.busy_;
  }
  ~GrpcExchange() override { leave(); }

  void on_request(GrpcRequest request) override try {
    auto shared = std::make_shared<GrpcRequest>(std::move(request));
    on_io([shared](GrpcExchange& self) { self.begin(std::move(*shared)); });
  } catch (...) {
    gone_.store(true);
  }
  void on_written() override {
    on_io([](GrpcExchange& self) {
      self.writing_ = false;
      self.pump();
    });
  }
  void on_gone() override {
    gone_.store(true);
    on_io([](GrpcExchange& self) { self.end_gone(); });
  }
  void tick() {
    on_io([](GrpcExchange& self) { self.look(); });
  }

 private:
  // Runs `f` on the io thread. Without memory the call is ended by a later tick.
  template <typename F>
  void on_io(F f) noexcept {
    try {
      front_.service_.post(thread_, [self = shared_from_this(), f]() mutable {
        try {
          f(*self);
        } catch (...) {
          log_exception("gRPC call failed");
          self->finish(500, "internal error");
        }
      });
    } catch (...) {
      gone_.store(true);
    }
  }

  void begin(GrpcRequest r) {
    if (finished_) return;
    Responder::Options o;
    o.thread = thread_;
    o.chunked = o.keep_alive = false;
    o.max_pending = front_.limits_.stream_bytes;
    o.unread = front_.unread_;
    o.wake = [weak = weak_from_this()] {
      if (auto self = weak.lock()) self->on_io([](GrpcExchange& e) { e.pump(); });
    };
    out_ = std::make_shared<Responder>(std::move(o));
    if (r.method == kHealthWatch) return watch(r.message);
    HttpRequest request;
    request.method = "POST";
    request.path = std::move(r.method);
    request.headers = std::move(r.metadata);
    request.body = std::move(r.message);
    request.peer = std::move(r.peer);
    front_.service_.handle_grpc(std::move(request), out_, r.seconds_left);
  }

  // Takes what the responder has, and writes one message at a time.
  void pump() {
    if (finished_ || !out_) return;
    if (out_->broken()) return cut();
    while (!writing_) {
      if (step()) continue;
      if (done_) return end();
      out_->wrote();
      std::string piece;
      const Responder::Progress p = out_->take(piece);
      if (p.too_slow) return cut();
      bytes_.erase(0, at_);
      at_ = 0;
      bytes_ += piece;
      done_ = p.done;
      if (!done_ && piece.empty() && !p.made) return;
    }
  }

  // One part of what was taken; false: there is no whole one.
  bool step() {
    std::string_view rest = std::string_view(bytes_).substr(at_);
    if (status_ == 0) return take_head(rest);
    if (status_ != 200) return false;  // the body is a text, to its end
    GrpcFrame frame;
    if (!take_grpc_frame(rest, frame)) return false;
    at_ = bytes_.size() - rest.size();
    if (frame.kind == GrpcFrame::status) {
      error_status_ = frame.http_status;
      error_ = frame.payload;
      return true;
    }
    writing_ = true;
    write_began_ = front_.service_.clock().now();
    reply_->write(frame.payload);
    return true;
  }

  bool take_head(std::string_view rest) {
    constexpr std::string_view kBegin = "HTTP/1.1 ";
    const size_t end = rest.find("\r\n\r\n");
    if (end == rest.npos) return false;
    std::from_chars(rest.data() + kBegin.size(), rest.data() + end, status_);
    std::string_view head = rest.substr(0, end + 2);
    for (size_t eol = head.find("\r\n"); eol != head.npos; eol = head.find("\r\n")) {
      const std::string_view line = head.substr(0, eol);
      head.remove_prefix(eol + 2);
      const size_t colon = line.find(": ");
      if (colon == line.npos) continue;
      std::string name(line.substr(0, colon));
      std::ranges::transform(name, name.begin(),
                             [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; });
      if (is_passed_on(name)) reply_->add_metadata(name, std::string(line.substr(colon + 2)));
    }
    at_ += end + 4;
    return true;
  }

  void end() {
    if (status_ == 200 && error_status_ == 0) return finish(200, "");
    if (error_status_ != 0) return finish(error_status_, error_);
    finish(status_ == 0 ? 500 : status_, std::string_view(bytes_).substr(at_));
  }

  void finish(int http_status, std::string_view text) {
    if (std::exchange(finished_, true)) return;
    leave();
    if (out_) out_->wrote();
    if (out_) out_->close(http_status == 200);
    reply_->finish(grpc_code(http_status), text);
  }

  void cut() {
    if (std::exchange(finished_, true)) return;
    leave();
    out_->close(false);
    reply_->cut();
  }

  void end_gone() {
    if (!finished_) finish(499, "the client is gone");
  }

  void leave() {
    if (!std::exchange(left_, true)) --front_.busy_;
    if (std::exchange(watching_, false)) --front_.num_watchers_;
  }

  // Once a second.
  void look() {
    if (finished_) return;
    if (gone_.load()) return end_gone();
    const Time now = front_.service_.clock().now();
    if (writing_ && now - write_began_ > front_.limits_.send) return cut();
    if (watching_) tell_health();
  }

  void watch(std::string_view message) {
    std::string service;
    if (Refusal refused = read_health_request(message, service))
      return finish(refused->status, refused->message);
    if (front_.num_watchers_.fetch_add(1) >= kMaxHealthWatchers) {
      --front_.num_watchers_;
      return finish(429, "too many clients watch the health");
    }
    watching_ = true;
    if (!std::exchange(left_, true)) --front_.busy_;
    out_->start({});
    health_known_ = is_health_service(service);
    tell_health();
  }

  void tell_health() {
    const int health = health_known_ ? grpc_health(front_.service_) : kServiceUnknown;
    if (std::exchange(health_, health) == health) return;
    std::string message, frame;
    ProtoWriter(message).varint(1, static_cast<uint64_t>(health));
    append_grpc_message(frame, message);
    out_->write(frame);
    if (front_.service_.draining()) out_->finish();
  }

  GrpcFront& front_;
  const std::shared_ptr<GrpcReply> reply_;
  const size_t thread_;
  std::atomic<bool> gone_{false};
  std::shared_ptr<Responder> out_;
  std::string bytes_;  // taken, up to at_ dealt with
  size_t at_ = 0;
  int status_ = 0;        // HTTP's, of the head; 0: not there yet
  int error_status_ = 0;  // of a status frame
  std::string error_;
  Time write_began_{0};
  int health_ = -1;  // as last told
  bool writing_ = false, done_ = false, finished_ = false, left_ = false;
  bool watching_ = false, health_known_ = false;
};

GrpcFront::GrpcFront(Service& service, const HttpLimits& http)
    : service_(service), limits_(http), unread_(std::make_shared<UnreadBytes>(http.unread_bytes)) {}

GrpcFront::~GrpcFront() = default;

std::shared_ptr<GrpcCall> GrpcFront::make_call(std::shared_ptr<GrpcReply> reply) noexcept try {
  const size_t thread = next_thread_.fetch_add(1) % service_.num_io_threads();
  auto call = std::make_shared<GrpcExchange>(*this, std::move(reply), thread);
  std::lock_guard lock(mutex_);
  // Swept when it has doubled since the last time: constant work per call.
  if (calls_.size() == calls_.capacity())
    std::erase_if(calls_, [](const auto& weak) { return weak.expired(); });
  calls_.push_back(call);
  return call;
} catch (...) {
  return nullptr;
}

void GrpcFront::tick() {
  std::vector<std::shared_ptr<GrpcExchange>> all;
  {
    std::lock_guard lock(mutex_);
    for (const auto& weak : calls_)
      if (auto call = weak.lock()) all.push_back(std::move(call));
  }
  for (const auto& call : all) call->tick();
}

}  // namespace sluice

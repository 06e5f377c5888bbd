// Streams that outlive their connection: the part of Generation that keeps events, and
// /v1/streams/ID: GET takes a stream up again, DELETE ends it.
#include "base/failure.h"
#include "server/generation.h"
#include "server/routes.h"

namespace sluice {

namespace {

constexpr size_t kAhead = 96 << 10;  // bytes written before the client has taken them
constexpr std::string_view kStreamsPath = "/v1/streams/";

const ApiError kNoStream{404,
                         "there is no such stream: it is over, or it was not asked for with "
                         "stream_options.resumable",
                         "", "stream_not_found"};

}  // namespace

// Writes the events that are kept and not yet written, as far as the client takes them. The rest
// follows when the socket has taken these. Without memory, or with a reader so slow that events
// were dropped, the connection is cut, and the client may come back.
void Generation::pump() {
  Responder& out = *call_.out;
  if (out.closed()) return;
  try {
    if (log_->lost()) return out.abort();
    behind_.store(true);  // before pending() is read: on_taken() may come at any time
    while (!log_->at_end()) {
      size_t pending = out.pending();
      if (pending >= kAhead) return;
      out.write(log_->next(kAhead - pending));
    }
    behind_.store(false);
    if (ended_) {
      out.finish();
      settled_.store(true);
    }
  } catch (...) {
    log_exception("stream");
    out.abort();
  }
}

void Generation::end_stream() {
  ended_ = true;
  if (!log_) return call_.out->finish();
  alone_since_ = service_.clock().now();  // from now on it is kept for the last events alone
  pump();
}

void Generation::watch_connection() {
  std::weak_ptr<Generation> weak = weak_from_this();
  if (log_) {
    call_.out->on_taken([weak] {
      auto self = weak.lock();
      if (!self || !self->behind_.exchange(false)) return;
      self->service_.post(self->thread(), [self] { self->pump(); });
    });
  }
  call_.out->on_closed([weak, resumable = log_.has_value()] {
    auto self = weak.lock();
    if (!self) return;
    self->service_.meters().disconnects.add();
    if (!resumable) self->cancel();  // else tend() sees it
  });
}

void Generation::resume(Call call, uint64_t last) {
  if (!log_->seek(last)) {
    return service_.fail(call,
                         {410, "these events are not kept any more: ask anew", "", "stream_gone"});
  }
  service_.log(call, 200);
  std::shared_ptr<Responder> before = std::exchange(call_.out, std::move(call.out));
  before->abort();  // one client at a time
  call_.id = call.id;
  if (!ended_) alone_since_.reset();
  streaming_ = false;
  begin_stream();
  watch_connection();
  pump();
}

void Generation::discard() {
  if (!over_) cancel();
  if (!log_->at_end()) call_.out->abort();
  service_.forget(id_);
}

void Generation::tend() {
  auto limit = Time(static_cast<int64_t>(service_.options().resume_seconds * 1e9));
  if (!alone_since_ && call_.out->closed()) alone_since_ = service_.clock().now();
  // Whoever left before the first event does not know the stream's id.
  if (alone_since_ && (log_->at_begin() || service_.clock().now() - *alone_since_ > limit))
    return discard();
  if (streaming_) pump();
}

void serve_stream(Service& s, Call call) {
  std::optional<EventId> last;
  std::string_view given = call.http.header("last-event-id");
  bool by_path = call.http.path.starts_with(kStreamsPath);
  if (!given.empty()) last = parse_event_id(given);
  if (!given.empty() && !last) {
    return s.fail(call, {400, "Last-Event-ID must be the id of an event of this server", "",
                         "invalid_event_id"});
  }
  std::string id = by_path ? call.http.path.substr(kStreamsPath.size()) : last->id;
  std::shared_ptr<Generation> g = s.kept(id);
  if (!g || g->key() != call.key || (last && last->id != id)) return s.fail(call, kNoStream);
  uint64_t number = last ? last->number : 0;
  auto shared = std::make_shared<Call>(std::move(call));
  s.post(g->thread(), [g, number, shared, out = shared->out] {
    try {
      g->resume(std::move(*shared), number);
    } catch (...) {
      log_exception("resume");
      out->abort();
    }
  });
}

// A client that closes a resumable stream's connection may come back; one that deletes it does not.
void serve_stream_end(Service& s, Call call) {
  std::string id = call.http.path.substr(kStreamsPath.size());
  std::shared_ptr<Generation> g = s.kept(id);
  if (!g || g->key() != call.key) return s.fail(call, kNoStream);
  s.post(g->thread(), [g] { g->discard(); });
  s.reply_json(call, json::object{{"id", id}, {"deleted", true}});
}

}  // namespace sluice

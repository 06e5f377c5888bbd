#include "tools/route/exchange.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/json_escape.h"
#include "base/log.h"
#include "base/str.h"
#include "server/kv_events.h"
#include "server/kv_transfer.h"
#include "server/openai.h"
#include "tools/route/early_prefill.h"

namespace sluice {

namespace {

constexpr size_t kMostWhole = 256 << 10;  // bytes of an answer that is kept until its end
// Bytes that wait for the client: the worker is read no further, and read again.
constexpr size_t kHighWater = 48 << 10, kLowWater = 8 << 10;
constexpr size_t kLoggedPath = 160;

// Of one connection, not of the request.
bool is_hop_header(std::string_view name) {
  for (std::string_view h :
       {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection",
        "te", "trailer", "transfer-encoding", "upgrade", "host", "content-length", "expect"})
    if (name == h) return true;
  return false;
}

std::string logged_path(const std::string& path) {
  std::string out = path.substr(0, kLoggedPath);
  for (char& c : out)
    if (c <= ' ' || c >= 0x7f) c = '?';
  return out;
}

size_t count_events(std::string_view bytes) {
  size_t n = 0;
  for (size_t at = 0; (at = bytes.find("data:", at)) != std::string_view::npos; at += 5)
    n += at == 0 || bytes[at - 1] == '\n';
  return n;
}

}  // namespace

RoutedExchange::RoutedExchange(Router& router,
                               HttpRequest request,
                               std::shared_ptr<Responder> out,
                               const RoutedPath& path)
    : router_(router),
      request_(std::move(request)),
      out_(std::move(out)),
      generates_(path.generates),
      received_(router.now()),
      draw_(keyed_hash(router.key_, std::to_string(router.num_drawn_++))) {
  ++router_.num_requests_;
  hold(request_.body.size());
  if (!generates_) return;
  shape_ = read_shape(request_.body);
  // Requests of different keys share no cached prefix.
  HashKey key = router_.key_;
  for (const char* name : {"authorization", "x-api-key"})
    if (const std::string_view v = request_.header(name); !v.empty()) key[1] ^= keyed_hash(key, v);
  if (!shape_.salt.empty()) key[1] ^= keyed_hash(key, shape_.salt);
  blocks_ = shape_blocks(shape_, key);
  tokens_ = shape_tokens(shape_);
  block_tokens_ = shape_block_tokens(shape_);
  split_ = path.splits && can_split(shape_);
  fetches_ = split_;
  const std::string_view named = request_.header(router_.options_.session_header);
  const std::string_view session = named.empty() ? shape_.session : named;
  if (!session.empty()) session_ = keyed_hash(router_.key_, session) | 1;
  // As OpenAI's own clients count.
  attempts_ = std::atoi(std::string(request_.header("x-stainless-retry-count")).c_str());
}

RoutedExchange::~RoutedExchange() {
  hold(0);
  --router_.num_requests_;
}

void RoutedExchange::hold(size_t bytes) {
  router_.num_bytes_ += bytes - held_;  // wraps downwards
  held_ = bytes;
}

Conductor::Ask RoutedExchange::ask() const {
  Conductor::Ask a;
  a.tokens = tokens_;
  a.blocks = blocks_;
  a.block_tokens = block_tokens_;
  a.session = session_;
  // Work that was lost with its worker is not turned away.
  a.attempts = tries_ + num_prefills_ > 0 || !generates_ ? 1000 : attempts_;
  a.draw = draw_;
  a.avoid = avoid_;
  a.whole = !split_;
  a.fetches = fetches_;
  a.handed_over = handed_over();
  a.again = handed_over() && (tries_ > 0 || awaits_);
  return a;
}

std::string RoutedExchange::bytes_for(const HttpUrl& url) const {
  HttpHeaders headers;
  for (const auto& h : request_.headers)
    if (!is_hop_header(h.first)) headers.push_back(h);
  headers.emplace_back("x-forwarded-for", request_.peer);
  std::string target = request_.path;
  if (!request_.query.empty()) target += "?" + request_.query;
  return http_request_bytes(url, request_.method, target, headers,
                            leg_ == Leg::whole ? request_.body : leg_body());
}

void RoutedExchange::sent_to(int worker, Conductor::Ticket ticket, Leg leg) {
  const bool first = tries_ + num_prefills_ == 0;
  worker_ = worker;
  ticket_ = ticket;
  sent_at_ = router_.now();
  const bool was_split = leg_ == Leg::prefill || leg_ == Leg::decode;
  if ((leg == Leg::whole || leg == Leg::fetch) && was_split) router_.fallbacks_->add();
  leg_ = leg;
  ++(leg == Leg::prefill ? num_prefills_ : tries_);
  // The clients have copies until an answer begins.
  hold((early_ ? 3 : 2) * request_.body.size());
  head_ = {};
  whole_ = again_ = paused_ = lost_ = is_events_ = false;
  if (!first) return;
  std::weak_ptr<RoutedExchange> weak = weak_from_this();
  out_->on_closed([weak] {
    if (auto self = weak.lock()) self->client_gone();
  });
  out_->on_taken([weak] {
    if (auto self = weak.lock()) self->flow();
  });
}

void RoutedExchange::refuse(int status,
                            const std::string& why,
                            const char* code,
                            double retry_after) {
  HttpResponse r;
  r.status = status;
  r.body = error_json({status, why, "", code});
  if (retry_after > 0)
    r.headers.emplace_back(
        "Retry-After",
        std::to_string(static_cast<int64_t>(std::ceil(std::min(retry_after, 86400.0)))));
  out_->send(std::move(r));
  done(status, code);
}

void RoutedExchange::on_head(int status, const HttpHeaders& headers) {
  if (lost_) return;  // another worker will be asked
  hold(request_.body.size());
  head_.status = status;
  head_.content_type.clear();
  size_t length = kMostWhole + 1;
  for (const auto& [name, value] : headers) {
    if (name == "content-length") length = std::strtoull(value.c_str(), nullptr, 10);
    if (name == "content-type") head_.content_type = value;
    if (name != "content-type" && name != "date" && name != kKvBlockHeader &&
        name != kKvFetchedHeader && !is_hop_header(name))
      head_.headers.emplace_back(name, value);
  }
  is_events_ = head_.content_type.starts_with("text/event-stream") ||
               head_.content_type.starts_with("application/x-ndjson");
  // A worker that is full or about to stop: others may not be.
  if (leg_ != Leg::prefill && (status == 429 || status == 503) && may_retry(true)) {
    again_ = true;
    return;
  }
  // It may have another role by now, and fetch nothing.
  if ((leg_ == Leg::decode || leg_ == Leg::fetch) && status == 400) {
    again_ = true;
    return;
  }
  learn_block(headers);
  learn_fetch(headers);
  if (leg_ == Leg::prefill) {
    whole_ = true;
    return;
  }
  const bool bare = status == 204 || status == 304;  // no body, whatever its head says
  whole_ = bare || length <= kMostWhole;
  if (!whole_) start_answer();
}

// Which of the worker's blocks ends the prompt.
void RoutedExchange::learn_block(const HttpHeaders& headers) {
  if (!router_.follower_ || blocks_.empty()) return;
  for (const auto& [name, value] : headers) {
    if (name != kKvBlockHeader) continue;
    if (const uint64_t block = std::strtoull(value.c_str(), nullptr, 10); block != 0)
      router_.conductor_.prompt_ends(worker_, ask(), block);
  }
}

// How long its worker fetched, and how much of the prompt came.
void RoutedExchange::learn_fetch(const HttpHeaders& headers) {
  if (!ticket_ || (leg_ != Leg::decode && leg_ != Leg::fetch)) return;
  for (const auto& [name, value] : headers) {
    if (name != kKvFetchedHeader) continue;
    char* end = nullptr;
    const double share = std::strtod(value.c_str(), &end), took = std::strtod(end, nullptr);
    if (share >= 0 && share <= 1 && took >= 0 && std::isfinite(took))
      router_.conductor_.fetched(*ticket_, share, took);
  }
}

void RoutedExchange::start_answer() {
  started_ = true;
  shape_ = {};
  request_.body = {};  // no other worker will get it
  hold(0);
  first_ = router_.now();
  router_.first_byte_->observe(seconds(first_ - received_));
  HttpResponse rest;
  rest.status = head_.status;
  out_->start(std::exchange(head_, std::move(rest)));
}

void RoutedExchange::on_body(std::string_view bytes) {
  if (again_ || lost_) return;
  if (whole_) {
    head_.body.append(bytes);
    if (leg_ == Leg::prefill && head_.body.size() > kMostWhole) {
      again_ = true;
      head_.body.clear();
    }
    return;
  }
  count_tokens(bytes);
  out_->write(bytes);
  if (!paused_ && out_->pending() > kHighWater) {
    paused_ = true;
    router_.workers_[static_cast<size_t>(worker_)].client->pause(*this);
  }
}

void RoutedExchange::count_tokens(std::string_view bytes) {
  if (!ticket_ || !is_events_) return;
  const size_t n = std::max<size_t>(1, count_events(bytes));
  router_.conductor_.tokens(*ticket_, static_cast<int>(n), router_.now());
}

// The client has taken what was written.
void RoutedExchange::flow() {
  if (!paused_ || worker_ < 0 || out_->pending() > kLowWater) return;
  paused_ = false;
  router_.workers_[static_cast<size_t>(worker_)].client->resume(*this);
}

void RoutedExchange::client_gone() {
  lost_ = true;
  end_early();
  avoid_ = ~uint64_t{0};
  if (worker_ >= 0) router_.workers_[static_cast<size_t>(worker_)].client->cancel(*this);
}

void RoutedExchange::worker_lost() {
  lost_ = true;
  if (worker_ >= 0) router_.workers_[static_cast<size_t>(worker_)].client->cancel(*this);
}

void RoutedExchange::worker_suspect() {
  if (!lost_ && may_retry(false, false)) worker_lost();
}

bool RoutedExchange::may_retry(bool refused, bool suspects) const {
  if (started_ || out_->closed() || tries_ >= router_.options_.tries) return false;
  const uint64_t tried = avoid_ | uint64_t{1} << worker_;
  for (size_t i = 0; i < router_.workers_.size(); ++i) {
    const int w = static_cast<int>(i);
    if (refused && router_.conductor_.role(w) == WorkerRole::prefill) continue;
    if (!suspects && router_.conductor_.suspect(w)) continue;
    if ((tried >> i & 1) == 0 && router_.conductor_.alive(w) && !router_.conductor_.draining(w))
      return true;
  }
  return false;
}

void RoutedExchange::on_end(HttpFailure failure, const std::string& detail) {
  const std::shared_ptr<RoutedExchange> self = shared_from_this();
  if (leg_ == Leg::prefill) return prefill_ended(failure);
  const bool ok = failure == HttpFailure::none && !again_;
  Router::Worker& w = router_.workers_[static_cast<size_t>(worker_)];
  if (failure != HttpFailure::none && failure != HttpFailure::cancelled) ++w.num_failures;
  if (ticket_) router_.conductor_.ended(*ticket_, ok && head_.status < 400, router_.now());
  ticket_.reset();
  router_.left(*this);
  const int worker = worker_;
  if (out_->closed()) return done(499, "client_gone");
  if (ok && !lost_) {
    if (whole_) {
      started_ = true;
      first_ = router_.now();
      router_.first_byte_->observe(seconds(first_ - received_));
      const int status = head_.status;
      out_->send(std::move(head_));
      head_.status = status;
    } else {
      out_->finish();
    }
    return done(head_.status, nullptr);
  }
  if (refused_by_ != 0 && !started_) return place_instead();
  if (again_ && (leg_ == Leg::decode || leg_ == Leg::fetch) && head_.status == 400) {
    leave_to_one();  // what is wrong with the request itself is said again
    worker_ = -1;
    return router_.place(self);
  }
  if (may_retry(again_)) {
    router_.retried_->add();
    LOG(warn, "%s: %s, sent to another worker", w.name.c_str(),
        again_ ? strf("answers %d", head_.status).c_str() : http_failure_name(failure));
    avoid_ |= uint64_t{1} << worker;
    worker_ = -1;
    return router_.place(self);
  }
  fail(lost_ ? "it does not answer"
             : std::string(http_failure_name(failure)) + (detail.empty() ? "" : ", " + detail));
}

// The worker failed, and nobody else can take over.
void RoutedExchange::fail(const std::string& why) {
  LOG(warn, "%s: %s", router_.workers_[static_cast<size_t>(worker_)].name.c_str(), why.c_str());
  const ApiError error{502, "the worker failed while it answered", "", "worker_failed"};
  if (!started_) return refuse(502, "no worker answered the request", "worker_failed", 1);
  if (is_events_) {
    out_->write("data: " + error_json(error) + "\n\n");
    out_->finish();
  } else {
    out_->abort();  // half an answer must not look like a whole one
  }
  done(502, "worker_failed");
}

void RoutedExchange::done(int status, const char* code) {
  if (std::exchange(answered_, true)) return;
  const std::string worker =
      worker_ >= 0 ? " worker=" + router_.workers_[static_cast<size_t>(worker_)].name : "";
  const std::string first =
      first_ > Time{0} ? strf(" first=%.3fs", seconds(first_ - received_)) : "";
  std::string prefill;
  if (prefiller_ >= 0)
    prefill = " prefill=" + router_.workers_[static_cast<size_t>(prefiller_)].name;
  if (prefiller_ >= 0 && prefilled_ > Time{0})
    prefill += strf(" prefilled=%.3fs", seconds(prefilled_ - received_));
  const std::string fetch =
      leg_ == Leg::fetch ? " fetch=" + router_.workers_[static_cast<size_t>(lender_)].name : "";
  LOG(info, "%s %s %d%s%s%s%s total=%.3fs tries=%d%s%s", request_.method.c_str(),
      logged_path(request_.path).c_str(), status, worker.c_str(), prefill.c_str(), fetch.c_str(),
      first.c_str(), seconds(router_.now() - received_), tries_, code ? " error=" : "",
      code ? code : "");
}

}  // namespace sluice

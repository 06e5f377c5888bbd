#include "tools/route/early_prefill.h"

#include "base/log.h"
#include "base/str.h"
#include "tools/route/exchange.h"
#include "tools/route/request_shape.h"

namespace sluice {

namespace {

constexpr size_t kMostPrefillAnswer = 256 << 10;  // bytes

}  // namespace

void EarlyPrefill::cancel() {
  cancelled_ = true;
  router_.workers_[static_cast<size_t>(worker_)].client->cancel(*this);
}

void EarlyPrefill::on_body(std::string_view bytes) {
  if (body_.size() + bytes.size() <= kMostPrefillAnswer) body_.append(bytes);
}

void EarlyPrefill::on_end(HttpFailure failure, const std::string&) {
  Router::Worker& w = router_.workers_[static_cast<size_t>(worker_)];
  const bool answered = failure == HttpFailure::none && !cancelled_;
  const bool ok = answered && status_ == 200 &&
                  find_field(body_, RoutedExchange::kTransferField).starts_with('{');
  if (failure != HttpFailure::none && failure != HttpFailure::cancelled) ++w.num_failures;
  if (ok) router_.conductor_.tokens(ticket_, 1, router_.now());
  router_.conductor_.ended(ticket_, false, router_.now());
  const std::shared_ptr<RoutedExchange> exchange = std::move(exchange_);
  const bool refused = answered || failure == HttpFailure::connect;
  if (!ok && !cancelled_)
    LOG(warn, "%s: no prefill: %s", w.name.c_str(),
        answered ? strf("answers %d%s", status_, status_ == 200 ? " without a lease" : "").c_str()
                 : http_failure_name(failure));
  const int worker = worker_, status = answered ? status_ : 503;
  w.early.erase(this);  // the last of it
  if (ok) {
    exchange->early_done();
  } else {
    exchange->early_failed(worker, refused ? status : 0);
  }
}

// The decode worker is sent its part at once: it awaits the blocks under a name that both are told.
bool Router::send_early(const RoutingChoice& choice,
                        const std::shared_ptr<RoutedExchange>& exchange) {
  Worker& w = workers_[static_cast<size_t>(choice.worker)];
  if (w.kv.lease_port == 0 || w.early.size() >= EarlyPrefill::kMost) return false;
  Conductor::Ask ask = exchange->ask();
  prompt_tokens_->add(static_cast<double>(ask.tokens));
  cached_tokens_->add(static_cast<double>(conductor_.view(choice.worker, ask, now()).cached));
  auto early = std::make_shared<EarlyPrefill>(*this, exchange, choice.worker,
                                              conductor_.sent(choice.worker, ask, now()));
  exchange->begin_early(choice.worker, early.get());
  ++w.num_requests;
  ++w.num_prefills;
  w.early.emplace(early.get(), early);
  w.client->send(exchange->bytes_for(w.url), *early);
  send_to(choice.decoder, exchange, Leg::decode);
  return true;
}

}  // namespace sluice

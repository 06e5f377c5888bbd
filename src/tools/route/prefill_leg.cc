// The part of an exchange in which a prefill worker computes the prompt, in vLLM's protocol: the
// client's request for one token, whose answer names the lease that a decode worker fetches.
// Whatever happens here the client gets its answer: from the next prefill worker, or from a worker
// that computes the prompt itself.
#include <algorithm>
#include <random>

#include "base/log.h"
#include "base/str.h"
#include "dist/kv_frame.h"
#include "tools/route/early_prefill.h"
#include "tools/route/exchange.h"

namespace sluice {

namespace {

constexpr int kMostPrefills = 2;  // prefill workers that are asked
// Fields left out of the prefill request: it makes one token that nobody reads.
constexpr std::string_view kNotInPrefill[] = {"stream",
                                              "stream_options",
                                              "max_tokens",
                                              "max_completion_tokens",
                                              "min_tokens",
                                              "n",
                                              "best_of",
                                              "use_beam_search",
                                              "logprobs",
                                              "top_logprobs",
                                              RoutedExchange::kTransferField};
constexpr std::string_view kInPrefill =
    R"("max_tokens":1,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,)"
    R"("remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null)";

}  // namespace

std::string RoutedExchange::leg_body() const {
  if (leg_ == Leg::prefill)
    return replace_fields(
        request_.body, kNotInPrefill,
        std::string(kInPrefill) + (early_ ? ",\"lease\":\"" + lease_ + "\"}" : std::string("}")));
  const std::string& params = leg_ == Leg::fetch ? prefix_params_ : params_;
  return replace_fields(request_.body, std::span(&kTransferField, 1),
                        strf("\"%s\":%s", std::string(kTransferField).c_str(), params.c_str()));
}

void RoutedExchange::fetch_prefix(const RoutingEstimate& e) {
  lender_ = e.fetch_from;
  const KvPart& holder = router_.workers_[static_cast<size_t>(lender_)].kv;
  prefix_params_ =
      strf(R"({"do_remote_prefix":true,"remote_host":"%s","remote_port":%d,)"
           R"("remote_prefix_share":%.4f})",
           holder.host.c_str(), int{holder.port},
           static_cast<double>(e.fetch_end) / static_cast<double>(std::max<int64_t>(1, tokens_)));
}

void RoutedExchange::begin_early(int worker, EarlyPrefill* prefill) {
  const KvPart& kv = router_.workers_[static_cast<size_t>(worker)].kv;
  LeaseName name;
  std::random_device random;
  for (std::byte& b : name) b = static_cast<std::byte>(random() & 255);
  lease_ = lease_text(name);
  params_ = strf(R"({"do_remote_prefill":true,"remote_pending":true,"remote_host":"%s",)"
                 R"("remote_port":%d,"remote_request_id":"%s"})",
                 kv.lease_host.c_str(), int{kv.lease_port}, lease_.c_str());
  early_ = prefill;
  awaits_ = true;
  refused_by_ = 0;
  leg_ = Leg::prefill;
  ++num_prefills_;
  prefiller_ = worker;
}

void RoutedExchange::early_done() {
  early_ = nullptr;
  // Whoever else goes on with it need not await it, nor a lease that is over.
  constexpr std::string_view kPending = R"("remote_pending":true,)";
  if (const size_t at = params_.find(kPending); at != std::string::npos)
    params_.erase(at, kPending.size());
  prefilled_ = router_.now();
  router_.prefills_->add();
}

void RoutedExchange::early_failed(int worker, int status) {
  early_ = nullptr;
  if (started_ || answered_ || leg_ != Leg::decode || worker_ < 0 || lost_) return;
  if (status == 0) return router_.fallbacks_->add();
  avoid_ |= uint64_t{1} << worker;
  refused_by_ = status;
  worker_of().client->cancel(*this);
}

void RoutedExchange::end_early() {
  if (early_) early_->cancel();
}

// The decode worker awaited what nobody will compute, and was stopped.
void RoutedExchange::place_instead() {
  const int status = std::exchange(refused_by_, 0);
  const std::string name = router_.workers_[static_cast<size_t>(prefiller_)].name;
  prefiller_ = -1;
  worker_ = -1;
  params_.clear();
  awaits_ = false;
  --tries_;  // which was not that worker's fault
  if (status >= 400 && status < 500 && status != 429) {
    leave_to_one();  // a bad request: the other worker refuses it too, and tells the client why
  } else if ((status != 429 && status != 503) || num_prefills_ >= kMostPrefills) {
    do_whole(name, "prefill failed");
  }
  router_.place(shared_from_this());
}

void RoutedExchange::do_whole(const std::string& worker, const char* why) {
  end_early();
  split_ = false;
  params_.clear();
  LOG(warn, "%s: %s; another worker computes all of %s %s", worker.c_str(), why,
      request_.method.c_str(), request_.path.c_str());
}

// Likewise, but no worker failed: it is not counted as a fallback.
void RoutedExchange::leave_to_one() {
  end_early();
  split_ = fetches_ = false;
  params_.clear();
  leg_ = Leg::whole;
}

void RoutedExchange::prefill_ended(HttpFailure failure) {
  Router::Worker& w = worker_of();
  const bool answered = failure == HttpFailure::none && !lost_;
  const bool ok = answered && head_.status == 200;
  if (failure != HttpFailure::none && failure != HttpFailure::cancelled) ++w.num_failures;
  if (ok) router_.conductor_.tokens(*ticket_, 1, router_.now());
  router_.conductor_.ended(*ticket_, false, router_.now());  // its length says nothing
  ticket_.reset();
  router_.left(*this);
  if (out_->closed()) return done(499, "client_gone");
  const int worker = worker_;
  worker_ = -1;
  if (const std::string_view params = ok ? find_field(head_.body, kTransferField) : "";
      params.starts_with('{')) {
    params_ = params;
    prefiller_ = worker;
    prefilled_ = router_.now();
    router_.prefills_->add();
    return router_.place(shared_from_this());
  }
  avoid_ |= uint64_t{1} << worker;
  // A bad request: the other worker refuses it too, and tells the client why.
  if (answered && head_.status >= 400 && head_.status < 500 && head_.status != 429) {
    leave_to_one();
    return router_.place(shared_from_this());
  }
  LOG(warn, "%s: no prefill: %s", w.name.c_str(),
      ok         ? "no lease"
      : answered ? strf("answers %d", head_.status).c_str()
      : lost_    ? "does not answer"
                 : http_failure_name(failure));
  const bool others = !answered || head_.status == 429 || head_.status == 503;
  if (!others || num_prefills_ >= kMostPrefills) do_whole(w.name, "prefill failed");
  router_.place(shared_from_this());
}

}  // namespace sluice

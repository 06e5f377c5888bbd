// The part of an exchange in which a prefill worker computes the prompt, in vLLM's protocol: the
// client's request for one token, whose answer names the lease that a decode worker fetches.
// Whatever happens here the client gets its answer: from the next prefill worker, or from a worker
// that computes the prompt itself.
#include <algorithm>

#include "base/log.h"
#include "base/str.h"
#include "tools/route/exchange.h"

namespace sluice {

namespace {

constexpr int kMostPrefills = 2;  // prefill workers that are asked
constexpr std::string_view kTransferField = "kv_transfer_params";
// Fields left out of the prefill request: it makes one token that nobody reads.
constexpr std::string_view kNotInPrefill[] = {
    "stream",  "stream_options",  "max_tokens", "max_completion_tokens", "min_tokens",  "n",
    "best_of", "use_beam_search", "logprobs",   "top_logprobs",          kTransferField};
constexpr std::string_view kInPrefill =
    R"("max_tokens":1,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,)"
    R"("remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null})";

}  // namespace

std::string RoutedExchange::leg_body() const {
  if (leg_ == Leg::prefill) return replace_fields(request_.body, kNotInPrefill, kInPrefill);
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

void RoutedExchange::do_whole(const std::string& worker, const char* why) {
  split_ = false;
  params_.clear();
  LOG(warn, "%s: %s; another worker computes all of %s %s", worker.c_str(), why,
      request_.method.c_str(), request_.path.c_str());
}

// Likewise, but no worker failed: it is not counted as a fallback.
void RoutedExchange::leave_to_one() {
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

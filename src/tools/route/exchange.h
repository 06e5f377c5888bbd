// One request on its way through the router: to a worker, to another where the first fails before
// anything was passed on, and the answer back. Where prompts are computed apart it goes to a
// prefill worker first, whose answer says where its KV is (prefill_leg.cc). On the router's io
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tools/route/request_shape.h"
#include "tools/route/router.h"

namespace sluice {

// The part of a request that a worker does; fetch: all, with a prefix that another worker has
// cached.
enum class Leg : uint8_t { whole, prefill, decode, fetch };

class EarlyPrefill;

class RoutedExchange final : public HttpListener,
                             public std::enable_shared_from_this<RoutedExchange> {
 public:
  RoutedExchange(Router& router,
                 HttpRequest request,
                 std::shared_ptr<Responder> out,
                 const RoutedPath& path);
  ~RoutedExchange() override;

  static constexpr std::string_view kTransferField = "kv_transfer_params";

  Conductor::Ask ask() const;
  bool generates() const { return generates_; }
  int worker() const { return worker_; }
  // A prefill worker has computed its prompt, or does so while the decode worker awaits it.
  bool handed_over() const { return !params_.empty(); }
  int prefiller() const { return prefiller_; }
  // From now on one worker does all, since the one named failed at its part.
  void do_whole(const std::string& worker, const char* why);
  // Its worker is told where the prefix is.
  void fetch_prefix(const RoutingEstimate& estimate);
  // That worker computes the prompt beside what follows; bytes_for() are its request's.
  void begin_early(int worker, EarlyPrefill* prefill);
  void early_done();
  // `status`: as it answers; 0: it did not, so the decode worker's connection to it has ended too,
  // and that one computes the prompt.
  void early_failed(int worker, int status);
  void sent_to(int worker, Conductor::Ticket ticket, Leg leg);
  Time sent_at() const { return sent_at_; }
  // The request as that worker is sent it.
  std::string bytes_for(const HttpUrl& url) const;
  // Answers by itself: no worker is to be had.
  void refuse(int status, const std::string& why, const char* code, double retry_after);
  // The worker is dead or does not answer.
  void worker_lost();
  // It may be: another one is asked, where nothing was passed on and one answers its probes.
  void worker_suspect();

  void on_head(int status, const HttpHeaders& headers) override;
  void on_body(std::string_view bytes) override;
  void on_end(HttpFailure failure, const std::string& detail) override;

 private:
  std::string leg_body() const;
  void end_early();
  void place_instead();
  void prefill_ended(HttpFailure failure);
  void leave_to_one();
  Router::Worker& worker_of() { return router_.workers_[static_cast<size_t>(worker_)]; }
  void start_answer();
  void learn_block(const HttpHeaders& headers);
  void learn_fetch(const HttpHeaders& headers);
  void hold(size_t bytes);
  void count_tokens(std::string_view bytes);
  void flow();
  void client_gone();
  void fail(const std::string& why);
  // `refused`: by a worker that is there, so nobody but its like is asked.
  bool may_retry(bool refused, bool suspects = true) const;
  void done(int status, const char* code);

  Router& router_;
  HttpRequest request_;
  std::shared_ptr<Responder> out_;
  const bool generates_;
  const Time received_;
  size_t held_ = 0;  // bytes of the request, as counted by the router
  RequestShape shape_;
  std::vector<uint64_t> blocks_;
  int64_t tokens_ = 1;  // of the prompt, about
  int block_tokens_ = kShapeBlockTokens;
  uint64_t session_ = 0;
  int attempts_ = 0;  // as the client says
  uint64_t draw_ = 0;
  uint64_t avoid_ = 0;  // workers that failed it
  int tries_ = 0;

  Leg leg_ = Leg::whole;
  bool split_ = false;         // a prefill worker may compute its prompt
  bool fetches_ = false;       // its worker may be told to fetch a prefix
  int lender_ = -1;            // from whom, the last time
  int num_prefills_ = 0;       // workers that were asked to
  int prefiller_ = -1;         // who did
  std::string lease_;          // that the router has named, for both workers
  std::string params_;         // kv_transfer_params of its answer, raw; empty: none
  std::string prefix_params_;  // the same of a prefix that is fetched
  Time prefilled_{0};
  EarlyPrefill* early_ = nullptr;  // runs beside; null: none
  bool awaits_ = false;            // the decode worker was told before the prompt was computed
  int refused_by_ = 0;             // the status by which its prefill failed meanwhile; 0: none
  int worker_ = -1;
  std::optional<Conductor::Ticket> ticket_;
  HttpResponse head_;
  bool whole_ = false;  // the answer is kept until its end
  bool again_ = false;  // the answer is dropped, and another worker asked
  Time sent_at_{};
  bool started_ = false;  // something was passed on
  bool paused_ = false, lost_ = false, answered_ = false, is_events_ = false;
  Time first_{0};
};

}  // namespace sluice

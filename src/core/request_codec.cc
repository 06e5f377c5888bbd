// Requests and settings as bytes.
#include <algorithm>
#include <utility>

#include "core/policy.h"
#include "core/scheduler_state_fields.h"

namespace sluice {

namespace {

void config_fields(auto& io, auto& c) {
  io.choice(c.batching, 2);
  io.choice(c.prefill, 2);
  io.choice(c.mix, 3);
  io.choice(c.order, 5);
  io.time(c.aging);
  io.choice(c.admission, 3);
  io.choice(c.predictor.kind, 5);
  io.number(c.predictor.tokens);
  io.real(c.predictor.quantile);
  io.choice(c.allocator, 4);
  io.number(c.budget);
  io.number(c.chunk);
  io.number(c.mixed_budget);
  io.time(c.slo.itl);
  io.real(c.slo.itl_quantile);
  io.time(c.slo.ttft);
  io.real(c.slo.ttft_quantile);
  io.real(c.short_share);
  io.number(c.max_seqs);
  io.number(c.prefill_delay);
  io.number(c.prefill_batch);
  io.time(c.fill_wait);
  io.number(c.max_len);
  io.number(c.num_blocks);
  io.number(c.block_size);
  io.number(c.pages.block_bytes);
  io.number(c.pages.page_bytes);
  io.number(c.pages.slot_blocks);
  if constexpr (std::decay_t<decltype(io)>::kReads) c.group_windows.clear();
  io.list(c.group_windows, [](auto& i, auto& w) { i.number(w); });
  io.real(c.watermark);
  io.flag(c.prefix_cache);
  io.choice(c.preempt, 2);
  io.real(c.swap_cost.move_block);
  io.real(c.swap_cost.compute_token);
  io.real(c.swap_cost.delay);
  io.number(c.tiers.swap);
  io.number(c.tiers.host);
  io.number(c.tiers.block_bytes);
  io.number(c.tiers.disk);
  io.number(c.max_queued);
  io.number(c.pipeline.depth);
  io.flag(c.pipeline.chained);
  io.number(c.pipeline.lanes);
  io.number(c.sampling.logit_bias);
  io.number(c.sampling.banned_until_min);
  io.number(c.sampling.bad_length);
  io.number(c.sampling.bad_tokens);
  io.number(c.sampling.num_logprobs);
  io.number(c.sampling.logprob_ids);
}

}  // namespace

std::shared_ptr<const constrain::Constraint> replay_constraint() {
  static const std::shared_ptr<const int> owner = std::make_shared<const int>(0);
  return {owner, reinterpret_cast<const constrain::Constraint*>(owner.get())};
}

void read_request(Reader& io, Request& r) {
  request_fields(io, r);
  SamplingSpec spec;
  sampling_fields(io, spec);
  r.sampling = std::make_shared<const SamplingSpec>(std::move(spec));
  if (r.prompt->empty()) io.fail("a request has no prompt");
  if (r.n < 1 || r.n > UINT16_MAX) io.fail("a request has no valid number of choices");
  if (r.pooling != Pooling::none && (r.max_new != 0 || r.n != 1))
    io.fail("a request for a vector samples tokens");
}

std::shared_ptr<const TokenText> replay_text(int vocab) {
  auto text = std::make_shared<TokenText>();
  for (int t = 0; t < vocab; ++t) text->add({});
  text->add(kReplayStop);
  return text;
}

void encode_request(const Request& r, const SamplingSpec& asked, Bytes& out, const TokenMap* map) {
  Writer w(out, map);
  request_fields(w, r);
  sampling_fields(w, asked);
}

Result<Request> decode_request(std::span<const std::byte> bytes) {
  Reader io(bytes);
  Request r;
  read_request(io, r);
  if (io.ok() && !io.at_end()) io.fail("bytes follow its end");
  if (!io.ok()) return io.error("request");
  return r;
}

void encode_config(const SchedulerConfig& config, Bytes& out) {
  Writer w(out);
  config_fields(w, config);
}

Result<SchedulerConfig> decode_config(std::span<const std::byte> bytes) {
  Reader io(bytes);
  SchedulerConfig c;
  config_fields(io, c);
  if (io.ok() && !io.at_end()) io.fail("bytes follow its end");
  if (!io.ok()) return io.error("settings of the scheduler");
  return c;
}

Result<void> check_config(const SchedulerConfig& c) {
  auto bad = [](const char* what) {
    return Error{400, strf("the settings of the scheduler have no valid %s", what)};
  };
  if (!in_range(c.budget, 1, kMostOfAny)) return bad("budget");
  if (!in_range(c.max_seqs, 1, 1 << 20)) return bad("number of sequences");
  if (!in_range(c.block_size, 1, 1 << 16) || !in_range(c.num_blocks, 0, kMostOfAny) ||
      int64_t{c.num_blocks} * c.block_size > int64_t{1} << 31)
    return bad("number of blocks");
  if (!in_range(c.max_len, 1, kMostOfAny)) return bad("context length");
  if (!in_range(std::ssize(c.group_windows), 1, kMaxCacheGroups) ||
      std::ranges::any_of(c.group_windows, [](int w) { return w < 0 || w > kMostOfAny; }))
    return bad("cache groups");
  if (!in_range(c.pipeline.depth, 0, UINT8_MAX - 1) || !c.pipeline.valid()) return bad("pipeline");
  if (!in_range(c.tiers.swap, 0, kMostOfAny) || !in_range(c.tiers.host, 0, kMostOfAny) ||
      !in_range(c.tiers.disk, 0, kMostOfAny) ||
      (c.tiers.total() > 0 && int64_t{c.tiers.total()} * c.block_size > int64_t{1} << 31))
    return bad("places outside the pool");
  if (c.chunk < 0 || c.mixed_budget < 0 || c.prefill_delay < 0 || c.prefill_batch < 0 ||
      c.max_queued < 0 || c.aging < Time{0} || c.fill_wait < Time{0} || c.slo.itl < Time{0} ||
      c.slo.ttft < Time{0})
    return bad("sizes of steps: one is negative");
  if (!(c.short_share >= 0 && c.short_share <= 1) || !(c.watermark >= 0 && c.watermark <= 1) ||
      !(c.predictor.quantile > 0 && c.predictor.quantile < 1))
    return bad("shares: one is not between 0 and 1");
  if (c.aging > std::chrono::hours(24 * 365)) return bad("aging");
  if (!in_range(c.pages.block_bytes, 1, int64_t{1} << 36) ||
      !in_range(c.pages.page_bytes, 1, int64_t{1} << 36))
    return bad("sizes of pages");
  int64_t slots = std::min(c.max_seqs, c.budget);
  if (c.mapped() && (!in_range(c.pages.slot_blocks, 0, kMostOfAny) ||
                     (slots + 1) * std::ssize(c.group_windows) *
                             std::max<int64_t>(c.pages.slot_blocks, c.max_len + 1) >
                         INT32_MAX))
    return bad("sizes of slots");
  return check_allocator(c);
}

}  // namespace sluice

#include "core/plan_codec.h"

#include <limits>

#include "base/str.h"

namespace sluice {

namespace {

constexpr int kNumWants = static_cast<int>(Want::pool) + 1;

// ---- the fields; Io is Writer or Reader, and values are const for a Writer ----

void edit(auto& io, auto& e) {
  io.number(e.slot);
  io.number(e.index);
  io.number(e.block);
  io.number(e.group);
}

void page_op(auto& io, auto& o) {
  io.number(o.slot);
  io.number(o.num_pages);
}

void slice(auto& io, auto& s) {
  io.number(s.slot);
  io.number(s.epoch);
  io.number(s.pos);
  io.number(s.count);
  io.choice(s.want, kNumWants);
  io.flag(s.chained);
  io.number(s.num_draft);
  io.number(s.token_at);
  io.number(s.mask);
}

void block_key(auto& io, auto& k) {
  io.number(k.hash.a);
  io.number(k.hash.b);
  io.number(k.tenant);
  io.number(k.group);
  io.number(k.token_at);
  io.number(k.num_tokens);
}

void plan_fields(auto& io, auto& p) {
  io.number(p.step);
  io.number(p.num_tokens);
  io.number(p.num_decode);
  io.list(p.rows, [](auto& i, auto& r) { row_op_fields(i, r); });
  io.list(p.sampling, [](auto& i, auto& s) { sampling_fields(i, s); });
  io.list(p.edits, [](auto& i, auto& e) { edit(i, e); });
  io.list(p.pages, [](auto& i, auto& o) { page_op(i, o); });
  io.list(p.slices, [](auto& i, auto& s) { slice(i, s); });
  token_list(io, p.tokens);
  io.list(p.transfers, [](auto& i, auto& t) { transfer_fields(i, t); });
  io.list(p.keys, [](auto& i, auto& k) { block_key(i, k); });
  io.number(p.oldest);
  io.flag(p.awaits);
}

void sampled(auto& io, auto& s) {
  io.number(s.slot);
  io.number(s.epoch);
  io.number(s.token_at);
  io.number(s.num_tokens);
  io.number(s.top_at);
  io.number(s.num_top);
  io.number(s.pooled);
}

void top_logprob(auto& io, auto& t) {
  io.number(t.pos);
  io.token(t.token);
  io.real(t.logprob);
  io.number(t.rank);
}

void result_fields(auto& io, auto& r) {
  io.number(r.step);
  io.list(r.rows, [](auto& i, auto& s) { sampled(i, s); });
  token_list(io, r.tokens);
  io.list(r.top, [](auto& i, auto& t) { top_logprob(i, t); });
  io.list(r.pooled, [](auto& i, auto& v) { i.vector(v); });
  io.list(r.transfers, [](auto& i, auto& id) { i.number(id); });
  io.list(r.lost, [](auto& i, auto& id) { i.number(id); });
  io.time(r.begin);
  io.time(r.end);
  io.text(r.failure);
}

void mask_fields(auto& io, auto& m) {
  io.number(m.step);
  io.list(m.rows, [](auto& i, auto& row) { i.list(row, [](auto& j, auto& w) { j.word(w); }); });
}

// ---- what holds within one plan or result ----

bool within(uint64_t at, uint64_t num, size_t size) { return at <= size && num <= size - at; }

const char* fault(const RowOp& r, const StepPlan& p) {
  if (r.kind == RowOp::close) return nullptr;
  if (r.sampling >= p.sampling.size()) return "a row names a sampling spec that is not there";
  if (!within(r.history_at, r.num_history, p.tokens.size()) || r.num_history_prompt > r.num_history)
    return "a row's history is not in the plan";
  return nullptr;
}

const char* fault(const Slice& s, const StepPlan& p) {
  if (s.count < 1 || s.pos < 0 || s.pos > std::numeric_limits<int32_t>::max() - s.count)
    return "a slice has no valid positions";
  if (s.num_draft >= s.count)
    return "a slice has more draft tokens than positions behind its first";
  if (s.chained && s.count != 1 + s.num_draft) return "a chained slice has more than one input";
  auto inputs = static_cast<uint64_t>(s.count - (s.chained ? 1 : 0));
  if (!within(s.token_at, inputs, p.tokens.size())) return "a slice's tokens are not in the plan";
  return s.mask < kNoMask ? "a slice has a negative mask" : nullptr;
}

const char* fault(const StepPlan& p) {
  for (const RowOp& r : p.rows) {
    if (const char* why = fault(r, p)) return why;
  }
  for (const TableEdit& e : p.edits) {
    if (e.group >= kMaxCacheGroups || e.block < 0) return "a table edit names no group or no block";
  }
  for (const Transfer& t : p.transfers) {
    if (t.key < kNoKey || t.key >= static_cast<int64_t>(p.keys.size()))
      return "a transfer names a key that is not there";
  }
  for (const BlockKey& k : p.keys) {
    if (!within(k.token_at, k.num_tokens, p.tokens.size()))
      return "a block's tokens are not in the plan";
  }
  int64_t num_tokens = 0;
  for (size_t k = 0; k < p.slices.size(); ++k) {
    if (const char* why = fault(p.slices[k], p)) return why;
    num_tokens += p.slices[k].count;
    if (static_cast<int64_t>(k) < p.num_decode && p.slices[k].count != 1)
      return "a decode has more than one token";
  }
  if (num_tokens != p.num_tokens) return "its slices do not add up to its number of tokens";
  if (p.num_decode < 0 || static_cast<size_t>(p.num_decode) > p.slices.size())
    return "it has fewer slices than decodes";
  return nullptr;
}

const char* fault(const StepResult& r) {
  for (const Sampled& s : r.rows) {
    if (!within(s.token_at, s.num_tokens, r.tokens.size())) return "a row's tokens are not there";
    if (!within(s.top_at, s.num_top, r.top.size()))
      return "a row's log-probabilities are not there";
    if (s.pooled < -1 || s.pooled >= static_cast<int64_t>(r.pooled.size()))
      return "a row's pooled vector is not there";
  }
  return nullptr;
}

const char* fault(const StepMasks&) { return nullptr; }

void header(Writer& w, char kind) {
  w.byte('S');
  w.byte(static_cast<uint8_t>(kind));
  w.byte(kPlanVersion);
}

template <typename T>
Result<T> decode(std::span<const std::byte> bytes, char kind, const char* what, auto&& fields) {
  Reader r(bytes);
  if (r.byte() != 'S' || r.byte() != static_cast<uint8_t>(kind))
    return Error{400, strf("these bytes are no %s: they begin with other letters", what)};
  int version = r.byte();
  if (r.ok() && version != kPlanVersion)
    return Error{400, strf("the %s has version %d and this build reads version %d: use the build "
                           "that wrote it",
                           what, version, kPlanVersion)};
  T value;
  fields(r, value);
  if (r.ok() && !r.at_end()) r.fail("bytes follow its end");
  if (r.ok()) {
    if (const char* why = fault(value)) r.fail(why);
  }
  if (!r.ok()) return r.error(what);
  return value;
}

}  // namespace

void encode(const StepPlan& plan, Bytes& out, const TokenMap* map) {
  Writer w(out, map);
  header(w, 'P');
  plan_fields(w, plan);
}

void encode(const StepResult& result, Bytes& out, const TokenMap* map) {
  Writer w(out, map);
  header(w, 'R');
  result_fields(w, result);
}

void encode(const StepMasks& masks, Bytes& out) {
  Writer w(out);
  header(w, 'M');
  mask_fields(w, masks);
}

Result<StepPlan> decode_plan(std::span<const std::byte> bytes) {
  return decode<StepPlan>(bytes, 'P', "plan", [](Reader& r, StepPlan& p) { plan_fields(r, p); });
}

Result<StepResult> decode_result(std::span<const std::byte> bytes) {
  return decode<StepResult>(bytes, 'R', "result",
                            [](Reader& r, StepResult& p) { result_fields(r, p); });
}

Result<StepMasks> decode_masks(std::span<const std::byte> bytes) {
  return decode<StepMasks>(bytes, 'M', "list of masks",
                           [](Reader& r, StepMasks& m) { mask_fields(r, m); });
}

}  // namespace sluice

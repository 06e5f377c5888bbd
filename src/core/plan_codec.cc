#include "core/plan_codec.h"

#include <bit>
#include <concepts>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "base/str.h"

namespace sluice {

namespace {

constexpr int kNumWants = static_cast<int>(Want::pool) + 1;
constexpr int kNumPoolings = static_cast<int>(Pooling::mean) + 1;

constexpr uint64_t zigzag(int64_t x) {
  return static_cast<uint64_t>(x) << 1 ^ static_cast<uint64_t>(x >> 63);
}
constexpr int64_t unzigzag(uint64_t x) { return static_cast<int64_t>(x >> 1 ^ (~(x & 1) + 1)); }

// Writer and Reader have the same calls, so that one list of fields serves both directions.
class Writer {
 public:
  explicit Writer(Bytes& out) : out_(out) {}

  void number(std::integral auto x) {
    uint64_t v = 0;
    if constexpr (std::is_signed_v<decltype(x)>) {
      v = zigzag(x);
    } else {
      v = x;
    }
    for (; v >= 128; v >>= 7) byte(static_cast<uint8_t>(v | 128));
    byte(static_cast<uint8_t>(v));
  }
  void flag(bool x) { byte(x ? 1 : 0); }
  template <typename E>
  void choice(E x, int) {
    byte(static_cast<uint8_t>(x));
  }
  void real(float x) { word(std::bit_cast<uint32_t>(x)); }
  void word(uint32_t x) {
    for (int k = 0; k < 4; ++k) byte(static_cast<uint8_t>(x >> 8 * k));
  }
  void time(Time x) { number(int64_t{x.count()}); }
  void vector(const Vector& x) {
    list(*x, [](Writer& w, float v) { w.real(v); });
  }
  void text(const std::string& x) {
    number(uint64_t{x.size()});
    for (char c : x) byte(static_cast<uint8_t>(c));
  }
  void list(const auto& elements, auto&& element) {
    number(uint64_t{elements.size()});
    for (const auto& e : elements) element(*this, e);
  }
  void byte(uint8_t x) { out_.push_back(static_cast<std::byte>(x)); }

 private:
  Bytes& out_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <std::integral T>
  void number(T& x) {
    uint64_t v = varint();
    if constexpr (std::is_signed_v<T>) {
      int64_t s = unzigzag(v);
      if (!std::in_range<T>(s)) return fail("a number is out of range");
      x = static_cast<T>(s);
    } else {
      if (!std::in_range<T>(v)) return fail("a number is out of range");
      x = static_cast<T>(v);
    }
  }
  void flag(bool& x) {
    uint8_t v = byte();
    if (v > 1) return fail("a flag is neither 0 nor 1");
    x = v == 1;
  }
  template <typename E>
  void choice(E& x, int num) {
    uint8_t v = byte();
    if (v >= num) return fail("a kind is unknown");
    x = static_cast<E>(v);
  }
  void real(float& x) {
    uint32_t bits = 0;
    word(bits);
    x = std::bit_cast<float>(bits);
  }
  void word(uint32_t& x) {
    x = 0;
    for (int k = 0; k < 4; ++k) x |= uint32_t{byte()} << 8 * k;
  }
  void time(Time& x) {
    int64_t n = 0;
    number(n);
    x = Time(n);
  }
  void vector(Vector& x) {
    std::vector<float> v;
    list(v, [](Reader& r, float& f) { r.real(f); });
    x = std::make_shared<const std::vector<float>>(std::move(v));
  }
  void text(std::string& x) {
    list(x, [](Reader& r, char& c) { c = static_cast<char>(r.byte()); });
  }
  // Grows as elements are read: a count that lies allocates nothing.
  template <typename C>
  void list(C& elements, auto&& element) {
    uint64_t num = varint();
    if (num > bytes_.size() - at_) return fail("a list is longer than the rest");
    for (; num > 0 && ok(); --num) {
      typename C::value_type e{};
      element(*this, e);
      elements.push_back(std::move(e));
    }
  }
  uint8_t byte() {
    if (at_ == bytes_.size()) return fail("it is cut off"), uint8_t{0};
    return static_cast<uint8_t>(bytes_[at_++]);
  }
  void fail(const char* why) {
    if (!why_) why_ = why;
  }
  bool ok() const { return why_ == nullptr; }
  bool at_end() const { return at_ == bytes_.size(); }
  Error error(const char* what) const {
    return {400, strf("%s, byte %zu of %zu: %s", what, at_, bytes_.size(), why_)};
  }

 private:
  uint64_t varint() {
    uint64_t v = 0;
    for (int shift = 0; ok(); shift += 7) {
      uint8_t b = byte();
      if (shift == 63 && b > 1) return fail("a number has more than 64 bits"), uint64_t{0};
      v |= uint64_t{b & 127u} << shift;
      if (b >= 128) continue;
      if (b == 0 && shift > 0) fail("a number is longer than it needs to be");
      break;
    }
    return ok() ? v : 0;
  }

  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  const char* why_ = nullptr;
};

// ---- the fields; Io is Writer or Reader, and values are const for a Writer ----

void token(auto& io, auto& t) { io.number(t); }
void tokens(auto& io, auto& list) {
  io.list(list, [](auto& i, auto& t) { token(i, t); });
}

void spec(auto& io, auto& s) {
  io.real(s.temperature);
  io.number(s.top_k);
  io.real(s.top_p);
  io.real(s.min_p);
  io.real(s.repetition_penalty);
  io.real(s.frequency_penalty);
  io.real(s.presence_penalty);
  io.number(s.seed);
  io.number(s.min_tokens);
  io.number(s.num_logprobs);
  io.number(s.prompt_logprobs);
  tokens(io, s.logprob_ids);
  io.list(s.logit_bias, [](auto& i, auto& b) {
    token(i, b.first);
    i.real(b.second);
  });
  tokens(io, s.banned_until_min);
  tokens(io, s.allowed);
  io.list(s.bad_sequences, [](auto& i, auto& bad) { tokens(i, bad); });
}

void row_op(auto& io, auto& r) {
  io.choice(r.kind, RowOp::close + 1);
  io.choice(r.pooling, kNumPoolings);
  io.number(r.id.req);
  io.number(r.id.choice);
  io.number(r.slot);
  io.number(r.epoch);
  io.number(r.num_prompt);
  io.number(r.history_at);
  io.number(r.num_history);
  io.number(r.num_history_prompt);
  io.number(r.sampling);
}

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

void transfer(auto& io, auto& t) {
  io.choice(t.kind, kNumTransferKinds);
  io.number(t.from);
  io.number(t.to);
  io.number(t.id);
  io.number(t.key);
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
  io.list(p.rows, [](auto& i, auto& r) { row_op(i, r); });
  io.list(p.sampling, [](auto& i, auto& s) { spec(i, s); });
  io.list(p.edits, [](auto& i, auto& e) { edit(i, e); });
  io.list(p.pages, [](auto& i, auto& o) { page_op(i, o); });
  io.list(p.slices, [](auto& i, auto& s) { slice(i, s); });
  tokens(io, p.tokens);
  io.list(p.transfers, [](auto& i, auto& t) { transfer(i, t); });
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
  token(io, t.token);
  io.real(t.logprob);
  io.number(t.rank);
}

void result_fields(auto& io, auto& r) {
  io.number(r.step);
  io.list(r.rows, [](auto& i, auto& s) { sampled(i, s); });
  tokens(io, r.tokens);
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

void encode(const StepPlan& plan, Bytes& out) {
  Writer w(out);
  header(w, 'P');
  plan_fields(w, plan);
}

void encode(const StepResult& result, Bytes& out) {
  Writer w(out);
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

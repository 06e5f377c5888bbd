// Bytes of plans, results and recordings: a Writer and a Reader with the same calls, so that one
// list of fields serves both directions. Integers are base-128 varints, least significant group
// first, signed ones zigzag; floats and doubles are their bits, least significant byte first; lists
// are a count and their elements. A value has one encoding: a Reader refuses longer varints. A
// Reader never reads beyond its bytes, and a count that lies allocates nothing. Values on the
// caller's stack; any thread.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/str.h"
#include "core/prefix_index.h"
#include "core/step_plan.h"

namespace sluice {

using Bytes = std::vector<std::byte>;

constexpr uint64_t zigzag(int64_t x) {
  return static_cast<uint64_t>(x) << 1 ^ static_cast<uint64_t>(x >> 63);
}
constexpr int64_t unzigzag(uint64_t x) { return static_cast<int64_t>(x >> 1 ^ (~(x & 1) + 1)); }

class Writer {
 public:
  static constexpr bool kReads = false;
  // Tokens are written as `map` names them, where it is not null.
  explicit Writer(Bytes& out, const TokenMap* map = nullptr) : out_(out), map_(map) {}

  void number(std::integral auto x) {
    uint64_t v = 0;
    if constexpr (std::is_signed_v<decltype(x)>) {
      v = zigzag(x);
    } else {
      v = x;
    }
    std::byte coded[10];
    size_t num = 0;
    for (; v >= 128; v >>= 7) coded[num++] = static_cast<std::byte>(v | 128);
    coded[num++] = static_cast<std::byte>(v);
    if (num == 1) return out_.push_back(coded[0]);
    out_.insert(out_.end(), coded, coded + num);
  }
  void token(Token t) { number(mapped_token(map_, t)); }
  void flag(bool x) { byte(x ? 1 : 0); }
  template <typename E>
  void choice(E x, int) {
    byte(static_cast<uint8_t>(x));
  }
  void real(float x) { word(std::bit_cast<uint32_t>(x)); }
  void real(double x) {
    auto bits = std::bit_cast<uint64_t>(x);
    word(static_cast<uint32_t>(bits));
    word(static_cast<uint32_t>(bits >> 32));
  }
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
  const TokenMap* map_;
};

class Reader {
 public:
  static constexpr bool kReads = true;
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
  void token(Token& t) { number(t); }
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
  void real(double& x) {
    uint32_t low = 0, high = 0;
    word(low), word(high);
    x = std::bit_cast<double>(uint64_t{high} << 32 | low);
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
  std::span<const std::byte> rest() const { return bytes_.subspan(at_); }
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

// ---- fields of types that several encodings hold; values are const for a Writer ----

void token_list(auto& io, auto& list) {
  io.list(list, [](auto& i, auto& t) { i.token(t); });
}

void sampling_fields(auto& io, auto& s) {
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
  token_list(io, s.logprob_ids);
  io.list(s.logit_bias, [](auto& i, auto& b) {
    i.token(b.first);
    i.real(b.second);
  });
  token_list(io, s.banned_until_min);
  token_list(io, s.allowed);
  io.list(s.bad_sequences, [](auto& i, auto& bad) { token_list(i, bad); });
}

void row_op_fields(auto& io, auto& r) {
  io.choice(r.kind, RowOp::close + 1);
  io.choice(r.pooling, static_cast<int>(Pooling::mean) + 1);
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

void transfer_fields(auto& io, auto& t) {
  io.choice(t.kind, kNumTransferKinds);
  io.number(t.from);
  io.number(t.to);
  io.number(t.id);
  io.number(t.key);
}

}  // namespace sluice

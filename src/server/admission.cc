#include "server/admission.h"

#include <algorithm>

#include "base/str.h"

namespace sluice {

AdmissionControl::AdmissionControl(const AdmissionLimits& limits, size_t num_keys)
    : limits_(limits), by_key_(std::max<size_t>(num_keys, 1)) {}

// Taken first and given back when it was too much: two that race are never both let in.
bool AdmissionControl::Taken::add(const Load& load, const Load& limit) {
  auto within = [](std::atomic<int64_t>& taken, int64_t more, int64_t most) {
    int64_t before = taken.fetch_add(more);
    return most == 0 || before == 0 || before + more <= most;
  };
  bool fits = within(sequences, load.sequences, limit.sequences);
  fits &= within(tokens, load.tokens, limit.tokens);
  fits &= within(bytes, load.bytes, limit.bytes);
  return fits;
}

void AdmissionControl::Taken::remove(const Load& load) {
  sequences.fetch_sub(load.sequences);
  tokens.fetch_sub(load.tokens);
  bytes.fetch_sub(load.bytes);
}

Refusal AdmissionControl::check(const Load& load) const {
  const Load& most = limits_.per_request;
  if (most.sequences > 0 && load.sequences > most.sequences) {
    return ApiError{
        400,
        strf("the request asks for %lld sequences (prompts x n) and may have %lld: "
             "split it",
             static_cast<long long>(load.sequences), static_cast<long long>(most.sequences)),
        "n", "too_many_sequences"};
  }
  if (most.bytes > 0 && load.bytes > most.bytes) {
    return ApiError{
        400,
        strf("the answer may grow to %lld MB and %lld are allowed: lower max_tokens, n, "
             "logprobs or what it repeats of the request, or stream it",
             static_cast<long long>(load.bytes >> 20), static_cast<long long>(most.bytes >> 20)),
        "max_tokens", "answer_too_large"};
  }
  return {};
}

Refusal AdmissionControl::admit(int key, const Load& load) {
  bool fits = all_.add(load, limits_.total), own_fits = of(key).add(load, limits_.per_key);
  if (fits && own_fits) return {};
  release(key, load);
  return ApiError{429,
                  own_fits ? "too many requests are waiting: try again later"
                           : "too many requests of this key are waiting: try again later",
                  "", "queue_full"};
}

void AdmissionControl::add(int key, const Load& part) {
  all_.add(part, {});
  of(key).add(part, {});
}

void AdmissionControl::release(int key, const Load& part) {
  all_.remove(part);
  of(key).remove(part);
}

bool AdmissionControl::full() const {
  auto reached = [](const std::atomic<int64_t>& taken, int64_t most) {
    return most > 0 && taken.load(std::memory_order_relaxed) >= most;
  };
  return reached(all_.sequences, limits_.total.sequences) ||
         reached(all_.tokens, limits_.total.tokens);
}

std::unique_ptr<Ticket> Ticket::split(Load part) {
  int64_t missing = std::max<int64_t>(part.sequences - left_.sequences, 0);
  auto own = std::make_unique<Ticket>(admission_, key_, part);
  admission_.add(key_, {missing, 0, 0});
  left_.sequences -= part.sequences - missing;
  left_.tokens -= part.tokens;
  left_.bytes -= part.bytes;
  return own;
}

void Ticket::release(Load part) {
  left_.sequences -= part.sequences;
  left_.tokens -= part.tokens;
  left_.bytes -= part.bytes;
  admission_.release(key_, part);
}

}  // namespace sluice

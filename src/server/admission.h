// Bounds what requests take together, over all and per key: sequences and prompt tokens that wait
// for their first token, and bytes of answers that are kept until they are whole. Any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "server/admission_limits.h"
#include "server/openai.h"

namespace sluice {

class AdmissionControl {
 public:
  AdmissionControl(const AdmissionLimits& limits, size_t num_keys);

  // 400 for more than one request may ever take.
  Refusal check(const Load& load) const;
  // Nothing, and the load counts until it is released; or 429. A request that is alone is let in
  // whatever it takes of the totals. `key` -1: none.
  Refusal admit(int key, const Load& load);
  // Counts more of a request that was let in.
  void add(int key, const Load& part);
  void release(int key, const Load& part);
  // As many wait as may: whatever a request holds, it would be refused.
  bool full() const;
  // Prompt tokens that wait for their first token.
  int64_t waiting_tokens() const { return all_.tokens.load(std::memory_order_relaxed); }
  const AdmissionLimits& limits() const { return limits_; }

 private:
  struct Taken {
    std::atomic<int64_t> sequences{0}, tokens{0}, bytes{0};
    bool add(const Load& load, const Load& limit);  // false: over the limit; added all the same
    void remove(const Load& load);
  };
  Taken& of(int key) { return by_key_[key < 0 ? 0 : static_cast<size_t>(key)]; }

  AdmissionLimits limits_;
  Taken all_;
  std::vector<Taken> by_key_;
};

// A part of a load, released when this goes away at the latest.
class Ticket {
 public:
  Ticket(AdmissionControl& admission, int key, const Load& load)
      : admission_(admission), key_(key), left_(load) {}
  ~Ticket() { release(left_); }
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;
  // A ticket of its own for `part`. Sequences that this one has not are counted now.
  std::unique_ptr<Ticket> split(Load part);
  void release_sequence() { release({left_.sequences > 0 ? 1 : 0, 0, 0}); }
  void release_tokens() { release({0, left_.tokens, 0}); }

 private:
  void release(Load part);

  AdmissionControl& admission_;
  int key_;
  Load left_;
};

}  // namespace sluice

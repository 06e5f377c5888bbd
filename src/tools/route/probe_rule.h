// When a worker that is probed counts as hung. Reads no clock: the one who probes does. Probes
// alone decide, since a request may rightly compute for minutes.
#pragma once

#include <chrono>

namespace sluice {

class ProbeRule {
 public:
  // A worker is suspect 1.5 s after its last sign of life, doubtful after 2.5 s and given up after
  // 3.5 s. So a request that meets two hung workers in a row is with the third after 3 s, or 4 s if
  // the first had it before it hung.
  static constexpr std::chrono::milliseconds kPause{500}, kPatience{1000};
  static constexpr int kMostMissed = 3;

  // broken: the connection ended without an answer. missed: no answer within kPatience, or no way
  // to the worker.
  enum class Outcome { answered, refused, broken, missed };
  // suspect: it gets no requests while others take them, and what it was sent since it last
  // answered goes elsewhere; once doubtful(), all that it has not begun to answer. hangs: all that
  // it was sent is lost. unsure: the next probe decides.
  enum class Verdict { up, refuses, unsure, suspect, hangs };

  Verdict after(Outcome outcome) {
    if (outcome == Outcome::refused) return Verdict::refuses;
    if (outcome == Outcome::answered) {
      num_missed_ = 0;
      return Verdict::up;
    }
    if (++num_missed_ >= kMostMissed) return Verdict::hangs;
    return outcome == Outcome::missed ? Verdict::suspect : Verdict::unsure;
  }
  bool doubtful() const { return num_missed_ > 1; }
  void reset() { num_missed_ = 0; }

 private:
  int num_missed_ = 0;  // in a row
};

}  // namespace sluice

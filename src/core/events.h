// Events of a step (tokens, finishes, refusals), which the engine hands to the requests' sinks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/step_plan.h"

namespace sluice {

enum class Finish : uint8_t {
  none,        // more to come
  stop,        // an end token, a stop token or a stop string; or the vector of a pooled prompt
  length,      // max_new
  cancelled,   // by its client
  deadline,    // its time was up
  failed,      // the device failed
  constraint,  // its constraint left no token to sample, or exceeded a limit
};
const char* finish_name(Finish finish);

// A sequence's life. Zero where it has not happened.
struct SeqTiming {
  Time arrival{0}, first_scheduled{0}, first_token{0}, last_token{0},
      finish{0};  // token: or vector
  int32_t num_preemptions = 0, num_steps = 0,
          num_cached = 0;  // cached: prompt tokens from the prefix cache
  bool operator==(const SeqTiming&) const = default;
};

struct Event {
  RequestId req = 0;
  uint16_t choice = 0;
  Token token = kNoToken;  // sampled in this step, if any
  Finish finish = Finish::none;
  bool last = false;          // the request's terminal event: all its choices are done
  bool is_end_token = false;  // `token` ended the sequence and is not part of its text
  uint32_t held = 0;   // trailing bytes of the text that may become a stop string: do not show yet
  uint32_t cut = 0;    // bytes at the end of the text from the stop string that matched on
  uint32_t trail = 0;  // those of them after the stop string
  int16_t stop_string = -1;                // which of the request's stop strings matched
  uint32_t top_at = 0, num_top = 0;        // log-probabilities of the token, in Events::top
  uint32_t prompt_at = 0, num_prompt = 0;  // of prompt tokens scored in this step
  Vector pooled;                           // with `finish` of a request with pooling
  Time scheduled{0}, begin{0}, end{0};     // the step that made it
  SeqTiming timing;                        // final with `finish`
};

struct Events {
  std::vector<Event> list;
  std::vector<TopLogprob> top;
  void clear() { list.clear(), top.clear(); }
};

}  // namespace sluice

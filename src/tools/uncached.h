// Generation as if there was no KV cache: every token is a request of its own for the one behind
// the whole context, whose K and V are computed anew and dropped. All requests go on together.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "base/result.h"
#include "core/request.h"

namespace sluice {

// `ask(round, whose)` runs a round and returns one token for each of its requests; whose[k] is the
// index in `requests` of the k-th.
template <class Ask>
Result<void> run_without_cache(const std::vector<Request>& requests, Ask&& ask) {
  std::vector<std::vector<Token>> contexts;
  for (const Request& r : requests) contexts.push_back(*r.prompt);
  for (;;) {
    std::vector<Request> round;
    std::vector<size_t> whose;
    for (size_t i = 0; i < requests.size(); ++i) {
      size_t full = requests[i].prompt->size() + static_cast<size_t>(requests[i].max_new);
      if (contexts[i].size() == full) continue;
      Request& r = round.emplace_back(requests[i]);
      r.prompt = std::make_shared<const std::vector<Token>>(contexts[i]);
      r.max_new = 1;
      whose.push_back(i);
    }
    if (round.empty()) return {};
    Result<std::vector<Token>> tokens = ask(std::move(round), whose);
    if (!tokens) return tokens.error();
    for (size_t k = 0; k < whose.size(); ++k) contexts[whose[k]].push_back((*tokens)[k]);
  }
}

}  // namespace sluice

// vLLM's GenerateRequest (src/grpc/vllm.proto) as the fields of our own requests: bytes in, values
// or the error to answer with out. Pure functions, any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/openai.h"

namespace sluice {

struct VllmFields : GenerateFields {
  PromptField prompt;
  bool bypass_cache = false;
  // What an answer holds.
  bool prompt_ids = false, prompt_scores = false;
  bool text = true, ids = false, scores = false;
};

// `out.sampling` holds the model's defaults before, and what the request says after. `data_rank`:
// the metadata x-data-parallel-rank, empty: none.
Refusal parse_vllm_generate(std::string_view message,
                            std::string_view data_rank,
                            const RequestLimits& limits,
                            VllmFields& out);

// A JSON object as google.protobuf.Struct.
std::string to_proto_struct(const json::object& object);

}  // namespace sluice

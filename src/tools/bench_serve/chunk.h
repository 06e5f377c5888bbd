// Reads the fields that a load generator needs from an OpenAI chunk or answer, in one pass over its
// text and without building a JSON value. For tools/bench_serve.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

struct ChunkInfo {
  bool has_choice = false;
  bool has_text = false;  // content, text, reasoning or a tool call that is not empty
  std::string text;       // of the first choice; only with `keep_text`
  std::string finish;     // finish_reason; empty: null or absent
  bool has_usage = false;
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
  bool is_error = false;
  std::string message;  // the error's
};

// False: this is not a JSON object. Fields of unexpected types are passed over.
bool read_chunk(std::string_view json, bool keep_text, ChunkInfo& out);

}  // namespace sluice

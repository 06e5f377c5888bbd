// sluice explain: where the time of a running server's requests went, as its /v1/requests tells it.
// Pure functions make the text; cmd_explain asks the server.
#pragma once

#include <string>

#include "base/json.h"
#include "base/result.h"

namespace sluice {

struct ExplainOptions {
  std::string id;  // of an answer, or the engine's number; empty: a list of requests
  std::string url = "http://127.0.0.1:8080", api_key_env, ca_file;
  int num = 10;  // of each list
  bool insecure = false, json = false;
};
int cmd_explain(const ExplainOptions& options);

// The answer of /v1/requests/ID/story for a terminal of so many columns; 0: no terminal.
Result<std::string> story_text(const json::value& story, int columns);
// Two answers of /v1/requests.
Result<std::string> request_list_text(const json::value& slowest, const json::value& latest);

}  // namespace sluice

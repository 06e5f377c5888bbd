// hf:ORG/REPO[:QUANT], the name of a model on the Hugging Face hub. QUANT is a GGUF file's
// quantisation (Q4_K_M) or its file name.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace sluice {

struct HubName {
  std::string org, repo, quant;  // quant empty: not said

  std::string repo_id() const { return org + "/" + repo; }
  std::string text() const { return "hf:" + repo_id() + (quant.empty() ? "" : ":" + quant); }
};

inline bool is_hub_name(std::string_view name) { return name.starts_with("hf:"); }
Result<HubName> parse_hub_name(std::string_view name);

// "ORG/REPO" of letters, digits and "-_.": could be a repository's name.
bool looks_like_repo_id(std::string_view text);

// A file's path within a repository that stays within the folder it is joined to.
bool is_safe_path(std::string_view path);

}  // namespace sluice

#include "hub/hub_name.h"

#include <algorithm>

#include "base/str.h"

namespace sluice {

namespace {

bool is_word(std::string_view s) {
  auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  return !s.empty() && s.size() <= 96 && s[0] != '.' && s[0] != '-' &&
         s.find("..") == std::string_view::npos && std::all_of(s.begin(), s.end(), plain);
}

}  // namespace

bool looks_like_repo_id(std::string_view text) {
  size_t slash = text.find('/');
  return slash != std::string_view::npos && is_word(text.substr(0, slash)) &&
         is_word(text.substr(slash + 1));
}

Result<HubName> parse_hub_name(std::string_view name) {
  std::string_view rest = is_hub_name(name) ? name.substr(3) : name;
  size_t colon = rest.find(':');
  std::string_view id = rest.substr(0, colon), quant;
  if (colon != std::string_view::npos) quant = rest.substr(colon + 1);
  bool bad_quant = colon != std::string_view::npos && (quant.empty() || !is_safe_path(quant));
  if (!looks_like_repo_id(id) || bad_quant)
    return Error{400, strf("%s: write hf:ORG/REPO or hf:ORG/REPO:QUANT, like "
                           "hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M",
                           quote(name, 200).c_str())};
  size_t slash = id.find('/');
  return HubName{std::string(id.substr(0, slash)), std::string(id.substr(slash + 1)),
                 std::string(quant)};
}

bool is_safe_path(std::string_view path) {
  if (path.empty() || path.size() > 1024 || path.ends_with('/') || !valid_utf8(path)) return false;
  for (char c : path)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '\\') return false;
  while (true) {
    size_t slash = path.find('/');
    std::string_view part = path.substr(0, slash);
    if (part.empty() || part == "." || part == ".." || part.size() > 255) return false;
    if (slash == std::string_view::npos) return true;
    path.remove_prefix(slash + 1);
  }
}

}  // namespace sluice

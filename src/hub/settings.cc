#include "hub/settings.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/str.h"

namespace sluice {

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

bool is_true(const std::string& value) {
  return value == "1" || value == "true" || value == "TRUE" || value == "True" || value == "yes" ||
         value == "YES" || value == "on" || value == "ON";
}

std::string expanded(const std::string& path) {  // "~/x"
  return path.starts_with("~/") ? variable("HOME") + path.substr(1) : path;
}

std::string hub_home() {
  if (std::string home = variable("HF_HOME"); !home.empty()) return expanded(home);
  if (std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache + "/huggingface";
  std::string home = variable("HOME");
  return home.empty() ? "" : home + "/.cache/huggingface";
}

std::string trimmed(const std::string& text) {
  const char* space = " \t\r\n";
  size_t begin = text.find_first_not_of(space);
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(space) - begin + 1);
}

void read_token(HubSettings& s) {
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    s.token = trimmed(variable(name));
    s.token_from = name;
    if (!s.token.empty()) return;
  }
  std::string path = expanded(variable("HF_TOKEN_PATH"));
  if (path.empty() && !hub_home().empty()) path = hub_home() + "/token";
  std::ifstream in(path, std::ios::binary);
  if (!in) return;
  std::string text(16 << 10, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  s.token = trimmed(text);
  s.token_from = path;
}

}  // namespace

bool hub_is_offline() {
  return is_true(variable("HF_HUB_OFFLINE")) || is_true(variable("TRANSFORMERS_OFFLINE"));
}

Result<HubSettings> hub_settings() {
  HubSettings s;
  std::string endpoint = variable("HF_ENDPOINT");
  Result<HttpUrl> url = parse_http_url(endpoint.empty() ? "https://huggingface.co" : endpoint);
  if (!url) return Error{400, "HF_ENDPOINT " + url.error().message};
  s.endpoint = std::move(*url);
  s.offline = hub_is_offline();
  read_token(s);
  bool plain =
      std::all_of(s.token.begin(), s.token.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (!plain)
    return Error{400, strf("%s holds more than a token: only printable characters without spaces "
                           "can be one",
                           s.token_from.c_str())};
  return s;
}

std::string hub_cache_folder() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
    if (std::string folder = expanded(variable(name)); !folder.empty()) return folder;
  std::string home = hub_home();
  return home.empty() ? "" : home + "/hub";
}

}  // namespace sluice

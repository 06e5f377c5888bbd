#include "tools/request_headers.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>

#include "base/str.h"

namespace sluice {

void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

Result<HttpHeaders> request_headers(const std::vector<std::string>& given,
                                    const std::string& api_key_env) {
  HttpHeaders headers = {{"Content-Type", "application/json"}};
  for (const std::string& h : given) {
    const size_t colon = h.find(':');
    const bool clean = std::ranges::all_of(
        h, [](char c) { return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f; });
    if (colon == std::string::npos || colon == 0 || !clean)
      return Error{400, strf("--header %s: write NAME:VALUE", quote(h).c_str())};
    const size_t value = h.find_first_not_of(' ', colon + 1);
    headers.emplace_back(h.substr(0, colon), value == std::string::npos ? "" : h.substr(value));
  }
  if (api_key_env.empty()) return headers;
  const char* key = std::getenv(api_key_env.c_str());
  if (!key || !*key)
    return Error{400,
                 strf("the environment has no %s (--api-key-env)", quote(api_key_env).c_str())};
  for (const char* c = key; *c; ++c) {
    if (*c <= 0x20 || *c == 0x7f)
      return Error{400, strf("the key in %s has a blank in it", quote(api_key_env).c_str())};
  }
  headers.emplace_back("Authorization", std::string("Bearer ") + key);
  return headers;
}

}  // namespace sluice

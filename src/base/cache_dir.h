// Where this user's caches are kept: $XDG_CACHE_HOME/sluice or ~/.cache/sluice.
#pragma once

#include <cstdlib>
#include <filesystem>

namespace sluice {

// Empty where there is no home.
inline std::filesystem::path user_cache_dir() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache && *cache) return std::filesystem::path(cache) / "sluice";
  const char* home = std::getenv("HOME");
  return home && *home ? std::filesystem::path(home) / ".cache" / "sluice"
                       : std::filesystem::path();
}

}  // namespace sluice

// What the environment says about the hub, under the names that its own tools use: HF_ENDPOINT,
// HF_TOKEN, HF_HUB_OFFLINE, HF_HOME, HF_HUB_CACHE.
#pragma once

#include <string>

#include "base/result.h"
#include "net/http_client.h"

namespace sluice {

struct HubSettings {
  HttpUrl endpoint;        // https://huggingface.co unless HF_ENDPOINT says otherwise
  std::string token;       // HF_TOKEN, or the file that `hf auth login` writes; empty: none
  std::string token_from;  // "HF_TOKEN" or that file
  bool offline = false;    // HF_HUB_OFFLINE
};
Result<HubSettings> hub_settings();

bool hub_is_offline();
// The folder where the hub's own tools keep repositories; empty where there is no home.
std::string hub_cache_folder();

}  // namespace sluice

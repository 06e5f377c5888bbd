// Which proxy the environment names for a URL: https_proxy, http_proxy, all_proxy and no_proxy, as
// curl reads them.
#pragma once

#include <optional>

#include "base/result.h"
#include "net/http_client.h"

namespace sluice {

// Nothing: connect directly. An error names the variable.
Result<std::optional<HttpProxy>> proxy_from_environment(const HttpUrl& url);

}  // namespace sluice

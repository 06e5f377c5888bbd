// What tools that send requests to a server share.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "net/responder.h"

namespace sluice {

// As many open connections as the system allows this process.
void raise_descriptor_limit();

// Content-Type of JSON, those given as NAME:VALUE (--header), and Authorization with the key that
// the environment has under that name (--api-key-env; empty: none).
Result<HttpHeaders> request_headers(const std::vector<std::string>& given,
                                    const std::string& api_key_env);

}  // namespace sluice

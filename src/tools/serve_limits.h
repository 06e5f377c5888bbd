// The limits of a server as its options set them, and the memory that follows from them. Pure
// functions, for `serve` and `inspect`.
#pragma once

#include "net/http.h"
#include "server/server_memory.h"
#include "tools/commands.h"

namespace sluice {

HttpLimits http_limits(const ServeOptions& options);
ServerMemory serving_memory(const ServeOptions& options);

}  // namespace sluice

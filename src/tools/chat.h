// sluice run without a prompt: a conversation on a terminal, or one message per line of a pipe.
#pragma once

#include "runtime/session.h"
#include "tools/commands.h"

namespace sluice {

// Until the user leaves; the exit code.
int run_chat(Session& session, const RunOptions& options);

}  // namespace sluice

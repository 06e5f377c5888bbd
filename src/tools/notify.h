// Reports the server's state to systemd by its notification protocol, without its library.
#pragma once

#include <string_view>

namespace sluice {

// "READY=1", "STOPPING=1", "WATCHDOG=1". Does nothing where nobody listens ($NOTIFY_SOCKET).
void notify_manager(std::string_view state);

}  // namespace sluice

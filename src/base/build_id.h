// Which build of the program this is: the linker's hash of its content. Any thread.
#pragma once

#include <string>

namespace sluice {

// The first 16 hex digits of the GNU build id; empty where the linker left none.
std::string build_id();

}  // namespace sluice

// Flags that say how a model writes tool calls and thinking, where its chat template does not tell.
#pragma once

#include <string>

namespace sluice {

// Names of formats, "none", or empty: by the template.
struct FormatFlags {
  std::string tools, reasoning;
};

}  // namespace sluice

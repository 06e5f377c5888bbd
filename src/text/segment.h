// A piece of prompt text and whether the engine's own template wrote it.
// Special tokens are recognised only in trusted text: what a user sends stays plain text.
#pragma once

#include <string>

namespace sluice {

struct TextSegment {
  std::string text;
  bool trusted;
};

}  // namespace sluice

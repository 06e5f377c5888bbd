// Writes an answer to stdout while it is generated: on a terminal with colours, wrapped between
// words, its control characters made visible; to a pipe or a file byte for byte. Used by one
// thread.
#pragma once

#include <string_view>

#include "tools/chat/markdown.h"

namespace sluice {

class AnswerView {
 public:
  AnswerView();
  void show(std::string_view piece);
  // Dim, and to a person only: it is no part of the answer.
  void show_thoughts(std::string_view piece) const;
  // What was held back.
  void finish();

 private:
  bool terminal_, colour_;
  MarkdownStream markdown_;
  WordWrap wrap_;  // without colours
};

}  // namespace sluice

// The texts that call tools, as a constraint: what tool_choice `required` or a named tool, and
// strict schemas, come to. From the same rows as the parser. Pure functions, any thread.
#pragma once

#include <string>

#include "base/result.h"
#include "constrain/constraint.h"
#include "dialect/format.h"
#include "dialect/tool_set.h"

namespace sluice::dialect {

struct CallRules {
  bool required = true;  // false: text, in which calls follow the grammar
  std::string name{};    // the one tool to call; empty: any
  bool parallel = true;  // several calls, unless one tool is named
};

// An error names the tool whose schema cannot be written in this format, or why calls cannot be
// told from text.
Result<constrain::ConstraintSource> call_constraint(const OutputFormat& format,
                                                    const ToolSet& tools,
                                                    const CallRules& rules);

}  // namespace sluice::dialect

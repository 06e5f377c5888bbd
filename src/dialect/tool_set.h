// The tools of a request: OpenAI's `tools`, checked. Immutable; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace sluice::dialect {

struct Tool {
  std::string name;
  json::object parameters;  // a JSON schema; empty: any arguments
  bool strict = false;

  // How a value of this parameter is written where formats tell text from JSON.
  enum class Type : uint8_t { any, text, boolean, other };
  Type type_of(std::string_view parameter) const;
};

struct ToolLimits {
  size_t tools = 256, name_bytes = 128;
};

class ToolSet {
 public:
  // A list of {"type": "function", "function": {name, description, parameters, strict}}.
  static Result<ToolSet> read(const json::value& tools, const ToolLimits& limits = {});

  const Tool* find(std::string_view name) const;
  const std::vector<Tool>& all() const { return tools_; }
  bool empty() const { return tools_.empty(); }

 private:
  std::vector<Tool> tools_;
};

}  // namespace sluice::dialect

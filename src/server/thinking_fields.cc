#include "server/thinking_fields.h"

#include <algorithm>

#include "base/str.h"

namespace sluice {

namespace {

class ThinkingReader {
 public:
  ThinkingReader(Fields& fields, ChatFields& out) : f_(fields), out_(out) {}

  void read_budget() {
    int tokens = 0;
    if (f_.whole("thinking_token_budget", tokens, -1, INT32_MAX) && tokens >= 0)
      set_budget("thinking_token_budget", tokens);
  }

  void read_anthropic() {
    const json::value* v = f_.get("thinking");
    if (!v) return;
    const json::object* o = v->if_object();
    std::string_view type = o ? type_of(*o) : "";
    if (type != "enabled" && type != "disabled" && type != "adaptive")
      return f_.fail("thinking", "thinking.type must be enabled, disabled or adaptive");
    set_thinking(out_.template_kwargs, type != "disabled");
    if (const json::value* budget = given(*o, "budget_tokens")) {
      if (type != "enabled")
        return f_.fail("thinking.budget_tokens",
                       "thinking.budget_tokens goes with thinking.type enabled alone");
      read_tokens("thinking.budget_tokens", *budget);
    }
    if (const json::value* display = given(*o, "display")) {
      if (*display != "summarized" && *display != "omitted")
        return f_.fail("thinking.display", "thinking.display must be summarized or omitted");
      if (*display == "omitted") out_.include_reasoning = false;
    }
  }

  void read_openrouter() {
    const json::value* v = f_.get("reasoning");
    if (!v) return;
    const json::object* o = v->if_object();
    if (!o) return f_.fail("reasoning", "reasoning must be an object");
    for (const auto& [key, value] : *o) {
      if (value.is_null() || key == "summary") continue;  // the thinking comes whole
      std::string param = "reasoning." + std::string(key);
      const bool flag = key == "enabled" || key == "exclude";
      if (flag && !value.is_bool()) return f_.fail(param, param + " must be true or false");
      if (key == "enabled") {
        set_thinking(out_.template_kwargs, value.get_bool());
      } else if (key == "exclude") {
        if (value.get_bool()) out_.include_reasoning = false;
      } else if (key == "max_tokens") {
        read_tokens(param, value);
      } else if (key != "effort") {
        f_.fail(param, param + " is not supported: leave it out", "unsupported_parameter");
      } else if (!value.is_string()) {
        f_.fail(param, param + " must be a string");
      } else if (!out_.template_kwargs.contains("reasoning_effort")) {
        out_.template_kwargs["reasoning_effort"] = value;
      }
    }
  }

  // Forbidden words and tokens could leave a used budget without a way to close the thinking; beams
  // take no masks.
  void check() {
    if (!out_.thinking_budget) return;
    const std::string& by = out_.thinking_budget->name;
    if (out_.beams) f_.fail(by, by + " does not go with use_beam_search", "unsupported_parameter");
    for (const auto& [name, is_given] :
         {std::pair("bad_words", !out_.bad_words.empty()),
          std::pair("allowed_token_ids", !out_.sampling.allowed.empty())}) {
      if (is_given)
        f_.fail(
            name,
            strf("%s does not go with %s, which may have to end the thinking", name, by.c_str()),
            "unsupported_parameter");
    }
  }

 private:
  static const json::value* given(const json::object& o, std::string_view name) {
    const json::value* v = o.if_contains(name);
    return v && !v->is_null() ? v : nullptr;
  }

  void read_tokens(const std::string& param, const json::value& v) {
    if (!v.is_int64() || v.get_int64() < 0 || v.get_int64() > INT32_MAX)
      return f_.fail(param, param + " must be a whole number, 0 or above");
    set_budget(param, static_cast<int>(v.get_int64()));
  }

  void set_budget(const std::string& name, int tokens) {
    if (out_.thinking_budget)
      return f_.fail(name, strf("%s and %s are both budgets of thinking: send one of them",
                                out_.thinking_budget->name.c_str(), name.c_str()));
    out_.thinking_budget = ThinkingBudget{name, tokens};
  }

  Fields& f_;
  ChatFields& out_;
};

}  // namespace

void set_thinking(json::object& kwargs, bool on) {
  for (const char* name : {"enable_thinking", "thinking"}) {
    if (!kwargs.contains(name)) kwargs[name] = on;
  }
}

void read_thinking(Fields& fields, ChatFields& out) {
  ThinkingReader reader(fields, out);
  reader.read_budget();
  reader.read_anthropic();
  reader.read_openrouter();
  reader.check();
}

}  // namespace sluice

#include "tools/run_constraints.h"

#include "base/json.h"
#include "base/str.h"
#include "runtime/constraint_vocab.h"
#include "tools/terminal.h"

namespace sluice {

using constrain::Constraint;
using constrain::ConstraintKind;
using constrain::ConstraintSource;

namespace {

Result<std::string> read_constraint_file(const char* flag, const std::string& file) {
  if (file == "-") return Error{400, strf("%s needs a file: stdin is for the prompt", flag)};
  return read_text(file);
}

}  // namespace

Result<ConstraintSource> read_json_schema(const std::string& file_or_text) {
  size_t first = file_or_text.find_first_not_of(" \t\r\n");
  bool is_text = first != std::string::npos && file_or_text[first] == '{';
  std::string text = file_or_text, prefix;
  if (!is_text) {
    Result<std::string> read = read_constraint_file("--json-schema", file_or_text);
    if (!read) return read.error();
    text = std::move(*read);
    prefix = file_or_text + ": ";
  }
  Result<json::value> parsed = parse_json(text);
  if (!parsed) return Error{400, prefix + "the JSON schema: " + parsed.error().message};
  return ConstraintSource{ConstraintKind::json_schema, std::move(text)};
}

Result<std::optional<ConstraintSource>> read_constraint_flags(const ConstraintFlags& f) {
  std::string given;
  int num = 0;
  auto count = [&](const char* flag, bool is_given) {
    if (!is_given) return;
    given += (num++ > 0 ? " and " : "") + std::string(flag);
  };
  count("--json-schema", f.json_schema.has_value());
  count("--regex", f.regex.has_value());
  count("--choice", !f.choices.empty());
  count("--grammar", f.grammar.has_value());
  if (num > 1) return Error{400, given + " both constrain the answer: give one of them"};
  if (num == 0) return std::optional<ConstraintSource>();
  if (f.json_schema) {
    Result<ConstraintSource> schema = read_json_schema(*f.json_schema);
    if (!schema) return schema.error();
    return std::optional(std::move(*schema));
  }
  if (f.regex) return std::optional(ConstraintSource{ConstraintKind::regex, *f.regex});
  if (!f.choices.empty()) {
    json::array list(f.choices.begin(), f.choices.end());
    return std::optional(ConstraintSource{ConstraintKind::choice, json::serialize(list)});
  }
  std::string text = *f.grammar;
  bool is_text = text.find('\n') != text.npos || text.find("::=") != text.npos;
  if (!is_text) {
    Result<std::string> read = read_constraint_file("--grammar", text);
    if (!read) return read.error();
    text = std::move(*read);
  }
  ConstraintKind kind = constrain::grammar_kind(text);
  return std::optional(ConstraintSource{kind, std::move(text)});
}

Result<void> check_finish(Finish finish) {
  if (finish != Finish::constraint) return {};
  return Error{
      400,
      "the constraint: no token of this model could follow, or finding one took too much work"};
}

Result<std::shared_ptr<const Constraint>> RunConstraints::compile(const ConstraintSource& source) {
  std::string key = source.key();
  if (auto it = compiled_.find(key); it != compiled_.end()) return it->second;
  if (!vocab_) vocab_ = constraint_vocab(*session_.tokenizer(), session_.model().shape().vocab);
  Result<std::shared_ptr<const Constraint>> made = Constraint::compile(source, vocab_);
  if (made) compiled_.emplace(std::move(key), *made);
  return made;
}

}  // namespace sluice

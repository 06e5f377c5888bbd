// Constraints on the answers of `sluice run`: from flags, from commands of a conversation, from the
// lines of a file. Used by the main thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "constrain/constraint.h"
#include "core/events.h"
#include "runtime/session.h"
#include "tools/commands.h"

namespace sluice {

// What the flags ask for; nothing without them. Reads files.
Result<std::optional<constrain::ConstraintSource>> read_constraint_flags(
    const ConstraintFlags& flags);
// A JSON schema as text, or the file that holds it.
Result<constrain::ConstraintSource> read_json_schema(const std::string& file_or_text);

// An error where an answer ended because its constraint could not be followed any further.
Result<void> check_finish(Finish finish);

// Compiles each source once.
class RunConstraints {
 public:
  explicit RunConstraints(Session& session) : session_(session) {}
  Result<std::shared_ptr<const constrain::Constraint>> compile(
      const constrain::ConstraintSource& source);

 private:
  Session& session_;
  std::shared_ptr<const constrain::VocabTrie> vocab_;
  std::map<std::string, std::shared_ptr<const constrain::Constraint>> compiled_;  // by key
};

}  // namespace sluice

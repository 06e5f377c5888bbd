#include "tools/chat/chat_tools.h"

#include "base/str.h"
#include "server/chat_reading.h"
#include "tools/requests.h"

namespace sluice {

Result<ChatTools> ChatTools::read(const Session& session,
                                  std::string_view text,
                                  bool must_call,
                                  RunConstraints& constraints) {
  if (!session.chat_template())
    return Error{400, "there is no chat template, so tools have no place"};
  Result<json::value> list = parse_json(text);
  if (!list) return Error{400, "the tools: " + list.error().message};
  Result<dialect::ToolSet> set = dialect::ToolSet::read(*list);
  if (!set) return set.error();
  if (set->empty()) return Error{400, "the list of tools is empty"};
  ChatTools out;
  out.fields_.tools.set = std::make_shared<const dialect::ToolSet>(std::move(*set));
  out.fields_.tools.list = std::move(*list);
  if (must_call) out.fields_.tools.choice = ToolFields::Choice::required;
  const std::string& source = session.chat_template()->source();
  out.format_ = choose_format({}, source);
  if (Refusal refused = check_tools(out.fields_.tools, {}, out.format_, source))
    return Error{refused->status, refused->message};
  out.marks_ =
      std::make_shared<const std::vector<Token>>(mark_tokens(out.format_, *session.tokenizer()));
  Result<Plan> tried = out.plan(session, "", constraints, false);
  if (!tried) return tried.error();
  return out;
}

std::string ChatTools::names() const {
  std::string out;
  for (const dialect::Tool& t : fields_.tools.set->all()) out += (out.empty() ? "" : ", ") + t.name;
  return out;
}

Result<ChatTools::Plan> ChatTools::plan(const Session& session,
                                        std::string_view prompt_end,
                                        RunConstraints& constraints,
                                        bool constrained) const {
  Plan out;
  ChatReading& r = out.reading;
  r.parser.format = format_;
  r.parser.tools = fields_.tools.set;
  r.keep = marks_;
  r.think = format_.think;
  r.thinking_open = r.think && dialect::opens_thinking(*r.think, prompt_end);
  r.parser.thinking = r.thinking_open;
  ChatFields fields = fields_;
  if (Refusal refused = enforce_calls(r, fields)) return Error{refused->status, refused->message};
  if (fields.constraint) {
    auto compiled = constraints.compile(fields.constraint->source);
    if (!compiled) return Error{400, "the tools: " + compiled.error().message};
    out.constraint = *compiled;
  }
  if (!r.thinking_open || (!out.constraint && !constrained)) return out;
  auto thinking = free_thinking(session, *r.think);
  if (!thinking) return thinking.error();
  out.thinking = std::move(*thinking);
  return out;
}

std::string ChatTools::new_id(const Conversation& talk) {
  const size_t length = format_.tools ? format_.tools->id_length : 0;
  std::string id;
  do {
    ++num_calls_;
    id = length > 0 ? strf("%0*d", static_cast<int>(length), num_calls_)
                    : strf("call_%d", num_calls_);
  } while (talk.has_call(id));
  return id;
}

}  // namespace sluice

#include "tools/chat/conversation.h"

#include <fstream>

#include "base/str.h"
#include "tools/requests.h"
#include "tools/terminal.h"

namespace sluice {

namespace {

std::string field(const json::value& message, const char* key) {
  const json::object* o = message.if_object();
  const json::value* v = o ? o->if_contains(key) : nullptr;
  return v && v->is_string() ? std::string(v->as_string()) : std::string();
}

}  // namespace

std::string Conversation::system() const {
  const bool has = !empty() && field(messages_.front(), "role") == "system";
  return has ? field(messages_.front(), "content") : "";
}

void Conversation::set_system(const std::string& text) {
  if (!empty() && field(messages_.front(), "role") == "system") messages_.erase(messages_.begin());
  if (!text.empty())
    messages_.insert(messages_.begin(), json::object{{"role", "system"}, {"content", text}});
}

void Conversation::add(const char* role, const std::string& content) {
  messages_.push_back(json::object{{"role", role}, {"content", content}});
}

void Conversation::add_answer(const std::string& content,
                              const std::string& reasoning,
                              json::array calls) {
  json::object message{{"role", "assistant"}, {"content", content}};
  if (!reasoning.empty()) message["reasoning_content"] = reasoning;
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  messages_.push_back(std::move(message));
}

const json::array* Conversation::last_calls(size_t& num_results) const {
  num_results = 0;
  for (size_t i = messages_.size(); i-- > 0; ++num_results) {
    if (field(messages_[i], "role") == "tool") continue;
    const json::object* o = messages_[i].if_object();
    const json::value* calls = o ? o->if_contains("tool_calls") : nullptr;
    const bool open = calls && calls->is_array() && calls->get_array().size() > num_results;
    return open ? &calls->get_array() : nullptr;
  }
  return nullptr;
}

std::vector<std::string> Conversation::open_calls() const {
  size_t at = 0;
  const json::array* calls = last_calls(at);
  std::vector<std::string> names;
  for (; calls && at < calls->size(); ++at) {
    const json::object* o = (*calls)[at].if_object();
    const json::value* function = o ? o->if_contains("function") : nullptr;
    names.push_back(function ? field(*function, "name") : "");
  }
  return names;
}

bool Conversation::has_call(std::string_view id) const {
  for (const json::value& m : messages_) {
    const json::object* o = m.if_object();
    const json::value* calls = o ? o->if_contains("tool_calls") : nullptr;
    if (!calls || !calls->is_array()) continue;
    for (const json::value& call : calls->get_array())
      if (field(call, "id") == id) return true;
  }
  return false;
}

void Conversation::add_result(const std::string& content) {
  size_t at = 0;
  const json::array* calls = last_calls(at);
  json::object message{{"role", "tool"}, {"content", content}};
  if (calls) message["tool_call_id"] = field((*calls)[at], "id");
  messages_.push_back(std::move(message));
}

std::string Conversation::last_role() const {
  return empty() ? "" : field(messages_.back(), "role");
}

bool Conversation::drop_answer() {
  while (last_role() == "assistant") messages_.pop_back();
  return last_role() == "user" || last_role() == "tool";
}

bool Conversation::drop_exchange() {
  for (size_t i = messages_.size(); i-- > 0;) {
    if (field(messages_[i], "role") != "user") continue;
    messages_.erase(messages_.begin() + static_cast<std::ptrdiff_t>(i), messages_.end());
    return true;
  }
  return false;
}

void Conversation::clear() {
  const std::string kept = system();
  messages_.clear();
  set_system(kept);
}

Result<std::vector<TextSegment>> Conversation::prompt(const Session& session,
                                                      bool templated,
                                                      const json::value& tools) const {
  if (templated) return render_chat(session, messages_, tools);
  std::string text;
  for (const json::value& m : messages_) {
    // An answer goes on where its message ended; the next message is a new line.
    if (field(m, "role") != "assistant" && !text.empty() && !text.ends_with('\n')) text += '\n';
    text += field(m, "content");
  }
  return std::vector<TextSegment>{{std::move(text), false}};
}

std::string Conversation::to_json() const {
  std::string out = "[";
  for (size_t i = 0; i < messages_.size(); ++i)
    out += (i > 0 ? ",\n " : "\n ") + json::serialize(messages_[i]);
  return out + "\n]\n";
}

Result<Conversation> Conversation::from_json(std::string_view text) {
  Result<json::value> parsed = parse_json(text);
  if (!parsed) return parsed.error();
  const json::object* body = parsed->if_object();
  const json::value* list = body ? body->if_contains("messages") : &*parsed;
  if (!list || !list->is_array()) return Error{400, "a conversation is a JSON list of messages"};
  for (const json::value& m : list->as_array()) {
    if (field(m, "role").empty())
      return Error{400, "each message is an object with a \"role\" and its \"content\""};
  }
  Conversation c;
  c.messages_ = list->as_array();
  return c;
}

Result<void> Conversation::save(const std::string& path) const {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << to_json();
  out.close();
  if (!out) return Error{400, strf("cannot write %s", quote(path, 400).c_str())};
  return {};
}

Result<Conversation> Conversation::load(const std::string& path) {
  Result<std::string> text = read_text(path);
  if (!text) return text.error();
  Result<Conversation> talk = from_json(*text);
  if (!talk) return Error{400, quote(path, 400) + ": " + talk.error().message};
  return talk;
}

}  // namespace sluice

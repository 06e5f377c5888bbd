// The commands of a conversation: /help and its rows.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "base/str.h"
#include "tools/chat/chat.h"
#include "tools/chat/markdown.h"
#include "tools/terminal.h"

namespace sluice {

namespace {

std::string home_path(const std::string& path) {
  const char* home = std::getenv("HOME");
  return home && path.starts_with("~/") ? home + path.substr(1) : path;
}

}  // namespace

const Chat::Row Chat::kCommands[] = {
    {"help", "", "this list", &Chat::help},
    {"system", "TEXT", "the system message; - removes it, nothing shows it", &Chat::system},
    {"set", "KEY VALUE", "a sampling setting; nothing lists them", &Chat::set},
    {"json-schema", "FILE",
     "answers follow the JSON schema; - lifts it, nothing shows if there is one",
     &Chat::json_schema},
    {"tools", "FILE", "tools it may call; /tools! must call; - removes them, nothing lists them",
     &Chat::tools},
    {"stats", "", "tokens, speed, and how full the context is", &Chat::stats},
    {"retry", "", "another answer to the last message", &Chat::retry},
    {"undo", "", "take back the last message and its answer", &Chat::undo},
    {"clear", "", "a new conversation; the system message stays", &Chat::clear},
    {"save", "FILE", "write the conversation as JSON; /save! replaces a file", &Chat::save},
    {"load", "FILE", "go on with a conversation from a file", &Chat::load},
    {"json", "", "show the conversation as JSON", &Chat::show_json},
    {"exit", "", "leave, as Ctrl-D does", &Chat::exit},
    {"bye", "", "the same", &Chat::exit},
    {"quit", "", "the same", &Chat::exit},
};

void Chat::command(const ChatCommand& c) {
  std::vector<std::string_view> names;
  for (const Row& row : kCommands) {
    names.push_back(row.name);
    if (row.name == c.name) return (this->*row.act)(c);
  }
  const std::string_view near = nearest_word(c.name, names);
  fail({400, strf("no command %s%s (/help lists them; to send it, put a space before it)",
                  quote("/" + c.name).c_str(),
                  near.empty() ? "" : strf("; do you mean /%s?", near.data()).c_str())});
}

void Chat::help(Argument) {
  std::string text;
  for (const Row& row : kCommands)
    text += strf("  /%-11s %-10s %s\n", row.name.data(), row.argument, row.help);
  text +=
      "  A line that ends with \\ goes on in the next; \"\"\" begins and ends a block of lines.\n"
      "  Up and Down: earlier input; Ctrl-R searches it. Ctrl-C stops an answer or clears the "
      "line.\n";
  say(text);
}

void Chat::system(Argument c) {
  if (c.argument.empty()) {
    const std::string text = talk_.system();
    return say(text.empty() ? "no system message\n" : without_controls(text) + "\n");
  }
  if (!templated_)
    return fail({400, "there is no chat template, so a system message has no place"});
  talk_.set_system(c.argument == "-" ? "" : unquoted_input(c.argument));
}

void Chat::set(Argument c) {
  if (c.argument.empty()) return say(list_settings(sampling_));
  const size_t end = std::min(c.argument.find_first_of(" =\t"), c.argument.size());
  const size_t value = std::min(c.argument.find_first_not_of(" =\t", end), c.argument.size());
  if (auto ok = change_setting(sampling_, c.argument.substr(0, end), c.argument.substr(value)); !ok)
    fail(ok.error());
}

void Chat::json_schema(Argument c) {
  if (c.argument.empty())
    return say(sampling_.constraint ? "answers are constrained\n" : "answers are any text\n");
  if (c.argument == "-") {
    sampling_.constraint = nullptr;
    return;
  }
  if (tools_ && tools_->constrains())
    return fail({400, "the tools constrain answers already: /tools - removes them"});
  auto source = read_json_schema(c.argument.starts_with('{') ? c.argument : home_path(c.argument));
  if (!source) return fail(source.error());
  auto compiled = constraints_.compile(*source);
  if (!compiled) return fail(compiled.error());
  sampling_.constraint = *compiled;
}

void Chat::tools(Argument c) {
  if (c.argument.empty()) {
    if (!tools_) return say("no tools\n");
    return say(strf("%s%s\n", tools_->names().c_str(),
                    tools_->must_call() ? " (every answer calls)" : ""));
  }
  if (c.argument == "-") return tools_.reset();
  if (!templated_) return fail({400, "there is no chat template, so tools have no place"});
  Result<std::string> text = c.argument.starts_with('[') ? Result<std::string>(c.argument)
                                                         : read_text(home_path(c.argument));
  if (!text) return fail(text.error());
  Result<ChatTools> read = ChatTools::read(session_, *text, c.forced, constraints_);
  if (!read) return fail(read.error());
  if (read->constrains() && sampling_.constraint)
    return fail({400, "answers are constrained already: /json-schema - lifts that"});
  tools_ = std::move(*read);
}

void Chat::stats(Argument) {
  if (num_answers_ == 0) return say("nothing has been answered yet\n");
  const Turn& t = last_;
  const size_t used = t.prompt + t.output, context = context_of(session_);
  say(strf(
      "  last answer    %zu tokens, %.1f tok/s, first token after %.0f ms (%s)\n"
      "  its prompt     %zu tokens, %zu of them from the prefix cache\n"
      "  context        %zu of %zu tokens (%.0f %%)\n"
      "  so far         %zu answers, %zu tokens\n",
      t.output, t.rate, t.first * 1e3, finish_name(t.finish), t.prompt, t.cached, used, context,
      100.0 * static_cast<double>(used) / static_cast<double>(context), num_answers_, num_tokens_));
}

void Chat::retry(Argument) {
  const Conversation before = talk_;
  if (!talk_.drop_answer()) {
    talk_ = before;
    return fail({400, "there is no message to answer yet"});
  }
  if (sampling_.spec.temperature == 0)
    note("temperature 0 gives the same answer each time: /set temperature 0.7");
  ++retries_;
  if (!answer()) talk_ = before;
}

void Chat::undo(Argument) {
  if (!talk_.drop_exchange()) return fail({400, "there is nothing to take back"});
  retries_ = 0;
}

void Chat::clear(Argument) {
  talk_.clear();
  retries_ = 0;
}

void Chat::save(Argument c) {
  const std::string path = home_path(c.argument.empty() ? file_ : c.argument);
  if (path.empty()) return fail({400, "/save FILE: name a file"});
  if (!c.forced && path != file_ && access(path.c_str(), F_OK) == 0)
    return fail({400, strf("%s exists: /save! %s replaces it", quote(path, 400).c_str(),
                           quote(path, 400).c_str())});
  if (auto ok = talk_.save(path); !ok) return fail(ok.error());
  file_ = path;
  say(strf("%zu messages in %s\n", talk_.size(), quote(path, 400).c_str()));
}

void Chat::load(Argument c) {
  if (c.argument.empty() || c.argument == "-") return fail({400, "/load FILE: name a file"});
  const std::string path = home_path(c.argument);
  Result<Conversation> talk = Conversation::load(path);
  if (!talk) return fail(talk.error());
  talk_ = std::move(*talk);
  file_ = path;
  retries_ = 0;
  say(strf("%zu messages from %s%s\n", talk_.size(), quote(path, 400).c_str(),
           talk_.last_role() == "user" ? "; /retry answers the last one" : ""));
}

void Chat::show_json(Argument) {
  const std::string text = talk_.to_json();
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace sluice

#include "tools/chat.h"

#include <unistd.h>

#include <algorithm>
#include <utility>
#include <cstdio>
#include <cstdlib>

#include "base/str.h"
#include "runtime/collect.h"
#include "tools/chat_command.h"
#include "tools/console.h"
#include "tools/conversation.h"
#include "tools/markdown.h"
#include "tools/requests.h"
#include "tools/terminal.h"

namespace sluice {

namespace {

constexpr int kMaxAnswer = 1024;          // tokens, unless the user says otherwise
constexpr float kChatTemperature = 0.7f;  // greedy answers repeat themselves
constexpr Time kTick = std::chrono::milliseconds(30);

// The figures of one answer.
struct Turn {
  size_t prompt = 0, cached = 0, output = 0;
  double first = 0, rate = 0;  // seconds, tokens per second
  Finish finish = Finish::none;
};

std::string home_path(const std::string& path) {
  const char* home = std::getenv("HOME");
  return home && path.starts_with("~/") ? home + path.substr(1) : path;
}

class Chat {
 public:
  Chat(Session& session, const RunOptions& options)
      : session_(session),
        options_(options),
        sampling_(options.sampling),
        console_(InputHistory(InputHistory::default_path()), interrupt_),
        terminal_(isatty(STDOUT_FILENO) == 1) {
    if (!options.has_temperature) sampling_.spec.temperature = kChatTemperature;
    if (!options.has_max_tokens) sampling_.max_tokens = kMaxAnswer;
  }

  int run();

 private:
  using Argument = const ChatCommand&;
  struct Row {
    std::string_view name;
    const char* argument;
    const char* help;
    void (Chat::*act)(Argument);
  };
  static const Row kCommands[];

  void greet();
  void message(const std::string& text);
  void command(const ChatCommand& command);
  bool answer();
  Result<Prepared> prepare_answer() const;
  Turn generate(Prepared prepared, std::string& text);
  void show_turn(const Turn& turn, size_t room) const;
  size_t context() const;

  void help(Argument);
  void system(Argument);
  void set(Argument);
  void stats(Argument);
  void retry(Argument);
  void undo(Argument);
  void save(Argument);
  void load(Argument);
  void show_json(Argument);
  void clear(Argument);
  void exit(Argument) { leaving_ = true; }

  // For the person, not part of any answer: beside it on a terminal, else on stderr.
  void say(const std::string& text) const;
  void note(const std::string& text) const;  // the same, dim, unless --quiet
  void fail(const Error& error);

  Session& session_;
  const RunOptions& options_;
  SamplingOptions sampling_;
  CatchInterrupt interrupt_;
  Console console_;
  bool terminal_;  // stdout is one
  Conversation talk_;
  std::string file_;  // last saved or loaded
  Turn last_;
  size_t num_answers_ = 0, num_tokens_ = 0;
  uint64_t retries_ = 0;  // of the present message: each draws anew
  bool leaving_ = false, failed_ = false;
  int code_ = kExitOk;
};

const Chat::Row Chat::kCommands[] = {
    {"help", "", "this list", &Chat::help},
    {"system", "TEXT", "the system message; - removes it, nothing shows it", &Chat::system},
    {"set", "KEY VALUE", "a sampling setting; nothing lists them", &Chat::set},
    {"stats", "", "tokens, speed, and how full the context is", &Chat::stats},
    {"retry", "", "another answer to the last message", &Chat::retry},
    {"undo", "", "take back the last message and its answer", &Chat::undo},
    {"clear", "", "a new conversation; the system message stays", &Chat::clear},
    {"save", "FILE", "write the conversation as JSON; /save! replaces a file", &Chat::save},
    {"load", "FILE", "go on with a conversation from a file", &Chat::load},
    {"json", "", "show the conversation as JSON", &Chat::show_json},
    {"exit", "", "leave, as Ctrl-D does", &Chat::exit},
    {"quit", "", "the same", &Chat::exit},
};

int Chat::run() {
  if (auto ok = check_sampling(sampling_.spec); !ok) return report(ok.error());
  if (!valid_utf8(options_.system)) return report({400, "--system is not valid UTF-8"});
  if (!options_.system.empty() && !session_.chat_template())
    return report({400, "the model has no chat template, so --system has no place"});
  talk_.set_system(options_.system);
  greet();
  bool warned = false;  // Ctrl-C on an empty line
  while (!leaving_) {
    std::string line;
    const Console::Got got = console_.read("> ", line);
    if (got == Console::Got::end) break;
    if (got == Console::Got::interrupted) {
      if (line.empty() && std::exchange(warned, true)) break;
      if (line.empty()) note("Ctrl-C again, Ctrl-D or /exit leaves");
      continue;
    }
    warned = false;
    if (line.find_first_not_of(" \t\r\n") == std::string::npos) continue;
    console_.remember(line);
    if (!valid_utf8(line)) {
      fail({400, "the message is not valid UTF-8"});
      continue;
    }
    if (const std::optional<ChatCommand> c = parse_command(line)) {
      command(*c);
    } else {
      message(unquoted_input(std::move(line)));
    }
  }
  // A pipe has nobody who has read the messages.
  if (code_ == kExitOk && failed_ && !stdin_is_terminal()) code_ = kExitUsage;
  return code_;
}

void Chat::greet() {
  show_ledger(session_);
  if (!session_.chat_template()) {
    note("the model has no chat template: it continues the text, to which each line is added");
  }
  if (console_.editing())
    note(
        "/help lists commands; \\ or \"\"\" for several lines; Ctrl-C stops an answer, Ctrl-D "
        "leaves");
}

void Chat::say(const std::string& text) const {
  std::FILE* to = terminal_ ? stdout : stderr;
  std::fwrite(text.data(), 1, text.size(), to);
  std::fflush(to);
}

void Chat::note(const std::string& text) const {
  if (!options_.engine.quiet) std::fprintf(stderr, "%s\n", dim(text).c_str());
}

void Chat::fail(const Error& error) {
  failed_ = true;
  say(without_controls(error.message) + "\n");
}

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

void Chat::message(const std::string& text) {
  talk_.add("user", text);
  retries_ = 0;
  if (!answer()) talk_.drop_exchange();
}

// Positions that one sequence may have.
size_t Chat::context() const {
  const SchedulerConfig& s = session_.engine().config();
  return static_cast<size_t>(
      std::min<int64_t>(s.max_len, static_cast<int64_t>(s.num_blocks) * s.block_size));
}

Result<Prepared> Chat::prepare_answer() const {
  Result<std::vector<Token>> prompt = talk_.encode(session_);
  if (!prompt) return prompt.error();
  if (prompt->size() >= context()) {
    return Error{400, strf("the context is full: the conversation has %zu tokens and it holds %zu; "
                           "/clear begins anew, /undo takes an exchange back, or start again with "
                           "a larger --ctx",
                           prompt->size(), context())};
  }
  SamplingOptions sampling = sampling_;
  sampling.max_tokens = std::min(sampling.max_tokens, static_cast<int>(context() - prompt->size()));
  sampling.spec.min_tokens = std::min(sampling.spec.min_tokens, sampling.max_tokens);
  sampling.spec.seed += retries_;
  return prepare(session_, std::move(*prompt), sampling, options_.special);
}

// The last message is the user's. False: it could not be answered, and why was said.
bool Chat::answer() {
  Result<Prepared> prepared = prepare_answer();
  if (!prepared) {
    fail(prepared.error());
    return false;
  }
  const size_t room = context() - prepared->prompt.size();
  std::string text;
  const Turn turn = generate(std::move(*prepared), text);
  if (turn.finish == Finish::none) return false;
  talk_.add("assistant", text);
  last_ = turn;
  ++num_answers_;
  num_tokens_ += turn.output;
  show_turn(turn, room);
  if (turn.finish == Finish::failed) {
    code_ = report({500, "the device failed"});
    leaving_ = true;
  }
  return true;
}

Turn Chat::generate(Prepared prepared, std::string& text) {
  Turn turn;
  turn.prompt = prepared.prompt.size();
  MarkdownStream markdown(stdout_has_colour());
  auto show = [&](const std::string& piece) {
    const bool plain = terminal_ && !stdout_has_colour();
    const std::string out = plain ? without_controls(piece) : markdown.feed(piece);
    std::fwrite(out.data(), 1, out.size(), stdout);
    std::fflush(stdout);
  };
  Console::Quiet quiet(console_);
  interrupt_.clear();
  Collector collector(session_.engine(), session_.tokenizer());
  collector.submit(std::move(prepared.request), prepared.text);
  bool cancelled = false;
  collector.wait([&](size_t, int, const std::string& piece) { show(piece); },
                 [&](size_t, uint64_t) {
                   if (!interrupt_.seen() || std::exchange(cancelled, true)) return;
                   session_.engine().cancel(collector.id(0));
                 },
                 kTick);
  interrupt_.clear();
  const RequestOutput& out = collector.outputs()[0];
  if (out.refused) {
    fail(*out.refused);
    return turn;
  }
  const ChoiceOutput& choice = out.choices[0];
  text = choice.text;
  std::string tail = markdown.finish();
  if (!text.ends_with('\n') && (terminal_ || !text.empty())) tail += "\n";
  std::fwrite(tail.data(), 1, tail.size(), stdout);
  std::fflush(stdout);
  turn.cached = static_cast<size_t>(choice.timing.num_cached);
  turn.output = choice.tokens.size();
  turn.finish = choice.finish;
  if (turn.output > 0) turn.first = seconds(choice.timing.first_token - choice.timing.arrival);
  const double decode = seconds(choice.timing.last_token - choice.timing.first_token);
  if (turn.output > 1 && decode > 0) turn.rate = static_cast<double>(turn.output - 1) / decode;
  return turn;
}

void Chat::show_turn(const Turn& t, size_t room) const {
  std::string line = strf("%zu tokens, %.0f tok/s, first %.0f ms", t.output, t.rate, t.first * 1e3);
  if (t.finish == Finish::cancelled) line += ", stopped";
  if (t.finish == Finish::length) {
    line += t.output >= room
                ? strf("; the context of %zu is full: /clear, /undo, or a larger --ctx", context())
                : strf("; cut at max_tokens (/set max_tokens N)");
  }
  note(line);
}

void Chat::help(Argument) {
  std::string text;
  for (const Row& row : kCommands)
    text += strf("  /%-6s %-10s %s\n", row.name.data(), row.argument, row.help);
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
  if (!session_.chat_template())
    return fail({400, "the model has no chat template, so a system message has no place"});
  talk_.set_system(c.argument == "-" ? "" : unquoted_input(c.argument));
}

void Chat::set(Argument c) {
  if (c.argument.empty()) return say(list_settings(sampling_));
  const size_t end = std::min(c.argument.find_first_of(" =\t"), c.argument.size());
  const size_t value = std::min(c.argument.find_first_not_of(" =\t", end), c.argument.size());
  if (auto ok = change_setting(sampling_, c.argument.substr(0, end), c.argument.substr(value)); !ok)
    fail(ok.error());
}

void Chat::stats(Argument) {
  if (num_answers_ == 0) return say("nothing has been answered yet\n");
  const Turn& t = last_;
  const size_t used = t.prompt + t.output;
  say(
      strf("  last answer    %zu tokens, %.1f tok/s, first token after %.0f ms (%s)\n"
           "  its prompt     %zu tokens, %zu of them from the prefix cache\n"
           "  context        %zu of %zu tokens (%.0f %%)\n"
           "  so far         %zu answers, %zu tokens\n",
           t.output, t.rate, t.first * 1e3, finish_name(t.finish), t.prompt, t.cached, used,
           context(), 100.0 * static_cast<double>(used) / static_cast<double>(context()),
           num_answers_, num_tokens_));
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

}  // namespace

int run_chat(Session& session, const RunOptions& options) { return Chat(session, options).run(); }

}  // namespace sluice

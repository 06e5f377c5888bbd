#include "tools/chat/chat.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/str.h"
#include "runtime/collect.h"
#include "tools/chat/markdown.h"
#include "tools/terminal.h"

namespace sluice {

namespace {

constexpr Time kTick = std::chrono::milliseconds(30), kLongWait = std::chrono::milliseconds(400);

}  // namespace

Chat::Chat(Session& session, const RunOptions& options, RunConstraints& constraints)
    : session_(session),
      options_(options),
      constraints_(constraints),
      sampling_(options.sampling),
      console_(InputHistory(stdin_is_terminal() ? InputHistory::default_path() : ""), interrupt_),
      terminal_(isatty(STDOUT_FILENO) == 1),
      templated_(session.chat_template() && !options.raw) {
  resolve_sampling(session, true, sampling_);
}

int Chat::run() {
  if (auto ok = check_sampling(sampling_.spec); !ok) return report(ok.error());
  if (!valid_utf8(options_.system)) return report({400, "--system is not valid UTF-8"});
  if (!options_.system.empty() && !templated_)
    return report({400, "there is no chat template, so --system has no place"});
  talk_.set_system(options_.system);
  greet();
  bool warned = false;  // Ctrl-C on an empty line
  while (!leaving_) {
    std::string line;
    const Console::Got got = console_.read("> ", line);
    if (got == Console::Got::end) break;
    if (got == Console::Got::interrupted) {
      if (!std::exchange(warned, line.empty())) {
        if (warned) note("Ctrl-C again, Ctrl-D or /exit leaves");
      } else if (warned) {
        break;
      }
      continue;
    }
    warned = false;
    if (line.find_first_not_of(" \t\r\n") == std::string::npos) continue;
    console_.remember(line);
    if (!valid_utf8(line)) {
      fail({400, "the message is not valid UTF-8"});
    } else if (const std::optional<ChatCommand> c = parse_command(line)) {
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
  if (!templated_) {
    note(strf("%s: the text is continued, and each line is added to it",
              options_.raw ? "--raw" : "the model has no chat template"));
  }
  if (console_.editing())
    note(
        "/help lists commands; \\ or \"\"\" for several lines; Ctrl-C stops an answer, Ctrl-D "
        "or /bye leaves");
}

void Chat::say(const std::string& text) const {
  std::FILE* to = terminal_ ? stdout : stderr;
  std::fwrite(text.data(), 1, text.size(), to);
  std::fflush(to);
}

void Chat::note(const std::string& text) const {
  if (!options_.engine.quiet) tell(text);
}

void Chat::fail(const Error& error) {
  failed_ = true;
  say(without_controls(error.message) + "\n");
}

// Also the result of a call, where the last answer has calls without one.
void Chat::message(const std::string& text) {
  const Conversation before = talk_;
  retries_ = 0;
  if (talk_.open_calls().empty()) {
    talk_.add("user", text);
  } else {
    talk_.add_result(text);
    if (const auto open = talk_.open_calls(); !open.empty())
      return note(strf("the next message is the result of %s", open[0].c_str()));
  }
  if (!answer()) talk_ = before;
}

Result<Chat::Question> Chat::prepare_answer() {
  Result<std::vector<TextSegment>> text =
      talk_.prompt(session_, templated_, tools_ ? tools_->list() : json::value());
  if (!text) return text.error();
  Result<std::vector<Token>> prompt = session_.tokenizer()->encode(*text, {.add_special = true});
  if (!prompt) return prompt.error();
  const size_t context = context_of(session_);
  if (prompt->size() >= context) {
    return Error{400, strf("the context is full: the conversation has %zu tokens and it holds %zu; "
                           "/clear begins anew, /undo takes an exchange back, or start again with "
                           "a larger --ctx",
                           prompt->size(), context)};
  }
  SamplingOptions sampling = sampling_;
  sampling.max_tokens = std::min(sampling.max_tokens, static_cast<int>(context - prompt->size()));
  sampling.spec.min_tokens = std::min(sampling.spec.min_tokens, sampling.max_tokens);
  sampling.spec.seed += retries_;
  Question question;
  std::shared_ptr<const constrain::Thinking> thinking;
  std::string end = templated_ && !text->empty() ? std::string(text->back().text) : "";
  if (tools_) {
    auto plan = tools_->plan(session_, std::exchange(end, ""), constraints_,
                             sampling.constraint != nullptr);
    if (!plan) return plan.error();
    if (plan->constraint) sampling.constraint = plan->constraint;
    thinking = plan->thinking;
    question.reading = std::move(plan->reading);
    question.output =
        std::make_unique<ChatOutput>(question.reading, [this] { return tools_->new_id(talk_); });
  }
  Result<Prepared> prepared =
      prepare(session_, {std::move(*prompt), std::move(end)}, sampling, options_.special);
  if (!prepared) return prepared.error();
  question.prepared = std::move(*prepared);
  if (question.prepared.reading) {
    question.output =
        std::make_unique<ChatOutput>(*question.prepared.reading, [] { return std::string(); });
  } else if (question.output) {
    question.prepared.request.thinking = std::move(thinking);
    question.prepared.text.keep = question.reading.kept_tokens();
  }
  return question;
}

// The last message is the user's. False: it could not be answered, and why was said.
bool Chat::answer() {
  Result<Question> question = prepare_answer();
  if (!question) {
    fail(question.error());
    return false;
  }
  ChatReply reply;
  const Turn turn = generate(std::move(*question), reply);
  if (turn.finish == Finish::none) return false;
  if (turn.finish == Finish::cancelled && turn.output == 0) {
    note("stopped before the first word: the message is taken back");
    return false;
  }
  json::array calls;
  for (json::value& call : reply.calls) {  // templates take arguments as objects
    json::value& arguments = call.as_object()["function"].as_object()["arguments"];
    auto whole = whole_arguments(arguments.as_string());
    if (!whole) continue;  // cut off: nobody could give its result
    arguments = std::move(*whole);
    calls.push_back(std::move(call));
  }
  talk_.add_answer(reply.content, reply.reasoning, std::move(calls));
  last_ = turn;
  ++num_answers_;
  num_tokens_ += turn.output;
  show_turn(turn);
  if (const auto open = talk_.open_calls(); !open.empty())
    note(strf("the next message is the result of %s", open[0].c_str()));
  if (auto ok = check_finish(turn.finish); !ok) fail(ok.error());
  if (turn.finish == Finish::failed) {
    code_ = report({500, "the device failed"});
    leaving_ = true;
  }
  return true;
}

Chat::Turn Chat::generate(Question question, ChatReply& reply) {
  Turn turn;
  Prepared& prepared = question.prepared;
  ChatOutput* output = question.output.get();
  turn.prompt = prepared.prompt.size();
  ReplyView view(output, reply);
  interrupt_.clear();
  Collector collector(session_.engine(), session_.tokenizer());
  collector.submit(std::move(prepared.request), prepared.text);
  bool cancelled = false;
  StatusLine reading(!options_.engine.quiet && terminal_);
  const Time begin = session_.clock().now();
  auto on_text = [&](size_t, int, const std::string& piece) {
    reading.clear();
    view.show(piece);
  };
  auto on_progress = [&](size_t, uint64_t num_tokens) {
    if (num_tokens == 0 && session_.clock().now() - begin > kLongWait)
      reading.show(dim(strf("reading %zu tokens", turn.prompt)));
    if (!interrupt_.seen() || std::exchange(cancelled, true)) return;
    session_.engine().cancel(collector.id(0));
  };
  collector.wait(on_text, on_progress, kTick);
  reading.clear();
  interrupt_.clear();
  const RequestOutput& out = collector.outputs()[0];
  if (out.refused) {
    fail(*out.refused);
    return turn;
  }
  const ChoiceOutput& choice = out.choices[0];
  view.finish();
  if (!output) reply.content = choice.text;
  if (!reply.content.empty() && !reply.content.ends_with('\n')) std::fputs("\n", stdout);
  show_calls(reply.calls);
  if (terminal_) std::fputs("\n", stdout);  // the answer apart from what is said about it
  std::fflush(stdout);
  turn.cached = static_cast<size_t>(choice.timing.num_cached);
  turn.output = choice.tokens.size();
  turn.finish = choice.finish;
  if (turn.output > 0) turn.first = seconds(choice.timing.first_token - choice.timing.arrival);
  const double decode = seconds(choice.timing.last_token - choice.timing.first_token);
  if (turn.output > 1 && decode > 0) turn.rate = static_cast<double>(turn.output - 1) / decode;
  return turn;
}

// A line each: for a person, or as JSON.
void Chat::show_calls(const json::array& calls) const {
  for (const json::value& call : calls) {
    const json::object& function = call.as_object().at("function").as_object();
    const json::string& text = function.at("arguments").as_string();
    const auto whole = whole_arguments(text);  // absent: it was cut off
    const std::string arguments = json::serialize(whole ? *whole : json::value(text));
    const std::string name(function.at("name").as_string());
    const std::string line =
        terminal_ ? "call " + name + " " + without_controls(arguments)
                  : strf("{\"name\": %s, \"arguments\": %s}",
                         json::serialize(json::string(name)).c_str(), arguments.c_str());
    std::fprintf(stdout, "%s\n", line.c_str());
  }
}

void Chat::show_turn(const Turn& t) const {
  std::string line = strf("%zu tokens, %.0f tok/s, first %.0f ms", t.output, t.rate, t.first * 1e3);
  if (t.finish == Finish::cancelled) line += ", stopped";
  note(line);
  if (t.finish == Finish::length) note(cut_note(session_, t.prompt, t.output, "/set max_tokens N"));
}

}  // namespace sluice

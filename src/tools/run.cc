// sluice run: one prompt, or a JSONL file of prompts run as one batch.
#include <algorithm>
#include <cstdio>
#include <sstream>

#include "base/json.h"
#include "base/str.h"
#include "runtime/collect.h"
#include "server/constraint_fields.h"
#include "tools/chat/chat.h"
#include "tools/chat/reply_view.h"
#include "tools/commands.h"
#include "tools/requests.h"
#include "tools/run_constraints.h"
#include "tools/terminal.h"

namespace sluice {

namespace {

json::array conversation(const std::string& system, const std::string& user) {
  json::array messages;
  if (!system.empty()) messages.push_back(json::object{{"role", "system"}, {"content", system}});
  messages.push_back(json::object{{"role", "user"}, {"content", user}});
  return messages;
}

json::value logprobs_json(const std::vector<ScoredToken>& scores, const Tokenizer& t) {
  auto one = [&](const TopLogprob& l) {
    return json::object{{"id", l.token},
                        {"token", json::string(t.spelling(l.token))},
                        {"logprob", l.logprob},
                        {"rank", l.rank}};
  };
  json::array out;
  for (const ScoredToken& s : scores) {
    json::object o = one(s.token);
    json::array top;
    for (const TopLogprob& l : s.top) top.push_back(one(l));
    if (!top.empty()) o["top"] = std::move(top);
    out.push_back(std::move(o));
  }
  return out;
}

// `reading`: takes thinking and answer apart; absent: the text is the answer.
json::object choice_json(const ChoiceOutput& c,
                         const Tokenizer& t,
                         const std::optional<ChatReading>& reading) {
  json::object o;
  if (reading) {
    ChatReply reply = split_reply(*reading, c.text);
    o["text"] = std::move(reply.content);
    o["reasoning"] = std::move(reply.reasoning);
  } else {
    o["text"] = c.text;
  }
  o["tokens"] = json::array(c.tokens.begin(), c.tokens.end());
  o["finish_reason"] = finish_name(c.finish);
  if (!c.logprobs.empty()) o["logprobs"] = logprobs_json(c.logprobs, t);
  return o;
}

// D2 of a request: where its time went, in seconds.
json::object timing_json(const RequestOutput& out) {
  const SeqTiming& t = out.choices[0].timing;
  size_t tokens = out.choices[0].tokens.size();
  double decode = seconds(t.last_token - t.first_token);
  json::object o;
  o["waiting"] = seconds(t.first_scheduled - t.arrival);
  o["ttft"] = seconds(t.first_token - t.arrival);
  o["total"] = seconds(t.finish - t.arrival);
  o["decode_tokens_per_second"] =
      tokens > 1 && decode > 0 ? static_cast<double>(tokens - 1) / decode : 0.0;
  o["steps"] = t.num_steps;
  o["preemptions"] = t.num_preemptions;
  return o;
}

// Of a beam search, the answers that were asked for.
RequestOutput shown(RequestOutput out, const SamplingOptions& o) {
  if (o.beams > 0 && !out.refused) out.choices.resize(static_cast<size_t>(o.n));
  return out;
}

json::object output_json(const RequestOutput& out, const Prepared& asked, const Tokenizer& t) {
  if (out.refused)
    return {
        {"error", json::object{{"code", out.refused->code}, {"message", out.refused->message}}}};
  json::object o = choice_json(out.choices[0], t, asked.reading);
  size_t completion = 0;
  json::array choices;
  for (const ChoiceOutput& c : out.choices) {
    completion += c.tokens.size();
    choices.push_back(choice_json(c, t, asked.reading));
  }
  if (out.choices.size() > 1) o["choices"] = std::move(choices);
  if (!out.prompt_logprobs.empty()) o["prompt_logprobs"] = logprobs_json(out.prompt_logprobs, t);
  const size_t prompt_tokens = asked.prompt.size();
  o["usage"] = json::object{{"prompt_tokens", prompt_tokens},
                            {"completion_tokens", completion},
                            {"total_tokens", prompt_tokens + completion},
                            {"cached_tokens", out.choices[0].timing.num_cached}};
  o["timing"] = timing_json(out);
  return o;
}

bool templated(const Session& s, const RunOptions& o) {
  return o.chat || (s.chat_template() && !o.raw);
}

Result<EncodedPrompt> encode_text(const Session& s, const std::string& text) {
  Result<std::vector<Token>> tokens = s.tokenizer()->encode(text, {.add_special = true});
  if (!tokens) return tokens.error();
  return EncodedPrompt{std::move(*tokens), ""};
}

Result<EncodedPrompt> encode(const Session& s, const RunOptions& o, const std::string& text) {
  if (templated(s, o)) return encode_chat(s, conversation(o.system, text));
  if (!o.system.empty())
    return Error{400, "--system needs a chat template: the prompt is completed as it is"};
  return encode_text(s, text);
}

void show_statistics(Session& s, const RequestOutput& out, size_t prompt_tokens) {
  json::object t = timing_json(out);
  std::fflush(stdout);
  if (stderr_is_terminal()) std::fputs("\n", stderr);
  tell(strf("%zu tokens in, %zu out; first token %.0f ms, then %.1f tokens/s", prompt_tokens,
            out.choices[0].tokens.size(), t["ttft"].as_double() * 1e3,
            t["decode_tokens_per_second"].as_double()));
  for (const ChoiceOutput& c : out.choices) {
    if (c.finish != Finish::length) continue;
    tell(cut_note(s, prompt_tokens, c.tokens.size(), "--max-tokens N"));
    break;
  }
}

// Without the thinking before it.
std::string answer_text(const ChoiceOutput& c, const Prepared& asked) {
  return asked.reading ? split_reply(*asked.reading, c.text).content : c.text;
}

int run_one(Session& s, const RunOptions& o, const std::string& text) {
  const Tokenizer& tokenizer = *s.tokenizer();
  if (text.empty()) return report({400, "the prompt is empty"});
  Result<EncodedPrompt> prompt = encode(s, o, text);
  if (!prompt) return report(prompt.error());
  Result<Prepared> p = prepare(s, std::move(*prompt), o.sampling, o.special);
  if (!p) return report(p.error());
  show_ledger(s);
  size_t prompt_tokens = p->prompt.size();
  Collector collector(s.engine(), &tokenizer);
  collector.trace(s.trace_track("output"), s.clock());
  collector.submit(std::move(p->request), p->text);
  bool stream = !o.json && o.sampling.n == 1 && o.sampling.beams == 0;
  std::unique_ptr<ChatOutput> output;
  if (p->reading) output = std::make_unique<ChatOutput>(*p->reading, [] { return std::string(); });
  ChatReply reply;
  ReplyView view(output.get(), reply);
  collector.wait([&](size_t, int, const std::string& piece) {
    if (stream) view.show(piece);
  });
  const RequestOutput out = shown(collector.outputs()[0], o.sampling);
  if (out.refused) return report(*out.refused);
  if (o.json) {
    std::printf("%s\n", plain_json(output_json(out, *p, tokenizer)).c_str());
  } else if (stream) {
    view.finish();
    std::printf("\n");
  } else if (out.choices.size() == 1) {
    std::printf("%s\n", answer_text(out.choices[0], *p).c_str());
  } else {
    for (size_t c = 0; c < out.choices.size(); ++c)
      std::printf("--- %zu\n%s\n", c, answer_text(out.choices[c], *p).c_str());
  }
  if (out.choices[0].finish == Finish::failed) return report({500, "the device failed"});
  for (const ChoiceOutput& c : out.choices) {
    if (auto ok = check_finish(c.finish); !ok) return report(ok.error());
  }
  if (!o.json && !o.engine.quiet) show_statistics(s, out, prompt_tokens);
  return kExitOk;
}

// The line's own constraint, by the fields that a server takes.
Result<void> constrain_line(const json::value& line,
                            RunConstraints& constraints,
                            SamplingOptions& sampling) {
  Fields fields(line);
  GenerateFields given;
  read_constraint(fields, given);
  if (fields.failed()) return Error{400, fields.error()->message};
  if (!given.constraint) return {};
  auto compiled = constraints.compile(given.constraint->source);
  if (!compiled) return Error{400, given.constraint->name + ": " + compiled.error().message};
  sampling.constraint = *compiled;
  return {};
}

// One line of the file: {"prompt": "..."} or {"messages": [...]}, with max_tokens, temperature,
// seed, stop and constraint of its own if it likes.
Result<Prepared> prepare_line(const Session& s,
                              const std::string& line,
                              const RunOptions& o,
                              RunConstraints& constraints) {
  Result<json::value> parsed = parse_json(line);
  if (!parsed) return parsed.error();
  if (!parsed->is_object()) return Error{400, "not a JSON object"};
  const json::object& v = parsed->as_object();
  const json::value* messages = v.if_contains("messages");
  SamplingOptions sampling = o.sampling;
  resolve_sampling(s, o.chat || messages, sampling);
  std::string bad;
  auto number = [&](const char* key, auto& to) {
    const json::value* x = v.if_contains(key);
    if (!x) return;
    json::error_code ec;
    to = x->to_number<std::remove_reference_t<decltype(to)>>(ec);
    if (ec && bad.empty()) bad = key;
  };
  number("max_tokens", sampling.max_tokens);
  number("temperature", sampling.spec.temperature);
  number("top_p", sampling.spec.top_p);
  number("top_k", sampling.spec.top_k);
  number("seed", sampling.spec.seed);
  number("n", sampling.n);
  number("priority", sampling.priority);
  if (!bad.empty()) {
    return Error{400, strf("%s is not a number of its kind: temperature and top_p may have "
                           "fractions, the others are whole",
                           bad.c_str())};
  }
  if (const json::value* stop = v.if_contains("stop")) {
    sampling.stop.clear();
    json::array list = stop->is_array() ? stop->as_array() : json::array{*stop};
    for (const json::value& x : list) {
      if (!x.is_string()) return Error{400, "stop must be a string or a list of strings"};
      sampling.stop.emplace_back(x.as_string());
    }
  }
  if (auto ok = constrain_line(*parsed, constraints, sampling); !ok) return ok.error();
  Result<EncodedPrompt> prompt = Error{400, "needs \"prompt\" (a string) or \"messages\" (a list)"};
  if (messages && messages->is_array()) {
    prompt = encode_chat(s, messages->as_array());
  } else if (const json::value* text = v.if_contains("prompt"); text && text->is_string()) {
    std::string str(text->as_string());
    prompt = o.chat ? encode_chat(s, conversation(o.system, str)) : encode_text(s, str);
  }
  if (!prompt) return prompt.error();
  return prepare(s, std::move(*prompt), sampling, o.special);
}

int run_jsonl(Session& s, const RunOptions& o, RunConstraints& constraints) {
  Result<std::string> text = read_text(o.jsonl);
  if (!text) return report(text.error());
  std::vector<Prepared> prepared;
  std::istringstream in(*text);
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    Result<Prepared> p = prepare_line(s, line, o, constraints);
    if (!p)
      return report({p.error().code,
                     strf("%s line %d: %s", o.jsonl.c_str(), number, p.error().message.c_str())});
    prepared.push_back(std::move(*p));
  }
  if (prepared.empty()) return report({400, strf("%s holds no prompts", o.jsonl.c_str())});
  show_ledger(s);

  Collector collector(s.engine(), s.tokenizer());
  collector.trace(s.trace_track("output"), s.clock());
  for (Prepared& p : prepared) collector.submit(std::move(p.request), p.text);
  StatusLine status(!o.engine.quiet);
  Time begin = s.clock().now();
  collector.wait({}, [&](size_t done, uint64_t tokens) {
    double t = std::max(seconds(s.clock().now() - begin), 1e-3);
    status.show(
        strf("%s %zu of %zu requests, %llu tokens, %.0f tokens/s",
             progress_bar(static_cast<double>(done) / static_cast<double>(prepared.size())).c_str(),
             done, prepared.size(), static_cast<unsigned long long>(tokens),
             static_cast<double>(tokens) / t));
  });
  status.clear();
  int code = kExitOk;
  for (size_t i = 0; i < prepared.size(); ++i) {
    const RequestOutput out = shown(collector.outputs()[i], o.sampling);
    if (out.refused) code = kExitUsage;
    std::printf("%s\n", plain_json(output_json(out, prepared[i], *s.tokenizer())).c_str());
  }
  return code;
}

// The prompt from where the options say. Nothing else is read from stdin.
Result<std::string> read_prompt(const RunOptions& o) {
  if (!o.file.empty()) return read_text(o.file);
  if (!o.words.empty()) {
    std::string all;
    for (const std::string& w : o.words) all += (all.empty() ? "" : " ") + w;
    return all;
  }
  if (o.has_prompt || !o.jsonl.empty()) return o.prompt;
  Result<std::string> piped = read_text("-");
  if (!piped) return piped;
  if (piped->ends_with('\n')) piped->pop_back();  // the one that echo adds
  if (piped->ends_with('\r')) piped->pop_back();
  if (piped->empty())
    return Error{400, "no prompt: give it behind the model, with -p TEXT, -f FILE, or by a pipe"};
  return piped;
}

// What goes with what, before anything is read or loaded.
Result<void> check_run(const RunOptions& o, bool chat) {
  int sources = (o.has_prompt ? 1 : 0) + (o.words.empty() ? 0 : 1) + (o.file.empty() ? 0 : 1) +
                (o.jsonl.empty() ? 0 : 1);
  if (sources == 1 && chat)
    return Error{400, "-i is a conversation: leave out the prompt, -p, -f and --jsonl"};
  if (sources > 1)
    return Error{400, "give one of a prompt behind the model, -p TEXT, -f FILE and --jsonl FILE"};
  if (chat && (o.json || o.sampling.n != 1 || o.sampling.beams > 0))
    return Error{400, "a conversation has no --json, -n or --beams: give a prompt with -p TEXT"};
  if (o.raw && o.chat) return Error{400, "--raw leaves out the template that --chat asks for"};
  return {};
}

}  // namespace

int cmd_run(const RunOptions& given) {
  const bool no_source =
      !given.has_prompt && given.words.empty() && given.file.empty() && given.jsonl.empty();
  const bool chat = given.interactive || (no_source && stdin_is_terminal());
  if (auto ok = check_run(given, chat); !ok) return report(ok.error());
  auto source = read_constraint_flags(given.constraint);
  if (!source) return report(source.error());
  std::string text;
  if (!chat) {
    Result<std::string> read = read_prompt(given);
    if (!read) return report(read.error());
    text = std::move(*read);
  }
  if (!valid_utf8(text)) return report({400, "the prompt is not valid UTF-8"});
  Result<std::unique_ptr<Session>> session = open_session(given.engine);
  if (!session) return report(session.error());
  Session& s = **session;
  if (!s.tokenizer())
    return report({400, "the model has no vocabulary, so it cannot read text: use sluice bench"});
  RunOptions o = given;
  if (!chat && o.jsonl.empty()) resolve_sampling(s, templated(s, o), o.sampling);
  RunConstraints constraints(s);
  if (*source) {
    auto compiled = constraints.compile(**source);
    if (!compiled) return report(compiled.error());
    o.sampling.constraint = *compiled;
  }
  int code = chat              ? Chat(s, o, constraints).run()
             : o.jsonl.empty() ? run_one(s, o, text)
                               : run_jsonl(s, o, constraints);
  if (auto ok = s.write_trace(); !ok) return report(ok.error());
  return code;
}

}  // namespace sluice

// sluice run: one prompt, or a JSONL file of prompts run as one batch.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <sstream>

#include "base/json.h"
#include "base/str.h"
#include "runtime/collect.h"
#include "tools/commands.h"
#include "tools/terminal.h"

namespace sluice {

namespace {

Result<void> check_sampling(const SamplingSpec& s) {
  auto in = [](float v, float lo, float hi) { return v >= lo && v <= hi; };  // false for NaN
  if (!in(s.temperature, 0, 100)) return Error{400, "--temperature must be from 0 to 100"};
  if (s.top_k < 0) return Error{400, "--top-k must not be negative"};
  if (!(s.top_p > 0 && s.top_p <= 1)) return Error{400, "--top-p must be above 0 and at most 1"};
  if (!in(s.min_p, 0, 1)) return Error{400, "--min-p must be from 0 to 1"};
  if (!(s.repetition_penalty > 0 && s.repetition_penalty <= 100))
    return Error{400, "--repetition-penalty must be above 0 and at most 100"};
  if (!in(s.frequency_penalty, -2, 2))
    return Error{400, "--frequency-penalty must be from -2 to 2"};
  if (!in(s.presence_penalty, -2, 2)) return Error{400, "--presence-penalty must be from -2 to 2"};
  if (s.min_tokens < 0) return Error{400, "--min-tokens must not be negative"};
  if (s.num_logprobs > 20 || s.prompt_logprobs > 20)
    return Error{400, "at most 20 log-probabilities per token"};
  return {};
}

// A request without its prompt: sampling and stops, checked against the vocabulary.
Result<Request> request_from(const SamplingOptions& o, const Tokenizer* tokenizer, int vocab) {
  if (auto ok = check_sampling(o.spec); !ok) return ok.error();
  if (o.n < 1 || o.n > 16) return Error{400, "-n must be from 1 to 16"};
  if (o.max_tokens < 1) return Error{400, "--max-tokens must be at least 1"};
  if (o.stop.size() > 16) return Error{400, "at most 16 stop strings"};
  auto spec = std::make_shared<SamplingSpec>(o.spec);
  for (const std::string& b : o.logit_bias) {
    size_t eq = b.find('=');
    char *id_end = nullptr, *bias_end = nullptr;
    long id = std::strtol(b.c_str(), &id_end, 10);
    float bias = eq == std::string::npos ? NAN : std::strtof(b.c_str() + eq + 1, &bias_end);
    if (eq == std::string::npos || id_end != b.c_str() + eq || *bias_end != 0 || id < 0 ||
        id >= vocab || !(std::abs(bias) <= 100)) {
      return Error{
          400, strf("--logit-bias %s: write ID=BIAS, the id below %d, the bias from -100 to 100",
                    quote(b).c_str(), vocab)};
    }
    spec->logit_bias.emplace_back(static_cast<Token>(id), bias);
  }
  Request r;
  if (tokenizer && !o.ignore_eos)
    r.stop.tokens.assign(tokenizer->eog().begin(), tokenizer->eog().end());
  for (Token t : o.stop_ids) {
    if (t < 0 || t >= vocab)
      return Error{400, strf("--stop-id %d is not a token id below %d", t, vocab)};
    r.stop.tokens.push_back(t);
  }
  for (const std::string& s : o.stop) {
    if (s.empty() || s.size() > 256) return Error{400, "a stop string must have 1 to 256 bytes"};
    r.stop.strings.push_back(s);
  }
  if (spec->min_tokens > 0) spec->banned_until_min = r.stop.tokens;
  r.sampling = spec;
  r.max_new = o.max_tokens;
  r.n = o.n;
  r.priority = o.priority;
  return r;
}

Result<std::vector<Token>> encode_chat(const Session& s, json::array messages) {
  const Tokenizer& tokenizer = *s.tokenizer();
  if (!s.chat_template()) return Error{400, "the model has no chat template: run without --chat"};
  TemplateInputs in;
  in.messages = std::move(messages);
  if (tokenizer.bos() != kNoToken) in.bos_token = tokenizer.spelling(tokenizer.bos());
  if (tokenizer.eos() != kNoToken) in.eos_token = tokenizer.spelling(tokenizer.eos());
  std::time_t now = std::time(nullptr);
  localtime_r(&now, &in.now);
  Result<std::vector<TextSegment>> text = s.chat_template()->render(in);
  if (!text) return text.error();
  return tokenizer.encode(*text, {.add_special = true});
}

json::array conversation(const std::string& system, const std::string& user) {
  json::array messages;
  if (!system.empty()) messages.push_back(json::object{{"role", "system"}, {"content", system}});
  messages.push_back(json::object{{"role", "user"}, {"content", user}});
  return messages;
}

struct Prepared {
  std::vector<Token> prompt;
  Request request;
  TextStream::Options text;
};

Result<Prepared> prepare(const Session& s,
                         std::vector<Token> prompt,
                         const SamplingOptions& sampling,
                         bool special) {
  if (prompt.empty()) return Error{400, "the prompt is empty"};
  Result<Request> r = request_from(sampling, s.tokenizer(), s.model().shape().vocab);
  if (!r) return r.error();
  Prepared p{std::move(prompt), std::move(*r), {}};
  // A prompt of control tokens only (BOS): the output begins the text.
  bool begins = std::all_of(p.prompt.begin(), p.prompt.end(),
                            [&](Token t) { return s.tokenizer()->is_control(t); });
  p.text.strip_leading_space = begins && s.tokenizer()->adds_space();
  p.text.skip_special = !special;
  p.request.prompt = std::make_shared<const std::vector<Token>>(p.prompt);
  if (auto ok = Scheduler::check(p.request, s.options().scheduler); !ok) return ok.error();
  return p;
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

json::object choice_json(const ChoiceOutput& c, const Tokenizer& t) {
  json::object o;
  o["text"] = c.text;
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

json::object output_json(const RequestOutput& out, size_t prompt_tokens, const Tokenizer& t) {
  if (out.refused)
    return {
        {"error", json::object{{"code", out.refused->code}, {"message", out.refused->message}}}};
  json::object o = choice_json(out.choices[0], t);
  size_t completion = 0;
  json::array choices;
  for (const ChoiceOutput& c : out.choices) {
    completion += c.tokens.size();
    choices.push_back(choice_json(c, t));
  }
  if (out.choices.size() > 1) o["choices"] = std::move(choices);
  if (!out.prompt_logprobs.empty()) o["prompt_logprobs"] = logprobs_json(out.prompt_logprobs, t);
  o["usage"] = json::object{{"prompt_tokens", prompt_tokens},
                            {"completion_tokens", completion},
                            {"total_tokens", prompt_tokens + completion},
                            {"cached_tokens", out.choices[0].timing.num_cached}};
  o["timing"] = timing_json(out);
  return o;
}

int run_one(Session& s, const RunOptions& o, const std::string& text) {
  const Tokenizer& tokenizer = *s.tokenizer();
  Result<std::vector<Token>> prompt = o.chat ? encode_chat(s, conversation(o.system, text))
                                             : tokenizer.encode(text, {.add_special = true});
  if (!prompt) return report(prompt.error());
  Result<Prepared> p = prepare(s, std::move(*prompt), o.sampling, o.special);
  if (!p) return report(p.error());
  show_ledger(s);
  size_t prompt_tokens = p->prompt.size();
  Collector collector(s.engine(), &tokenizer);
  collector.submit(std::move(p->request), p->text);
  bool stream = !o.json && o.sampling.n == 1;
  collector.wait([&](size_t, int, const std::string& piece) {
    if (!stream) return;
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
  });
  const RequestOutput& out = collector.outputs()[0];
  if (out.refused) return report(*out.refused);
  if (o.json) {
    std::printf("%s\n", json::serialize(output_json(out, prompt_tokens, tokenizer)).c_str());
  } else if (stream) {
    std::printf("\n");
  } else {
    for (size_t c = 0; c < out.choices.size(); ++c)
      std::printf("--- %zu\n%s\n", c, out.choices[c].text.c_str());
  }
  if (out.choices[0].finish == Finish::failed) return report({500, "the device failed"});
  if (!o.json && !o.engine.quiet) {
    json::object t = timing_json(out);
    std::fprintf(stderr, "%s\n",
                 dim(strf("%zu tokens in, %zu out; first token %.0f ms, then %.1f tokens/s",
                          prompt_tokens, out.choices[0].tokens.size(), t["ttft"].as_double() * 1e3,
                          t["decode_tokens_per_second"].as_double()))
                     .c_str());
  }
  return kExitOk;
}

// One line of the file: {"prompt": "..."} or {"messages": [...]}, with max_tokens, temperature,
// seed and stop of its own if it likes.
Result<Prepared> prepare_line(const Session& s, const std::string& line, const RunOptions& o) {
  Result<json::value> parsed = parse_json(line);
  if (!parsed) return parsed.error();
  if (!parsed->is_object()) return Error{400, "not a JSON object"};
  const json::object& v = parsed->as_object();
  SamplingOptions sampling = o.sampling;
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
  Result<std::vector<Token>> prompt =
      Error{400, "needs \"prompt\" (a string) or \"messages\" (a list)"};
  if (const json::value* messages = v.if_contains("messages"); messages && messages->is_array()) {
    prompt = encode_chat(s, messages->as_array());
  } else if (const json::value* text = v.if_contains("prompt"); text && text->is_string()) {
    std::string str(text->as_string());
    prompt = o.chat ? encode_chat(s, conversation(o.system, str))
                    : s.tokenizer()->encode(str, {.add_special = true});
  }
  if (!prompt) return prompt.error();
  return prepare(s, std::move(*prompt), sampling, o.special);
}

int run_jsonl(Session& s, const RunOptions& o) {
  Result<std::string> text = read_text(o.jsonl);
  if (!text) return report(text.error());
  std::vector<Prepared> prepared;
  std::istringstream in(*text);
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    Result<Prepared> p = prepare_line(s, line, o);
    if (!p)
      return report({p.error().code,
                     strf("%s line %d: %s", o.jsonl.c_str(), number, p.error().message.c_str())});
    prepared.push_back(std::move(*p));
  }
  if (prepared.empty()) return report({400, strf("%s holds no prompts", o.jsonl.c_str())});
  show_ledger(s);

  Collector collector(s.engine(), s.tokenizer());
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
    const RequestOutput& out = collector.outputs()[i];
    if (out.refused) code = kExitUsage;
    std::printf(
        "%s\n",
        json::serialize(output_json(out, prepared[i].prompt.size(), *s.tokenizer())).c_str());
  }
  return code;
}

}  // namespace

int cmd_run(const RunOptions& o) {
  int sources = (o.has_prompt ? 1 : 0) + (o.file.empty() ? 0 : 1) + (o.jsonl.empty() ? 0 : 1);
  if (sources != 1) return report({400, "give one of -p TEXT, -f FILE and --jsonl FILE"});
  std::string text = o.prompt;
  if (!o.file.empty()) {
    Result<std::string> read = read_text(o.file);
    if (!read) return report(read.error());
    text = std::move(*read);
  }
  if (!valid_utf8(text)) return report({400, "the prompt is not valid UTF-8"});
  Result<std::unique_ptr<Session>> session = open_session(o.engine);
  if (!session) return report(session.error());
  if (!(*session)->tokenizer())
    return report({400, "the model has no vocabulary, so it cannot read text: use sluice bench"});
  int code = o.jsonl.empty() ? run_one(**session, o, text) : run_jsonl(**session, o);
  if (auto ok = (*session)->write_trace(); !ok) return report(ok.error());
  return code;
}

}  // namespace sluice

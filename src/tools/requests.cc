#include "tools/requests.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>

#include "base/str.h"
#include "runtime/constraint_vocab.h"
#include "server/chat_reading.h"

namespace sluice {

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

void resolve_sampling(const Session& s, bool templated, SamplingOptions& o) {
  constexpr int kAnswer = 1024, kText = 256;  // a text that is only continued seldom ends
  apply_sampling(s.sampling_defaults(), o.choice, o.spec);
  if (o.max_tokens == 0) o.max_tokens = templated ? kAnswer : kText;
  if (o.beams == 0) return;
  // The model's own penalties belong to sampling.
  o.spec.repetition_penalty = o.choice.repetition_penalty.value_or(1);
  o.spec.frequency_penalty = o.choice.frequency_penalty.value_or(0);
  o.spec.presence_penalty = o.choice.presence_penalty.value_or(0);
}

size_t context_of(Session& session) {
  const SchedulerConfig& s = session.engine().config();
  return static_cast<size_t>(
      std::min<int64_t>(s.max_len, static_cast<int64_t>(s.num_blocks) * s.block_size));
}

std::string cut_note(Session& session, size_t prompt, size_t output, const char* raise) {
  const size_t context = context_of(session);
  const auto most = static_cast<size_t>(session.model().shape().max_len);
  if (prompt + output < context)
    return strf("the answer was cut at %zu tokens: %s raises the limit", output, raise);
  if (context >= most)
    return strf("the answer was cut: the model's context of %zu tokens is full", context);
  return strf("the answer was cut: the context of %zu tokens is full (--ctx N, up to %zu)", context,
              most);
}

namespace {

// A request without its prompt: sampling and stops, checked against the vocabulary.
Result<Request> request_from(const SamplingOptions& o, const Tokenizer* tokenizer, int vocab) {
  if (auto ok = check_sampling(o.spec); !ok) return ok.error();
  if (o.n < 1 || o.n > 16)
    return Error{400, "-n, the choices per prompt, must be from 1 to 16 (tokens: --max-tokens)"};
  if (o.max_tokens < 1) return Error{400, "--max-tokens must be at least 1"};
  if (o.beams > 0 && o.n > o.beams)
    return Error{400, strf("-n %d: --beams %d find no more answers than that", o.n, o.beams)};
  if (!(std::abs(o.length_penalty) <= 100))
    return Error{400, "--length-penalty must be from -100 to 100"};
  if (o.beams == 0 && o.length_penalty != 1) return Error{400, "--length-penalty needs --beams"};
  if (o.constraint && (o.ignore_eos || o.spec.min_tokens > 0)) {
    return Error{400, strf("%s does not go with a constraint: the answer ends where its form is "
                           "complete",
                           o.ignore_eos ? "--ignore-eos" : "--min-tokens")};
  }
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
  r.constraint = o.constraint;
  r.max_new = o.max_tokens;
  r.n = o.beams > 0 ? o.beams : o.n;
  if (o.beams > 0) r.beams = BeamSpec{o.length_penalty, BeamEnd::usual};
  r.priority = o.priority;
  return r;
}

}  // namespace

Result<std::vector<TextSegment>> render_chat(const Session& s,
                                             json::array messages,
                                             json::value tools) {
  const Tokenizer& tokenizer = *s.tokenizer();
  if (!s.chat_template())
    return Error{400, "the model has no chat template: leave out --chat and messages"};
  TemplateInputs in;
  in.messages = std::move(messages);
  in.tools = std::move(tools);
  if (tokenizer.bos() != kNoToken) in.bos_token = tokenizer.spelling(tokenizer.bos());
  if (tokenizer.eos() != kNoToken) in.eos_token = tokenizer.spelling(tokenizer.eos());
  std::time_t now = std::time(nullptr);
  localtime_r(&now, &in.now);
  return s.chat_template()->render(in);
}

Result<EncodedPrompt> encode_chat(const Session& s, json::array messages) {
  Result<std::vector<TextSegment>> text = render_chat(s, std::move(messages));
  if (!text) return text.error();
  Result<std::vector<Token>> tokens = s.tokenizer()->encode(*text, {.add_special = true});
  if (!tokens) return tokens.error();
  return EncodedPrompt{std::move(*tokens), text->empty() ? "" : std::string(text->back().text)};
}

Result<std::shared_ptr<const constrain::Thinking>> free_thinking(
    const Session& s, const dialect::ThinkFormat& format) {
  auto marks = think_marks(*s.tokenizer(), s.model().shape().vocab, format.begin, format.end);
  if (marks->closing(0).empty())
    return Error{400, "this model's vocabulary cannot spell the end of its thinking"};
  return std::make_shared<const constrain::Thinking>(constrain::Thinking{std::move(marks), true});
}

namespace {

// The constraint begins behind the thinking that the prompt's end opened, if it did.
Result<void> think_first(const Session& s, std::string_view prompt_end, Prepared& p) {
  if (!s.chat_template() || prompt_end.empty()) return {};
  const dialect::ThinkFormat* think = choose_format({}, s.chat_template()->source()).think;
  if (!think || !dialect::opens_thinking(*think, prompt_end)) return {};
  auto thinking = free_thinking(s, *think);
  if (!thinking) return thinking.error();
  p.request.thinking = std::move(*thinking);
  ChatReading& r = p.reading.emplace();
  r.parser.format = {nullptr, think};
  r.keep = std::make_shared<const std::vector<Token>>(mark_tokens(r.parser.format, *s.tokenizer()));
  r.think = think;
  r.thinking_open = r.parser.thinking = true;
  p.text.keep = r.kept_tokens();
  return {};
}

}  // namespace

Result<Prepared> prepare(const Session& s,
                         EncodedPrompt prompt,
                         const SamplingOptions& sampling,
                         bool special) {
  if (prompt.tokens.empty()) return Error{400, "the prompt is empty"};
  Result<Request> r = request_from(sampling, s.tokenizer(), s.model().shape().vocab);
  if (!r) return r.error();
  Prepared p{std::move(prompt.tokens), std::move(*r), {}, {}};
  // A prompt of control tokens only (BOS): the output begins the text.
  bool begins = std::all_of(p.prompt.begin(), p.prompt.end(),
                            [&](Token t) { return s.tokenizer()->is_control(t); });
  p.text.strip_leading_space = begins && s.tokenizer()->adds_space() && !sampling.constraint;
  p.text.skip_special = !special;
  p.request.prompt = std::make_shared<const std::vector<Token>>(p.prompt);
  if (sampling.constraint) {
    if (auto ok = think_first(s, prompt.end, p); !ok) return ok.error();
  }
  if (auto ok = Scheduler::check(p.request, s.options().scheduler); !ok) return ok.error();
  return p;
}

}  // namespace sluice

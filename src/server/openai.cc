#include "server/openai.h"

#include <charconv>
#include <cmath>
#include <utility>

#include "base/failure.h"
#include "base/str.h"
#include "server/constraint_fields.h"
#include "server/fields.h"
#include "server/thinking_fields.h"
#include "server/tool_fields.h"

namespace sluice {

namespace {

const char* anthropic_error(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

}  // namespace

std::string error_json(const ApiError& e, ErrorStyle style, std::string_view request_id) {
  if (style == ErrorStyle::grpc) return e.message;
  if (style == ErrorStyle::ollama) return json::serialize(json::object{{"error", e.message}});
  if (style == ErrorStyle::anthropic) {
    // The object has no place for the field's name.
    bool named = e.param.empty() || e.message.find(e.param) != std::string::npos;
    std::string message = named ? e.message : e.param + ": " + e.message;
    return json::serialize(json::object{
        {"type", "error"},
        {"error", json::object{{"type", anthropic_error(e.status)}, {"message", message}}},
        {"request_id", request_id.empty() ? json::value(nullptr) : json::value(request_id)}});
  }
  const char* type = "invalid_request_error";
  if (e.status == 401) type = "authentication_error";
  if (e.status == 404) type = "not_found_error";
  if (e.status == 429) type = "rate_limit_error";
  if (e.status >= 500) type = "server_error";
  json::object o;
  o["message"] = e.message;
  o["type"] = type;
  o["param"] = e.param.empty() ? json::value(nullptr) : json::value(e.param);
  o["code"] = e.code.empty() ? json::value(nullptr) : json::value(e.code);
  return json::serialize(json::object{{"error", std::move(o)}});
}

ApiError current_api_error() {
  if (is_out_of_memory())
    return {503, "the server is out of memory: try again later", "", "out_of_memory"};
  return {500, "internal error", "", ""};
}

namespace {

void read_stops(Fields& f, const RequestLimits& limits, GenerateFields& out) {
  const json::value* stop = f.get("stop");
  if (!stop) return;
  auto add = [&](const json::value& v) {
    if (!v.is_string()) return f.fail("stop", "stop must be a string or a list of strings");
    size_t bytes = v.get_string().size();
    if (bytes == 0 || bytes > static_cast<size_t>(limits.stop_bytes))
      return f.fail("stop", strf("a stop string must have 1 to %d bytes", limits.stop_bytes));
    out.stop.emplace_back(v.get_string());
  };
  if (!stop->is_array()) return add(*stop);
  if (stop->get_array().size() > static_cast<size_t>(limits.stops))
    return f.fail("stop", strf("at most %d stop strings", limits.stops));
  for (const json::value& v : stop->get_array()) add(v);
}

void read_bad_words(Fields& f, const RequestLimits& limits, GenerateFields& out) {
  const json::value* list = f.get("bad_words");
  if (!list) return;
  if (!list->is_array() || list->get_array().size() > static_cast<size_t>(limits.bad_words))
    return f.fail("bad_words",
                  strf("bad_words must be a list of at most %d strings", limits.bad_words));
  for (const json::value& v : list->get_array()) {
    if (!v.is_string() || v.get_string().empty() ||
        v.get_string().size() > static_cast<size_t>(limits.stop_bytes))
      return f.fail("bad_words", strf("a bad word must have 1 to %d bytes", limits.stop_bytes));
    out.bad_words.emplace_back(v.get_string());
  }
}

// {"ID": BIAS}, or llama.cpp's [[ID, BIAS]] where false forbids the token.
void read_bias(Fields& f, const RequestLimits& limits, SamplingSpec& s) {
  const json::value* bias = f.get("logit_bias");
  if (!bias) return;
  const char* wrong = "logit_bias must map token ids to numbers from -100 to 100";
  auto add = [&](std::optional<Token> id, const json::value& v) {
    double x = v.is_double()                  ? v.get_double()
               : v.is_int64()                 ? static_cast<double>(v.get_int64())
               : v.is_bool() && !v.get_bool() ? -100
                                              : NAN;
    if (!id || *id < 0 || !(std::abs(x) <= 100)) return false;
    s.logit_bias.emplace_back(*id, static_cast<float>(x));
    return true;
  };
  const json::object* map = bias->if_object();
  const json::array* list = bias->if_array();
  bool good = (map || (list && !list->empty())) &&
              (map ? map->size() : list->size()) <= static_cast<size_t>(limits.biases);
  for (size_t i = 0; good && list && i < list->size(); ++i) {
    const json::array* pair = (*list)[i].if_array();
    good = pair && pair->size() == 2 && add(token_id((*pair)[0]), (*pair)[1]);
  }
  if (good && map) {
    for (const auto& pair : *map) {
      Token id = kNoToken;
      std::string_view key(pair.key().data(), pair.key().size());
      auto [end, ec] = std::from_chars(key.data(), key.data() + key.size(), id);
      good = good && ec == std::errc() && end == key.data() + key.size() &&
             !pair.value().is_bool() && add(id, pair.value());
    }
  }
  if (!good) f.fail("logit_bias", wrong);
}

void read_seed(Fields& f, GenerateFields& out) {
  const json::value* seed = f.get("seed");
  if (!seed || (seed->is_int64() && seed->get_int64() == -1)) return;  // -1 is llama.cpp's none
  out.has_seed = true;
  if (seed->is_int64()) {
    out.sampling.seed = static_cast<uint64_t>(seed->get_int64());
  } else if (seed->is_uint64()) {
    out.sampling.seed = seed->get_uint64();
  } else {
    f.fail("seed", "seed must be a whole number");
  }
}

void read_stream(Fields& f, GenerateFields& out) {
  f.flag("stream", out.stream);
  const json::value* options = f.get("stream_options");
  if (!options) return;
  if (!out.stream) return f.fail("stream_options", "stream_options needs \"stream\": true");
  if (!options->is_object()) return f.fail("stream_options", "stream_options must be an object");
  Fields o(*options);
  o.flag("include_usage", out.include_usage);
  o.flag("continuous_usage_stats", out.continuous_usage);
  out.continuous_usage = out.continuous_usage && out.include_usage;
  o.flag("resumable", out.resumable);
  if (o.failed()) f.fail("stream_options", o.error()->message);
}

void read_truncation(Fields& f, GenerateFields& out) {
  std::string side;
  if (f.text("truncation_side", side)) {
    out.truncate_left = side == "left";
    if (!out.truncate_left && side != "right")
      f.fail("truncation_side", "truncation_side must be left or right");
  }
  int keep = 0;
  if (!f.whole("truncate_prompt_tokens", keep, -1, INT32_MAX)) return;
  if (keep == 0) f.fail("truncate_prompt_tokens", "truncate_prompt_tokens must be -1 or above 0");
  out.truncate_prompt = keep;
}

void read_prompt_logprobs(Fields& f, const RequestLimits& limits, SamplingSpec& s) {
  if (!f.whole("prompt_logprobs", s.prompt_logprobs, -1, limits.logprobs)) return;
  if (s.prompt_logprobs == -1)
    f.fail("prompt_logprobs",
           strf("prompt_logprobs -1 asks for the whole vocabulary: at most %d are given",
                limits.logprobs));
}

void read_best_of(Fields& f, const RequestLimits& limits, GenerateFields& out) {
  int best_of = 0;
  if (!f.whole("best_of", best_of, 1, limits.n) || best_of == out.n) return;
  if (best_of < out.n) return f.fail("best_of", "best_of must be at least n");
  // Which choices are the best is known when all have ended.
  if (out.stream) return f.fail("best_of", "best_of above n does not go with stream");
  out.num_kept = std::exchange(out.n, best_of);
}

// vLLM's fields: the answers are the best of a search with n beams (best_of, where it is given).
void read_beams(Fields& f, GenerateFields& out) {
  bool search = false;
  f.flag("use_beam_search", search);
  BeamSpec spec;
  f.number("length_penalty", spec.length_penalty, -100, 100);
  const json::value* early = f.get("early_stopping");
  if (early) {
    bool never = early->is_string() && early->get_string() == "never";
    if (!early->is_bool() && !never)
      return f.fail("early_stopping", "early_stopping must be true, false or \"never\"");
    spec.end = never ? BeamEnd::never : early->get_bool() ? BeamEnd::first : BeamEnd::usual;
  }
  if (!search) {
    if (spec.length_penalty != BeamSpec{}.length_penalty)
      f.fail("length_penalty", "length_penalty needs \"use_beam_search\": true");
    if (spec.end != BeamSpec{}.end)
      f.fail("early_stopping", "early_stopping needs \"use_beam_search\": true");
    return;
  }
  out.beams = spec;
  // The model's own penalties belong to sampling.
  if (!f.get("repetition_penalty")) out.sampling.repetition_penalty = 1;
  if (!f.get("frequency_penalty")) out.sampling.frequency_penalty = 0;
  if (!f.get("presence_penalty")) out.sampling.presence_penalty = 0;
  auto refuse = [&](const char* name) {
    f.fail(name, strf("%s does not go with use_beam_search", name));
  };
  if (out.stream)
    return f.fail("stream",
                  "stream does not go with use_beam_search: answers are known at its end");
  if (out.constraint) return refuse(out.constraint->name.c_str());
  if (!out.stop.empty())
    return f.fail("stop", "stop does not go with use_beam_search: use stop_token_ids");
  if (!out.bad_words.empty()) return refuse("bad_words");
  if (const char* name = not_with_beams(out.sampling)) refuse(name);
}

// How tokens are drawn and when they end: what every generating endpoint has.
void read_sampling(Fields& f, const RequestLimits& limits, GenerateFields& out) {
  SamplingSpec& s = out.sampling;
  f.number("temperature", s.temperature, 0, 100);
  f.number("top_p", s.top_p, 0, 1, true);
  f.number("min_p", s.min_p, 0, 1);
  f.number("frequency_penalty", s.frequency_penalty, -2, 2);
  f.number("presence_penalty", s.presence_penalty, -2, 2);
  f.number("repetition_penalty", s.repetition_penalty, 0, 100, true);
  f.whole("top_k", s.top_k, -1, INT32_MAX);  // -1 is vLLM's way to say off
  s.top_k = std::max(s.top_k, 0);
  f.whole("min_tokens", s.min_tokens, 0, INT32_MAX);
  f.flag("ignore_eos", out.ignore_eos);
  f.ids("stop_token_ids", out.stop_token_ids, 256);
  read_seed(f, out);
  read_stops(f, limits, out);
}

// What a prefill's answer hands on through the router. A lease that is not named is no lease: the
// prompt is computed here.
void read_transfer(Fields& f, GenerateFields& out) {
  constexpr std::string_view kName = "kv_transfer_params";
  const json::value* v = f.get(kName);
  if (!v) return;
  if (!v->is_object()) return f.fail(kName, "kv_transfer_params must be an object");
  Fields t(*v);
  TransferFields::From from;
  std::string lease, name;
  bool receive = false, prefix = false;
  int port = 0;
  t.flag("do_remote_decode", out.transfer.send);
  t.flag("do_remote_prefill", receive);
  t.flag("do_remote_prefix", prefix);
  const bool named = t.text("remote_host", from.host) && t.whole("remote_port", port, 1, 65535);
  const bool leased = t.text("remote_request_id", lease);
  t.flag("remote_pending", from.pending);
  const bool send_named = t.text("lease", name);
  t.number("remote_prefix_share", from.share, 0, 1);
  if (t.failed()) return f.fail(kName, "kv_transfer_params: " + t.error()->message);
  if (out.transfer.send + receive + prefix > 1)
    return f.fail(kName,
                  "do_remote_decode, do_remote_prefill and do_remote_prefix do not go together");
  if (out.transfer.send && send_named) {
    Result<LeaseName> given = parse_lease(name);
    if (!given) return f.fail(kName, "lease: " + given.error().message);
    out.transfer.name = *given;
  }
  if (!named || !(prefix || (receive && leased))) return;
  if (receive) {
    Result<LeaseName> given = parse_lease(lease);
    if (!given) return f.fail(kName, "remote_request_id: " + given.error().message);
    from.lease = *given;
  }
  from.port = static_cast<uint16_t>(port);
  out.transfer.from = std::move(from);
}

// The fields that SGLang's router adds to a request which it sends to two servers at once.
void read_room(Fields& f, GenerateFields& out) {
  constexpr std::string_view kName = "bootstrap_room";
  TransferFields::Room room;
  int port = 0;
  const bool named = f.text("bootstrap_host", room.host);
  const bool has_port = f.whole("bootstrap_port", port, 1, 65535);
  const json::value* v = f.get(kName);
  if (!v) return;
  const bool counted = v->is_uint64() || (v->is_int64() && v->as_int64() >= 0);
  if (!counted) return f.fail(kName, "bootstrap_room must be a whole number from 0 on");
  if (out.transfer.any())
    return f.fail(kName, "bootstrap_room and kv_transfer_params do not go together");
  if (!named || !has_port)
    return f.fail(kName, "bootstrap_room goes with bootstrap_host and bootstrap_port");
  room.number = v->is_uint64() ? v->as_uint64() : static_cast<uint64_t>(v->as_int64());
  room.port = static_cast<uint16_t>(port);
  out.transfer.room = std::move(room);
}

void read_shared(Fields& f, const RequestLimits& limits, GenerateFields& out) {
  SamplingSpec& s = out.sampling;
  read_sampling(f, limits, out);
  bool sample = true;
  if (f.flag("do_sample", sample) && !sample) s.temperature = 0;
  f.text("model", out.model);
  f.number("timeout", out.timeout, 0, 86400);
  f.whole("n", out.n, 1, limits.n);
  f.whole("priority", out.priority, INT32_MIN, INT32_MAX);
  read_prompt_logprobs(f, limits, s);
  f.text("cache_salt", out.cache_salt);
  f.text("request_id", out.request_id, 128);
  read_transfer(f, out);
  read_room(f, out);
  f.flag("include_stop_str_in_output", out.include_stop);
  f.flag("skip_special_tokens", out.skip_special);
  f.flag("return_token_ids", out.return_token_ids);
  f.flag("return_tokens_as_token_ids", out.tokens_as_ids);
  f.ids("allowed_token_ids", s.allowed, size_t{1} << 20);
  f.ids("logprob_token_ids", s.logprob_ids, static_cast<size_t>(std::max(limits.logprobs, 0)));
  int max_tokens = 0;
  if (f.whole("max_tokens", max_tokens, 0, INT32_MAX)) out.max_tokens = max_tokens;
  if (f.whole("max_completion_tokens", max_tokens, 0, INT32_MAX)) out.max_tokens = max_tokens;
  read_truncation(f, out);
  read_bad_words(f, limits, out);
  read_bias(f, limits, s);
  read_stream(f, out);
  read_constraint(f, out);
  if (out.constraint) check_constrained(f, out, out.constraint->name);
  read_best_of(f, limits, out);
  read_beams(f, out);
}

// A list of text parts is their texts with a newline between, as vLLM and llama.cpp join them.
bool flatten_content(Fields& f, json::object& message, size_t at) {
  json::value& content = message["content"];
  if (content.is_string() || content.is_null()) return true;
  std::string param = strf("messages[%zu].content", at);
  if (!content.is_array()) {
    f.fail(param, "content must be a string or a list of parts");
    return false;
  }
  std::string text;
  const char* between = "";
  for (const json::value& part : content.get_array()) {
    const json::object* o = part.if_object();
    const json::value* type = o ? o->if_contains("type") : nullptr;
    const json::value* piece = o ? o->if_contains("text") : nullptr;
    if (!type || !type->is_string()) {
      f.fail(param, "a content part must be an object with a type");
      return false;
    }
    if (type->get_string() != "text" || !piece || !piece->is_string()) {
      f.fail(param, "only content parts of type text are supported", "unsupported_parameter");
      return false;
    }
    text += std::exchange(between, "\n");
    text += std::string_view(piece->get_string());
  }
  content = text;
  return true;
}

void read_messages(Fields& f, ChatFields& out) {
  const json::value* list = f.get("messages");
  if (!list || !list->is_array() || list->get_array().empty())
    return f.fail("messages", "messages must be a list of at least one message");
  for (size_t i = 0; i < list->get_array().size(); ++i) {
    const json::object* o = list->get_array()[i].if_object();
    const json::value* role = o ? o->if_contains("role") : nullptr;
    std::string param = strf("messages[%zu]", i);
    if (!role || !role->is_string())
      return f.fail(param, "a message must be an object with a role");
    std::string_view name = role->get_string();
    if (name.empty() || name.size() > 64)  // whether the template takes it is seen later
      return f.fail(param + ".role", "a role must have 1 to 64 bytes");
    json::object message = *o;
    if (name == "developer") message["role"] = "system";  // as the templates know it
    if (!flatten_content(f, message, i) || !read_turn(f, message, i)) return;
    if (message["content"].is_null()) {
      if (name != "assistant") return f.fail(param + ".content", "content is missing");
      message["content"] = "";
    }
    out.messages.push_back(std::move(message));
  }
}

void read_continue(Fields& f, ChatFields& out, bool prompted) {
  if (!f.flag("continue_final_message", out.continue_final) || !out.continue_final) return;
  const char* name = "continue_final_message";
  if (prompted && out.add_generation_prompt)
    return f.fail(name, "continue_final_message does not go with add_generation_prompt");
  out.add_generation_prompt = false;
  const json::object* last = out.messages.empty() ? nullptr : out.messages.back().if_object();
  if (!last || last->at("role") != "assistant" || last->at("content").get_string().empty())
    f.fail(name, "continue_final_message needs a last message of the assistant with content");
}

void read_chat(Fields& f, const RequestLimits& limits, ChatFields& out) {
  read_messages(f, out);
  read_shared(f, limits, out);
  bool prompted = f.flag("add_generation_prompt", out.add_generation_prompt);
  f.flag("add_special_tokens", out.add_special_tokens);
  read_continue(f, out, prompted);
  if (f.text("chat_template", out.chat_template, size_t{1} << 20) && !limits.request_template)
    f.fail("chat_template",
           "this server takes no template from a request (serve --allow-request-template)",
           "unsupported_parameter");
  read_tools(f, out);
  if (const json::value* v = f.get("documents")) out.documents = *v;
  if (const json::value* v = f.get("chat_template_kwargs")) {
    if (!v->is_object()) return f.fail("chat_template_kwargs", "must be an object");
    out.template_kwargs = v->get_object();
  }
  for (const char* name : {"reasoning_effort", "verbosity"}) {
    std::string value;
    if (f.text(name, value)) out.template_kwargs[name] = value;
  }
  read_thinking(f, out);
  int top = 0;
  f.flag("logprobs", out.logprobs);
  if (f.whole("top_logprobs", top, 0, limits.logprobs) && !out.logprobs && top > 0)
    f.fail("top_logprobs", "top_logprobs needs \"logprobs\": true");
  if (out.logprobs && out.beams) f.fail("logprobs", "logprobs does not go with use_beam_search");
  if (out.logprobs) out.sampling.num_logprobs = top;
  if (!out.sampling.logprob_ids.empty() && out.sampling.num_logprobs < 0)
    f.fail("logprob_token_ids", "logprob_token_ids needs \"logprobs\": true");
  if (out.max_tokens == 0) f.fail("max_tokens", "max_tokens must be at least 1");
}

void read_num_logprobs(Fields& f, const RequestLimits& limits, GenerateFields& out) {
  if (f.whole("logprobs", out.sampling.num_logprobs, 0, limits.logprobs) && out.beams)
    f.fail("logprobs", "logprobs does not go with use_beam_search");
  if (!out.sampling.logprob_ids.empty() && out.sampling.num_logprobs < 0)
    f.fail("logprob_token_ids", "logprob_token_ids needs logprobs");
}

// Text, a list of texts, token ids, or a list of such lists.
void read_prompts(Fields& f, const char* name, int most, std::vector<PromptField>& out) {
  const json::value* p = f.get(name);
  std::string wrong = strf(
      "%s must be a string, a list of strings, a list of token ids or a list of such lists", name);
  if (!p) return f.fail(name, strf("%s is missing", name));
  auto ids = [&](const json::array& list) -> bool {
    std::vector<Token> tokens;
    tokens.reserve(list.size());
    for (const json::value& v : list) {
      std::optional<Token> id = token_id(v);
      if (!id) return false;
      tokens.push_back(*id);
    }
    if (tokens.empty()) return false;
    out.emplace_back(std::move(tokens));
    return true;
  };
  if (p->is_string()) {
    out.emplace_back(std::string(p->get_string()));
    return;
  }
  if (!p->is_array() || p->get_array().empty()) return f.fail(name, wrong);
  const json::array& list = p->get_array();
  if (list[0].is_number()) {
    if (!ids(list)) f.fail(name, wrong);
    return;
  }
  if (list.size() > static_cast<size_t>(most))
    return f.fail(name, strf("at most %d entries of %s in one request", most, name));
  for (const json::value& v : list) {
    if (v.is_string()) {
      out.emplace_back(std::string(v.get_string()));
    } else if (!v.is_array() || !ids(v.get_array())) {
      return f.fail(name, wrong);
    }
  }
}

}  // namespace

Refusal parse_generate(const json::value& body, const RequestLimits& limits, GenerateFields& out) {
  Fields f(body, kText);
  if (f.failed()) return f.error();
  read_shared(f, limits, out);
  read_num_logprobs(f, limits, out);
  out.unknown = f.unknown();
  return f.error();
}

Refusal parse_chat(const json::value& body, const RequestLimits& limits, ChatFields& out) {
  Fields f(body, kChat);
  if (f.failed()) return f.error();
  read_chat(f, limits, out);
  out.unknown = f.unknown();
  return f.error();
}

Refusal parse_completion(const json::value& body,
                         const RequestLimits& limits,
                         CompletionFields& out) {
  Fields f(body, kText);
  if (f.failed()) return f.error();
  read_prompts(f, "prompt", limits.prompts, out.prompts);
  read_shared(f, limits, out);
  f.flag("echo", out.echo);
  f.text("suffix", out.suffix, SIZE_MAX);
  f.flag("add_special_tokens", out.add_special_tokens);
  read_num_logprobs(f, limits, out);
  if (!out.max_tokens) out.max_tokens = 16;
  if (*out.max_tokens == 0 && !out.echo)
    f.fail("max_tokens", "max_tokens must be at least 1, or echo must be true");
  out.unknown = f.unknown();
  return f.error();
}

Refusal parse_embedding(const json::value& body,
                        const RequestLimits& limits,
                        EmbeddingFields& out) {
  Fields f(body, kEmbedding);
  if (f.failed()) return f.error();
  read_prompts(f, "input", limits.inputs, out.inputs);
  f.text("model", out.model);
  int dimensions = 0;
  if (f.whole("dimensions", dimensions, 1, INT32_MAX)) out.dimensions = dimensions;
  std::string format, pooling;
  if (f.text("encoding_format", format)) {
    out.base64 = format == "base64";
    if (!out.base64 && format != "float")
      f.fail("encoding_format", "encoding_format must be float or base64");
  }
  if (f.text("pooling", pooling)) {
    std::optional<Pooling> named = value_named(kPoolings, pooling);
    if (!named) f.fail("pooling", "pooling must be last or mean");
    out.pooling = named.value_or(Pooling::last);
  }
  f.flag("normalize", out.normalize);
  f.flag("add_special_tokens", out.add_special_tokens);
  f.number("timeout", out.timeout, 0, 86400);
  f.whole("priority", out.priority, INT32_MIN, INT32_MAX);
  f.text("cache_salt", out.cache_salt);
  f.text("request_id", out.request_id, 128);
  read_truncation(f, out);
  out.unknown = f.unknown();
  return f.error();
}

Refusal parse_tgi(const json::value& body, const RequestLimits& limits, TgiFields& out) {
  Fields f(body, {}, Fields::lenient);
  if (f.failed()) return f.error();
  const json::value* in = f.get("inputs");
  if (in && in->is_string()) {
    out.inputs = std::string(in->get_string());
  } else if (in && in->is_array()) {
    std::vector<Token> ids;
    f.ids("inputs", ids, size_t{1} << 22);
    out.inputs = std::move(ids);
  } else {
    f.fail("inputs", "inputs must be a string or a list of token ids");
  }
  f.text("model", out.model);
  f.flag("stream", out.stream);
  const json::value* parameters = f.get("parameters");
  if (parameters && !parameters->is_object()) f.fail("parameters", "parameters must be an object");
  if (f.failed()) return f.error();
  const json::value none = json::object();
  Fields p(parameters ? *parameters : none, kGenerate, Fields::lenient);
  read_sampling(p, limits, out);
  read_tgi_constraint(p, out);
  if (out.constraint) check_constrained(p, out, out.constraint->name);
  bool sample = false;
  p.flag("do_sample", sample);
  if (!sample) out.sampling.temperature = 0;
  int max_new = 20;
  p.whole("max_new_tokens", max_new, 1, INT32_MAX);
  out.max_tokens = max_new;
  p.flag("return_full_text", out.return_full_text);
  p.flag("details", out.details);
  int keep = 0;
  if (p.whole("truncate", keep, 1, INT32_MAX)) out.truncate_prompt = keep;
  out.unknown = p.unknown();
  for (std::string& name : f.unknown()) out.unknown.push_back(std::move(name));
  return p.failed() ? p.error() : f.error();
}

Refusal parse_tokenize(const json::value& body, const RequestLimits& limits, TokenizeFields& out) {
  Fields f(body, kChat);
  if (f.failed()) return f.error();
  f.text("model", out.model);
  f.flag("add_special_tokens", out.add_special_tokens);
  f.flag("return_token_strs", out.token_strings);
  if (f.get("messages")) {
    out.chat.emplace();
    read_chat(f, limits, *out.chat);
  } else if (const json::value* p = f.get("prompt"); p && p->is_string()) {
    out.prompt = std::string(p->get_string());
  } else {
    f.fail("prompt", "prompt (a string) or messages is needed");
  }
  return f.error();
}

Refusal parse_detokenize(const json::value& body, DetokenizeFields& out) {
  Fields f(body);
  if (f.failed()) return f.error();
  f.text("model", out.model);
  if (!f.ids("tokens", out.tokens, size_t{1} << 22) && !f.failed())
    f.fail("tokens", "tokens is missing");
  return f.error();
}

}  // namespace sluice

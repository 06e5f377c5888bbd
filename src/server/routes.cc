#include "server/routes.h"

#include "base/str.h"
#include "load/embedded.h"
#include "server/logprobs.h"
#include "server/piece_writer.h"
#include "text/detokenizer.h"

namespace sluice {

std::span<const Route> routes() {
  static constexpr Route kRoutes[] = {
      {"POST", "/v1/chat/completions", false, serve_chat, Route::generates, Route::renderer},
      {"POST", "/v1/responses", false, serve_responses, Route::generates, Route::renderer},
      {"GET", "/v1/responses/", false, serve_response},
      {"DELETE", "/v1/responses/", false, serve_response_end},
      {"POST", "/v1/messages", false, serve_messages, Route::generates, Route::renderer,
       ErrorStyle::anthropic},
      {"POST", "/v1/messages/count_tokens", false, serve_count_tokens, Route::reads,
       Route::renderer, ErrorStyle::anthropic},
      {"POST", "/api/chat", false, serve_ollama_chat, Route::generates, Route::renderer,
       ErrorStyle::ollama},
      {"POST", "/api/generate", false, serve_ollama_generate, Route::generates, Route::renderer,
       ErrorStyle::ollama},
      {"POST", "/api/embed", false, serve_ollama_embed, Route::generates, Route::io,
       ErrorStyle::ollama},
      {"GET", "/api/tags", false, serve_ollama_tags, Route::reads, Route::io, ErrorStyle::ollama},
      {"POST", "/api/show", false, serve_ollama_show, Route::reads, Route::io, ErrorStyle::ollama},
      {"GET", "/api/version", false, serve_version, Route::reads, Route::io, ErrorStyle::ollama},
      {"POST", "/v1/completions", false, serve_completion, Route::generates},
      {"POST", "/v1/embeddings", false, serve_embeddings, Route::generates},
      {"POST", "/models/", false, serve_generate, Route::generates},
      {"POST", "/v1/files", false, serve_file_upload, Route::reads, Route::disk},
      {"GET", "/v1/files", false, serve_files, Route::reads, Route::disk},
      {"GET", "/v1/files/", false, serve_file, Route::reads, Route::disk},
      {"DELETE", "/v1/files/", false, serve_file_end, Route::reads, Route::disk},
      {"GET", "/v1/files/*/content", false, serve_file_content, Route::reads, Route::disk},
      {"POST", "/v1/batches", false, serve_batch_create, Route::reads, Route::disk},
      {"GET", "/v1/batches", false, serve_batches, Route::reads, Route::disk},
      {"GET", "/v1/batches/", false, serve_batch, Route::reads, Route::disk},
      {"POST", "/v1/batches/*/cancel", false, serve_batch_cancel, Route::reads, Route::disk},
      {"GET", "/v1/streams/", false, serve_stream},
      {"DELETE", "/v1/streams/", false, serve_stream_end},
      {"GET", "/v1/requests", false, serve_requests},
      {"GET", "/v1/requests/", false, serve_own_story},
      {"GET", "/v1/models", false, serve_models},
      {"GET", "/v1/models/", false, serve_model},
      {"POST", "/tokenize", false, serve_tokenize, Route::reads, Route::renderer},
      {"POST", "/detokenize", false, serve_detokenize},
      {"GET", "/tokenizer_info", false, serve_tokenizer_info},
      {"GET", "/version", false, serve_version},
      {"GET", "/metrics", false, serve_metrics},
      {"GET", "/load", false, serve_load},
      {"GET", "/get_load", false, serve_router_load},
      {"GET", "/server_info", false, serve_server_info},
      {"GET", "/get_server_info", false, serve_server_info},
      {"GET", "/model_info", false, serve_model_info},
      {"GET", "/get_model_info", false, serve_model_info},
      {"POST", "/flush_cache", false, serve_flush_cache},
      {"GET", "/openapi.json", true, serve_openapi},
      {"GET", "/health", true, serve_health},
      {"GET", "/ready", true, serve_ready},
      {"GET", "/dashboard/events", false, serve_watch},
      {"GET", "/dashboard/request/", false, serve_request_story},
      {"GET", "/dashboard/step/", false, serve_step_story},
      {"POST", "/v1/recording/keep", false, serve_keep_recording},
      {"GET", "/page/", true, serve_page_file},
      {"GET", "/", true, serve_root},
  };
  return kRoutes;
}

bool is_unserved(std::string_view path) {
  return path == "/v1/responses/compact" || path == "/v1/responses/input_tokens";
}

namespace {

json::object model_json(Service& s, const std::string& name) {
  return {{"id", name},
          {"object", "model"},
          {"created", s.started_at()},
          {"owned_by", "sluice"},
          {"root", s.options().model_names[0]},
          {"max_model_len", s.session().engine().config().max_len},
          {"default_sampling_params", sampling_json(s.sampling_defaults())}};
}

}  // namespace

void serve_models(Service& s, Call call) {
  if (Refusal r = s.check_ready()) return s.fail(call, *r);
  json::array list;
  for (const std::string& name : s.options().model_names) list.push_back(model_json(s, name));
  s.reply_json(call, json::object{{"object", "list"}, {"data", std::move(list)}});
}

void serve_model(Service& s, Call call) {
  if (Refusal r = s.check_ready()) return s.fail(call, *r);
  std::string name = call.http.path.substr(std::string_view("/v1/models/").size());
  if (Refusal r = s.check_model(name)) return s.fail(call, *r);
  s.reply_json(call, model_json(s, name.empty() ? s.options().model_names[0] : name));
}

namespace {

PieceWriter write_tokens(std::string& out,
                         const Tokenizer* tokenizer,
                         std::vector<Token> ids,
                         int max_len,
                         bool strings) {
  out += strf("{\"count\":%zu,\"max_model_len\":%d,\"tokens\":", ids.size(), max_len);
  co_await write_ids(out, ids);
  for (size_t i = 0; strings && i < ids.size(); ++i) {
    out += i == 0 ? ",\"token_strs\":[" : ",";
    std::string spelled(tokenizer->spelling(ids[i]));
    if (!valid_utf8(spelled)) spelled = token_text(tokenizer, ids[i]);
    out += json::serialize(json::string(spelled));
    co_await pause_if_full(out);
  }
  if (strings) out += ids.empty() ? ",\"token_strs\":[]" : "]";
  out += '}';
}

}  // namespace

void serve_tokenize(Service& s, Call call) {
  std::optional<json::value> body = s.body(call);
  if (!body) return;
  TokenizeFields fields;
  Refusal refused = parse_tokenize(*body, s.options().limits, fields);
  if (!refused) refused = s.check_model(fields.model);
  const Tokenizer* tokenizer = s.session().tokenizer();
  if (!refused && !tokenizer) refused = ApiError{400, "the model has no vocabulary", "", ""};
  if (refused) return s.fail(call, *refused);
  std::vector<Token> ids;
  if (fields.chat) {
    refused = s.encode_chat(*fields.chat, false, ids);
    if (refused) return s.fail(call, *refused);
  } else {
    Result<std::vector<Token>> encoded =
        tokenizer->encode(*fields.prompt, {.add_special = fields.add_special_tokens});
    if (!encoded)
      return s.fail(call, {encoded.error().code, encoded.error().message, "prompt", ""});
    ids = std::move(*encoded);
  }
  int max_len = s.session().engine().config().max_len;
  s.reply(call, {}, produce(nullptr, [&](std::string& out) {
            return write_tokens(out, tokenizer, std::move(ids), max_len, fields.token_strings);
          }));
}

void serve_detokenize(Service& s, Call call) {
  std::optional<json::value> body = s.body(call);
  if (!body) return;
  DetokenizeFields fields;
  Refusal refused = parse_detokenize(*body, fields);
  if (!refused) refused = s.check_model(fields.model);
  const Tokenizer* tokenizer = s.session().tokenizer();
  if (!refused && !tokenizer) refused = ApiError{400, "the model has no vocabulary", "", ""};
  for (Token t : fields.tokens) {
    if (!refused && !tokenizer->contains(t))
      refused = ApiError{400, strf("%d is not a token id", t), "tokens", ""};
  }
  if (refused) return s.fail(call, *refused);
  std::string text =
      detokenize(*tokenizer, fields.tokens,
                 {.skip_special = false, .strip_leading_space = tokenizer->adds_space()});
  s.reply_json(call, json::object{{"prompt", text}});
}

// What a tokenizer_config.json says, as far as it is known here: the shape of vLLM's answer.
void serve_tokenizer_info(Service& s, Call call) {
  if (Refusal r = s.check_ready()) return s.fail(call, *r);
  if (!s.options().tokenizer_info) {
    return s.fail(
        call, {404, "this server does not show its tokenizer (serve --allow-tokenizer-info)", "",
               "not_enabled"});
  }
  const Tokenizer* tokenizer = s.session().tokenizer();
  if (!tokenizer) return s.fail(call, {400, "the model has no vocabulary", "", ""});
  json::object o, added;
  Token unk = kNoToken;
  for (Token t = 0; t < tokenizer->size(); ++t) {
    TokenType type = tokenizer->type(t);
    if (type == TokenType::unknown && unk == kNoToken) unk = t;
    if (!tokenizer->is_control(t) && type != TokenType::user_defined) continue;
    added[std::to_string(t)] =
        json::object{{"content", tokenizer->bytes(t)}, {"special", tokenizer->is_control(t)}};
  }
  o["tokenizer_class"] = tokenizer->class_name();
  o["vocab_size"] = tokenizer->size();
  o["model_max_length"] = s.session().model().shape().max_len;
  o["add_bos_token"] = tokenizer->adds_bos();
  const std::pair<std::string, Token> named[] = {{"bos_token", tokenizer->bos()},
                                                 {"eos_token", tokenizer->eos()},
                                                 {"unk_token", unk},
                                                 {"pad_token", tokenizer->pad()}};
  for (const auto& [name, id] : named) {
    bool known = tokenizer->contains(id);
    o[name] = known ? json::value(tokenizer->spelling(id)) : json::value(nullptr);
    o[name + "_id"] = known ? json::value(id) : json::value(nullptr);
  }
  o["added_tokens_decoder"] = std::move(added);
  const ChatTemplate* chat = s.session().chat_template();
  o["chat_template"] = chat ? json::value(chat->source()) : json::value(nullptr);
  s.reply_json(call, o);
}

void serve_health(Service& s, Call call) {
  if (auto p = s.health().problem(s.clock().now()))
    return s.fail(call, {503, p->reason, "", p->code});
  double stalled = s.meters().stalled(s.clock().now());
  if (stalled > s.options().stall_seconds) {
    return s.fail(
        call, {503, strf("no step for %.0f s with requests to answer", stalled), "", "stalled"});
  }
  if (int failed = s.meters().failed_in_a_row(); failed >= s.options().failed_steps) {
    return s.fail(
        call,
        {503,
         strf("the last %d steps failed on the device: see the log, and start the server anew",
              failed),
         "", "device_failed"});
  }
  s.reply_json(call, json::object{{"status", "ok"}});
}

void serve_ready(Service& s, Call call) {
  if (Refusal r = s.check_ready()) return s.fail(call, *r);
  const SchedulerConfig& c = s.session().engine().config();
  json::object answer{{"status", "ready"}, {"kv_tokens", c.num_positions()}};
  if (const KvTransfer* t = s.options().transfer) {
    answer["kv_role"] = name_of(kKvRoles, t->role());
    if (const KvPort* p = t->port()) {
      answer["kv_lease_host"] = p->address(), answer["kv_lease_port"] = p->port();
      if (t->moves_prefixes()) answer["kv_host"] = p->address(), answer["kv_port"] = p->port();
    }
  }
  s.reply_json(call, answer);
}

void serve_version(Service& s, Call call) {
  s.reply_json(call, json::object{{"version", s.options().version}});
}

// As vLLM's: how many requests are being answered.
void serve_load(Service& s, Call call) {
  s.reply_json(call, json::object{{"server_load", s.meters().outstanding()}});
}

// What the ring holds is kept in a folder, soon.
void serve_keep_recording(Service& s, Call call) {
  if (Refusal r = s.check_ready()) return s.fail(call, *r);
  FlightRecorder* recorder = s.session().flight_recorder();
  if (!recorder)
    return s.fail(call, {404, "this server records nothing (serve --record)", "", "not_enabled"});
  Result<std::string> folder = recorder->keep("request");
  if (!folder) return s.fail(call, {folder.error().code, folder.error().message, "", ""});
  s.reply_json(call, json::object{{"object", "recording"}, {"folder", *folder}});
}

void serve_openapi(Service& s, Call call) {
  HttpResponse r;
  r.body = embedded_api()[0].text;
  s.reply(call, std::move(r));
}

void serve_metrics(Service& s, Call call) {
  HttpResponse r;
  r.content_type = "text/plain; version=0.0.4; charset=utf-8";
  r.body = s.expose_metrics();
  s.reply(call, std::move(r));
}

}  // namespace sluice

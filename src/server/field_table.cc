#include "server/field_table.h"

#include <array>
#include <bit>
#include <unordered_map>

namespace sluice {

namespace {

using enum FieldFate;
constexpr uint8_t kBoth = kChat | kText, kAny = kBoth | kGenerate, kAll = kBoth | kEmbedding;

constexpr std::string_view kNoTools = "use /v1/chat/completions";
constexpr std::string_view kPlainText = "the text is what the model wrote";
constexpr std::string_view kNoSampler = "use temperature, top_k, top_p and min_p";
constexpr std::string_view kBeams = "use use_beam_search and n in OpenAI's completions";
constexpr std::string_view kNoPenalty =
    "use repetition_penalty, frequency_penalty and presence_penalty";
constexpr std::string_view kNoAdapter = "this server has one model and no adapters";
constexpr std::string_view kTextOnly = "only text is supported";
constexpr std::string_view kNoDisagg = "prompts are not handed from server to server";
constexpr std::string_view kOneRank = "this server is one rank: 0";
constexpr std::string_view kOneAnswer = "use /v1/chat/completions: this endpoint gives one answer";
constexpr std::string_view kNoScores = "use /v1/chat/completions: there is no place for it here";
constexpr uint8_t kForeign = kMessages | kResponses | kOllama;
constexpr std::string_view kOff = "null|false|[]|{}|\"\"";

constexpr KnownField kFields[] = {
    // What to answer.
    {"model", kAll, honoured, ""},
    {"messages", kChat, honoured, "any role that the chat template takes"},
    {"messages", kEmbedding, refused, "use input", kOff},
    {"prompt", kText, honoured, "text, token ids, or a list of either"},
    {"input", kEmbedding, honoured, "text, token ids, or a list of either"},
    {"input_ids", kBoth, refused, "use prompt with token ids, in /v1/completions", kOff},
    {"suffix", kText, honoured, "of models with tokens for it (fill in the middle)"},
    {"echo", kText, honoured, ""},
    {"echo", kChat, refused, "use return_token_ids, or echo in /v1/completions", kOff},
    {"prompt_embeds", kBoth, refused, "use prompt", kOff},
    {"documents", kChat, honoured, "given to the chat template"},
    {"chat_template", kChat, honoured, "with serve --allow-request-template"},
    {"chat_template_kwargs", kChat, honoured, "given to the chat template"},
    {"reasoning_effort", kChat, honoured, "given to the chat template"},
    {"verbosity", kChat, honoured, "given to the chat template"},
    {"add_generation_prompt", kChat, honoured, ""},
    {"continue_final_message", kChat, honoured, ""},
    {"add_special_tokens", kAll, honoured, ""},
    {"truncate_prompt_tokens", kAll, honoured, "-1 keeps what fits"},
    {"truncation_side", kAll, honoured, "left or right, with truncate_prompt_tokens"},
    {"truncate", kGenerate, honoured, ""},
    // How long.
    {"max_tokens", kBoth, honoured, ""},
    {"max_completion_tokens", kBoth, honoured, "comes before max_tokens"},
    {"max_new_tokens", kBoth, alias, "max_tokens"},
    {"max_new_tokens", kGenerate, honoured, ""},
    {"n_predict", kBoth, alias, "max_tokens"},
    {"min_tokens", kAny, honoured, ""},
    {"min_new_tokens", kAny, alias, "min_tokens"},
    {"max_length", kAny, refused, "use max_tokens (max_new_tokens in /generate)", kOff},
    {"ignore_eos", kAny, honoured, ""},
    {"stop", kAny, honoured, "a string or a list of strings"},
    {"stop_token_ids", kAny, honoured, ""},
    {"stop_regex", kBoth, refused, "use stop or stop_token_ids", kOff},
    {"include_stop_str_in_output", kBoth, honoured, ""},
    {"no_stop_trim", kBoth, alias, "include_stop_str_in_output"},
    {"timeout", kAll, honoured, "seconds"},
    {"t_max_predict_ms", kBoth, refused, "use timeout, in seconds", "null|0|-1"},
    {"n_indent", kBoth, refused, "use stop", "null|0"},
    {"thinking_token_budget", kChat, honoured, "then the thinking is closed; -1 is no budget"},
    {"thinking_budget", kChat, alias, "thinking_token_budget"},
    {"thinking_budget_tokens", kChat, alias, "thinking_token_budget"},
    {"reasoning_budget", kChat, alias, "thinking_token_budget"},
    {"reasoning_budget_tokens", kChat, alias, "thinking_token_budget"},
    {"thinking", kChat, honoured, "type, budget_tokens and display, as in /v1/messages"},
    {"reasoning", kChat, honoured,
     "effort, max_tokens, enabled and exclude; summary changes nothing"},
    {"thinking_token_budget", kText, refused, "use /v1/chat/completions", kOff},
    {"repetition_detection", kBoth, refused, "use stop or repetition_penalty", kOff},
    // How tokens are drawn.
    {"temperature", kAny, honoured, ""},
    {"do_sample", kAny, honoured, "false is temperature 0"},
    {"top_p", kAny, honoured, ""},
    {"top_k", kAny, honoured, "0 and -1 are off"},
    {"topk_k", kGenerate, alias, "top_k"},
    {"min_p", kAny, honoured, ""},
    {"seed", kAny, honoured, "-1 is none"},
    {"sampling_seed", kBoth, alias, "seed"},
    {"frequency_penalty", kAny, honoured, ""},
    {"presence_penalty", kAny, honoured, ""},
    {"repetition_penalty", kAny, honoured, ""},
    {"repeat_penalty", kBoth, alias, "repetition_penalty"},
    {"repeat_last_n", kBoth, refused, "penalties are over prompt and output: use no window",
     "null|-1"},
    {"penalize_nl", kBoth, refused, "use logit_bias", "null|true"},
    {"logit_bias", kBoth, honoured, "a map, or llama.cpp's list of [id, bias]"},
    {"bad_words", kBoth, honoured, ""},
    {"allowed_token_ids", kBoth, honoured, ""},
    {"typical_p", kAny, refused, kNoSampler, "null|1"},
    {"typical", kAny, refused, kNoSampler, "null|1"},
    {"tfs_z", kBoth, refused, kNoSampler, "null|1"},
    {"top_a", kBoth, refused, kNoSampler, "null|0"},
    {"top_n_sigma", kBoth, refused, kNoSampler, "null|0|-1"},
    {"mirostat", kBoth, refused, kNoSampler, "null|0|false"},
    {"mirostat_mode", kBoth, refused, kNoSampler, "null|0"},
    {"mirostat_tau", kBoth, harmless, "belongs to mirostat"},
    {"mirostat_eta", kBoth, harmless, "belongs to mirostat"},
    {"dynatemp_range", kBoth, refused, "use temperature", "null|0"},
    {"dynatemp_exponent", kBoth, harmless, "belongs to dynatemp_range"},
    {"xtc_probability", kBoth, refused, kNoSampler, "null|0"},
    {"xtc_threshold", kBoth, harmless, "belongs to xtc_probability"},
    {"dry_multiplier", kBoth, refused, kNoPenalty, "null|0"},
    {"dry_base", kBoth, harmless, "belongs to dry_multiplier"},
    {"dry_allowed_length", kBoth, harmless, "belongs to dry_multiplier"},
    {"dry_penalty_last_n", kBoth, harmless, "belongs to dry_multiplier"},
    {"dry_sequence_breakers", kBoth, harmless, "belongs to dry_multiplier"},
    {"adaptive_target", kBoth, refused, kNoSampler, "null|-1"},
    {"min_keep", kBoth, refused, kNoSampler, "null|0|1"},
    {"samplers", kBoth, refused, "their order is fixed: min_p, top_k, top_p", kOff},
    {"watermark", kGenerate, refused, "answers are not marked", kOff},
    {"logits_processors", kBoth, refused, "use logit_bias, bad_words or allowed_token_ids", kOff},
    {"custom_logit_processor", kBoth, refused, "use logit_bias, bad_words or allowed_token_ids",
     kOff},
    {"custom_params", kBoth, refused, "use logit_bias, bad_words or allowed_token_ids", kOff},
    {"vllm_xargs", kBoth, refused, "use logit_bias, bad_words or allowed_token_ids", kOff},
    // Constraints and tools.
    {"response_format", kBoth, honoured,
     "text, json_object, json_schema, structural_tag or grammar: docs/constraints.md"},
    {"structured_outputs", kBoth, honoured,
     "json, regex, choice, grammar, json_object or structural_tag"},
    {"structural_tag", kBoth, honoured, "structures and triggers, or format"},
    {"guided_json", kBoth, honoured, "a JSON schema or its text"},
    {"guided_regex", kBoth, honoured, ""},
    {"guided_choice", kBoth, honoured, "a list of strings"},
    {"guided_grammar", kBoth, honoured, "GBNF or Lark"},
    {"guided_json_object", kBoth, honoured, "true"},
    {"guided_decoding_backend", kBoth, harmless, "there is one"},
    {"guided_whitespace_pattern", kBoth, refused, "use structured_outputs.disable_any_whitespace",
     kOff},
    {"grammar", kBoth, honoured, "GBNF or Lark"},
    {"grammar", kGenerate, honoured, "type (json, json_schema or regex) and value"},
    {"grammar_lazy", kBoth, refused, "use structural_tag", kOff},
    {"grammar_triggers", kBoth, refused, "use structural_tag", kOff},
    {"json_schema", kBoth, honoured, "a JSON schema or its text"},
    {"regex", kBoth, honoured, ""},
    {"ebnf", kBoth, honoured, "GBNF"},
    {"tools", kChat, honoured, "functions; needs a chat template that knows tools"},
    {"tools", kText | kGenerate, refused, kNoTools, kOff},
    {"tool_choice", kChat, honoured, "auto, none, required or a tool"},
    {"tool_choice", kText, refused, kNoTools, "null|\"none\"|\"auto\""},
    {"parallel_tool_calls", kChat, honoured, "false: the first call only"},
    {"parallel_tool_calls", kText, harmless, "there are no tool calls"},
    {"parse_tool_calls", kChat, refused, "use tool_choice", "null|true"},
    {"parse_tool_calls", kText, harmless, "there are no tool calls"},
    {"tool_prompt", kBoth, refused, "the chat template shows the tools", kOff},
    {"functions", kBoth, refused, "use tools in /v1/chat/completions", kOff},
    {"function_call", kBoth, refused, "use tool_choice in /v1/chat/completions",
     "null|\"none\"|\"auto\""},
    {"web_search_options", kBoth, refused, "this server searches nothing", kOff},
    {"moderation", kBoth, refused, "this server moderates nothing", kOff},
    {"audio", kBoth, refused, kTextOnly, kOff},
    {"modalities", kBoth, refused, kTextOnly, "null|[]|[\"text\"]"},
    {"image_data", kBoth, refused, kTextOnly, kOff},
    {"mm_processor_kwargs", kBoth, refused, kTextOnly, kOff},
    {"media_io_kwargs", kBoth, refused, kTextOnly, kOff},
    // How many, and in what order.
    {"n", kBoth, honoured, ""},
    {"best_of", kBoth, honoured, "the n likeliest of so many; above n not with stream"},
    {"best_of", kGenerate, refused, "use n in /v1/completions", "null|1"},
    {"use_beam_search", kBoth, honoured, "n beams (best_of of them, if given); not with stream"},
    {"length_penalty", kBoth, honoured, "with use_beam_search"},
    {"early_stopping", kBoth, honoured, "with use_beam_search: true, false or \"never\""},
    {"num_beams", kAny, refused, kBeams, "null|1"},
    {"beam_width", kBoth, refused, kBeams, "null|1"},
    {"priority", kAll, honoured, "lower runs first under --order priority"},
    // What the answer shows.
    {"stream", kBoth, honoured, ""},
    {"stream", kEmbedding, refused, "vectors come whole", kOff},
    {"stream_options", kBoth, honoured, "include_usage, continuous_usage_stats, resumable"},
    {"logprobs", kChat, honoured, "true or false"},
    {"logprobs", kText, honoured, "0 to 20"},
    {"top_logprobs", kChat, honoured, "0 to 20"},
    {"n_probs", kText, alias, "logprobs", "0"},
    {"n_probs", kChat, refused, "use logprobs and top_logprobs", "null|0"},
    {"post_sampling_probs", kBoth, refused, "log-probabilities are of the raw logits", kOff},
    {"prompt_logprobs", kBoth, honoured, "0 to 20, not with stream"},
    {"logprob_token_ids", kBoth, honoured,
     "with logprobs, instead of the most likely; not on a GPU"},
    {"return_token_ids", kBoth, honoured, ""},
    {"return_tokens", kBoth, alias, "return_token_ids"},
    {"return_tokens_as_token_ids", kBoth, honoured, "tokens of logprobs as \"token_id:7\""},
    {"skip_special_tokens", kBoth, honoured, ""},
    {"spaces_between_special_tokens", kBoth, harmless, "there never are any"},
    {"return_full_text", kGenerate, honoured, ""},
    {"details", kGenerate, honoured, ""},
    {"decoder_input_details", kGenerate, refused, "use prompt_logprobs in /v1/completions", kOff},
    {"top_n_tokens", kGenerate, refused, "use logprobs in /v1/completions", "null|0"},
    {"return_hidden_states", kBoth, refused, "use /v1/embeddings", kOff},
    {"return_cached_tokens_details", kBoth, harmless, "usage always says how many"},
    {"return_routed_experts", kBoth, refused, "it is not recorded", kOff},
    {"response_fields", kBoth, refused, "answers come whole", kOff},
    {"timings_per_token", kBoth, harmless, "see stream_options.continuous_usage_stats"},
    {"return_progress", kBoth, harmless, "see the dashboard"},
    {"include_reasoning", kChat, honoured, "false leaves it out"},
    {"separate_reasoning", kChat, honoured, "false keeps it in the content"},
    {"reasoning_format", kChat, honoured, "auto, deepseek, or none: it stays in the content"},
    {"include_reasoning", kText, harmless, kPlainText},
    {"separate_reasoning", kText, harmless, kPlainText},
    {"reasoning_format", kText, harmless, kPlainText},
    {"stream_reasoning", kChat, harmless, "reasoning is streamed as it comes"},
    {"stream_reasoning", kText, harmless, kPlainText},
    // Vectors.
    {"dimensions", kEmbedding, honoured, "the model's own number"},
    {"encoding_format", kEmbedding, honoured, "float or base64"},
    {"pooling", kEmbedding, honoured, "last or mean"},
    {"normalize", kEmbedding, honoured, ""},
    {"embd_normalize", kEmbedding, refused, "use normalize", "null|2"},
    // Caches, names, bookkeeping.
    {"cache_salt", kAll, honoured, ""},
    {"extra_key", kAll, alias, "cache_salt"},
    {"request_id", kAll, honoured, ""},
    {"rid", kAll, alias, "request_id"},
    {"cache_prompt", kBoth, harmless, "prefixes are always cached"},
    {"prompt_cache_key", kBoth, harmless, "prefixes are found by content"},
    {"prompt_cache_retention", kBoth, harmless, "prefixes are found by content"},
    {"id_slot", kBoth, harmless, "the scheduler chooses"},
    {"n_keep", kBoth, harmless, "the context is never shifted"},
    {"n_discard", kBoth, harmless, "the context is never shifted"},
    {"prediction", kChat, harmless, "only for speed"},
    {"service_tier", kBoth, harmless, "there is one"},
    {"store", kBoth, harmless, "nothing is stored"},
    {"metadata", kBoth, harmless, "nothing is stored"},
    {"user", kAll, harmless, "clients are told apart by their keys"},
    {"safety_identifier", kBoth, harmless, "clients are told apart by their keys"},
    {"lora", kBoth, refused, kNoAdapter, kOff},
    {"lora_path", kBoth, refused, kNoAdapter, kOff},
    {"adapter_id", kGenerate, refused, kNoAdapter, kOff},
    {"session_params", kBoth, refused, "send the whole conversation", kOff},
    {"data_parallel_rank", kBoth, refused, kOneRank, "null|0|-1"},
    {"routed_dp_rank", kBoth, refused, kOneRank, "null|0|-1"},
    {"kv_transfer_params", kBoth, honoured, "with serve --role"},
    {"ec_transfer_params", kBoth, refused, kNoDisagg, kOff},
    {"bootstrap_host", kBoth, honoured, "with bootstrap_room"},
    {"bootstrap_port", kBoth, honoured, "with bootstrap_room: the prefill server's --kv-port"},
    {"bootstrap_room", kBoth, honoured, "with serve --role prefill or decode"},
    // Anthropic's own.
    {"messages", kMessages, honoured, "of user and assistant; content is text or blocks"},
    {"system", kMessages, honoured, "text or text blocks"},
    {"max_tokens", kMessages, honoured, "required, except by count_tokens"},
    {"max_completion_tokens", kMessages, refused, "use max_tokens", kOff},
    {"stop_sequences", kMessages, honoured, "a list of strings"},
    {"stop", kMessages, refused, "use stop_sequences", kOff},
    {"tools", kMessages, honoured, "those with an input_schema"},
    {"tool_choice", kMessages, honoured, "auto, any, tool or none; disable_parallel_tool_use"},
    {"parallel_tool_calls", kMessages, refused, "use tool_choice.disable_parallel_tool_use",
     "null|true"},
    {"thinking", kMessages, honoured, "given to the chat template; budget_tokens closes it"},
    {"output_config", kMessages, honoured, "format and effort"},
    {"output_format", kMessages, honoured, "the older name of output_config.format"},
    {"container", kMessages, refused, "there are no containers here", kOff},
    {"mcp_servers", kMessages, refused, "call the tools yourself", kOff},
    {"context_management", kMessages, refused, "send the conversation as it is to be read", kOff},
    {"cache_control", kMessages, harmless, "prefixes are found by content"},
    {"inference_geo", kMessages, harmless, "there is one place"},
    {"speed", kMessages, harmless, "there is one"},
    {"metadata", kMessages, harmless, "nothing is stored"},
    // Of OpenAI's responses.
    {"input", kResponses, honoured, "text or items"},
    {"messages", kResponses, refused, "use input", kOff},
    {"instructions", kResponses, honoured, "the system message of this answer alone"},
    {"previous_response_id", kResponses, honoured, "of a stored response"},
    {"store", kResponses, honoured, "true unless it says false"},
    {"max_output_tokens", kResponses, honoured, ""},
    {"max_tokens", kResponses, refused, "use max_output_tokens", kOff},
    {"max_completion_tokens", kResponses, refused, "use max_output_tokens", kOff},
    {"text", kResponses, honoured, "format and verbosity"},
    {"response_format", kResponses, refused, "use text.format", kOff},
    {"tools", kResponses, honoured, "of type function"},
    {"tool_choice", kResponses, honoured, "auto, none, required or a function"},
    {"reasoning", kResponses, honoured, "effort is given to the chat template"},
    {"reasoning_effort", kResponses, refused, "use reasoning.effort", kOff},
    {"truncation", kResponses, honoured, "disabled, or auto: the end of what does not fit"},
    {"metadata", kResponses, honoured, "repeated in the answer"},
    {"include", kResponses, honoured, "log-probabilities are refused"},
    {"stream_options", kResponses, honoured, "include_obfuscation changes nothing"},
    {"background", kResponses, refused, "stream the answer, or wait for it", kOff},
    {"conversation", kResponses, refused, "use previous_response_id", kOff},
    {"prompt", kResponses, refused, "use instructions and input", kOff},
    {"context_management", kResponses, refused, "send the conversation as it is to be read", kOff},
    {"moderation", kResponses, refused, "nothing is moderated here", kOff},
    {"max_tool_calls", kResponses, harmless, "it limits tools that a server runs"},
    // Ollama's.
    {"messages", kOllama, honoured,
     "with thinking and tool_name; an empty list checks that the model is loaded"},
    {"stream", kOllama, honoured, "true unless it says false"},
    {"options", kOllama, honoured, "what each does is said above"},
    {"format", kOllama, honoured, "json or a JSON schema"},
    {"think", kOllama, honoured, "given to the chat template"},
    {"keep_alive", kOllama, harmless, "the model stays"},
    {"truncate", kOllama, refused, "shorten the conversation", "null|false"},
    {"shift", kOllama, refused, "the context is never shifted", "null|false"},
    {"response_format", kOllama, refused, "use format", kOff},
    {"reasoning_effort", kOllama, refused, "use think", kOff},
    {"max_completion_tokens", kOllama, refused, "use options.num_predict", kOff},
    // What these leave to /v1/chat/completions.
    {"n", kForeign, refused, kOneAnswer, "null|1"},
    {"best_of", kForeign, refused, kOneAnswer, "null|1"},
    {"logprobs", kForeign, refused, kNoScores, "null|false|0"},
    {"top_logprobs", kForeign, refused, kNoScores, "null|0"},
    {"prompt_logprobs", kForeign, refused, kNoScores, kOff},
    {"return_token_ids", kForeign, refused, kNoScores, kOff},
    {"return_tokens", kForeign, refused, kNoScores, kOff},
    {"stream_options", kMessages | kOllama, refused, "usage is always sent", kOff},
    {"continue_final_message", kMessages, refused, "end with the message to be continued", kOff},
    {"continue_final_message", kResponses, refused, "use /v1/chat/completions", kOff},
    {"add_generation_prompt", kForeign, refused, "use /v1/chat/completions", "null|true"},
};

using Index = std::unordered_map<std::string_view, const KnownField*>;

using Indices = std::array<Index, kNumFieldPlaces>;

Indices make_index() {
  Indices by_place;
  for (const KnownField& f : kFields) {
    for (size_t p = 0; p < by_place.size(); ++p) {
      if (f.places >> p & 1) by_place[p].emplace(f.name, &f);
    }
  }
  return by_place;
}

}  // namespace

std::span<const KnownField> known_fields() { return kFields; }

const KnownField* find_field(std::string_view name, FieldPlace place) {
  static const Indices index = make_index();
  const auto p = static_cast<size_t>(std::countr_zero(static_cast<uint8_t>(place)));
  auto it = index[p].find(name);
  return it == index[p].end() ? nullptr : it->second;
}

const char* fate_name(FieldFate fate) {
  switch (fate) {
    case honoured:
      return "honoured";
    case alias:
      return "alias";
    case refused:
      return "refused";
    case harmless:
      return "harmless";
  }
  return "";
}

}  // namespace sluice

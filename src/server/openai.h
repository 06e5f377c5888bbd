// OpenAI's request bodies as checked structs. No sockets, no engine: JSON in, values or the error
// to answer with out. Pure functions, any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/json.h"
#include "base/named.h"
#include "base/token.h"
#include "constrain/constraint.h"
#include "constrain/think_marks.h"
#include "core/request.h"
#include "dist/kv_frame.h"
#include "dialect/tool_set.h"

namespace sluice {

struct ApiError {
  int status = 400;
  std::string message;
  std::string param;       // the field at fault, empty: none
  std::string code;        // machine-readable, empty: null
  double retry_after = 0;  // seconds, of 429; 0: as the queue is
};
// Whose error object a route answers with.
enum class ErrorStyle : uint8_t {
  openai,     // {"error": {message, type, param, code}}
  anthropic,  // {"type": "error", "error": {type, message}, "request_id"}
  ollama,     // {"error": message}
  grpc,       // the message, for a status
};
std::string error_json(const ApiError& error,
                       ErrorStyle style = ErrorStyle::openai,
                       std::string_view request_id = {});
// Inside a catch block: what a request that the exception ended is answered with.
ApiError current_api_error();

struct RequestLimits {
  int n = 16, logprobs = 20, stops = 16, stop_bytes = 256, prompts = 256, inputs = 2048,
      biases = 1024, bad_words = 128;
  bool request_template = false;  // may a request bring its own chat template?
};

// What an answer must be, and the field that says so.
struct ConstraintField {
  std::string name;
  constrain::ConstraintSource source;
};

// The most tokens of thinking, and the field that says so.
struct ThinkingBudget {
  std::string name;
  int tokens = 0;
};

// kv_transfer_params: prefill and decode on different servers, in vLLM's protocol.
struct TransferFields {
  bool send = false;              // do_remote_decode: another server goes on with this prompt
  std::optional<LeaseName> name;  // and asks for it by this name, maybe before it is computed
  struct From {
    std::string host;
    uint16_t port = 0;
    std::optional<LeaseName> lease;  // none: a prefix that the other server has cached
    double share = 1;                // of the prompt that this prefix is, at most
    bool pending = false;            // the other server has not computed it yet
  };
  // do_remote_prefill: another server has computed it; do_remote_prefix: or its first part.
  std::optional<From> from;
  // SGLang's router sends the same to both servers, whose role says who computes the prompt.
  struct Room {
    std::string host;
    uint16_t port = 0;
    uint64_t number = 0;
  };
  std::optional<Room> room;
  bool any() const { return send || from || room; }
};

// What chat and text completions share. Ids are checked against the vocabulary later.
struct GenerateFields {
  std::string model;  // empty: not given
  SamplingSpec sampling;
  bool has_seed = false;
  std::vector<std::string> stop;
  std::vector<Token> stop_token_ids;
  std::vector<std::string> bad_words;
  std::optional<int> max_tokens;
  std::optional<int> truncate_prompt;  // keep so many of the prompt's tokens; -1: what fits
  bool truncate_left = true;           // keep its end, not its beginning
  int n = 1;                           // choices that are computed
  int num_kept = 0;               // best_of: of those, the so many likeliest are answered; 0: all
  std::optional<BeamSpec> beams;  // use_beam_search: n of them
  int priority = 0;
  Pooling pooling = Pooling::none;
  std::string cache_salt, request_id;
  double timeout = 0;  // seconds; 0: none
  bool stream = false, include_usage = false;
  bool continuous_usage = false;  // only with include_usage
  bool resumable = false;         // the stream may be taken up again after a lost connection
  bool ignore_eos = false, include_stop = false, skip_special = true, return_token_ids = false;
  std::optional<ConstraintField> constraint;
  std::optional<ThinkingBudget> thinking_budget;
  // What is asked of the thinking before the answer, once the prompt is known; null: nothing.
  std::shared_ptr<const constrain::Thinking> thinking;
  bool tokens_as_ids = false;  // log-probabilities name tokens by their ids
  TransferFields transfer;
  std::vector<std::string> unknown;  // names of fields that were ignored
};

struct ToolFields {
  enum class Choice : uint8_t { automatic, none, required, named };
  std::shared_ptr<const dialect::ToolSet> set;  // null: no tools
  json::value list;                             // as they came, for the chat template
  Choice choice = Choice::automatic;
  std::string name;  // of the tool that must be called
  bool parallel = true;
  // May the answer call tools? If not, the template does not see them.
  bool active() const { return set && choice != Choice::none; }
  bool must_call() const { return choice == Choice::required || choice == Choice::named; }
  // Calls follow the tools' schemas.
  bool strict() const {
    return active() && std::ranges::any_of(set->all(), &dialect::Tool::strict);
  }
  // The field that constrains the answer, of those two.
  const char* constrained_by() const { return must_call() ? "tool_choice" : "tools"; }
};

struct ChatFields : GenerateFields {
  json::array messages;  // content is a string or null
  json::object template_kwargs;
  json::value documents;
  std::string chat_template;  // empty: the model's
  bool add_generation_prompt = true, add_special_tokens = true, logprobs = false;
  bool continue_final = false;  // the last message is the beginning of the answer
  ToolFields tools;
  bool include_reasoning = true;   // false: it is left out of the answer
  bool separate_reasoning = true;  // false: it stays in the content
};

using PromptField = std::variant<std::string, std::vector<Token>>;

struct CompletionFields : GenerateFields {
  std::vector<PromptField> prompts;
  std::string suffix;  // what follows the gap to fill; empty: none, as in other servers
  bool echo = false, add_special_tokens = true;
};

struct EmbeddingFields : GenerateFields {
  std::vector<PromptField> inputs;
  std::optional<int> dimensions;
  bool base64 = false, normalize = true, add_special_tokens = true;
};

// The body of /models/NAME/generate and /generate_stream: text or token ids in `inputs`.
struct TgiFields : GenerateFields {
  PromptField inputs;
  bool return_full_text = false, details = false;
};

struct TokenizeFields {
  std::string model;
  std::optional<std::string> prompt;
  std::optional<ChatFields> chat;
  bool add_special_tokens = true, token_strings = false;
};

struct DetokenizeFields {
  std::string model;
  std::vector<Token> tokens;
};

// What /v1/embeddings and --pooling call the ways to make one vector of a text.
inline constexpr NamedValue<Pooling> kPoolings[] = {{"last", Pooling::last},
                                                    {"mean", Pooling::mean}};

// Nothing when all is well.
using Refusal = std::optional<ApiError>;
// `out.sampling` holds the defaults before, and what the request says after.
Refusal parse_chat(const json::value& body, const RequestLimits& limits, ChatFields& out);
Refusal parse_completion(const json::value& body,
                         const RequestLimits& limits,
                         CompletionFields& out);
// What all requests for text have, without a prompt; `logprobs` as in completions.
Refusal parse_generate(const json::value& body, const RequestLimits& limits, GenerateFields& out);
// `out.pooling` is the server's before and the request's after.
Refusal parse_embedding(const json::value& body, const RequestLimits& limits, EmbeddingFields& out);
Refusal parse_tgi(const json::value& body, const RequestLimits& limits, TgiFields& out);
Refusal parse_tokenize(const json::value& body, const RequestLimits& limits, TokenizeFields& out);
Refusal parse_detokenize(const json::value& body, DetokenizeFields& out);

}  // namespace sluice

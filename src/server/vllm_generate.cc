// vllm.Inference.Generate and GenerateStream: a prompt, text or ids, answered by vLLM's messages.
#include <utility>

#include "base/protobuf.h"
#include "base/str.h"
#include "server/generation.h"
#include "server/grpc_frames.h"
#include "server/routes.h"
#include "server/vllm_control.h"
#include "server/vllm_request.h"

namespace sluice {

namespace {

enum VllmFinish : uint8_t { kFinishLength = 1, kFinishStop = 2, kFinishAborted = 3 };

struct VllmAnswerParts {
  bool prompt_ids = false, prompt_scores = false, text = true, ids = false, scores = false;
};

class VllmAnswer final : public Answer {
 public:
  explicit VllmAnswer(const VllmAnswerParts& parts) : parts_(parts) {}

  const char* id_prefix() const override { return "grpc-"; }
  bool scores_end() const override { return true; }
  bool own_events() const override { return true; }
  const char* stream_type() const override { return "application/grpc"; }
  std::string_view ping() const override { return {}; }  // gRPC has its own

  // The prompt's part in a message of its own, before the first output.
  void append_event(std::string& out, const Generation& g, Choice& c) override {
    if (!std::exchange(told_prompt_, true)) {
      message_.clear();
      append_prompt(g, c);
      append_grpc_message(out, message_);
    }
    message_.clear();
    append_output(g, c);
    append_grpc_message(out, message_);
  }

  void append_error(std::string& out, const Generation& g, const ApiError& error) override {
    if (error.code != "aborted") return append_grpc_status(out, error.status, error.message);
    for (int i = 0; i < g.fields().n; ++i) {
      std::string finish, output;
      ProtoWriter(finish).varint(2, kFinishAborted);
      ProtoWriter(output).varint(1, static_cast<uint64_t>(i));
      ProtoWriter(output).bytes(8, finish);
      message_.clear();
      ProtoWriter(message_).bytes(2, output);
      append_grpc_message(out, message_);
    }
  }

  std::optional<PieceWriter> body(std::string& out,
                                  const Generation& g,
                                  std::span<Choice> choices) override {
    return write_whole(out, g, choices);
  }

 private:
  // A message with the prompt's part and the first output, and one for each further.
  PieceWriter write_whole(std::string& out, const Generation& g, std::span<Choice> choices) {
    for (Choice& c : choices) {
      message_.clear();
      if (c.index == 0) append_prompt(g, c);
      append_output(g, c);
      append_grpc_message(out, message_);
      co_await pause_if_full(out);
    }
  }

  static std::vector<uint32_t> as_unsigned(std::span<const Token> tokens) {
    return {tokens.begin(), tokens.end()};
  }

  // logprobs, ranks and candidate_tokens, from field number `first` on. `unscored`: there is a
  // token without a score in front.
  static void append_scores(ProtoWriter& w,
                            uint32_t first,
                            std::span<const ScoredToken> scores,
                            bool unscored) {
    std::vector<float> logprobs(unscored ? 1 : 0);
    std::vector<uint32_t> ranks(unscored ? 1 : 0);
    for (const ScoredToken& s : scores) {
      logprobs.push_back(s.token.logprob);
      ranks.push_back(static_cast<uint32_t>(s.token.rank));
    }
    w.packed(first, logprobs);
    w.packed(first + 1, ranks);
    if (unscored) w.bytes(first + 2, {});
    for (const ScoredToken& s : scores) {
      std::string tokens;
      for (const TopLogprob& t : s.top) {
        std::string token;
        ProtoWriter p(token);
        p.varint(1, static_cast<uint32_t>(t.token));
        p.real(2, t.logprob);
        p.varint(3, static_cast<uint32_t>(t.rank));
        ProtoWriter(tokens).bytes(1, token);
      }
      w.bytes(first + 2, tokens);
    }
  }

  void append_prompt(const Generation& g, const Choice& c) {
    const PromptState& p = g.prompt(c);
    part_.clear();
    ProtoWriter w(part_);
    w.varint(1, p.tokens->size());
    if (parts_.prompt_ids) w.packed(2, as_unsigned(*p.tokens));
    if (parts_.prompt_scores) append_scores(w, 3, p.scores, true);
    ProtoWriter(message_).bytes(1, part_);
  }

  void append_output(const Generation& g, const Choice& c) {
    part_.clear();
    ProtoWriter w(part_);
    if (c.index > 0) w.varint(1, static_cast<uint64_t>(c.index));
    if (parts_.text && !c.text.empty()) w.bytes(2, c.text);
    w.varint(3, c.tokens.size());
    if (parts_.ids) w.packed(4, as_unsigned(c.tokens));
    if (parts_.scores) append_scores(w, 5, c.scores, false);
    if (c.finish != Finish::none) w.bytes(8, finish_info(g, c));
    ProtoWriter(message_).bytes(2, part_);
  }

  static std::string finish_info(const Generation& g, const Choice& c) {
    std::string out;
    ProtoWriter w(out);
    w.varint(1, static_cast<uint64_t>(c.num_output));
    w.varint(2, c.finish == Finish::stop ? kFinishStop : kFinishLength);
    if (c.finish == Finish::stop) {
      if (const json::string* text = c.stop_reason.if_string()) {
        w.bytes(5, *text);
      } else if (c.stop_reason.is_number()) {
        w.varint(3, c.stop_reason.to_number<uint64_t>());
      } else if (!c.tokens.empty()) {
        w.varint(4, static_cast<uint32_t>(c.tokens.back()));
      }
    }
    if (g.fields().transfer.send) {
      const Result<json::value> transfer = parse_json(g.transfer_params());
      if (transfer && transfer->is_object()) w.bytes(6, to_proto_struct(transfer->get_object()));
    }
    w.varint(9, static_cast<uint64_t>(g.prompt(c).num_cached));
    return out;
  }

  const VllmAnswerParts parts_;
  std::string message_, part_;  // of the message that is written, kept for their memory
  bool told_prompt_ = false;
};

}  // namespace

void serve_vllm_generate(Service& s, Call call) {
  VllmFields fields;
  fields.sampling = s.sampling_defaults();
  Refusal refused = parse_vllm_generate(call.http.body, call.http.header("x-data-parallel-rank"),
                                        s.options().limits, fields);
  if (!refused) refused = s.check_model(fields.model);
  const int vocab = s.session().model().shape().vocab;
  for (const std::vector<Token>& word : fields.sampling.bad_sequences) {
    for (Token t : word) {
      if (t >= vocab && !refused)
        refused = ApiError{400, strf("bad_words_token_ids holds an id that is not below %d", vocab),
                           "", ""};
    }
  }
  if (refused) return s.fail(call, *refused);
  std::vector<PromptField> inputs{std::move(fields.prompt)};
  std::vector<std::vector<Token>> prompts;
  refused = s.encode_prompts(inputs, "prompt", true, fields, prompts);
  if (refused) return s.fail(call, *refused);
  // A prompt for another server ends with its first token: there is nothing to stream.
  fields.stream = call.http.path.ends_with("Stream") && !fields.transfer.send;
  fields.return_token_ids = true;
  if (fields.request_id.empty()) fields.request_id = call.id;
  if (fields.bypass_cache) fields.cache_salt = s.new_id("bypass-");
  if (call.seconds_left > 0 && (fields.timeout <= 0 || call.seconds_left < fields.timeout))
    fields.timeout = call.seconds_left;
  const VllmAnswerParts parts{fields.prompt_ids, fields.prompt_scores, fields.text, fields.ids,
                              fields.scores};
  auto g = std::make_shared<Generation>(s, std::move(call), std::move(fields),
                                        std::make_unique<VllmAnswer>(parts));
  g->start(std::move(prompts));
}

}  // namespace sluice

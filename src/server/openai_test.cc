#include "server/openai.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <string>

#include "base/json.h"
#include "server/keys.h"
#include "server/write_json.h"

namespace sluice {
namespace {

template <typename T>
using Parse = Refusal (*)(const json::value&, const RequestLimits&, T&);

template <typename T>
Refusal parsed(Parse<T> parse, const std::string& text, T& out) {
  Result<json::value> v = parse_json(text);
  EXPECT_TRUE(v) << text;
  return parse(*v, {}, out);
}

// Fields in front of a good conversation.
Refusal chat(const std::string& fields, ChatFields& out) {
  return parsed(parse_chat, "{" + fields + R"("messages": [{"role": "user", "content": "hi"}]})",
                out);
}

TEST(Chat, DefaultsAreOpenAIs) {
  ChatFields f;
  ASSERT_FALSE(chat("", f));
  EXPECT_EQ(f.sampling.temperature, 1);
  EXPECT_EQ(f.sampling.top_p, 1);
  EXPECT_EQ(f.sampling.num_logprobs, -1);
  EXPECT_EQ(f.n, 1);
  EXPECT_FALSE(f.max_tokens);
  EXPECT_FALSE(f.stream);
  EXPECT_FALSE(f.has_seed);
  EXPECT_TRUE(f.skip_special);
  EXPECT_TRUE(f.unknown.empty());
}

TEST(Chat, NullIsAbsent) {
  ChatFields f;
  EXPECT_FALSE(chat(R"("temperature": null, "stop": null, "tools": null, "seed": null,)", f));
  EXPECT_EQ(f.sampling.temperature, 1);
}

TEST(Chat, ReadsEveryField) {
  ChatFields f;
  ASSERT_FALSE(chat(
      R"("model": "m", "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "n": 2,
         "max_tokens": 5, "max_completion_tokens": 7, "stop": ["a", "b"], "seed": -3,
         "logit_bias": {"12": -100, "7": 1.5}, "logprobs": true, "top_logprobs": 4,
         "stream": true, "stream_options": {"include_usage": true}, "priority": -2,
         "stop_token_ids": [1, 2], "ignore_eos": true, "min_tokens": 3, "cache_salt": "s",
         "repetition_penalty": 1.1, "reasoning_effort": "low", "what": 1,)",
      f));
  EXPECT_EQ(f.model, "m");
  EXPECT_FLOAT_EQ(f.sampling.temperature, 0.5f);
  EXPECT_EQ(f.sampling.top_k, 40);
  EXPECT_EQ(f.max_tokens, 7);
  EXPECT_EQ(f.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(f.sampling.seed, static_cast<uint64_t>(-3));
  EXPECT_EQ(f.sampling.logit_bias.size(), 2u);
  EXPECT_EQ(f.sampling.num_logprobs, 4);
  EXPECT_TRUE(f.include_usage);
  EXPECT_EQ(f.priority, -2);
  EXPECT_EQ(f.stop_token_ids, (std::vector<Token>{1, 2}));
  EXPECT_EQ(f.template_kwargs.at("reasoning_effort"), "low");
  EXPECT_EQ(f.unknown, std::vector<std::string>{"what"});
}

TEST(Chat, SaysWhichFieldIsWrong) {
  const std::pair<const char*, const char*> kBad[] = {
      {R"("temperature": -0.1,)", "temperature"},
      {R"("top_p": 0,)", "top_p"},
      {R"("n": 17,)", "n"},
      {R"("n": 1.5,)", "n"},
      {R"("n": 18446744073709551615,)", "n"},
      {R"("max_tokens": 0,)", "max_tokens"},
      {R"("max_tokens": "5",)", "max_tokens"},
      {R"("stop": ["", "x"],)", "stop"},
      {R"("stop": [1],)", "stop"},
      {R"("logit_bias": {"1x": 1},)", "logit_bias"},
      {R"("logit_bias": {"99999999999": 1},)", "logit_bias"},
      {R"("logit_bias": [],)", "logit_bias"},
      {R"("seed": 1.5,)", "seed"},
      {R"("stream_options": {},)", "stream_options"},
      {R"("stream": true, "stream_options": {"include_usage": 1},)", "stream_options"},
      {R"("top_logprobs": 1,)", "top_logprobs"},
      {R"("logprobs": true, "top_logprobs": 21,)", "top_logprobs"},
      {R"("tools": [{}],)", "tools"},
      {R"("tool_choice": "required",)", "tool_choice"},
      {R"("response_format": {"type": "json_schema"},)", "response_format"},
      {R"("response_format": 1,)", "response_format"},
      {R"("chat_template": "{{ x }}",)", "chat_template"},
      {R"("stop_token_ids": [-1],)", "stop_token_ids"},
      {R"("n": 3, "best_of": 2,)", "best_of"},
      {R"("best_of": 2, "stream": true,)", "best_of"},
      {R"("best_of": 17,)", "best_of"},
      {R"("modalities": ["audio"],)", "modalities"},
      {R"("use_beam_search": true, "stream": true,)", "stream"},
      {R"("use_beam_search": true, "stop": "x",)", "stop"},
      {R"("use_beam_search": true, "logprobs": true,)", "logprobs"},
      {R"("use_beam_search": true, "prompt_logprobs": 1,)", "prompt_logprobs"},
      {R"("use_beam_search": true, "frequency_penalty": 1,)", "frequency_penalty"},
      {R"("use_beam_search": true, "logit_bias": {"1": 1},)", "logit_bias"},
      {R"("use_beam_search": true, "regex": "a*",)", "regex"},
      {R"("use_beam_search": true, "early_stopping": "now",)", "early_stopping"},
      {R"("use_beam_search": true, "thinking_token_budget": 8,)", "thinking_token_budget"},
      {R"("use_beam_search": true, "thinking": {"type": "enabled", "budget_tokens": 8},)",
       "thinking.budget_tokens"},
      {R"("length_penalty": 2,)", "length_penalty"},
      {R"("early_stopping": true,)", "early_stopping"},
      {R"("early_stopping": "never",)", "early_stopping"},
  };
  for (const auto& [fields, param] : kBad) {
    ChatFields f;
    Refusal r = chat(fields, f);
    ASSERT_TRUE(r) << fields;
    EXPECT_EQ(r->status, 400);
    EXPECT_EQ(r->param, param) << fields << r->message;
  }
}

TEST(Chat, BeamSearch) {
  ChatFields f, none;
  f.sampling.repetition_penalty = 1.1f;  // the model's, which belongs to sampling
  ASSERT_FALSE(chat(R"("n": 2, "best_of": 4, "use_beam_search": true, "length_penalty": 0.5,
                       "early_stopping": "never", "temperature": 0.7,)",
                    f));
  EXPECT_EQ(f.n, 4);
  EXPECT_EQ(f.num_kept, 2);
  ASSERT_TRUE(f.beams);
  EXPECT_EQ(f.beams->length_penalty, 0.5f);
  EXPECT_EQ(f.beams->end, BeamEnd::never);
  EXPECT_EQ(f.sampling.repetition_penalty, 1);
  ASSERT_FALSE(
      chat(R"("use_beam_search": false, "length_penalty": 1, "early_stopping": false,)", none));
  EXPECT_FALSE(none.beams);
}

TEST(Chat, BestOf) {
  ChatFields f, same;
  ASSERT_FALSE(chat(R"("n": 2, "best_of": 5,)", f));
  EXPECT_EQ(f.n, 5);
  EXPECT_EQ(f.num_kept, 2);
  ASSERT_FALSE(chat(R"("n": 2, "best_of": 2, "stream": true,)", same));
  EXPECT_EQ(same.n, 2);
  EXPECT_EQ(same.num_kept, 0);
}

TEST(Chat, HarmlessFormsOfWhatIsNotSupported) {
  ChatFields f;
  EXPECT_FALSE(chat(R"("tools": [], "tool_choice": "none", "response_format": {"type": "text"},
                       "modalities": ["text"], "echo": false,)",
                    f));
  EXPECT_TRUE(f.unknown.empty());
}

TEST(Chat, Messages) {
  ChatFields f;
  ASSERT_FALSE(parsed(parse_chat, R"({"messages": [
      {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": null}]})",
                      f));
  EXPECT_EQ(f.messages[0].at("role"), "system");
  EXPECT_EQ(f.messages[0].at("content"), "a\nb");
  EXPECT_EQ(f.messages[1].at("content"), "");
  for (const char* bad :
       {R"({})", R"([])", R"({"messages": {}})", R"({"messages": [1]})",
        R"({"messages": [{"role": "user"}]})", R"({"messages": [{"role": 1, "content": "x"}]})",
        R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
        R"({"messages": [{"role": "user", "content": [1]}]})"}) {
    ChatFields g;
    EXPECT_TRUE(parsed(parse_chat, bad, g)) << bad;
  }
}

TEST(Chat, AnyRoleMayBeAsked) {
  ChatFields f;
  EXPECT_FALSE(parsed(parse_chat, R"({"messages": [{"role": "critic", "content": "x"}]})", f));
  EXPECT_EQ(f.messages[0].at("role"), "critic");
  for (const std::string& role : {std::string(), std::string(65, 'r')}) {
    ChatFields g;
    EXPECT_TRUE(
        parsed(parse_chat, R"({"messages": [{"role": ")" + role + R"(", "content": "x"}]})", g));
  }
}

TEST(Chat, UsageInEveryChunkNeedsUsage) {
  ChatFields f, g;
  ASSERT_FALSE(chat(R"("stream": true, "stream_options": {"continuous_usage_stats": true},)", f));
  EXPECT_FALSE(f.continuous_usage);
  ASSERT_FALSE(chat(R"("stream": true, "stream_options":
      {"include_usage": true, "continuous_usage_stats": true},)",
                    g));
  EXPECT_TRUE(g.continuous_usage);
}

TEST(Chat, WhatOtherServersCallIt) {
  ChatFields f;
  ASSERT_FALSE(chat(R"("seed": -1, "do_sample": false, "logit_bias": [[7, 1.5], [8, false]],
                       "truncate_prompt_tokens": 4, "truncation_side": "right",)",
                    f));
  EXPECT_FALSE(f.has_seed);
  EXPECT_EQ(f.sampling.temperature, 0);
  EXPECT_EQ(f.sampling.logit_bias, (std::vector<std::pair<Token, float>>{{7, 1.5f}, {8, -100.f}}));
  EXPECT_FALSE(f.truncate_left);
  for (const char* bad : {R"("logit_bias": [["word", 1]],)", R"("logit_bias": [[1]],)",
                          R"("logit_bias": {"1": false},)", R"("truncation_side": "up",)",
                          R"("prompt_logprobs": -1,)", R"("prompt_logprobs": -2,)"}) {
    ChatFields g;
    EXPECT_TRUE(chat(bad, g)) << bad;
  }
}

// As MindSpore's clients write them.
TEST(Generate, BooleansAndNumbersAsText) {
  TgiFields f;
  ASSERT_FALSE(parsed(parse_tgi, R"({"inputs": "x", "stream": "True", "parameters":
      {"do_sample": "True", "temperature": "0.5", "max_new_tokens": "55", "top_k": 3,
       "return_full_text": "false"}})",
                      f));
  EXPECT_TRUE(f.stream);
  EXPECT_FLOAT_EQ(f.sampling.temperature, 0.5f);
  EXPECT_EQ(f.max_tokens, 55);
  EXPECT_EQ(f.sampling.top_k, 3);
  EXPECT_FALSE(f.return_full_text);
  TgiFields greedy;
  ASSERT_FALSE(
      parsed(parse_tgi, R"({"inputs": "x", "parameters": {"do_sample": "False"}})", greedy));
  EXPECT_EQ(greedy.sampling.temperature, 0);
  for (const char* bad :
       {R"({"do_sample": "yes"})", R"({"do_sample": 1})", R"({"max_new_tokens": "six"})",
        R"({"max_new_tokens": "6 "})", R"({"temperature": "inf"})", R"({"temperature": ""})"}) {
    TgiFields g;
    EXPECT_TRUE(parsed(parse_tgi, R"({"inputs": "x", "parameters": )" + std::string(bad) + "}", g))
        << bad;
  }
}

TEST(Completion, PromptForms) {
  auto prompts = [](const char* prompt) {
    CompletionFields f;
    Refusal r = parsed(parse_completion, std::string(R"({"prompt": )") + prompt + "}", f);
    return r ? size_t{0} : f.prompts.size();
  };
  EXPECT_EQ(prompts(R"("x")"), 1u);
  EXPECT_EQ(prompts(R"(["x", "y"])"), 2u);
  EXPECT_EQ(prompts("[1, 2, 3]"), 1u);
  EXPECT_EQ(prompts("[[1], [2, 3]]"), 2u);
  for (const char* bad : {"[]", "[[]]", "[1, \"x\"]", "{}", "1", "[[1], [1.5]]", "[-1]", "[4e9]"})
    EXPECT_EQ(prompts(bad), 0u) << bad;
}

TEST(Completion, ZeroTokensOnlyWithEcho) {
  CompletionFields f;
  EXPECT_TRUE(parsed(parse_completion, R"({"prompt": "x", "max_tokens": 0})", f));
  CompletionFields g;
  EXPECT_FALSE(parsed(parse_completion, R"({"prompt": "x", "max_tokens": 0, "echo": true})", g));
  CompletionFields h;
  EXPECT_FALSE(parsed(parse_completion, R"({"prompt": "x"})", h));
  EXPECT_EQ(h.max_tokens, 16);
}

TEST(ApiError, HasTheObjectOfItsApi) {
  const ApiError e{404, "there is none", "model", "model_not_found"};
  EXPECT_EQ(error_json(e, ErrorStyle::ollama), R"({"error":"there is none"})");
  EXPECT_EQ(error_json(e, ErrorStyle::anthropic, "req-1"),
            R"({"type":"error","error":{"type":"not_found_error",)"
            R"("message":"model: there is none"},"request_id":"req-1"})");
  EXPECT_EQ(error_json({504, "too late", "", ""}, ErrorStyle::anthropic),
            R"({"type":"error","error":{"type":"timeout_error","message":"too late"},)"
            R"("request_id":null})");
}

TEST(Error, IsOpenAIsObject) {
  Result<json::value> v = parse_json(error_json({429, "a \"b\"\n", "", "queue_full"}));
  ASSERT_TRUE(v);
  const json::value& e = v->at("error");
  EXPECT_EQ(e.at("message"), "a \"b\"\n");
  EXPECT_EQ(e.at("type"), "rate_limit_error");
  EXPECT_TRUE(e.at("param").is_null());
  EXPECT_EQ(e.at("code"), "queue_full");
}

TEST(Error, OfAnException) {
  auto answer_to = [](auto thrown) {
    try {
      throw thrown;
    } catch (...) {
      return current_api_error();
    }
  };
  EXPECT_EQ(answer_to(std::bad_alloc()).status, 503);
  EXPECT_EQ(answer_to(std::bad_alloc()).code, "out_of_memory");
  EXPECT_EQ(answer_to(std::runtime_error("x")).status, 500);
}

TEST(WriteJson, ReadsBack) {
  std::string text = "\"\\ \n\t\r\x01 \x7f é 漢 \xF0\x9F\x98\x80", out;
  append_json(out, text);
  Result<json::value> v = parse_json(out);
  ASSERT_TRUE(v) << out;
  EXPECT_EQ(v->as_string(), text);
}

// The first vectors of the SipHash paper's reference: key 00..0f, message of n bytes 00, 01, ...
TEST(Keys, HashIsSipHash24) {
  std::array<uint64_t, 2> key{0x0706050403020100, 0x0f0e0d0c0b0a0908};
  std::string message;
  EXPECT_EQ(keyed_hash(key, message), 0x726fdb47dd0e0e31u);
  for (char c = 0; c < 15; ++c) message += c;
  EXPECT_EQ(keyed_hash(key, message), 0xa129ca6149be45e5u);
}

}  // namespace
}  // namespace sluice

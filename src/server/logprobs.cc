#include "server/logprobs.h"

#include <algorithm>

#include "base/str.h"
#include "text/detokenizer.h"

namespace sluice {

std::string token_text(const Tokenizer* tokenizer, Token token) {
  if (!tokenizer) return strf("<%d>", token);
  Detokenizer d(*tokenizer, {.skip_special = false});
  std::string text = d.push(token);
  return text + d.flush();
}

double finite_logprob(float logprob) { return std::max(logprob, -9999.0f); }

size_t num_characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

namespace {

json::object chat_entry(const Tokenizer* tokenizer, const TopLogprob& t) {
  json::array bytes;
  std::string text = token_text(tokenizer, t.token);
  for (char c : tokenizer ? tokenizer->bytes(t.token) : std::string_view(text))
    bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", text}, {"logprob", finite_logprob(t.logprob)}, {"bytes", std::move(bytes)}};
}

}  // namespace

json::object chat_logprobs(const Tokenizer* tokenizer, const std::vector<ScoredToken>& scores) {
  json::array content;
  for (const ScoredToken& s : scores) {
    json::object o = chat_entry(tokenizer, s.token);
    json::array top;
    for (const TopLogprob& t : s.top) top.push_back(chat_entry(tokenizer, t));
    o["top_logprobs"] = std::move(top);
    content.push_back(std::move(o));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

json::object text_logprobs(const Tokenizer* tokenizer,
                           Token first,
                           const std::vector<const ScoredToken*>& scores,
                           size_t& offset) {
  json::array tokens, logprobs, tops, offsets;
  auto add = [&](Token token, json::value logprob, json::value top) {
    std::string text = token_text(tokenizer, token);
    offsets.push_back(offset);
    offset += num_characters(text);
    tokens.push_back(json::value(text));
    logprobs.push_back(std::move(logprob));
    tops.push_back(std::move(top));
  };
  if (first != kNoToken) add(first, nullptr, nullptr);
  for (const ScoredToken* s : scores) {
    json::object top;
    for (const TopLogprob& t : s->top)
      top[token_text(tokenizer, t.token)] = finite_logprob(t.logprob);
    top[token_text(tokenizer, s->token.token)] = finite_logprob(s->token.logprob);
    add(s->token.token, finite_logprob(s->token.logprob), std::move(top));
  }
  json::object o;
  o["tokens"] = std::move(tokens);
  o["token_logprobs"] = std::move(logprobs);
  o["top_logprobs"] = std::move(tops);
  o["text_offset"] = std::move(offsets);
  return o;
}

json::array prompt_logprobs(const Tokenizer* tokenizer, const std::vector<ScoredToken>& scores) {
  json::array list{nullptr};
  auto add = [&](json::object& o, const TopLogprob& t) {
    o[std::to_string(t.token)] = json::object{{"logprob", finite_logprob(t.logprob)},
                                              {"rank", t.rank},
                                              {"decoded_token", token_text(tokenizer, t.token)}};
  };
  for (const ScoredToken& s : scores) {
    json::object o;
    add(o, s.token);
    for (const TopLogprob& t : s.top) add(o, t);
    list.push_back(std::move(o));
  }
  return list;
}

}  // namespace sluice

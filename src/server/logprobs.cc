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

std::string TokenNames::operator()(Token token) const {
  return as_ids ? strf("token_id:%d", token) : token_text(tokenizer, token);
}

double finite_logprob(float logprob) { return std::max(logprob, -9999.0f); }

size_t num_characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

namespace {

json::object chat_entry(const TokenNames& names, const TopLogprob& t) {
  json::array bytes;
  std::string name = names(t.token);
  for (char c : names.tokenizer ? names.tokenizer->bytes(t.token) : std::string_view(name))
    bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", name}, {"logprob", finite_logprob(t.logprob)}, {"bytes", std::move(bytes)}};
}

json::object text_top(const TokenNames& names, const ScoredToken& s) {
  json::object top;
  for (const TopLogprob& t : s.top) top[names(t.token)] = finite_logprob(t.logprob);
  top[names(s.token.token)] = finite_logprob(s.token.logprob);
  return top;
}

// The scored tokens of both spans, one after the other.
struct Scored {
  const TextScores& scores;
  size_t size() const { return scores.prompt.size() + scores.output.size(); }
  const ScoredToken& operator[](size_t i) const {
    size_t n = scores.prompt.size();
    return i < n ? scores.prompt[i] : scores.output[i - n];
  }
};

}  // namespace

PieceWriter chat_logprobs(std::string& out,
                          TokenNames names,
                          const std::vector<ScoredToken>& scores) {
  out += "{\"content\":[";
  for (size_t i = 0; i < scores.size(); ++i) {
    json::object o = chat_entry(names, scores[i].token);
    json::array top;
    for (const TopLogprob& t : scores[i].top) top.push_back(chat_entry(names, t));
    o["top_logprobs"] = std::move(top);
    if (i > 0) out += ',';
    out += plain_json(o);
    co_await pause_if_full(out);
  }
  out += "],\"refusal\":null}";
}

// Four columns, each a pass over the tokens.
PieceWriter text_logprobs(std::string& out, TokenNames names, TextScores scores, size_t& offset) {
  const Scored all{scores};
  const bool first = scores.first != kNoToken;
  out += "{\"tokens\":[";
  if (first) out += json::serialize(json::string(names(scores.first)));
  for (size_t i = 0; i < all.size(); ++i) {
    if (i > 0 || first) out += ',';
    out += json::serialize(json::string(names(all[i].token.token)));
    co_await pause_if_full(out);
  }
  out += "],\"token_logprobs\":[";
  if (first) out += "null";
  for (size_t i = 0; i < all.size(); ++i) {
    if (i > 0 || first) out += ',';
    out += plain_json(json::value(finite_logprob(all[i].token.logprob)));
    co_await pause_if_full(out);
  }
  out += "],\"top_logprobs\":[";
  if (first) out += "null";
  for (size_t i = 0; i < all.size(); ++i) {
    if (i > 0 || first) out += ',';
    out += plain_json(text_top(names, all[i]));
    co_await pause_if_full(out);
  }
  out += "],\"text_offset\":[";
  auto next_offset = [&](Token token) {
    out += std::to_string(offset);
    offset += num_characters(token_text(names.tokenizer, token));
  };
  if (first) next_offset(scores.first);
  for (size_t i = 0; i < all.size(); ++i) {
    if (i > 0 || first) out += ',';
    next_offset(all[i].token.token);
    co_await pause_if_full(out);
  }
  out += "]}";
}

PieceWriter prompt_logprobs(std::string& out,
                            const Tokenizer* tokenizer,
                            const std::vector<ScoredToken>& scores) {
  auto add = [&](json::object& o, const TopLogprob& t) {
    o[std::to_string(t.token)] = json::object{{"logprob", finite_logprob(t.logprob)},
                                              {"rank", t.rank},
                                              {"decoded_token", token_text(tokenizer, t.token)}};
  };
  out += "[null";
  for (const ScoredToken& s : scores) {
    json::object o;
    add(o, s.token);
    for (const TopLogprob& t : s.top) add(o, t);
    out += ',';
    out += plain_json(o);
    co_await pause_if_full(out);
  }
  out += ']';
}

}  // namespace sluice

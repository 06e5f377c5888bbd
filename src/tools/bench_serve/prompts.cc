#include "tools/bench_serve/prompts.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include "base/json.h"
#include "base/random.h"
#include "base/str.h"

namespace sluice {

namespace {

// Common enough to be one token each in most vocabularies, small ones too.
constexpr std::string_view kWords[] = {
    " the",  " a",    " to",   " and",  " was",   " in",   " it",    " of",   " he",   " she",
    " they", " with", " said", " day",  " up",    " her",  " his",   " that", " for",  " had",
    " on",   " you",  " but",  " not",  " play",  " big",  " saw",   " very", " were", " so",
    " time", " one",  " can",  " good", " house", " make", " water", " like", " new",  " work"};

std::string tokenize_body(const Target& t, std::string_view text, bool chat) {
  json::object o{{"model", t.model}};
  if (chat) {
    o["messages"] = json::array{json::object{{"role", "user"}, {"content", text}}};
  } else {
    o["prompt"] = text;
    o["content"] = text;  // llama-server's name for it
  }
  return json::serialize(o);
}

struct Tokens {
  int count = -1;  // -1: no answer
  std::vector<int64_t> ids;
};

Tokens count_tokens(const Target& t, std::string_view text, bool chat) {
  HttpReply r = t.post("/tokenize", tokenize_body(t, text, chat));
  if (r.failure != HttpFailure::none || r.status != 200) return {};
  Result<json::value> v = parse_json(r.body);
  const json::object* o = v ? v->if_object() : nullptr;
  const json::value* list = o ? o->if_contains("tokens") : nullptr;
  if (!list || !list->is_array()) return {};
  Tokens out;
  for (const json::value& id : list->as_array()) {
    if (!id.is_int64()) return {};
    out.ids.push_back(id.as_int64());
  }
  out.count = static_cast<int>(out.ids.size());
  return out;
}

int prompt_tokens_of(const Target& t, const std::string& text) {
  json::object o{{"model", t.model}, {"max_tokens", 1}, {"temperature", 0}};
  if (t.chat) {
    o["messages"] = json::array{json::object{{"role", "user"}, {"content", text}}};
  } else {
    o["prompt"] = text;
  }
  HttpReply r = t.post(t.chat ? "/v1/chat/completions" : "/v1/completions", json::serialize(o));
  if (r.failure != HttpFailure::none || r.status != 200) return -1;
  Result<json::value> v = parse_json(r.body);
  const json::object* root = v ? v->if_object() : nullptr;
  const json::value* usage = root ? root->if_contains("usage") : nullptr;
  const json::value* n =
      usage && usage->is_object() ? usage->as_object().if_contains("prompt_tokens") : nullptr;
  return n && n->is_int64() && n->as_int64() < 1'000'000 ? static_cast<int>(n->as_int64()) : -1;
}

std::string some_text(size_t words) {
  std::string text(Vocabulary::kFirst);
  for (size_t i = 0; i < words; ++i) text += kWords[i * 7 % std::size(kWords)];
  return text;
}

void append_json_string(std::string& out, std::string_view text) {
  out += json::serialize(json::string(text));
}

}  // namespace

HttpReply Target::post(std::string_view path, std::string_view body) const {
  return client.fetch(http_request_bytes(url, "POST", path, headers, body));
}

HttpReply Target::get(std::string_view path) const {
  return client.fetch(http_request_bytes(url, "GET", path, headers, {}));
}

Result<Vocabulary> Vocabulary::ask(const Target& target) {
  Vocabulary v;
  if (v.ask_tokenize(target) || v.ask_usage(target)) return v;
  for (std::string_view w : kWords) v.words_.push_back({w, 1});
  v.how_ = "estimated at 1.3 tokens per word: the server has neither /tokenize nor usage";
  return v;
}

void Vocabulary::take_any_ids() {
  constexpr int64_t kFirstId = 3, kNumIds = 253;  // behind the usual special tokens
  for (int64_t i = 0; i < kNumIds; ++i) ids_.push_back(kFirstId + i);
  overhead_ = 1;
}

bool Vocabulary::ask_tokenize(const Target& target) {
  Tokens first = count_tokens(target, kFirst, false);
  if (first.count < 1) return false;
  std::vector<Word> longer;
  for (std::string_view w : kWords) {
    Tokens t = count_tokens(target, std::string(kFirst) + std::string(w), false);
    if (t.count <= first.count) continue;
    Word word{w, t.count - first.count};
    if (word.tokens > 1) {
      longer.push_back(word);
      continue;
    }
    words_.push_back(word);
    ids_.push_back(t.ids.back());
  }
  // Without words of one token a length may be missed by a little; still nearer than a guess.
  if (words_.size() < 8) words_.insert(words_.end(), longer.begin(), longer.end());
  if (words_.empty()) return false;
  exact_ = words_.front().tokens == 1;
  overhead_ = first.count;
  how_ = "counted by the server's /tokenize";
  if (target.chat) {
    Tokens chat = count_tokens(target, kFirst, true);
    if (chat.count > 0) {
      overhead_ = chat.count;
    } else if (int n = prompt_tokens_of(target, std::string(kFirst)); n > 0) {
      overhead_ = n;
    } else {
      exact_ = false;
      how_ += ", without the chat template, which it does not count";
    }
  }
  // Words that merge with their neighbours would show here.
  std::string sample(kFirst);
  append_text(sample, 200, 1);
  int want = overhead_ + 200, got = count_tokens(target, sample, target.chat).count;
  if (got < 0) got = count_tokens(target, sample, false).count + overhead_ - first.count;
  if (got != want) {
    exact_ = false;
    how_ = strf("estimated: %d tokens of words made %d", want, got);
  }
  return true;
}

bool Vocabulary::ask_usage(const Target& target) {
  int one = prompt_tokens_of(target, some_text(0)), many = prompt_tokens_of(target, some_text(120));
  if (one < 1 || many <= one) return false;
  words_.clear();
  for (std::string_view w : kWords) words_.push_back({w, 1});
  overhead_ = one;
  tokens_per_word_ = (many - one) / 120.0;
  how_ =
      strf("estimated at %.2f tokens per word from the usage of a short answer", tokens_per_word_);
  return true;
}

void Vocabulary::append_text(std::string& out, int tokens, uint64_t key) const {
  bool counted = !ids_.empty();
  auto left = counted ? tokens : static_cast<int>(std::lround(tokens / tokens_per_word_));
  for (int64_t i = 0; left > 0; ++i) {
    const Word& w = words_[draw_u32({key, 13, i, 0}) % words_.size()];
    if (w.tokens > left && i % 64 != 63) continue;
    out += w.text;
    left -= w.tokens;
  }
}

void Vocabulary::append_ids(std::string& out, int tokens, uint64_t key) const {
  for (int64_t i = 0; i < tokens; ++i) {
    if (i > 0) out += ',';
    out += std::to_string(ids_[draw_u32({key, 14, i, 0}) % ids_.size()]);
  }
}

PromptText make_prompt(
    const Vocabulary& words, const PromptShape& shape, uint64_t key, bool chat, bool as_ids) {
  PromptText p;
  p.asked_tokens = shape.prefix + shape.tokens;
  // A piece of the prompt: so many tokens under a key of its own.
  std::string text;
  int first = as_ids ? 0 : words.overhead();
  auto add = [&](int tokens, uint64_t piece) {
    int own = std::max(tokens - first, 0);
    first = std::max(first - tokens, 0);
    if (own == 0) return;
    if (as_ids) {
      if (!text.empty()) text += ',';
      words.append_ids(text, own, piece);
    } else {
      words.append_text(text, own, piece);
    }
  };
  if (!as_ids) text = Vocabulary::kFirst;
  if (shape.prefix > 0) add(shape.prefix, draw_bits({shape.group, 15, 0, 0}));
  int left = shape.tokens;
  for (uint64_t block : shape.blocks) {
    int n = std::min(left, shape.block_tokens);
    if (n > 0) add(n, draw_bits({block, 16, 0, 0}));
    left -= n;
  }
  if (left > 0) add(left, key);
  if (as_ids) {
    p.field = "\"prompt\":[" + text + "]";
  } else if (chat) {
    p.field = "\"messages\":[{\"role\":\"user\",\"content\":\"" + text + "\"}]";
  } else {
    p.field = "\"prompt\":\"" + text + "\"";
  }
  return p;
}

namespace {

Result<PromptText> prompt_of_line(const std::string& line, bool chat) {
  Result<json::value> v = parse_json(line);
  if (!v) return v.error();
  const json::object* o = v->if_object();
  if (!o) return Error{400, "not a JSON object"};
  PromptText p;
  if (const json::value* n = o->if_contains("max_tokens")) {
    if (!n->is_int64() || n->as_int64() < 1 || n->as_int64() > 10'000'000)
      return Error{400, "max_tokens is not a whole number above 0"};
    p.max_tokens = static_cast<int>(n->as_int64());
  }
  const json::value *messages = o->if_contains("messages"), *prompt = o->if_contains("prompt"),
                    *turns = o->if_contains("turns");
  if (messages && messages->is_array()) {
    if (!chat) return Error{400, "messages need --endpoint chat"};
    p.field = "\"messages\":" + json::serialize(*messages);
    return p;
  }
  if (turns && turns->is_array() && !turns->as_array().empty()) prompt = &turns->as_array()[0];
  if (!prompt) return Error{400, "no messages, prompt or turns in it"};
  if (!chat && (prompt->is_string() || prompt->is_array())) {
    p.field = "\"prompt\":" + json::serialize(*prompt);
  } else if (chat && prompt->is_string()) {
    p.field = "\"messages\":[{\"role\":\"user\",\"content\":";
    append_json_string(p.field, prompt->as_string());
    p.field += "}]";
  } else {
    return Error{400, "its prompt is neither text nor, with --endpoint completions, token ids"};
  }
  return p;
}

}  // namespace

Result<std::vector<PromptText>> read_prompts(const std::string& path, bool chat) {
  std::ifstream in(path);
  if (!in) return Error{404, strf("cannot read %s", quote(path, 400).c_str())};
  std::vector<PromptText> out;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    if (line.empty() || line == "\r") continue;
    Result<PromptText> p = prompt_of_line(line, chat);
    if (!p)
      return Error{
          400, strf("%s line %d: %s", quote(path, 400).c_str(), number, p.error().message.c_str())};
    out.push_back(std::move(*p));
  }
  if (out.empty()) return Error{400, strf("%s holds no prompts", quote(path, 400).c_str())};
  return out;
}

}  // namespace sluice

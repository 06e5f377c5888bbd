// POST /v1/embeddings and /api/embed: the final hidden states of each input, pooled to one vector.
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>

#include "base/str.h"
#include "server/generation.h"
#include "server/ollama_fields.h"
#include "server/routes.h"
#include "server/write_json.h"

namespace sluice {

namespace {

std::vector<float> normalized(const std::vector<float>& v) {
  double sum = 0;
  for (float x : v) sum += double{x} * x;
  double factor = sum > 0 ? 1 / std::sqrt(sum) : 0;
  std::vector<float> out(v.size());
  for (size_t i = 0; i < v.size(); ++i) out[i] = static_cast<float>(v[i] * factor);
  return out;
}

// The shortest digits that give the same float again.
void append_floats(std::string& out, const std::vector<float>& v) {
  out += '[';
  for (size_t i = 0; i < v.size(); ++i) {
    if (i > 0) out += ',';
    if (!std::isfinite(v[i])) {  // weights that overflow; JSON has no such number
      out += "null";
      continue;
    }
    char digits[32];
    auto end = std::to_chars(digits, digits + sizeof digits, v[i]).ptr;
    out.append(digits, end);
  }
  out += ']';
}

// Of the floats' bytes, least significant first.
void append_base64(std::string& out, const std::vector<float>& v) {
  static_assert(std::endian::native == std::endian::little);
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<unsigned char> bytes(v.size() * sizeof(float));
  std::memcpy(bytes.data(), v.data(), bytes.size());
  out += '"';
  for (size_t i = 0; i < bytes.size(); i += 3) {
    size_t left = std::min<size_t>(bytes.size() - i, 3);
    uint32_t group = uint32_t{bytes[i]} << 16;
    if (left > 1) group |= uint32_t{bytes[i + 1]} << 8;
    if (left > 2) group |= bytes[i + 2];
    for (size_t k = 0; k < 4; ++k) out += k <= left ? kDigits[group >> (18 - 6 * k) & 63] : '=';
  }
  out += '"';
}

class EmbeddingAnswer final : public Answer {
 public:
  EmbeddingAnswer(bool base64, bool normalize) : base64_(base64), normalize_(normalize) {}

  const char* id_prefix() const override { return "embd-"; }

  std::optional<PieceWriter> body(std::string& out,
                                  const Generation& g,
                                  std::span<Choice> choices) override {
    return write_body(out, g, choices);
  }

 private:
  PieceWriter write_body(std::string& out, const Generation& g, std::span<Choice> choices) const {
    out += "{\"object\":\"list\",\"data\":[";
    size_t tokens = 0;
    for (const Choice& c : choices) {
      if (c.index > 0) out += ',';
      out += strf("{\"object\":\"embedding\",\"index\":%d,\"embedding\":", c.index);
      std::vector<float> v = normalize_ ? normalized(*c.pooled) : *c.pooled;
      base64_ ? append_base64(out, v) : append_floats(out, v);
      out += '}';
      tokens += g.prompt(c).tokens->size();
      co_await pause_if_full(out);
    }
    out += "],\"model\":";
    append_json(out, g.service().options().model_names[0]);
    out += strf(",\"usage\":{\"prompt_tokens\":%zu,\"total_tokens\":%zu}}", tokens, tokens);
  }

  bool base64_, normalize_;
};

// As Ollama has it.
class OllamaEmbeddingAnswer final : public Answer {
 public:
  const char* id_prefix() const override { return "embd-"; }
  std::optional<PieceWriter> body(std::string& out,
                                  const Generation& g,
                                  std::span<Choice> choices) override {
    return write_body(out, g, choices);
  }

 private:
  static PieceWriter write_body(std::string& out, const Generation& g, std::span<Choice> choices) {
    out += "{\"model\":";
    append_json(out, g.service().options().model_names[0]);
    out += ",\"embeddings\":[";
    size_t tokens = 0;
    Time total{0};
    for (const Choice& c : choices) {
      if (c.index > 0) out += ',';
      append_floats(out, normalized(*c.pooled));
      tokens += g.prompt(c).tokens->size();
      total = std::max(total, c.timing.finish - c.timing.arrival);
      co_await pause_if_full(out);
    }
    out += strf("],\"total_duration\":%lld,\"load_duration\":0,\"prompt_eval_count\":%zu}",
                static_cast<long long>(total.count()), tokens);
  }
};

void start_embedding(Service& s,
                     Call call,
                     EmbeddingFields fields,
                     std::unique_ptr<Answer> answer) {
  Refusal refused = s.check_model(fields.model);
  int hidden = s.session().model().shape().hidden;
  if (!refused && fields.dimensions && *fields.dimensions != hidden) {
    refused = ApiError{400, strf("the vectors of this model have %d dimensions", hidden),
                       "dimensions", "unsupported_parameter"};
  }
  if (refused) return s.fail(call, *refused);
  std::vector<std::vector<Token>> inputs;
  refused = s.encode_prompts(fields.inputs, "input", fields.add_special_tokens, fields, inputs);
  if (refused) return s.fail(call, *refused);
  std::make_shared<Generation>(s, std::move(call), std::move(fields), std::move(answer))
      ->start(std::move(inputs));
}

}  // namespace

void serve_ollama_embed(Service& s, Call call) {
  std::optional<json::value> body = s.body(call);
  if (!body) return;
  EmbeddingFields fields;
  fields.pooling = s.options().pooling;
  if (Refusal refused = parse_ollama_embed(*body, s.options().limits, fields))
    return s.fail(call, *refused);
  start_embedding(s, std::move(call), std::move(fields), std::make_unique<OllamaEmbeddingAnswer>());
}

void serve_embeddings(Service& s, Call call) {
  std::optional<json::value> body = s.body(call);
  if (!body) return;
  EmbeddingFields fields;
  fields.pooling = s.options().pooling;
  if (Refusal refused = parse_embedding(*body, s.options().limits, fields))
    return s.fail(call, *refused);
  auto answer = std::make_unique<EmbeddingAnswer>(fields.base64, fields.normalize);
  start_embedding(s, std::move(call), std::move(fields), std::move(answer));
}

}  // namespace sluice

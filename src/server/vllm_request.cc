#include "server/vllm_request.h"

#include <cmath>
#include <utility>

#include "base/protobuf.h"
#include "base/str.h"
#include "exec/sampler.h"

namespace sluice {

namespace {

constexpr int kStructDepth = 32;
constexpr size_t kMostUnknown = 32;                  // fields that are told of
constexpr double kWholeNumber = 9007199254740991.0;  // 2^53 - 1

// Collects a request as the JSON body that it would be over HTTP, so that one parser checks both.
class VllmReader {
 public:
  VllmReader(const RequestLimits& limits, VllmFields& out) : limits_(limits), out_(out) {}

  void read(std::string_view message);
  Refusal& refused() { return refused_; }
  json::object& body() { return body_; }
  bool has_prompt() const { return has_prompt_; }

 private:
  using Take = void (VllmReader::*)(const ProtoField&);
  // Every field of a message.
  void each(std::string_view message, const char* name, Take take) {
    const char* outer = std::exchange(message_, name);
    ProtoReader r(message);
    ProtoField f;
    while (!refused_ && r.next(f)) (this->*take)(f);
    if (!refused_ && !r.ok()) fail(strf("%s: these bytes are no such message", name));
    message_ = outer;
  }
  void nested(const ProtoField& f, const char* name, Take take) {
    if (is(f, ProtoType::bytes)) each(f.bytes, name, take);
  }
  void fail(std::string message) {
    if (!refused_) refused_ = ApiError{400, std::move(message), "", ""};
  }
  void unknown(const ProtoField& f) {
    if (out_.unknown.size() < kMostUnknown)
      out_.unknown.push_back(strf("%s %u", message_, unsigned{f.number}));
  }
  bool is(const ProtoField& f, ProtoType type) {
    if (f.type != type) fail(strf("%s: field %u has the wrong type", message_, unsigned{f.number}));
    return f.type == type;
  }
  std::string text(const ProtoField& f) {
    if (!is(f, ProtoType::bytes)) return {};
    if (!valid_utf8(f.bytes))
      fail(strf("%s: field %u is not valid UTF-8", message_, unsigned{f.number}));
    return std::string(f.bytes);
  }
  bool flag(const ProtoField& f) { return is(f, ProtoType::varint) && f.value != 0; }
  void set_flag(const char* name, const ProtoField& f) { body_[name] = flag(f); }
  void set_text(const char* name, const ProtoField& f) { body_[name] = text(f); }
  void set_float(const char* name, const ProtoField& f) {
    if (is(f, ProtoType::fixed32)) body_[name] = double{f.as_float()};
  }
  // Of fields where 0 says nothing.
  void set_nonzero(const char* name, const ProtoField& f) {
    if (f.type == ProtoType::fixed32 ? f.as_float() == 0 : f.value == 0) return;
    if (f.type == ProtoType::fixed32) return set_float(name, f);
    if (is(f, ProtoType::varint)) body_[name] = static_cast<uint32_t>(f.value);
  }
  // One id, or several packed.
  void add_ids(const ProtoField& f, json::array& ids) {
    auto add = [&](uint64_t id) {
      if (id > INT32_MAX) return fail(strf("%s: a token id is too large", message_));
      ids.emplace_back(static_cast<int64_t>(id));
    };
    if (f.type == ProtoType::varint) return add(f.value);
    if (!is(f, ProtoType::bytes)) return;
    ProtoReader r(f.bytes);
    uint64_t id = 0;
    while (!refused_ && r.next_varint(id)) add(id);
    if (!r.ok()) fail(strf("%s: these bytes are no list of token ids", message_));
  }
  void add_to(const char* name, const ProtoField& f) {
    json::value& list = body_[name];
    if (!list.is_array()) list.emplace_array();
    add_ids(f, list.get_array());
  }
  json::array ids_of(const ProtoField& f) {
    json::array ids;
    if (!is(f, ProtoType::bytes)) return ids;
    ProtoReader r(f.bytes);
    ProtoField inner;
    while (!refused_ && r.next(inner))
      if (inner.number == 1) add_ids(inner, ids);
    if (!r.ok()) fail(strf("%s: these bytes are no list of token ids", message_));
    return ids;
  }
  std::vector<Token> tokens_of(const ProtoField& f);

  void take_request(const ProtoField& f);
  void take_sampling(const ProtoField& f);
  void take_decoding(const ProtoField& f);
  void take_choice(const ProtoField& f);
  void take_bias(const ProtoField& f);
  void take_stopping(const ProtoField& f);
  void take_response(const ProtoField& f);
  void take_candidates(const ProtoField& f);
  void take_kv(const ProtoField& f);
  void take_gate(const ProtoField& f);
  void set_constraint(const char* name, json::value value) {
    body_["structured_outputs"] = json::object{{name, std::move(value)}};
  }
  void set_candidates(const char* top_name, const char* ids_name);
  json::object read_struct(std::string_view message, int depth);
  json::value read_value(std::string_view message, int depth);

  struct Candidates {
    uint32_t top = 0;
    json::array ids;
    bool all = false, given = false;
  };

  const RequestLimits& limits_;
  VllmFields& out_;
  const char* message_ = "GenerateRequest";
  json::object body_;
  json::array choices_;
  std::pair<uint32_t, float> bias_;
  Candidates candidates_, of_prompt_, of_output_;
  std::optional<bool> reasoning_ended_;
  bool has_prompt_ = false;
  Refusal refused_;
};

// A prompt may be long: no JSON between.
std::vector<Token> VllmReader::tokens_of(const ProtoField& f) {
  std::vector<Token> tokens;
  if (!is(f, ProtoType::bytes)) return tokens;
  ProtoReader r(f.bytes);
  ProtoField inner;
  auto add = [&](uint64_t id) {
    if (id > INT32_MAX) return fail(strf("%s: a token id is too large", message_));
    tokens.push_back(static_cast<Token>(id));
  };
  while (!refused_ && r.next(inner)) {
    if (inner.number != 1) continue;
    if (inner.type == ProtoType::varint) {
      add(inner.value);
    } else if (is(inner, ProtoType::bytes)) {
      ProtoReader ids(inner.bytes);
      uint64_t id = 0;
      while (!refused_ && ids.next_varint(id)) add(id);
      if (!ids.ok()) fail("TokenIds: these bytes are no list of token ids");
    }
  }
  if (!r.ok()) fail("TokenIds: these bytes are no such message");
  return tokens;
}

void VllmReader::take_request(const ProtoField& f) {
  switch (f.number) {
    case 1:
      return f.bytes.empty() ? void() : set_text("request_id", f);
    case 2:
      return f.bytes.empty() ? void() : set_text("model", f);
    case 3:
      out_.prompt = text(f);
      has_prompt_ = true;
      return;
    case 4:
      out_.prompt = tokens_of(f);
      has_prompt_ = true;
      return;
    case 5:
      return set_float("temperature", f);
    case 6:
      return nested(f, "RandomSampling", &VllmReader::take_sampling);
    case 7:
      return nested(f, "DecodingParameters", &VllmReader::take_decoding);
    case 8:
      return nested(f, "StoppingCriteria", &VllmReader::take_stopping);
    case 9:
      return nested(f, "ResponseOptions", &VllmReader::take_response);
    case 10:
      return nested(f, "KVCacheParameters", &VllmReader::take_kv);
    case 11:
      return set_nonzero("truncate_prompt_tokens", f);
    case 12:
      if (is(f, ProtoType::varint)) body_["priority"] = static_cast<int32_t>(f.value);
      return;
    case 13:  // session_id: which worker, not what it answers
    case 16:  // watermarking: there is none to apply
    case 17:  // kv_hints
      return;
    case 14:
      return fail("media is not supported: this server takes text");
    case 15:
      if (!f.bytes.empty()) fail("lora_name: this server has no LoRA adapters");
      return;
    case 18:
      return nested(f, "EngineReasoningGate", &VllmReader::take_gate);
    default:
      return unknown(f);
  }
}

void VllmReader::take_sampling(const ProtoField& f) {
  switch (f.number) {
    case 1:
      return set_nonzero("n", f);
    case 2:
      if (is(f, ProtoType::varint)) body_["top_k"] = static_cast<uint32_t>(f.value);
      return;
    case 3:
      return set_float("top_p", f);
    case 4:
      return set_float("min_p", f);
    case 5:
      if (is(f, ProtoType::varint)) body_["seed"] = static_cast<int64_t>(f.value);
      return;
    default:
      return unknown(f);
  }
}

void VllmReader::take_decoding(const ProtoField& f) {
  switch (f.number) {
    case 1:
      return set_nonzero("presence_penalty", f);
    case 2:
      return set_nonzero("frequency_penalty", f);
    case 3:
      return set_nonzero("repetition_penalty", f);
    case 4: {
      bias_ = {};
      nested(f, "DecodingParameters.logit_bias", &VllmReader::take_bias);
      json::value& map = body_["logit_bias"];
      if (!map.is_object()) map.emplace_object();
      map.get_object()[std::to_string(bias_.first)] = double{bias_.second};
      return;
    }
    case 5:
      return add_to("allowed_token_ids", f);
    case 6:
      return set_constraint("json", json::string(text(f)));
    case 7:
      return set_constraint("regex", json::string(text(f)));
    case 8:
      choices_.clear();
      nested(f, "StringChoices", &VllmReader::take_choice);
      return set_constraint("choice", choices_);
    case 9:
      return set_constraint("grammar", json::string(text(f)));
    case 10:
      if (flag(f))
        set_constraint("json_object", true);
      else
        body_.erase("structured_outputs");
      return;
    case 11:
      return set_constraint("structural_tag", json::string(text(f)));
    case 12: {
      std::vector<Token> word = tokens_of(f);
      if (word.empty() || word.size() > kMaxBadSequence)
        return fail(
            strf("a sequence of bad_words_token_ids must have 1 to %zu ids", kMaxBadSequence));
      out_.sampling.bad_sequences.push_back(std::move(word));
      if (out_.sampling.bad_sequences.size() > 2 * static_cast<size_t>(limits_.bad_words))
        fail(strf("at most %d bad_words_token_ids", 2 * limits_.bad_words));
      return;
    }
    default:
      return unknown(f);
  }
}

void VllmReader::take_choice(const ProtoField& f) {
  if (f.number == 1) choices_.emplace_back(text(f));
}

void VllmReader::take_bias(const ProtoField& f) {
  if (f.number == 1 && is(f, ProtoType::varint)) bias_.first = static_cast<uint32_t>(f.value);
  if (f.number == 2 && is(f, ProtoType::fixed32)) bias_.second = f.as_float();
}

void VllmReader::take_stopping(const ProtoField& f) {
  switch (f.number) {
    case 1:
      return set_nonzero("max_tokens", f);
    case 2:
      return set_nonzero("min_tokens", f);
    case 3:
      return add_to("stop_token_ids", f);
    case 4: {
      json::value& list = body_["stop"];
      if (!list.is_array()) list.emplace_array();
      list.get_array().emplace_back(text(f));
      return;
    }
    case 5:
      return set_flag("include_stop_str_in_output", f);
    case 6:
      return set_flag("ignore_eos", f);
    case 7:
      if (is(f, ProtoType::varint) && static_cast<int64_t>(f.value) != -1)
        fail("thinking_token_budget is not supported here: leave it out");
      return;
    default:
      return unknown(f);
  }
}

void VllmReader::take_response(const ProtoField& f) {
  switch (f.number) {
    case 1:
      out_.prompt_ids = flag(f);
      return;
    case 2:
      out_.prompt_scores = flag(f);
      return;
    case 3:
    case 7:
      candidates_ = {};
      candidates_.given = true;
      nested(f, "CandidateTokens", &VllmReader::take_candidates);
      (f.number == 3 ? of_prompt_ : of_output_) = candidates_;
      return;
    case 4:
      out_.text = flag(f);
      return;
    case 5:
      out_.ids = flag(f);
      return;
    case 6:
      out_.scores = flag(f);
      return;
    case 8:
      return set_flag("skip_special_tokens", f);
    default:
      return unknown(f);
  }
}

void VllmReader::take_candidates(const ProtoField& f) {
  Candidates& c = candidates_;
  switch (f.number) {
    case 1:
      c = {static_cast<uint32_t>(is(f, ProtoType::varint) ? f.value : 0), {}, false, true};
      return;
    case 2:
      c = {0, ids_of(f), false, true};
      return;
    case 3:
      c = {0, {}, flag(f), true};
      return;
    default:
      return unknown(f);
  }
}

void VllmReader::take_kv(const ProtoField& f) {
  switch (f.number) {
    case 1:
      out_.bypass_cache = flag(f);
      return;
    case 2:
      return f.bytes.empty() ? void() : set_text("cache_salt", f);
    case 3:
      if (is(f, ProtoType::bytes)) body_["kv_transfer_params"] = read_struct(f.bytes, 0);
      return;
    case 4:
      if (!f.bytes.empty()) fail("ec_transfer_params: this server has no encoder");
      return;
    default:
      return unknown(f);
  }
}

void VllmReader::take_gate(const ProtoField& f) {
  if (f.number == 1) reasoning_ended_ = flag(f);
}

json::object VllmReader::read_struct(std::string_view message, int depth) {
  json::object object;
  if (depth > kStructDepth) fail("a struct is nested too deeply");
  ProtoReader r(message);
  ProtoField f, part;
  while (!refused_ && r.next(f)) {
    if (f.number != 1 || !is(f, ProtoType::bytes)) continue;
    std::string key;
    json::value value;
    ProtoReader entry(f.bytes);
    while (!refused_ && entry.next(part)) {
      if (part.number == 1) key = text(part);
      if (part.number == 2 && is(part, ProtoType::bytes)) value = read_value(part.bytes, depth + 1);
    }
    if (!entry.ok()) fail("these bytes are no google.protobuf.Struct");
    object[key] = std::move(value);
  }
  if (!r.ok()) fail("these bytes are no google.protobuf.Struct");
  return object;
}

json::value VllmReader::read_value(std::string_view message, int depth) {
  json::value value;
  if (depth > kStructDepth) fail("a struct is nested too deeply");
  ProtoReader r(message);
  ProtoField f, part;
  while (!refused_ && r.next(f)) {
    if (f.number == 1) value = nullptr;
    if (f.number == 2 && is(f, ProtoType::fixed64)) {
      const double x = f.as_double();
      value = x == std::floor(x) && std::abs(x) <= kWholeNumber
                  ? json::value(static_cast<int64_t>(x))
                  : json::value(x);
    }
    if (f.number == 3) value = text(f);
    if (f.number == 4) value = flag(f);
    if (f.number == 5 && is(f, ProtoType::bytes)) value = read_struct(f.bytes, depth + 1);
    if (f.number == 6 && is(f, ProtoType::bytes)) {
      json::array list;
      ProtoReader items(f.bytes);
      while (!refused_ && items.next(part))
        if (part.number == 1 && is(part, ProtoType::bytes))
          list.push_back(read_value(part.bytes, depth + 1));
      if (!items.ok()) fail("these bytes are no google.protobuf.ListValue");
      value = std::move(list);
    }
  }
  if (!r.ok()) fail("these bytes are no google.protobuf.Value");
  return value;
}

// The scores that candidates ask for, as the fields of HTTP have them; -1 is all of them.
void VllmReader::set_candidates(const char* top_name, const char* ids_name) {
  const bool prompt = ids_name == nullptr;
  const Candidates& c = prompt ? of_prompt_ : of_output_;
  const char* name = prompt ? "prompt_candidates" : "output_candidates";
  if (!(prompt ? out_.prompt_scores : out_.scores)) {
    if (c.top > 0 || c.all || !c.ids.empty())
      fail(strf("%s needs %s", name, prompt ? "prompt_logprobs" : "output_logprobs"));
    return;
  }
  if (prompt && !c.ids.empty()) fail("prompt_candidates by token_ids is not supported");
  if (c.all || c.top > static_cast<uint32_t>(limits_.logprobs))
    return fail(strf("%s: at most %d are given", name, limits_.logprobs));
  body_[top_name] = c.top;
  if (!prompt && !c.ids.empty()) body_[ids_name] = c.ids;
}

void VllmReader::read(std::string_view message) {
  each(message, "GenerateRequest", &VllmReader::take_request);
  set_candidates("prompt_logprobs", nullptr);
  set_candidates("logprobs", "logprob_token_ids");
  if (reasoning_ended_ == false && body_.contains("structured_outputs"))
    fail("engine_reasoning_gate: a constraint holds from the first token here");
  if (!has_prompt_) fail("there is no prompt: give text or token_ids");
}

std::string value_bytes(const json::value& v) {
  std::string out;
  ProtoWriter w(out);
  if (v.is_null()) {
    w.varint(1, 0);
  } else if (v.is_bool()) {
    w.varint(4, v.get_bool());
  } else if (v.is_string()) {
    w.bytes(3, v.get_string());
  } else if (v.is_object()) {
    w.bytes(5, to_proto_struct(v.get_object()));
  } else if (const json::array* list = v.if_array()) {
    std::string items;
    for (const json::value& item : *list) ProtoWriter(items).bytes(1, value_bytes(item));
    w.bytes(6, items);
  } else {
    w.real64(2, v.to_number<double>());
  }
  return out;
}

}  // namespace

std::string to_proto_struct(const json::object& object) {
  std::string out;
  for (const auto& pair : object) {
    std::string entry;
    ProtoWriter w(entry);
    w.bytes(1, pair.key());
    w.bytes(2, value_bytes(pair.value()));
    ProtoWriter(out).bytes(1, entry);
  }
  return out;
}

Refusal parse_vllm_generate(std::string_view message,
                            std::string_view data_rank,
                            const RequestLimits& limits,
                            VllmFields& out) {
  if (!data_rank.empty() && data_rank != "0")
    return ApiError{400, "x-data-parallel-rank: this server has rank 0 only", "", ""};
  VllmReader reader(limits, out);
  reader.read(message);
  if (reader.refused()) return reader.refused();
  json::object& body = reader.body();
  // As vLLM: greedy unless the request says otherwise.
  if (!body.contains("temperature")) body["temperature"] = 0;
  std::vector<std::string> unknown = std::move(out.unknown);
  Refusal refused = parse_generate(body, limits, out);
  out.unknown.insert(out.unknown.end(), unknown.begin(), unknown.end());
  return refused;
}

}  // namespace sluice

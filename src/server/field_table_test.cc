#include "server/field_table.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "base/json.h"
#include "base/str.h"
#include "server/messages_fields.h"
#include "server/ollama_fields.h"
#include "server/openai.h"
#include "server/responses_fields.h"

namespace sluice {
namespace {

struct Outcome {
  Refusal refusal;
  std::vector<std::string> unknown;
};

// What the endpoint makes of a request that is good but for this field.
Outcome send(FieldPlace place, const std::string& name, const std::string& value) {
  std::string field = "\"" + name + "\": " + value;
  auto parsed = [](const std::string& text, const auto& parse, auto fields) {
    Result<json::value> body = parse_json(text);
    EXPECT_TRUE(body) << text;
    Outcome out;
    out.refusal = parse(*body, RequestLimits{}, fields);
    out.unknown = fields.unknown;
    return out;
  };
  auto body = [&](const std::string& rest) {
    bool same = rest.starts_with("\"" + name + "\"");
    return "{" + (same ? field : rest + ", " + field) + "}";
  };
  switch (place) {
    case kChat:
      return parsed(body(R"("messages": [{"role": "user", "content": "x"}])"), parse_chat,
                    ChatFields());
    case kText:
      return parsed(body(R"("prompt": "x")"), parse_completion, CompletionFields());
    case kEmbedding:
      return parsed(body(R"("input": "x")"), parse_embedding, EmbeddingFields());
    case kGenerate:
      return parsed(R"({"inputs": "x", "parameters": {)" + field + "}}", parse_tgi, TgiFields());
    case kMessages:
      return parsed(
          body(R"("messages": [{"role": "user", "content": "x"}])"),
          [](const json::value& v, const RequestLimits& limits, ChatFields& out) {
            return parse_messages(v, limits, true, out);
          },
          ChatFields());
    case kResponses:
      return parsed(
          body(R"("input": "x")"),
          [](const json::value& v, const RequestLimits& limits, ChatFields& out) {
            ResponsesFields fields;
            Refusal refused = parse_responses(v, limits, {}, fields);
            out = std::move(fields.chat);
            return refused;
          },
          ChatFields());
    case kOllama:
      return parsed(body(R"("messages": [{"role": "user", "content": "x"}])"), parse_ollama_chat,
                    ChatFields());
  }
  return {};
}

constexpr FieldPlace kPlaces[] = {kChat,     kText,      kEmbedding, kGenerate,
                                  kMessages, kResponses, kOllama};
static_assert(std::size(kPlaces) == kNumFieldPlaces);

// A value that no field takes: each that is read says so.
constexpr const char* kNoValue = R"([[{"no": 1e300}]])";

TEST(FieldTable, EveryFieldMeetsItsFate) {
  for (const KnownField& f : known_fields()) {
    for (FieldPlace place : kPlaces) {
      if (!(f.places & place)) continue;
      std::string name(f.name), note(f.note);
      SCOPED_TRACE(name + " at " + std::to_string(place));
      EXPECT_EQ(find_field(name, place), &f) << "two rows for one field";
      Outcome bad = send(place, name, kNoValue);
      EXPECT_TRUE(bad.unknown.empty()) << bad.unknown[0];
      bool any_value = name == "documents";  // given to the template as it is
      switch (f.fate) {
        case FieldFate::honoured:
          if (any_value) break;
          ASSERT_TRUE(bad.refusal);
          EXPECT_EQ(bad.refusal->status, 400);
          EXPECT_TRUE(bad.refusal->param.starts_with(name)) << bad.refusal->param;
          break;
        case FieldFate::alias: {
          ASSERT_TRUE(bad.refusal);
          EXPECT_EQ(bad.refusal->param, name);
          const KnownField* target = find_field(note, place);
          ASSERT_TRUE(target) << note;
          EXPECT_EQ(target->fate, FieldFate::honoured);
          break;
        }
        case FieldFate::refused:
          ASSERT_TRUE(bad.refusal);
          EXPECT_EQ(bad.refusal->status, 400);
          EXPECT_EQ(bad.refusal->param, name);
          EXPECT_EQ(bad.refusal->code, "unsupported_parameter");
          EXPECT_NE(bad.refusal->message.find(note), std::string::npos);
          EXPECT_FALSE(note.empty());
          break;
        case FieldFate::harmless:
          EXPECT_FALSE(bad.refusal) << bad.refusal->message;
          EXPECT_FALSE(note.empty());
          break;
      }
    }
  }
}

TEST(FieldTable, ValuesThatAskForNothingAreTaken) {
  for (const KnownField& f : known_fields()) {
    if (f.fate != FieldFate::refused) continue;
    std::istringstream values{std::string(f.off)};
    for (std::string value; std::getline(values, value, '|');) {
      for (FieldPlace place : kPlaces) {
        if (!(f.places & place)) continue;
        Outcome o = send(place, std::string(f.name), value);
        EXPECT_FALSE(o.refusal) << f.name << ": " << value << ": " << o.refusal->message;
        EXPECT_TRUE(o.unknown.empty()) << f.name;
      }
    }
  }
}

TEST(FieldTable, AliasesStandForTheirField) {
  CompletionFields f;
  json::value body = parse_json(R"({"prompt": "x", "repeat_penalty": 1.5, "n_predict": 7,
      "n_probs": 3, "min_new_tokens": 2, "return_tokens": true, "no_stop_trim": true,
      "extra_key": "k", "rid": "r"})")
                         .value();
  Refusal refused = parse_completion(body, {}, f);
  ASSERT_FALSE(refused) << refused->message;
  EXPECT_FLOAT_EQ(f.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(f.max_tokens, 7);
  EXPECT_EQ(f.sampling.num_logprobs, 3);
  EXPECT_EQ(f.sampling.min_tokens, 2);
  EXPECT_TRUE(f.return_token_ids && f.include_stop);
  EXPECT_EQ(f.cache_salt + f.request_id, "kr");
  EXPECT_TRUE(f.unknown.empty());

  CompletionFields none;
  body = parse_json(R"({"prompt": "x", "n_probs": 0})").value();
  EXPECT_FALSE(parse_completion(body, {}, none));
  EXPECT_EQ(none.sampling.num_logprobs, -1);

  for (const char* both : {R"({"prompt": "x", "repeat_penalty": 1, "repetition_penalty": 1})",
                           R"({"prompt": "x", "n_predict": 1, "max_new_tokens": 1})"}) {
    CompletionFields g;
    Refusal r = parse_completion(parse_json(both).value(), {}, g);
    ASSERT_TRUE(r) << both;
    EXPECT_NE(r->message.find("send one of them"), std::string::npos) << r->message;
  }
}

// docs/api.md has a line for each row.
TEST(FieldTable, IsInTheDocs) {
  std::ifstream in(std::string(SLUICE_SOURCE_DIR) + "/docs/api.md");
  ASSERT_TRUE(in) << "docs/api.md";
  std::set<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.insert(line);
  for (const KnownField& f : known_fields()) {
    std::string where;
    const std::pair<FieldPlace, const char*> kNames[] = {
        {kChat, "chat"},         {kText, "text"},         {kEmbedding, "embeddings"},
        {kGenerate, "generate"}, {kMessages, "messages"}, {kResponses, "responses"},
        {kOllama, "ollama"}};
    for (const auto& [place, name] : kNames) {
      if (f.places & place) where += (where.empty() ? "" : ", ") + std::string(name);
    }
    std::string note(f.note);
    if (f.fate == FieldFate::alias) note = "`" + note + "`";
    std::string row = strf("| `%s` | %s | %s | %s |", std::string(f.name).c_str(), where.c_str(),
                           fate_name(f.fate), note.c_str());
    EXPECT_TRUE(lines.contains(row)) << row;
  }
}

}  // namespace
}  // namespace sluice

// Tokenizers built from the models' own tokenizer.json files, against the ids those models expect.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "base/json.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

fs::path tokenizers_dir() {
  const char* env = std::getenv("SLUICE_TEST_DATA");
  return fs::path(env != nullptr ? env : SLUICE_SOURCE_DIR "/../shared/data") / "tokenizers";
}

std::string gunzip(const fs::path& path) {
  std::string command = "gzip -dc '" + path.string() + "'", out;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return out;
  char buffer[1 << 16];
  while (size_t n = fread(buffer, 1, sizeof buffer, pipe)) out.append(buffer, n);
  pclose(pipe);
  return out;
}

std::string text_of(const json::value& v) { return std::string(v.as_string()); }

void read_merges(const json::value& merges, VocabSpec& spec) {
  for (const json::value& m : merges.as_array()) {
    spec.merges.push_back(m.is_string()
                              ? text_of(m)
                              : text_of(m.as_array().at(0)) + " " + text_of(m.as_array().at(1)));
  }
}

// A SentencePiece piece has the score of the first merge that makes it.
void scores_from_merges(VocabSpec& spec) {
  std::unordered_map<std::string, float> score;
  for (size_t i = 0; i < spec.merges.size(); ++i) {
    std::string piece = spec.merges[i];
    piece.erase(piece.find(' ', 1), 1);
    score.try_emplace(piece, -static_cast<float>(i));
  }
  for (const std::string& t : spec.tokens) {
    auto it = score.find(t);
    spec.scores.push_back(it == score.end() ? -1e9f : it->second);
  }
}

VocabSpec spec_of(const json::object& file, const char* pre) {
  const json::object& model = file.at("model").as_object();
  VocabSpec spec;
  spec.pre = pre;
  const json::value* fallback = model.if_contains("byte_fallback");
  const bool spm = fallback != nullptr && fallback->is_bool() && fallback->as_bool();
  spec.kind = spm ? VocabSpec::Kind::spm : VocabSpec::Kind::bpe;
  auto put = [&](const json::value& id, std::string text, TokenType type) {
    size_t i = id.to_number<size_t>();
    if (i >= spec.tokens.size()) {
      spec.tokens.resize(i + 1);
      spec.types.resize(i + 1, TokenType::unused);
    }
    spec.tokens[i] = std::move(text);
    spec.types[i] = type;
  };
  for (const auto& [text, id] : model.at("vocab").as_object()) {
    bool byte = spm && text.size() == 6 && text.starts_with("<0x");
    put(id, std::string(text), byte ? TokenType::byte : TokenType::normal);
  }
  for (const json::value& v : file.at("added_tokens").as_array()) {
    const json::object& a = v.as_object();
    bool special = a.at("special").as_bool();
    put(a.at("id"), text_of(a.at("content")),
        special ? TokenType::control : TokenType::user_defined);
  }
  read_merges(model.at("merges"), spec);
  if (spm) {
    scores_from_merges(spec);
    spec.unk = 0;
    spec.add_space_prefix = true;
  }
  return spec;
}

struct GoldenCase {
  const char* model;
  const char* file;
  const char* pre;
};

class Golden : public testing::TestWithParam<GoldenCase> {};

TEST_P(Golden, GivesTheReferenceIds) {
  const fs::path file = tokenizers_dir() / GetParam().model / GetParam().file;
  if (!fs::exists(file)) GTEST_SKIP() << "no " << file;
  if (std::system("gzip --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "gzip is not installed";
  auto json = parse_json(gunzip(file));
  ASSERT_TRUE(json) << json.error().message;
  auto made = Tokenizer::make(spec_of(json->as_object(), GetParam().pre));
  ASSERT_TRUE(made) << made.error().message;
  const Tokenizer& t = **made;

  std::ifstream in(tokenizers_dir() / "golden.json");
  std::stringstream text;
  text << in.rdbuf();
  auto golden = parse_json(text.str());
  ASSERT_TRUE(golden) << golden.error().message;
  const json::array& strings = golden->as_object().at("strings").as_array();
  const json::object& models = golden->as_object().at("models").as_object();
  const json::array& ids = models.at(GetParam().model).as_object().at("ids").as_array();
  ASSERT_EQ(strings.size(), ids.size());
  for (size_t i = 0; i < strings.size(); ++i) {
    std::string s = text_of(strings[i]);
    std::vector<Token> expected;
    for (const json::value& v : ids[i].as_array()) expected.push_back(v.to_number<Token>());
    auto got = t.encode(s);
    ASSERT_TRUE(got) << got.error().message;
    EXPECT_EQ(*got, expected) << s;
    DetokenizeOptions options{.skip_special = false, .strip_leading_space = t.adds_space()};
    EXPECT_EQ(detokenize(t, *got, options), s);
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         Golden,
                         testing::Values(GoldenCase{"gpt2", "tokenizer.json.gz", "gpt-2"},
                                         GoldenCase{"llama-3.2", "tokenizer.json.gz", "llama-bpe"},
                                         GoldenCase{"qwen2.5", "tokenizer.json.gz", "qwen2"},
                                         GoldenCase{"smollm2", "tokenizer.reconstructed.json.gz",
                                                    "smollm"},
                                         GoldenCase{"mistral-v0.1", "tokenizer.json.gz", "default"},
                                         GoldenCase{"phi-3-mini", "tokenizer.json.gz", "default"}));

}  // namespace
}  // namespace sluice

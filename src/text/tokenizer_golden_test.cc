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

struct GoldenCase {
  const char* model;
  const char* file;
};

class Golden : public testing::TestWithParam<GoldenCase> {};

TEST_P(Golden, GivesTheReferenceIds) {
  const fs::path file = tokenizers_dir() / GetParam().model / GetParam().file;
  if (!fs::exists(file)) GTEST_SKIP() << "no " << file;
  if (std::system("gzip --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "gzip is not installed";
  auto spec = spec_from_json(gunzip(file));
  ASSERT_TRUE(spec) << spec.error().message;
  auto made = Tokenizer::make(std::move(*spec));
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
    if (t.most_bytes() > 0) {
      EXPECT_GE(got->size() * t.most_bytes(), t.counted_bytes(s)) << s;
    }
  }
}

// Text made of the longest token's has about as few tokens as text can have.
TEST_P(Golden, KnowsHowMuchATokenStandsFor) {
  const fs::path file = tokenizers_dir() / GetParam().model / GetParam().file;
  if (!fs::exists(file)) GTEST_SKIP() << "no " << file;
  if (std::system("gzip --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "gzip is not installed";
  auto t = Tokenizer::make(spec_from_json(gunzip(file)).value()).value();
  // Phi-3's added tokens take white space with them, so that nothing is known of it.
  ASSERT_EQ(t->most_bytes() > 0, std::string(GetParam().model) != "phi-3-mini");
  if (t->most_bytes() == 0) return;
  std::string_view longest;
  for (Token id = 0; id < t->size(); ++id) {
    std::string_view bytes = t->bytes(id);
    if (bytes.size() > longest.size() && !t->is_control(id)) longest = bytes;
  }
  EXPECT_LE(longest.size(), t->most_bytes());
  std::string text;
  for (int i = 0; i < 100; ++i) text += longest;
  auto ids = t->encode(text);
  ASSERT_TRUE(ids) << ids.error().message;
  EXPECT_GE(ids->size() * t->most_bytes(), t->counted_bytes(text));
}

INSTANTIATE_TEST_SUITE_P(All,
                         Golden,
                         testing::Values(GoldenCase{"gpt2", "tokenizer.json.gz"},
                                         GoldenCase{"llama-3.2", "tokenizer.json.gz"},
                                         GoldenCase{"qwen2.5", "tokenizer.json.gz"},
                                         GoldenCase{"smollm2", "tokenizer.reconstructed.json.gz"},
                                         GoldenCase{"mistral-v0.1", "tokenizer.json.gz"},
                                         GoldenCase{"phi-3-mini", "tokenizer.json.gz"}));

}  // namespace
}  // namespace sluice

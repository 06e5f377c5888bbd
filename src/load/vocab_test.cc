// Vocabularies of real model files against the ids that their own tokenizers give.
#include "load/vocab.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "base/json.h"
#include "tensor/gguf.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

fs::path data_dir() {
  const char* env = std::getenv("SLUICE_TEST_DATA");
  return env != nullptr ? fs::path(env) : fs::path(SLUICE_SOURCE_DIR "/../shared/data");
}

std::string read_all(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

// A directory that goes away with the test.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (fs::temp_directory_path() / "sluice-vocab-XXXXXX").string();
    CHECK(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TempDir() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::unique_ptr<Tokenizer> tokenizer_of(const fs::path& gguf) {
  auto checkpoint = open_gguf(gguf.string());
  if (!checkpoint) {
    ADD_FAILURE() << checkpoint.error().message;
    return nullptr;
  }
  auto spec = vocab_from_meta((*checkpoint)->meta());
  if (!spec) {
    ADD_FAILURE() << spec.error().message;
    return nullptr;
  }
  auto tokenizer = Tokenizer::make(std::move(*spec));
  if (!tokenizer) {
    ADD_FAILURE() << tokenizer.error().message;
    return nullptr;
  }
  return std::move(*tokenizer);
}

std::vector<std::string> split(const std::string& text, const std::string& separator) {
  std::vector<std::string> out;
  for (size_t pos = 0;;) {
    size_t end = text.find(separator, pos);
    out.push_back(text.substr(pos, end == text.npos ? end : end - pos));
    if (end == text.npos) return out;
    pos = end + separator.size();
  }
}

class GgufVocab : public testing::TestWithParam<const char*> {};

TEST_P(GgufVocab, GivesTheReferenceIds) {
  const fs::path base =
      data_dir() / "tokenizers/gguf-vocab" / ("ggml-vocab-" + std::string(GetParam()) + ".gguf");
  if (!fs::exists(base.string() + ".gz")) GTEST_SKIP() << "no " << base << ".gz";
  if (std::system("gzip --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "gzip is not installed";
  TempDir temp;
  const fs::path file = temp.path() / "vocab.gguf";
  std::string command = "gzip -dc '" + base.string() + ".gz' > '" + file.string() + "'";
  ASSERT_EQ(std::system(command.c_str()), 0);
  auto tokenizer = tokenizer_of(file);
  ASSERT_NE(tokenizer, nullptr);

  std::vector<std::string> inputs =
      split(read_all(base.string() + ".inp"), "\n__ggml_vocab_test__\n");
  std::vector<std::string> lines = split(read_all(base.string() + ".out"), "\n");
  ASSERT_GT(inputs.size(), 40u);
  ASSERT_GE(lines.size(), inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::istringstream ids(lines[i]);
    std::vector<Token> expected{std::istream_iterator<Token>(ids), {}};
    auto got = tokenizer->encode(inputs[i]);
    ASSERT_TRUE(got) << got.error().message;
    EXPECT_EQ(*got, expected) << "input " << i << ": " << inputs[i];
    DetokenizeOptions options{.skip_special = false,
                              .strip_leading_space = tokenizer->adds_space()};
    EXPECT_EQ(detokenize(*tokenizer, *got, options), inputs[i]) << "input " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         GgufVocab,
                         testing::Values("gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2"));

// The default model's file, where SLUICE_TEST_MODEL names it, against the original tokenizer.
TEST(DefaultModelVocab, GivesTheReferenceIds) {
  const char* model = std::getenv("SLUICE_TEST_MODEL");
  const fs::path golden = data_dir() / "tokenizers/golden.json";
  if (model == nullptr || !fs::exists(model)) GTEST_SKIP() << "SLUICE_TEST_MODEL names no file";
  if (!fs::exists(golden)) GTEST_SKIP() << "no " << golden;
  auto tokenizer = tokenizer_of(model);
  ASSERT_NE(tokenizer, nullptr);
  if (tokenizer->find("<|im_start|>") != 1 || tokenizer->size() != 49152) {
    GTEST_SKIP() << model << " does not have SmolLM2's vocabulary";
  }
  auto json = parse_json(read_all(golden));
  ASSERT_TRUE(json) << json.error().message;
  const json::array& strings = json->as_object().at("strings").as_array();
  const json::array& ids =
      json->as_object().at("models").as_object().at("smollm2").as_object().at("ids").as_array();
  ASSERT_EQ(strings.size(), ids.size());
  for (size_t i = 0; i < strings.size(); ++i) {
    std::string text(strings[i].as_string());
    std::vector<Token> expected;
    for (const json::value& v : ids[i].as_array()) expected.push_back(v.to_number<Token>());
    auto got = tokenizer->encode(text);
    ASSERT_TRUE(got) << got.error().message;
    EXPECT_EQ(*got, expected) << text;
    EXPECT_EQ(detokenize(*tokenizer, *got), text);
  }
  EXPECT_TRUE(tokenizer->is_eog(*tokenizer->find("<|im_end|>")));
  EXPECT_TRUE(tokenizer->is_eog(*tokenizer->find("<|endoftext|>")));
  EXPECT_FALSE(tokenizer->is_eog(*tokenizer->find("<|im_start|>")));
}

Meta small_meta() {
  Meta m;
  m.set("tokenizer.ggml.model", std::string("gpt2"));
  m.set("tokenizer.ggml.pre", std::string("llama-bpe"));
  m.set("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b", "ab", "<s>"});
  m.set("tokenizer.ggml.token_type", std::vector<int64_t>{1, 1, 0, 3});
  m.set("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
  m.set("tokenizer.ggml.bos_token_id", uint64_t{3});
  return m;
}

TEST(VocabFromMeta, FillsDefaultsByKind) {
  auto bpe = vocab_from_meta(small_meta());
  ASSERT_TRUE(bpe) << bpe.error().message;
  EXPECT_TRUE(bpe->add_bos);  // llama-bpe's default
  EXPECT_FALSE(bpe->add_space_prefix);
  EXPECT_EQ(bpe->bos, 3);
  EXPECT_EQ(bpe->eos, kNoToken);
  EXPECT_EQ(bpe->types[2], TokenType::normal);

  Meta m = small_meta();
  m.set("tokenizer.ggml.add_bos_token", false);
  EXPECT_FALSE(vocab_from_meta(m)->add_bos);
  m.set("tokenizer.ggml.model", std::string("llama"));
  EXPECT_TRUE(vocab_from_meta(m)->add_space_prefix);
  EXPECT_FALSE(vocab_from_meta(m)->add_bos);
}

TEST(VocabFromMeta, SaysWhatIsWrong) {
  auto error = [](const char* key, MetaValue value) {
    Meta m = small_meta();
    m.set(key, std::move(value));
    auto spec = vocab_from_meta(m);
    return spec ? std::string("no error") : spec.error().message;
  };
  EXPECT_NE(error("tokenizer.ggml.model", std::string("bert")).find("'bert'"), std::string::npos);
  EXPECT_NE(error("tokenizer.ggml.bos_token_id", uint64_t{4}).find("outside"), std::string::npos);
  EXPECT_NE(error("tokenizer.ggml.token_type", std::vector<int64_t>{1, 1, 1, 9}).find("type 9"),
            std::string::npos);
  EXPECT_NE(error("tokenizer.ggml.merges", std::vector<std::string>{}).find("merges"),
            std::string::npos);
}

Meta json_meta() {
  Meta m;
  m.set("tokenizer.huggingface.json",
        std::string(R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "<s>": 3,
            "</s>": 4}, "merges": ["a b"]},
            "added_tokens": [{"id": 3, "content": "<s>", "special": true, "normalized": false},
                             {"id": 4, "content": "</s>", "special": true, "normalized": false}]})"));
  return m;
}

TEST(TokenizerFromMeta, ReadsTokenizerJson) {
  Meta m = json_meta();
  m.set("tokenizer.huggingface.bos_token", std::string("<s>"));
  m.set("tokenizer.ggml.eos_token_id", uint64_t{4});
  m.set("tokenizer.ggml.add_bos_token", true);
  m.set("tokenizer.ggml.eos_token_ids", std::vector<int64_t>{2, 4, 900});
  auto t = tokenizer_from_meta(m);
  ASSERT_TRUE(t) << t.error().message;
  EXPECT_EQ(*(*t)->encode("ab", {.add_special = true}), (std::vector<Token>{3, 2}));
  EXPECT_TRUE((*t)->adds_bos());
  EXPECT_EQ((*t)->eos(), 4);
  EXPECT_TRUE((*t)->is_eog(2));
  EXPECT_TRUE((*t)->is_eog(4));
  EXPECT_FALSE((*t)->is_eog(900));
  m.set("tokenizer.ggml.eos_token_id", uint64_t{5});
  EXPECT_FALSE(tokenizer_from_meta(m));
}

TEST(TokenizerFromMeta, PrefersWhatGgufHas) {
  Meta m = small_meta();
  m.set("tokenizer.huggingface.json", std::string("{"));
  EXPECT_TRUE(tokenizer_from_meta(m));
  EXPECT_FALSE(tokenizer_from_meta(Meta()));
}

TEST(TokenizerFromMeta, Unigram) {
  Meta m;
  m.set("tokenizer.ggml.model", std::string("t5"));
  m.set("tokenizer.ggml.tokens", std::vector<std::string>{"<unk>", "</s>", "▁", "a", "▁a"});
  m.set("tokenizer.ggml.scores", std::vector<float>{0, 0, -2, -3, -4});
  m.set("tokenizer.ggml.token_type", std::vector<int64_t>{2, 3, 1, 1, 1});
  m.set("tokenizer.ggml.unknown_token_id", uint64_t{0});
  m.set("tokenizer.ggml.eos_token_id", uint64_t{1});
  auto t = tokenizer_from_meta(m);
  ASSERT_TRUE(t) << t.error().message;
  EXPECT_EQ(*(*t)->encode("a  ax ", {.add_special = true}), (std::vector<Token>{4, 4, 0, 1}));
}

}  // namespace
}  // namespace sluice

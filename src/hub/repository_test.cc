#include "hub/repository.h"

#include <gtest/gtest.h>

#include "hub/hub_name.h"

namespace sluice {
namespace {

std::vector<RepoFile> files(std::initializer_list<const char*> paths) {
  std::vector<RepoFile> out;
  for (const char* p : paths) out.push_back({p, 1000, "", ""});
  return out;
}

std::vector<std::string> paths(const ModelFiles& m) {
  std::vector<std::string> out;
  for (const RepoFile& f : m.files) out.push_back(f.path);
  return out;
}

using Paths = std::vector<std::string>;

TEST(HubName, Parses) {
  Result<HubName> n = parse_hub_name("hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF:q4_k_m");
  ASSERT_TRUE(n);
  EXPECT_EQ(n->repo_id(), "Qwen/Qwen2.5-0.5B-Instruct-GGUF");
  EXPECT_EQ(n->quant, "q4_k_m");
  EXPECT_EQ(n->text(), "hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF:q4_k_m");
  for (const char* bad :
       {"hf:", "hf:a", "hf:a/", "hf:/b", "hf:a/b/c", "hf:a/b:", "hf:a/..", "hf:../b", "hf:a/b:../c",
        "hf:a b/c", "hf:a/b?x", "hf:a/b%2f", "hf:.a/b", "hf:a/b:c\n"})
    EXPECT_FALSE(parse_hub_name(bad)) << bad;
}

TEST(HubName, SafePaths) {
  for (const char* good : {"a", "a/b.gguf", "a..b", "...", "ä b"})
    EXPECT_TRUE(is_safe_path(good)) << good;
  for (const char* bad :
       {"", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a\\b", "a\x01", "\xff"})
    EXPECT_FALSE(is_safe_path(bad)) << bad;
  EXPECT_FALSE(is_safe_path(std::string_view("a\0b", 3)));
  EXPECT_FALSE(is_safe_path(std::string(300, 'a')));
}

TEST(Repository, QuantLabels) {
  EXPECT_EQ(quant_label("qwen2.5-0.5b-instruct-q4_k_m.gguf"), "Q4_K_M");
  EXPECT_EQ(quant_label("SmolLM2-135M-Instruct.Q4_1.gguf"), "Q4_1");
  EXPECT_EQ(quant_label("Q8_0/model-Q8_0-00001-of-00002.gguf"), "Q8_0");
  EXPECT_EQ(quant_label("m-UD-Q4_K_XL.gguf"), "UD-Q4_K_XL");
  EXPECT_EQ(quant_label("m-IQ4_XS.GGUF"), "IQ4_XS");
  EXPECT_EQ(quant_label("m_bf16.gguf"), "BF16");
  EXPECT_EQ(quant_label("qwen2-7b.gguf"), "");
  EXPECT_EQ(quant_label("q4.bin"), "");
}

TEST(Repository, PicksByQuant) {
  auto list =
      files({"m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-UD-Q4_K_M.gguf", "config.json", "mmproj-F16.gguf"});
  Result<ModelFiles> m = select_model(list, "", "o/r");
  ASSERT_TRUE(m);
  EXPECT_EQ(m->main, "m-Q4_K_M.gguf");
  EXPECT_EQ(m->quant, "Q4_K_M");
  EXPECT_EQ(select_model(list, "q8_0", "o/r")->main, "m-Q8_0.gguf");
  EXPECT_EQ(select_model(list, "UD-q4_k_m", "o/r")->main, "m-UD-Q4_K_M.gguf");
  EXPECT_EQ(select_model(list, "m-q8_0.gguf", "o/r")->main, "m-Q8_0.gguf");
  EXPECT_EQ(select_model(list, "Q5_0", "o/r").error().message,
            "hf:o/r has no 'Q5_0'; there is Q4_K_M (1.0 KB), Q8_0 (1.0 KB), UD-Q4_K_M (1.0 KB)");
}

TEST(Repository, OnlyFileNeedsNoLabel) {
  EXPECT_EQ(select_model(files({"weights.gguf"}), "", "o/r")->quant, "weights.gguf");
}

TEST(Repository, AllParts) {
  auto list = files({"d/m-Q8_0-00002-of-00003.gguf", "d/m-Q8_0-00001-of-00003.gguf",
                     "d/m-Q8_0-00003-of-00003.gguf"});
  Result<ModelFiles> m = select_model(list, "Q8_0", "o/r");
  ASSERT_TRUE(m);
  EXPECT_EQ(m->main, "d/m-Q8_0-00001-of-00003.gguf");
  EXPECT_EQ(m->files.size(), 3u);
  list.pop_back();
  EXPECT_FALSE(select_model(list, "Q8_0", "o/r"));
}

TEST(Repository, Directories) {
  auto list = files({"config.json", "model.safetensors", "tokenizer.json", "pytorch_model.bin",
                     "original/x.safetensors", "m-Q4_0.gguf"});
  Result<ModelFiles> m = select_model(list, "", "o/r");
  ASSERT_TRUE(m);
  EXPECT_EQ(m->main, "");
  EXPECT_EQ(paths(*m), (Paths{"model.safetensors", "config.json", "tokenizer.json"}));
  EXPECT_EQ(select_model(list, "Q4_0", "o/r")->main, "m-Q4_0.gguf");
}

TEST(Repository, ShardsByTheIndex) {
  auto list = files({"config.json", "model.safetensors.index.json", "a.safetensors",
                     "b.safetensors", "consolidated.safetensors"});
  Result<ModelFiles> m = select_model(list, "", "o/r");
  ASSERT_TRUE(m);
  EXPECT_EQ(m->index, "model.safetensors.index.json");
  ASSERT_TRUE(add_shards(
      R"({"weight_map":{"x":"b.safetensors","y":"a.safetensors","z":"b.safetensors"}})", list, *m));
  EXPECT_EQ(paths(*m), (Paths{"model.safetensors.index.json", "config.json", "a.safetensors",
                              "b.safetensors"}));
  EXPECT_FALSE(add_shards(R"({"weight_map":{"x":"../c.safetensors"}})", list, *m));
  EXPECT_FALSE(add_shards("{}", list, *m));
  EXPECT_FALSE(add_shards("[", list, *m));
}

TEST(Repository, ParsesTheHubsAnswer) {
  std::string sha(40, 'a'), hash(64, 'b');
  std::string good = R"({"sha":")" + sha +
                     R"(","siblings":[{"rfilename":"m.gguf","size":5,"blobId":")" + sha +
                     R"(","lfs":{"sha256":")" + hash + R"(","size":5,"pointerSize":134}},)" +
                     R"({"rfilename":"config.json","size":3,"blobId":")" + sha + R"("}]})";
  Result<Repository> r = parse_repository(good, "o/r");
  ASSERT_TRUE(r) << r.error().message;
  EXPECT_EQ(r->commit, sha);
  ASSERT_EQ(r->files.size(), 2u);
  EXPECT_EQ(r->files[0].sha256, hash);
  EXPECT_EQ(r->files[0].size, 5u);
  EXPECT_EQ(r->files[1].git_sha1, sha);
  auto fails = [&](std::string from, const char* to) {
    std::string bad = good;
    bad.replace(bad.find(from), from.size(), to);
    EXPECT_FALSE(parse_repository(bad, "o/r")) << bad;
  };
  fails("m.gguf", "../m.gguf");
  fails("m.gguf", "config.json");  // twice
  fails(sha, "main");
  fails("siblings", "others");
  fails(hash, "x");
  fails("\"size\":5", "\"size\":-5");
  fails("\"rfilename\":\"m.gguf\"", "\"rfilename\":7");
  EXPECT_FALSE(parse_repository("", "o/r"));
  EXPECT_FALSE(parse_repository("[]", "o/r"));
}

}  // namespace
}  // namespace sluice

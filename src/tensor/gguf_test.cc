#include "tensor/gguf.h"

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>

#include <gtest/gtest.h>

#include "base/str.h"
#include "tensor/gguf_builder.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using B = GgufBuilder;

// The exact bytes on the heap, so that a sanitizer sees a read past their end.
Result<GgufHeader> parse(const std::string& bytes) {
  auto copy = std::make_unique<std::byte[]>(bytes.size());
  std::memcpy(copy.get(), bytes.data(), bytes.size());
  return parse_gguf_header({copy.get(), bytes.size()});
}

std::string error_of(const std::string& bytes) {
  auto r = parse(bytes);
  if (r) return "";
  EXPECT_EQ(r.error().message.find('\n'), std::string::npos);
  return r.error().message;
}

#define EXPECT_ERROR(bytes, part)                                   \
  do {                                                              \
    const std::string message_ = error_of(bytes);                   \
    EXPECT_NE(message_.find(part), std::string::npos)               \
        << "got '" << message_ << "', which does not say " << part; \
  } while (0)

B small_model() {
  B b;
  b.key_str("general.architecture", "llama").key_u32("llama.block_count", 2);
  b.key("llama.eps", 6, B::raw(1e-5f)).key("llama.flag", 7, B::raw<uint8_t>(1));
  b.key("i64", 11, B::raw<int64_t>(-7)).key("u64", 10, B::raw<uint64_t>(UINT64_MAX));
  b.key("f64", 12, B::raw(0.1));
  b.key_array<std::string>("tokenizer.ggml.tokens", 8, {"a", "", "a long token of many bytes"});
  b.key_array<float>("tokenizer.ggml.scores", 6, {0.5f, -1, 2});
  b.key_array<int32_t>("tokenizer.ggml.token_type", 5, {1, -2, 3});
  b.key_array<uint8_t>("bytes", 0, {0, 255}).key_array<uint8_t>("bools", 7, {1, 0, 1});
  b.tensor("norm", {4}, 0, std::string(16, '\1'));
  b.tensor("matrix", {32, 3}, 8, std::string(34 * 3, '\2'));
  b.tensor("cube", {2, 3, 4}, 1, std::string(2 * 24, '\3'));
  return b;
}

TEST(Gguf, ReadsEveryKindOfValue) {
  for (uint32_t version : {2u, 3u}) {
    B b = small_model();
    b.version = version;
    auto r = parse(b.build());
    ASSERT_TRUE(r) << r.error().message;
    const Meta& m = r->meta;
    EXPECT_EQ(*m.string("general.architecture"), "llama");
    EXPECT_EQ(m.integer("llama.block_count"), 2);
    EXPECT_EQ(m.number("llama.block_count"), 2.0);
    EXPECT_EQ(m.number("llama.eps"), static_cast<double>(1e-5f));
    EXPECT_EQ(m.integer("llama.eps"), std::nullopt);
    EXPECT_EQ(m.boolean("llama.flag"), true);
    EXPECT_EQ(m.integer("i64"), -7);
    EXPECT_EQ(m.integer("u64"), std::nullopt);
    EXPECT_EQ(m.number("u64"), 0x1p64);
    EXPECT_EQ(m.number("f64"), 0.1);
    EXPECT_EQ(m.number("absent"), std::nullopt);
    EXPECT_EQ(m.string("f64"), nullptr);
    EXPECT_EQ(m.strings("tokenizer.ggml.tokens")->at(2), "a long token of many bytes");
    EXPECT_EQ(*m.floats("tokenizer.ggml.scores"), (std::vector<float>{0.5f, -1, 2}));
    EXPECT_EQ(*m.integers("tokenizer.ggml.token_type"), (std::vector<int64_t>{1, -2, 3}));
    EXPECT_EQ(*m.integers("bytes"), (std::vector<int64_t>{0, 255}));
    EXPECT_EQ(std::get<std::vector<bool>>(*m.find("bools")),
              (std::vector<bool>{true, false, true}));
    ASSERT_EQ(r->tensors.size(), 3u);
    EXPECT_EQ(r->tensors[0].rows, 1);
    EXPECT_EQ(r->tensors[0].cols, 4);
    EXPECT_EQ(r->tensors[1].format, Format::q8_0);
    EXPECT_EQ(r->tensors[1].bytes, 34u * 3);
    EXPECT_EQ(r->tensors[2].rows, 12);
    EXPECT_EQ(r->tensors[2].cols, 2);
  }
}

TEST(Gguf, EveryIntegerTypeOfArray) {
  B b;
  b.key_array<int8_t>("i8", 1, {-128}).key_array<uint16_t>("u16", 2, {65535});
  b.key_array<int16_t>("i16", 3, {-5}).key_array<uint32_t>("u32", 4, {4294967295u});
  b.key_array<uint64_t>("u64", 10, {1ull << 62}).key_array<int64_t>("i64", 11, {INT64_MIN});
  b.key_array<double>("f64", 12, {0.25}).key_array<float>("none", 6, {});
  auto r = parse(b.build());
  ASSERT_TRUE(r) << r.error().message;
  EXPECT_EQ(r->meta.integers("i8")->at(0), -128);
  EXPECT_EQ(r->meta.integers("u16")->at(0), 65535);
  EXPECT_EQ(r->meta.integers("i16")->at(0), -5);
  EXPECT_EQ(r->meta.integers("u32")->at(0), 4294967295);
  EXPECT_EQ(r->meta.integers("u64")->at(0), int64_t{1} << 62);
  EXPECT_EQ(r->meta.integers("i64")->at(0), INT64_MIN);
  EXPECT_EQ(r->meta.floats("f64")->at(0), 0.25f);
  EXPECT_TRUE(r->meta.floats("none")->empty());
  EXPECT_ERROR(B().key_array<uint64_t>("big", 10, {1ull << 63}).build(), "'big'");
}

TEST(Gguf, ArraysOfArraysAreSteppedOver) {
  const std::string ints = B::raw<uint32_t>(4) + B::raw<uint64_t>(2) + B::raw<uint64_t>(9);
  const std::string strings = B::raw<uint32_t>(8) + B::raw<uint64_t>(1) + B::str("x");
  B b;
  b.key("nested", 9, B::raw<uint32_t>(9) + B::raw<uint64_t>(2) + ints + strings);
  b.key_u32("after", 5);
  auto r = parse(b.build());
  ASSERT_TRUE(r) << r.error().message;
  EXPECT_EQ(r->meta.integer("after"), 5);
  EXPECT_FALSE(r->meta.has("nested"));
  std::string deep;
  for (int i = 0; i < 1000; ++i) deep += B::raw<uint32_t>(9) + B::raw<uint64_t>(1);
  EXPECT_ERROR(B().key("deep", 9, deep).build(), "nests arrays");
}

TEST(Gguf, EveryTruncationIsAnError) {
  const std::string whole = small_model().build();
  ASSERT_TRUE(parse(whole));
  for (size_t n = 0; n < whole.size(); ++n) {
    ASSERT_FALSE(parse(whole.substr(0, n))) << "cut at byte " << n << " of " << whole.size();
  }
  const std::string vocabulary = B().key_str("a", "b").key_u32("c", 1).build();
  ASSERT_TRUE(parse(vocabulary));
  for (size_t n = 0; n < vocabulary.size(); ++n) ASSERT_FALSE(parse(vocabulary.substr(0, n)));
}

// No byte of the header, set to anything, may do worse than an error.
TEST(Gguf, EveryByteFlipIsSurvived) {
  const std::string whole = small_model().build();
  int errors = 0;
  for (size_t at = 0; at < whole.size(); ++at) {
    for (int value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      std::string bad = whole;
      bad[at] = static_cast<char>(value);
      errors += !parse(bad);
    }
  }
  EXPECT_GT(errors, 1000);
}

TEST(Gguf, PreambleErrors) {
  EXPECT_ERROR("", "not a GGUF file");
  EXPECT_ERROR("GG", "not a GGUF file");
  EXPECT_ERROR("{\"a\": 1}", "begins with '{\"a\"'");
  B b = small_model();
  b.version = 1;
  EXPECT_ERROR(b.build(), "version 1 is not supported");
  b.version = 4;
  EXPECT_ERROR(b.build(), "version 4 is not supported");
  b.version = 0x03000000;
  EXPECT_ERROR(b.build(), "big-endian");
  b = small_model();
  b.num_keys = UINT64_MAX;
  EXPECT_ERROR(b.build(), "metadata keys cannot fit");
  b = small_model();
  b.num_tensors = 1ull << 61;
  EXPECT_ERROR(b.build(), "tensors cannot fit");
}

TEST(Gguf, MetadataErrors) {
  EXPECT_ERROR(B().key_u32("k", 1).key_u32("k", 2).build(), "'k' occurs twice");
  EXPECT_ERROR(B().key("k", 13, "12345678").build(), "value type 13");
  EXPECT_ERROR(B().key("k", 7, B::raw<uint8_t>(2)).build(), "boolean of value 2");
  EXPECT_ERROR(B().key("k", 8, B::raw<uint64_t>(UINT64_MAX)).build(), "a string");
  EXPECT_ERROR(B().key("k", 9, B::raw<uint32_t>(0) + B::raw<uint64_t>(1ull << 40)).build(), "'k'");
  EXPECT_ERROR(B().key("k", 9, B::raw<uint32_t>(13) + B::raw<uint64_t>(0)).build(),
               "value type 13");
  EXPECT_ERROR(B().key_u32("", 1).key_u32("x", 1).build(), "has 0 bytes");
  EXPECT_ERROR(B().key_u32(std::string(65536, 'k'), 1).build(), "65536 bytes");
  for (uint32_t bad : {0u, 1u, 4u, 24u, 0xffffffffu}) {
    EXPECT_ERROR(B().key_u32("general.alignment", bad).build(), "power of two");
  }
  EXPECT_ERROR(B().key_str("general.alignment", "32").build(), "power of two");
}

TEST(Gguf, TensorErrors) {
  const std::string bytes(64, '\0');
  EXPECT_ERROR(B().tensor("t", {4}, 0, bytes).tensor("t", {4}, 0, bytes).build(),
               "'t' occurs twice");
  EXPECT_ERROR(B().tensor("", {4}, 0, bytes).build(), "name of 0 bytes");
  EXPECT_ERROR(B().tensor("t", {}, 0, bytes).build(), "0 dimensions");
  EXPECT_ERROR(B().tensor("t", {1, 1, 1, 1, 1}, 0, bytes).build(), "5 dimensions");
  EXPECT_ERROR(B().tensor("t", {0}, 0, bytes).build(), "impossible shape");
  EXPECT_ERROR(B().tensor("t", {4, 0}, 0, bytes).build(), "impossible shape");
  EXPECT_ERROR(B().tensor("t", {1ull << 63}, 0, bytes).build(), "impossible shape");
  EXPECT_ERROR(B().tensor("t", {4, 1ull << 32, 1ull << 32}, 0, bytes).build(), "impossible shape");
  EXPECT_ERROR(B().tensor("t", {1ull << 62, 2}, 0, bytes).build(), "impossible size");
  EXPECT_ERROR(B().tensor("t", {33}, 8, bytes).build(), "block of 32");
  EXPECT_ERROR(B().tensor("t", {256}, 16, bytes).build(), "type 16 (IQ2_XXS)");
  EXPECT_ERROR(B().tensor("t", {256}, 16, bytes).build(), "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q6_K");
  EXPECT_ERROR(B().tensor("t", {256}, 4000, bytes).build(), "type 4000 (unknown)");
  EXPECT_ERROR(B().tensor("t", {17}, 0, bytes).build(), "runs past the end");
  B b;
  b.data = bytes;
  EXPECT_ERROR(B(b).entry("t", {4}, 0, 8).build(), "not aligned to 32");
  EXPECT_ERROR(B(b).entry("t", {4}, 0, UINT64_MAX - 31).build(), "runs past the end");
  EXPECT_ERROR(B(b).entry("t", {4}, 0, 96).build(), "runs past the end");
  EXPECT_ERROR(B(b).entry("t", {12}, 0, 0).entry("u", {4}, 0, 32).build(), "'t' and 'u' overlap");
  EXPECT_ERROR(B(b).entry("t", {4}, 0, 0).entry("u", {4}, 0, 0).build(), "overlap");
  EXPECT_TRUE(parse(B(b).entry("t", {8}, 0, 32).entry("u", {8}, 0, 0).build()));
}

class GgufFiles : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "sluice_gguf_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::string write(const std::string& name, const std::string& bytes) {
    std::ofstream(dir_ / name, std::ios::binary) << bytes;
    return (dir_ / name).string();
  }
  void expect_error(const std::string& path, const std::string& part) {
    auto r = open_gguf(path);
    ASSERT_FALSE(r) << path;
    EXPECT_NE(r.error().message.find(part), std::string::npos) << r.error().message;
    EXPECT_NE(r.error().message.find(fs::path(path).filename().string()), std::string::npos)
        << r.error().message;
  }

  fs::path dir_;
};

TEST_F(GgufFiles, PathErrorsNameThePath) {
  expect_error((dir_ / "absent.gguf").string(), "no such file");
  expect_error(dir_.string(), "is a directory");
  expect_error(write("empty.gguf", ""), "empty");
  expect_error(write("text.gguf", "hello, world"), "not a GGUF file");
  const std::string pipe = (dir_ / "pipe.gguf").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  expect_error(pipe, "not a regular file");
  if (geteuid() != 0) {
    const std::string path = write("secret.gguf", "GGUF");
    chmod(path.c_str(), 0);
    expect_error(path, "permission");
  }
}

TEST_F(GgufFiles, DataIsTheFileItselfAlignedAndReleasable) {
  const std::string big(4 * 8192, '\5');
  for (uint32_t alignment : {32u, 64u, 4096u}) {
    B b;
    b.alignment = alignment;
    b.key_u32("general.alignment", alignment);
    b.tensor("small", {3}, 0, std::string(12, '\4')).tensor("big", {1024, 8}, 0, big);
    b.tensor("last", {1}, 0, std::string(4, '\6'));
    auto r = open_gguf(write("model.gguf", b.build()));
    ASSERT_TRUE(r) << r.error().message;
    Checkpoint& c = **r;
    EXPECT_EQ(c.find("absent"), nullptr);
    for (const char* name : {"small", "big", "last"}) {
      const TensorInfo* t = c.find(name);
      ASSERT_NE(t, nullptr);
      auto data = c.data(*t);
      EXPECT_EQ(data.size(), t->bytes);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(data.data()) % alignment, 0u);
      EXPECT_EQ(data.data(), c.data(*t).data());
    }
    const TensorInfo* t = c.find("big");
    EXPECT_EQ(std::memcmp(c.data(*t).data(), big.data(), big.size()), 0);
    c.release(*t);
    EXPECT_EQ(std::memcmp(c.data(*t).data(), big.data(), big.size()), 0);
    EXPECT_EQ(c.data(*c.find("small"))[0], std::byte{4});
  }
}

TEST_F(GgufFiles, ReleaseGivesPagesBack) {
  const size_t bytes = 1 << 20;
  const std::string path =
      write("model.gguf", B().tensor("t", {bytes / 4}, 0, std::string(bytes, '\1')).build());
  auto resident = [] {
    std::ifstream smaps("/proc/self/smaps");
    std::string line;
    long kb = -1;
    bool ours = false;
    while (std::getline(smaps, line)) {
      if (line.find("model.gguf") != std::string::npos) ours = true;
      if (ours && line.rfind("Rss:", 0) == 0) return kb = std::atol(line.c_str() + 4);
    }
    return kb;
  };
  auto r = open_gguf(path);
  ASSERT_TRUE(r);
  const TensorInfo& t = (*r)->tensors()[0];
  unsigned sum = 0;
  for (std::byte b : (*r)->data(t)) sum += std::to_integer<unsigned>(b);
  EXPECT_EQ(sum, bytes);
  if (resident() < 0) GTEST_SKIP() << "no smaps here";
  EXPECT_GE(resident(), 1000);
  (*r)->release(t);
  EXPECT_LE(resident(), 64);
}

// Three parts of a model; the metadata is the first's.
B part(int number, int count = 3, int total = 3) {
  B b;
  if (number == 0) b.key_str("general.architecture", "llama").key_u32("llama.block_count", 1);
  b.key("split.no", 2, B::raw(static_cast<uint16_t>(number)));
  b.key("split.count", 2, B::raw(static_cast<uint16_t>(count)));
  b.key("split.tensors.count", 5, B::raw(static_cast<int32_t>(total)));
  b.tensor(strf("t%d", number), {4}, 0, std::string(16, static_cast<char>(number)));
  return b;
}

TEST_F(GgufFiles, SplitModelOpensFromAnyPart) {
  const char* names[] = {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"};
  for (int i = 0; i < 3; ++i) write(names[i], part(i).build());
  for (const char* name : names) {
    auto r = open_gguf((dir_ / name).string());
    ASSERT_TRUE(r) << r.error().message;
    EXPECT_EQ((*r)->meta().integer("llama.block_count"), 1);
    ASSERT_EQ((*r)->tensors().size(), 3u);
    for (int i = 0; i < 3; ++i) {
      const TensorInfo* t = (*r)->find(strf("t%d", i));
      ASSERT_NE(t, nullptr);
      EXPECT_EQ((*r)->data(*t)[7], static_cast<std::byte>(i));
    }
  }
}

TEST_F(GgufFiles, SplitErrors) {
  const std::string first = write("m-00001-of-00003.gguf", part(0).build());
  write("m-00002-of-00003.gguf", part(1).build());
  auto r = open_gguf(first);
  ASSERT_FALSE(r);
  EXPECT_NE(r.error().message.find("m-00003-of-00003.gguf'"), std::string::npos)
      << r.error().message;
  EXPECT_NE(r.error().message.find("part 3 of the split model"), std::string::npos);

  const std::string third = (dir_ / "m-00003-of-00003.gguf").string();
  auto with_third = [&](const std::string& bytes, const char* says) {
    write("m-00003-of-00003.gguf", bytes);
    expect_error(third, says);
  };
  with_third(part(1).build(), "not part 3 of 3");
  with_third(part(2, 4).build(), "one part of 4");
  with_third(part(2, 3, 9).build(), "split.tensors.count differs");
  with_third(part(2).key_str("general.architecture", "qwen2").build(), "different models");
  with_third(part(2).tensor("t0", {4}, 0, std::string(16, '\0')).build(), "'t0' is in an earlier");
  B extra = part(2);
  extra.tensor("t9", {4}, 0, std::string(16, '\0'));
  with_third(extra.build(), "the parts hold 4 tensors");
  with_third("GGUX", "not a GGUF file");
  expect_error(write("renamed.gguf", part(0).build()), "name it NAME-00001-of-00003.gguf");
  expect_error(write("zero.gguf", part(0, 0).build()), "split.count must be");
  expect_error(write("many.gguf", part(0, 60000).build()), "split.count must be");
  EXPECT_TRUE(open_gguf(write("single.gguf", part(0, 1, 1).build())));
}

std::string test_data() {
  const char* env = std::getenv("SLUICE_TEST_DATA");
  return env ? env : SLUICE_SOURCE_DIR "/../shared/data";
}

TEST(GgufShared, RealModelsOpen) {
  const struct {
    const char* name;
    size_t num_tensors;
    int64_t blocks, embedding;
    size_t vocabulary;
    Format format;
  } models[] = {{"stories260K-f32.gguf", 47, 5, 64, 512, Format::f32},
                {"stories15M-f16.gguf", 56, 6, 288, 32000, Format::f16}};
  for (const auto& m : models) {
    const std::string path = test_data() + "/models/" + m.name;
    if (!fs::exists(path)) GTEST_SKIP() << path << " is absent";
    auto r = open_gguf(path);
    ASSERT_TRUE(r) << r.error().message;
    Checkpoint& c = **r;
    EXPECT_EQ(c.tensors().size(), m.num_tensors);
    EXPECT_EQ(*c.meta().string("general.architecture"), "llama");
    EXPECT_EQ(c.meta().integer("llama.block_count"), m.blocks);
    EXPECT_EQ(c.meta().integer("llama.embedding_length"), m.embedding);
    EXPECT_EQ(c.meta().strings("tokenizer.ggml.tokens")->size(), m.vocabulary);
    const TensorInfo* q = c.find("blk.0.attn_q.weight");
    ASSERT_NE(q, nullptr);
    EXPECT_EQ(q->format, m.format);
    EXPECT_EQ(q->rows, m.embedding);
    EXPECT_EQ(q->cols, m.embedding);
    EXPECT_EQ(c.data(*q).size(), q->bytes);
  }
}

// 150,000 tokens and as many merges: bounded so that quadratic behaviour fails, not a busy machine.
TEST(Gguf, LargeVocabularyIsFast) {
  std::vector<std::string> tokens(150000), merges(150000);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = strf("token%zu", i);
    merges[i] = strf("left%zu right%zu", i, i);
  }
  const std::string bytes = B().key_array("tokenizer.ggml.tokens", 8, tokens)
                                .key_array("tokenizer.ggml.merges", 8, merges)
                                .build();
  const auto start = std::chrono::steady_clock::now();
  auto r = parse(bytes);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(r) << r.error().message;
  EXPECT_EQ(r->meta.strings("tokenizer.ggml.merges")->back(), merges.back());
  EXPECT_LT(took.count(), 1.0);
}

}  // namespace
}  // namespace sluice

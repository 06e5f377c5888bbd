#include "server/batch_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

namespace sluice {
namespace {

namespace fs = std::filesystem;

struct BatchFiles : testing::Test {
  BatchFiles() : dir(fs::temp_directory_path() / ("batch-test-" + std::to_string(::getpid()))) {
    fs::create_directories(dir);
  }
  ~BatchFiles() override { fs::remove_all(dir); }

  std::string write(const char* name, const std::string& text) const {
    std::ofstream(dir / name, std::ios::binary) << text;
    return dir / name;
  }
  std::string read(const std::string& path) const {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  fs::path dir;
};

std::string line(const std::string& id) {
  return R"({"custom_id":")" + id +
         R"(","method":"POST","url":"/v1/completions","body":{"prompt":"x"}})" + "\n";
}

TEST(BatchLine, SaysWhatIsWrong) {
  auto error = [](const char* text) {
    auto parsed = parse_batch_line(text);
    return parsed ? std::string() : parsed.error().message;
  };
  EXPECT_EQ(error(R"({"custom_id":"a","url":"/v1/completions","body":{"stream":false}})"), "");
  EXPECT_NE(error("[1]").find("object"), std::string::npos);
  EXPECT_NE(error(R"({"url":"/v1/completions","body":{}})").find("custom_id"), std::string::npos);
  EXPECT_NE(
      error(R"({"custom_id":"a","method":"GET","url":"/v1/completions","body":{}})").find("POST"),
      std::string::npos);
  EXPECT_NE(error(R"({"custom_id":"a","url":"/metrics","body":{}})").find("/metrics"),
            std::string::npos);
  EXPECT_NE(error(R"({"custom_id":"a","url":"/v1/completions"})").find("body"), std::string::npos);
  EXPECT_NE(
      error(R"({"custom_id":"a","url":"/v1/completions","body":{"stream":true}})").find("stream"),
      std::string::npos);
}

TEST_F(BatchFiles, RequestsAreFoundByPlaceAndId) {
  auto input = BatchInput::open(write("in", line("a") + "\n  \n" + line("b") + line("c")));
  ASSERT_TRUE(input);
  ASSERT_EQ(input->size(), 3u);
  EXPECT_EQ(input->read(1)->custom_id, "b");
  EXPECT_EQ(input->find("c"), 2u);
  EXPECT_EQ(input->find("d"), std::nullopt);
}

TEST_F(BatchFiles, ErrorsNameTheLine) {
  auto twice = BatchInput::open(write("in", line("a") + line("b") + line("a")));
  ASSERT_FALSE(twice);
  EXPECT_NE(twice.error().message.find("line 3"), std::string::npos) << twice.error().message;
  EXPECT_NE(twice.error().message.find("line 1"), std::string::npos) << twice.error().message;
  auto broken = BatchInput::open(write("in", line("a") + "{\n"));
  ASSERT_FALSE(broken);
  EXPECT_NE(broken.error().message.find("line 2"), std::string::npos) << broken.error().message;
  EXPECT_FALSE(BatchInput::open(write("in", "\n")));
  EXPECT_FALSE(BatchInput::open(dir));
  EXPECT_FALSE(BatchInput::open(dir / "missing"));
}

TEST_F(BatchFiles, AFileThatChangesIsNoticed) {
  const std::string path = write("in", line("a") + line("b"));
  auto input = BatchInput::open(path);
  ASSERT_TRUE(input);
  write("in", line("x") + line("y"));
  EXPECT_FALSE(input->read(0));
  write("in", "");
  EXPECT_FALSE(input->read(1));
}

// Whatever byte a run was stopped at, the next one has every request once.
TEST_F(BatchFiles, ResultsCutAtAnyByteAreTakenUpAgain) {
  auto input = BatchInput::open(write("in", line("a") + line("b") + line("c")));
  ASSERT_TRUE(input);
  const std::string whole = batch_result_line({"b", "r1", 200, R"({"x":1})", ""}) +
                            batch_result_line({"a", "", 0, "", "closed"}) +
                            batch_result_line({"c", "r2", 400, "no json", ""});
  for (size_t cut = 0; cut <= whole.size(); ++cut) {
    const std::string path = write("out", whole.substr(0, cut));
    {
      auto output = BatchOutput::open(path, *input);
      ASSERT_TRUE(output) << cut << ": " << output.error().message;
      EXPECT_FALSE(output->done()[0]) << "got no answer, so it is sent again";
      EXPECT_EQ(output->num_refused(), output->done()[2]);
      for (size_t i = 0; i < input->size(); ++i)
        if (!output->done()[i]) {
          ASSERT_TRUE(output->add(i, {input->read(i)->custom_id, "r3", 200, "{}", ""}));
        }
      EXPECT_EQ(output->num_done(), 3u);
    }
    auto again = BatchOutput::open(path, *input);
    ASSERT_TRUE(again) << cut << ": " << again.error().message << "\n" << read(path);
    EXPECT_EQ(again->num_done(), 3u) << read(path);
  }
}

TEST_F(BatchFiles, WhateverAServerSendsCanBeReadAgain) {
  auto input = BatchInput::open(write("in", line("a")));
  ASSERT_TRUE(input);
  const std::string deep = std::string(63, '[') + std::string(63, ']');
  for (const std::string& body :
       {std::string("caf\xe9"), deep, std::string("{\"x\""), std::string()}) {
    const std::string path = write("out", batch_result_line({"a", "r", 404, body, ""}));
    auto output = BatchOutput::open(path, *input);
    ASSERT_TRUE(output) << body << ": " << output.error().message;
    EXPECT_EQ(output->num_refused(), 1u);
  }
  const std::string path = write("out", batch_result_line({"a", "r", 502, "{}", ""}));
  auto output = BatchOutput::open(path, *input);
  ASSERT_TRUE(output);
  EXPECT_EQ(output->num_done(), 0u) << "sent again";
}

TEST_F(BatchFiles, ResultsOfAnotherBatchAreKept) {
  auto input = BatchInput::open(write("in", line("a")));
  ASSERT_TRUE(input);
  const std::string result = batch_result_line({"a", "r", 200, "{}", ""});
  for (const std::string& text :
       {batch_result_line({"z", "r", 200, "{}", ""}), std::string("hello\n"), result + result}) {
    const std::string path = write("out", text);
    EXPECT_FALSE(BatchOutput::open(path, *input)) << text;
    EXPECT_EQ(read(path), text);
  }
}

TEST_F(BatchFiles, OneRunAtATime) {
  auto input = BatchInput::open(write("in", line("a")));
  ASSERT_TRUE(input);
  auto first = BatchOutput::open(dir / "out", *input);
  ASSERT_TRUE(first);
  EXPECT_FALSE(BatchOutput::open(dir / "out", *input));
}

}  // namespace
}  // namespace sluice

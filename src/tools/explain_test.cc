#include "tools/explain.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

json::value parsed(const char* text) {
  Result<json::value> v = parse_json(text);
  EXPECT_TRUE(v);
  return v ? *v : json::value();
}

const char* kStory = R"({"request": 7, "state": "length", "prompt_tokens": 812, "cached_tokens": 16,
  "output_tokens": 64, "seconds": 4.0,
  "parts": [{"kind": "queued", "what": "in the queue", "seconds": 1.0, "share": 0.25},
            {"kind": "preempted", "what": "put back", "seconds": 0, "share": 0},
            {"kind": "decode", "what": "decode steps", "seconds": 3.0, "share": 0.75}],
  "sentences": ["4.00 s in all.", "It \u001b[31mwaited 1.00 s in the queue."],
  "prompt_steps": [
    {"step": 3, "at": 1, "seconds": 0.5, "tokens": 500, "other_prefill_tokens": 0, "other_decode_tokens": 2},
    {"step": 4, "at": 1.5, "seconds": 0.004, "tokens": 296, "other_prefill_tokens": 9, "other_decode_tokens": 1}]})";

TEST(Explain, AStoryHasABarPerPart) {
  Result<std::string> text = story_text(parsed(kStory), 0);
  ASSERT_TRUE(text);
  auto has = [&](const char* part) { return text->find(part) != text->npos; };
  EXPECT_TRUE(has("Request 7: length, 812 prompt tokens (16 cached), 64 generated\n"));
  EXPECT_TRUE(has("   1.00 s   25.0 %  ########\n")) << *text;
  EXPECT_TRUE(has("   3.00 s   75.0 %  ########################\n")) << *text;
  EXPECT_FALSE(has("put back")) << "parts without time are left out";
  EXPECT_TRUE(has("took    500 ms: 500 tokens, with 0 of other prompts, 2 decodes")) << *text;
  EXPECT_TRUE(has("took   4.00 ms: 296 tokens")) << *text;
  EXPECT_TRUE(has("It [31mwaited")) << "nothing of a server's commands the terminal";
}

TEST(Explain, SentencesAreBrokenWhereTheTerminalEnds) {
  Result<std::string> text = story_text(parsed(kStory), 20);
  ASSERT_TRUE(text);
  EXPECT_NE(text->find("waited 1.00 s\nin the queue."), text->npos) << *text;
}

TEST(Explain, ListsTheSlowestAndTheLatest) {
  json::value slow = parsed(
      R"({"data": [{"request": 5, "state": "stop", "seconds": 9, "ttft": 1, "age": 20,
                    "prompt_tokens": 3, "cached_tokens": 0, "output_tokens": 8}], "total": 12})");
  json::value late = parsed(
      R"({"data": [{"request": 12, "state": "waiting", "seconds": 0.5, "age": 0.5,
                    "prompt_tokens": 3, "cached_tokens": 0, "output_tokens": 0}], "total": 12})");
  Result<std::string> text = request_list_text(slow, late);
  ASSERT_TRUE(text);
  EXPECT_NE(text->find("The slowest of 12 requests"), text->npos);
  EXPECT_NE(text->find("12  waiting       500 ms         -    500 ms"), text->npos) << *text;
  json::value none = parsed(R"({"data": [], "total": 0})");
  EXPECT_NE(request_list_text(none, none)->find("No request"), std::string::npos);
}

TEST(Explain, WhatIsNoStoryIsAnError) {
  for (const char* other :
       {"{}", "[]", "7", R"({"parts": [], "sentences": 1, "request": 1})", R"({"data": 7})",
        R"({"parts": [1, "x", {}], "sentences": [], "request": []})"}) {
    Result<std::string> story = story_text(parsed(other), 80);
    if (!story) {
      EXPECT_EQ(story.error().code, 400);
    }
    EXPECT_FALSE(request_list_text(parsed(other), parsed(other))) << other;
  }
  EXPECT_FALSE(story_text(parsed("{}"), 80));
  EXPECT_FALSE(story_text(parsed(R"({"parts": [], "sentences": 1, "request": 1})"), 80));
}

}  // namespace
}  // namespace sluice

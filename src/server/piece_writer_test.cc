#include "server/piece_writer.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "base/json.h"
#include "server/logprobs.h"

namespace sluice {
namespace {

// What is written, and the largest piece.
std::pair<std::string, size_t> collect(const std::function<bool(std::string&)>& produce) {
  std::string all;
  size_t most = 0;
  for (bool more = true; more;) {
    size_t before = all.size();
    more = produce(all);
    most = std::max(most, all.size() - before);
    EXPECT_TRUE(!more || all.size() > before);
  }
  return {all, most};
}

PieceWriter nested(std::string& out, const std::vector<Token>& ids, const std::string& text) {
  out += "{\"a\":[";
  for (int i = 0; i < 3; ++i) {
    if (i > 0) out += ',';
    co_await write_ids(out, ids);
  }
  out += "],\"b\":\"";
  co_await write_escaped(out, text);
  out += "\"}";
}

TEST(PieceWriter, NestedTextsAreOneTextInPieces) {
  for (size_t num : {0u, 1u, 10u, 100'000u}) {
    std::vector<Token> ids;
    std::string text;
    for (size_t i = 0; i < num; ++i) {
      ids.push_back(static_cast<Token>(i * 7919));
      text += i % 3 == 0 ? "\u4e2d" : i % 3 == 1 ? "\n" : "x\"";
    }
    json::array list(ids.begin(), ids.end());
    json::object want{{"a", json::array{list, list, list}}, {"b", text}};
    auto [all, most] =
        collect(produce(nullptr, [&](std::string& out) { return nested(out, ids, text); }));
    EXPECT_TRUE(all == json::serialize(want)) << num;
    EXPECT_LT(most, 32u << 10);
  }
}

PieceWriter failing(std::string& out, int after) {
  for (int i = 0; i < after; ++i) {
    out += std::string(20'000, 'x');
    co_await pause_if_full(out);
  }
  throw std::runtime_error("no more");
}

PieceWriter outer(std::string& out, int after) {
  out += '[';
  co_await failing(out, after);
}

TEST(PieceWriter, WhatIsThrownInsideArrivesOutside) {
  std::string out;
  EXPECT_THROW(outer(out, 0).finish(), std::runtime_error);
  PieceWriter later = outer(out, 1);
  EXPECT_TRUE(later.next());
  EXPECT_THROW(later.next(), std::runtime_error);
}

TEST(PieceWriter, LogprobsOfLongTexts) {
  std::vector<ScoredToken> scores(3000);
  for (size_t i = 0; i < scores.size(); ++i) {
    scores[i].token = {0, static_cast<Token>(i), -1.5f, 1};
    for (Token t = 0; t < 20; ++t) scores[i].top.push_back({0, t, -0.25f, t + 1});
  }
  size_t offset = 0;
  auto write = [&](std::string& out) {
    return text_logprobs(out, {nullptr}, {7, scores, scores}, offset);
  };
  auto [text, most] = collect(produce(nullptr, write));
  json::value v = parse_json(text).value();
  for (const char* column : {"tokens", "token_logprobs", "top_logprobs", "text_offset"})
    EXPECT_EQ(v.at(column).as_array().size(), 6001u);
  EXPECT_TRUE(v.at("token_logprobs").at(0).is_null());
  EXPECT_EQ(v.at("text_offset").at(6000).to_number<size_t>(), offset - 6);
  EXPECT_LT(most, 32u << 10);
  auto [chat, most_chat] = collect(
      produce(nullptr, [&](std::string& out) { return chat_logprobs(out, {nullptr}, scores); }));
  EXPECT_EQ(parse_json(chat).value().at("content").as_array().size(), 3000u);
  EXPECT_LT(most_chat, 32u << 10);
}

}  // namespace
}  // namespace sluice

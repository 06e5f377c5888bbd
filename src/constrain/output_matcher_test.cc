#include "constrain/output_matcher.h"

#include <bit>

#include <gtest/gtest.h>

#include "constrain/test_vocab.h"

namespace sluice::constrain {
namespace {

constexpr Token kClose = 258, kCloseBreaks = 259, kBrk = 260, kBrks = 261, kMore = 262,
                kVocab = 263;

// All bytes, an end token, a control token, and tokens of marks.
std::vector<std::string> think_tokens() {
  std::vector<std::string> tokens{"", ""};
  for (int b = 0; b < 256; ++b) tokens.emplace_back(1, static_cast<char>(b));
  for (const char* t : {"</t>", "/t>\n\n", "\n", "\n\n", "t>{"}) tokens.emplace_back(t);
  return tokens;
}

std::shared_ptr<const VocabTrie> think_trie() {
  static const std::vector<std::string> kTokens = think_tokens();
  std::vector<std::string_view> views(kTokens.begin(), kTokens.end());
  Token ends[] = {kTestEnd};
  return std::make_shared<const VocabTrie>(views, ends);
}

// `one_token`: a token spells the whole end mark.
std::shared_ptr<const ThinkMarks> think_test_marks(bool one_token = true) {
  static const std::vector<std::string> kTokens = think_tokens();
  std::vector<std::string_view> views(kTokens.begin(), kTokens.end());
  if (!one_token) views[kClose] = {};
  Token ends[] = {kTestEnd};
  return std::make_shared<const ThinkMarks>("<t>", "</t>", views, ends);
}

std::shared_ptr<const Thinking> thinking_test(bool open, std::optional<int> budget) {
  return std::make_shared<const Thinking>(Thinking{think_test_marks(), open, budget});
}

std::shared_ptr<const Constraint> regex_answer(const char* regex) {
  return Constraint::compile({ConstraintKind::regex, regex}, think_trie()).value();
}

constexpr Token byte_of(char c) { return 2 + static_cast<unsigned char>(c); }

std::vector<uint32_t> mask_of(OutputMatcher& m) {
  std::vector<uint32_t> bits(m.mask_words());
  EXPECT_TRUE(m.fill_mask(bits));
  return bits;
}

bool allows_token(OutputMatcher& m, Token t) {
  return mask_of(m)[static_cast<size_t>(t) / 32] >> (static_cast<size_t>(t) % 32) & 1;
}

int num_allowed(OutputMatcher& m) {
  int num = 0;
  for (uint32_t w : mask_of(m)) num += std::popcount(w);
  return num;
}

// Each token as masks allow it.
void feed_text(OutputMatcher& m, std::string_view text) {
  for (char c : text) {
    EXPECT_TRUE(allows_token(m, byte_of(c))) << text << " at " << c;
    EXPECT_TRUE(m.accept(byte_of(c))) << text << " at " << c;
  }
}

TEST(OutputMatcher, ABudgetClosesTheThinking) {
  OutputMatcher m(nullptr, thinking_test(true, 3));
  EXPECT_EQ(num_allowed(m), kVocab);
  feed_text(m, "abc");
  EXPECT_EQ(num_allowed(m), 1);
  EXPECT_EQ(m.forced_tokens(8), std::vector<Token>{kClose});
  EXPECT_FALSE(m.accept(byte_of('d')));
  EXPECT_TRUE(m.accept(kClose));
  EXPECT_EQ(num_allowed(m), kVocab) << "the answer is free";
  feed_text(m, "what comes <t> after");
  EXPECT_EQ(num_allowed(m), kVocab) << "it thinks once";
}

TEST(OutputMatcher, AMarkOfOneTokenIsWrittenWhole) {
  for (const char* thought : {"a<", "</"}) {
    OutputMatcher m(nullptr, thinking_test(true, 2));
    feed_text(m, thought);
    EXPECT_EQ(m.forced_tokens(8), std::vector<Token>{kClose}) << thought;
    EXPECT_EQ(num_allowed(m), 1) << thought;
    EXPECT_TRUE(m.accept(kClose)) << thought;
    EXPECT_EQ(num_allowed(m), kVocab) << thought;
  }
}

TEST(OutputMatcher, AMarkOfSeveralTokensThatHasBegunIsCompleted) {
  OutputMatcher m(nullptr,
                  std::make_shared<const Thinking>(Thinking{think_test_marks(false), true, 3}));
  feed_text(m, "a</");
  EXPECT_EQ(m.forced_tokens(8), (std::vector<Token>{byte_of('t'), byte_of('>')}));
  feed_text(m, "t>");
  EXPECT_EQ(num_allowed(m), kVocab);
}

TEST(OutputMatcher, ThinkingThatEndsInTimeIsNotTouched) {
  OutputMatcher m(nullptr, thinking_test(true, 5));
  feed_text(m, "a");
  EXPECT_TRUE(m.accept(kClose));
  for (int i = 0; i < 20; ++i) feed_text(m, "x");
  EXPECT_EQ(num_allowed(m), kVocab);
}

TEST(OutputMatcher, ABudgetOfNothing) {
  OutputMatcher open(nullptr, thinking_test(true, 0));
  EXPECT_EQ(open.forced_tokens(8), std::vector<Token>{kClose});
  OutputMatcher own(nullptr, thinking_test(false, 0));
  feed_text(own, "\n<t>");
  EXPECT_EQ(own.forced_tokens(8), std::vector<Token>{kClose});
}

TEST(OutputMatcher, OutputThatDoesNotThinkHasNoBudget) {
  OutputMatcher m(nullptr, thinking_test(false, 2));
  feed_text(m, " <tall order, a long answer");
  EXPECT_EQ(num_allowed(m), kVocab);
}

TEST(OutputMatcher, AConstraintBeginsBehindTheThinking) {
  OutputMatcher m(regex_answer("\\{[0-9]\\}"), thinking_test(true, {}));
  feed_text(m, "any text {}");
  EXPECT_FALSE(allows_token(m, kTestEnd)) << "an answer must follow";
  EXPECT_TRUE(allows_token(m, kTestControl));
  feed_text(m, "</");
  EXPECT_FALSE(allows_token(m, kMore)) << "the mark with a part of the answer";
  feed_text(m, "t>");
  EXPECT_EQ(num_allowed(m), 4) << "{, or line breaks (the byte, and two tokens)";
  EXPECT_TRUE(m.accept(kBrks));
  EXPECT_EQ(m.forced_tokens(4), std::vector<Token>{byte_of('{')});
  feed_text(m, "{7}");
  EXPECT_TRUE(allows_token(m, kTestEnd));
  EXPECT_EQ(num_allowed(m), 1);
}

TEST(OutputMatcher, LineBreaksMayBePartOfTheMarksToken) {
  OutputMatcher m(regex_answer("[0-9]"), thinking_test(true, {}));
  feed_text(m, "a<");
  EXPECT_TRUE(allows_token(m, kCloseBreaks));
  EXPECT_TRUE(m.accept(kCloseBreaks));
  EXPECT_FALSE(allows_token(m, kBrk));
  feed_text(m, "7");
}

TEST(OutputMatcher, AnAnswerThatBeginsWithALineBreakKeepsIt) {
  OutputMatcher m(regex_answer("\n7"), thinking_test(true, 0));
  EXPECT_TRUE(m.accept(kClose));
  EXPECT_TRUE(m.accept(kBrk));
  EXPECT_EQ(num_allowed(m), 1);
  feed_text(m, "7");
}

TEST(OutputMatcher, ThinkingOrTheAnswerAtOnce) {
  auto both = [] { return OutputMatcher(regex_answer("<tag>[0-9]"), thinking_test(false, 2)); };
  OutputMatcher at_once = both();
  feed_text(at_once, "<tag>7");
  EXPECT_EQ(num_allowed(at_once), 1);
  OutputMatcher thinks = both();
  feed_text(thinks, "<t>ab");
  EXPECT_EQ(thinks.forced_tokens(8), std::vector<Token>{kClose});
  EXPECT_TRUE(thinks.accept(kClose));
  feed_text(thinks, "<tag>7");
  OutputMatcher neither = both();
  EXPECT_FALSE(allows_token(neither, byte_of('x')));
  EXPECT_FALSE(neither.accept(byte_of('x')));
}

TEST(OutputMatcher, WhiteSpaceBeforeTheThinkingKeepsTheBudget) {
  auto both = [] { return OutputMatcher(regex_answer("\\s*[a-z<>]*"), thinking_test(false, 2)); };
  OutputMatcher thinks = both();
  feed_text(thinks, "\n <t>ab");
  EXPECT_EQ(thinks.forced_tokens(8), std::vector<Token>{kClose});
  EXPECT_TRUE(thinks.accept(kClose));
  feed_text(thinks, "answer");
  OutputMatcher at_once = both();
  feed_text(at_once, "\n <ten>");
  EXPECT_FALSE(allows_token(at_once, byte_of('7'))) << "the constraint holds";
  OutputMatcher nothing = both();
  feed_text(nothing, "\n");
  EXPECT_TRUE(allows_token(nothing, kTestEnd));
  EXPECT_TRUE(nothing.accept(kTestEnd));
}

TEST(OutputMatcher, WithoutThinkingItIsAMatcher) {
  OutputMatcher m(regex_answer("[ab]!"), nullptr);
  EXPECT_EQ(num_allowed(m), 2);
  feed_text(m, "a");
  EXPECT_EQ(m.forced_tokens(4).front(), byte_of('!'));
}

}  // namespace
}  // namespace sluice::constrain

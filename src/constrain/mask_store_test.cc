#include "constrain/mask_store.h"

#include <gtest/gtest.h>

#include "constrain/matcher.h"
#include "constrain/regex_pool.h"
#include "constrain/test_vocab.h"

namespace sluice::constrain {
namespace {

TEST(RegexFingerprint, IsOfTheStructureNotOfThePool) {
  WorkBudget work(1'000'000);
  RegexPool one(work, 1000), two(work, 1000);
  two.literal("something else comes first");
  auto build = [](RegexPool& p, bool swapped) {
    RegexId a = p.literal("ab"), b = p.star(p.range('x', 'z'));
    if (swapped) a = p.star(p.range('x', 'z')), b = p.literal("ab");
    return p.concat(p.any_of({a, b}), p.literal("\""));
  };
  EXPECT_EQ(one.fingerprint(build(one, false), 10), two.fingerprint(build(two, true), 10));
  EXPECT_NE(one.fingerprint(one.literal("ab"), 10), one.fingerprint(one.literal("ba"), 10));
  EXPECT_NE(one.fingerprint(one.star(one.range('a', 'b')), 10),
            one.fingerprint(one.star(one.range('a', 'c')), 10));
}

TEST(RegexFingerprint, CountsThatNoTokenTellsApart) {
  WorkBudget work(1'000'000);
  RegexPool pool(work, 1000);
  auto up_to = [&](uint32_t n) { return pool.repeat(pool.range('a', 'z'), 0, n); };
  auto print = [&](RegexId r) { return pool.fingerprint(r, 10); };
  EXPECT_EQ(print(up_to(11)), print(up_to(300)));
  EXPECT_NE(print(up_to(10)), print(up_to(300)));
  // An intersection may be empty for one count and not for another.
  auto without = [&](uint32_t n) { return pool.minus(up_to(n), pool.literal("no")); };
  EXPECT_NE(print(without(11)), print(without(300)));
}

TEST(MaskStore, ConstraintsOfOneVocabularyShareMasks) {
  auto trie = test_trie();
  std::vector<uint32_t> mask(trie->mask_words());
  auto fill = [&](const char* schema) {
    Matcher m(Constraint::compile({ConstraintKind::json_schema, schema}, trie).value());
    ASSERT_TRUE(m.accept_bytes("{\"a\":\"x"));
    ASSERT_TRUE(m.fill_mask(mask));
  };
  fill(R"({"properties": {"a": {"type": "string"}}, "required": ["a"]})");
  size_t before = trie->masks().memory_bytes();
  EXPECT_GT(before, 0u);
  std::vector<uint32_t> first = mask;
  fill(R"({"properties": {"a": {"type": "string"}, "b": {"type": "number"}}})");
  EXPECT_EQ(mask, first);
  EXPECT_EQ(trie->masks().memory_bytes(), before);
}

TEST(MaskStore, ForgetsAtItsLimit) {
  MaskStore store(4096);
  auto mask = [](uint32_t bits) {
    auto m = std::make_shared<StateMask>();
    m->bits.assign(64, bits);
    return m;
  };
  MaskStore::Mask one = store.keep({1, 0}, mask(1));
  EXPECT_EQ(store.keep({2, 0}, mask(1)), one);  // equal content is kept once
  EXPECT_EQ(store.find({2, 0}), one);
  for (uint64_t i = 3; i < 40; ++i) {
    store.keep({i, 0}, mask(static_cast<uint32_t>(i)));
    EXPECT_LE(store.memory_bytes(), 4096u);
    EXPECT_NE(store.find({i, 0}), nullptr);
  }
  EXPECT_EQ(store.find({1, 0}), nullptr);
}

}  // namespace
}  // namespace sluice::constrain

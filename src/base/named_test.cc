#include "base/named.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

enum class Fruit { apple, pear, plum };
constexpr NamedValue<Fruit> kFruits[] = {
    {"apple", Fruit::apple}, {"pear", Fruit::pear}, {"pomme", Fruit::apple}};

TEST(Named, FindsValuesByNameAndNamesByValue) {
  EXPECT_EQ(value_named(kFruits, "pear"), Fruit::pear);
  EXPECT_EQ(value_named(kFruits, "pomme"), Fruit::apple);
  EXPECT_EQ(value_named(kFruits, "Pear"), std::nullopt);
  EXPECT_EQ(value_named(kFruits, ""), std::nullopt);
  EXPECT_STREQ(name_of(kFruits, Fruit::apple), "apple");  // the first of its names
  EXPECT_STREQ(name_of(kFruits, Fruit::plum), "custom");
  EXPECT_EQ(names_in(kFruits), (std::vector<std::string>{"apple", "pear", "pomme"}));
}

}  // namespace
}  // namespace sluice

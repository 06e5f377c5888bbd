// Numbers between bounds as regular expressions over JSON's spelling, exactly. With bounds numbers
// are written without an exponent.
#pragma once

#include <optional>
#include <string>

#include "base/json.h"
#include "constrain/regex_pool.h"

namespace sluice::constrain {

// A decimal number without exponent: -12.5 is {true, "12", "5"}. No leading zeros but "0" itself,
// no trailing zeros in the fraction; zero is not negative.
struct Decimal {
  bool negative = false;
  std::string whole = "0", fraction;

  static std::optional<Decimal> of(const json::value& number);
  bool is_zero() const { return whole == "0" && fraction.empty(); }
  bool is_whole() const { return fraction.empty(); }
  Decimal next_whole(int direction) const;  // of a whole number: plus or minus one
  int compare(const Decimal& other) const;
  bool operator==(const Decimal&) const = default;
};

struct NumberBound {
  Decimal at;
  bool open = false;  // the bound itself does not count
  bool operator==(const NumberBound&) const = default;
};

// Numbers of one interval. `whole`: integers, spelled without a fraction.
struct NumberSet {
  bool whole = false;
  std::optional<NumberBound> low{}, high{};
  uint32_t multiple = 0;  // of this; 0: any. Only of whole numbers
  bool operator==(const NumberSet&) const = default;
};

RegexId number_regex(RegexPool& pool, const NumberSet& set);

}  // namespace sluice::constrain

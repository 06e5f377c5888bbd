// Which of the words that are known somebody meant who typed another one.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace sluice {

// Letters to insert, delete, replace or swap with their neighbour, without regard to case.
size_t edit_distance(std::string_view a, std::string_view b);

// The nearest of `known` that is near enough for a slip: at most one letter in three and four in
// all differ, or `typed` is the beginning of only this one. Empty: none.
std::string nearest(std::string_view typed, std::span<const std::string> known);

}  // namespace sluice

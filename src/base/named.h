// Values with names: one constexpr table per enum says what flags, files and JSON call its values.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

template <typename T>
struct NamedValue {
  const char* name;
  T value;
};

// The value with this name; nothing if the table has none.
template <typename T, size_t n>
std::optional<T> value_named(const NamedValue<T> (&table)[n], std::string_view name) {
  for (const NamedValue<T>& row : table)
    if (row.name == name) return row.value;
  return std::nullopt;
}

// The first name of `value`; "custom" if the table has none.
template <typename T, size_t n>
const char* name_of(const NamedValue<T> (&table)[n], const T& value) {
  for (const NamedValue<T>& row : table)
    if (row.value == value) return row.name;
  return "custom";
}

template <typename T, size_t n>
std::vector<std::string> names_in(const NamedValue<T> (&table)[n]) {
  std::vector<std::string> names;
  for (const NamedValue<T>& row : table) names.emplace_back(row.name);
  return names;
}

}  // namespace sluice

#include "core/policy.h"

#include <span>

#include "base/check.h"

namespace sluice {

namespace {

template <typename T>
struct Named {
  T value;
  const char* name;
};

constexpr Named<Order> kOrders[] = {
    {Order::fcfs, "fcfs"},
    {Order::priority, "priority"},
    {Order::longest_output, "longest-output"},
    {Order::shortest_output, "shortest-output"},
    {Order::fair, "fair"},
};

constexpr Named<Admission> kAdmissions[] = {
    {Admission::reserve_max, "reserve-max"},
    {Admission::watermark, "watermark"},
};

template <typename T>
const char* name_of(std::span<const Named<T>> table, T value) {
  for (const Named<T>& row : table) {
    if (row.value == value) return row.name;
  }
  return "?";
}

template <typename T>
T value_of(std::span<const Named<T>> table, std::string_view name) {
  for (const Named<T>& row : table) {
    if (row.name == name) return row.value;
  }
  CHECK(false);
  return table[0].value;
}

template <typename T>
std::vector<std::string> names(std::span<const Named<T>> table) {
  std::vector<std::string> all;
  for (const Named<T>& row : table) all.emplace_back(row.name);
  return all;
}

}  // namespace

const char* order_name(Order order) { return name_of<Order>(kOrders, order); }
const char* admission_name(Admission a) { return name_of<Admission>(kAdmissions, a); }
std::vector<std::string> order_names() { return names<Order>(kOrders); }
std::vector<std::string> admission_names() { return names<Admission>(kAdmissions); }
Order order_of(std::string_view name) { return value_of<Order>(kOrders, name); }
Admission admission_of(std::string_view name) { return value_of<Admission>(kAdmissions, name); }

Result<void> check_policies(const SchedulerConfig& c, bool has_accounts) {
  if (c.order == Order::fair && !has_accounts)
    return Error{400,
                 "--order fair shares the engine between API keys, and there are none: use `serve` "
                 "with --api-key-file, or another order"};
  return {};
}

}  // namespace sluice

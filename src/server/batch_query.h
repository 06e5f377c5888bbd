// What /v1/files and /v1/batches share: where the folder is, and pages of lists.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "server/service.h"

namespace sluice {

// The store, or null once the call has been answered: this server keeps none.
BatchStore* batch_store(Service& service, const Call& call);
// An error of the store, about the field `param`.
ApiError store_error(const Error& error, const char* param = "");

struct PageQuery {
  size_t limit = 20;
  std::string after, purpose;
  bool ascending = false;
};
// "limit=20&after=ID&order=asc&purpose=batch"; other names are not ours to judge.
Refusal parse_page_query(std::string_view text, size_t most, PageQuery& out);

// A page of what `all` holds, the oldest first.
template <typename Record, typename ToJson>
Refusal make_page(std::vector<Record> all,
                  const PageQuery& query,
                  const ToJson& to_json,
                  json::object& out) {
  if (!query.ascending) std::reverse(all.begin(), all.end());
  size_t first = 0;
  if (!query.after.empty()) {
    while (first < all.size() && all[first].id != query.after) ++first;
    if (first == all.size())
      return ApiError{400, "after names nothing that is in this list", "after", ""};
    ++first;
  }
  const size_t end = std::min(all.size(), first + query.limit);
  json::array data;
  for (size_t i = first; i < end; ++i) data.push_back(to_json(all[i]));
  out["object"] = "list";
  out["first_id"] = data.empty() ? json::value(nullptr) : json::value(all[first].id);
  out["last_id"] = data.empty() ? json::value(nullptr) : json::value(all[end - 1].id);
  out["has_more"] = end < all.size();
  out["data"] = std::move(data);
  return {};
}

}  // namespace sluice

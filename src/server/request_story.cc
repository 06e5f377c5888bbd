// Stories of requests over HTTP: to the dashboard any request's, under /v1/requests those that the
// caller's key made.
#include <algorithm>
#include <charconv>

#include "base/str.h"
#include "server/observe_explain.h"
#include "server/routes.h"

namespace sluice {

namespace {

constexpr std::string_view kRequestsPath = "/v1/requests/", kStory = "/story";
const ApiError kNoRequest{404, "there is no such request, or it was too long ago", "", "not_found"};

// By the engine's number, or by the id of an answer ("chatcmpl-…"): its first prompt's request.
RequestId find_request(const Recorder& recorder, std::string_view name) {
  RequestId id = 0;
  auto [stop, error] = std::from_chars(name.data(), name.data() + name.size(), id);
  bool number = error == std::errc{} && stop == name.data() + name.size();
  return number ? id : recorder.find_answer(answer_key(name));
}

void tell(Service& s, const Call& call, std::string_view name, std::optional<int> reader) {
  RequestId id = find_request(s.recorder(), name);
  auto story = explain_request(s.recorder(), id, s.session().clock().now(), reader);
  if (story) return s.reply_json(call, *story);
  s.fail(call, kNoRequest);
}

struct ListQuery {
  size_t limit = 20;
  bool slowest = false;
};

// "limit=20&order=slowest"; other names are not ours to judge.
Refusal parse_list_query(std::string_view text, ListQuery& out) {
  while (!text.empty()) {
    std::string_view pair = text.substr(0, text.find('&'));
    text.remove_prefix(std::min(pair.size() + 1, text.size()));
    std::string_view name = pair.substr(0, pair.find('='));
    std::string_view value = pair.substr(std::min(name.size() + 1, pair.size()));
    if (name == "limit") {
      auto [stop, error] = std::from_chars(value.data(), value.data() + value.size(), out.limit);
      if (error != std::errc{} || stop != value.data() + value.size() || out.limit < 1 ||
          out.limit > 100)
        return ApiError{400, "limit must be 1 to 100", "limit", ""};
    } else if (name == "order") {
      if (value != "latest" && value != "slowest")
        return ApiError{400, "order must be latest or slowest", "order", ""};
      out.slowest = value == "slowest";
    }
  }
  return {};
}

}  // namespace

void serve_request_story(Service& s, Call call) {
  if (Refusal r = s.check_ready()) return s.fail(call, *r);
  std::string_view path = call.http.path;
  tell(s, call, path.substr(path.rfind('/') + 1), {});
}

void serve_own_story(Service& s, Call call) {
  if (Refusal r = s.check_ready()) return s.fail(call, *r);
  std::string_view name = std::string_view(call.http.path).substr(kRequestsPath.size());
  if (!name.ends_with(kStory)) {
    return s.fail(
        call, {404, strf("there is no %s here", quote(call.http.path).c_str()), "", "not_found"});
  }
  name.remove_suffix(kStory.size());
  tell(s, call, name, call.key);
}

void serve_requests(Service& s, Call call) {
  if (Refusal r = s.check_ready()) return s.fail(call, *r);
  ListQuery query;
  if (Refusal r = parse_list_query(call.http.query, query)) return s.fail(call, *r);
  Time now = s.session().clock().now();
  std::vector<Recorder::Brief> all = s.recorder().made_by(call.key, now);
  size_t num = std::min(query.limit, all.size());
  std::partial_sort(all.begin(), all.begin() + static_cast<ptrdiff_t>(num), all.end(),
                    [&](const Recorder::Brief& a, const Recorder::Brief& b) {
                      if (query.slowest && a.time != b.time) return a.time > b.time;
                      return a.id > b.id;
                    });
  json::array data;
  for (size_t i = 0; i < num; ++i) {
    RequestRecord r;
    if (s.recorder().request(all[i].id, r)) data.push_back(summarize_request(r, now));
  }
  s.reply_json(call,
               json::object{{"object", "list"}, {"data", std::move(data)}, {"total", all.size()}});
}

}  // namespace sluice

// Any bytes as a connection's input: the requests in them, read whole and in two parts alike, and
// never one that a strict reader refuses or frames otherwise. Run with -malloc_limit_mb=64.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "net/request_parser.h"
#include "net/strict_reader.h"

using namespace sluice;

namespace {

HttpLimits limits() {
  HttpLimits l;
  l.header_bytes = 1024;
  l.num_headers = 16;
  l.body_bytes = 1024;
  return l;
}

void check_same(const RequestParser& a, const RequestParser& b) {
  CHECK(a.done() == b.done() && a.status() == b.status() && a.reason() == b.reason());
  CHECK(a.request().body == b.request().body && a.request().headers == b.request().headers);
  CHECK(a.request().path == b.request().path && a.request().query == b.request().query);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static const HttpLimits kLimits = limits();
  std::string_view rest(reinterpret_cast<const char*>(bytes), size);
  const size_t cut = size > 0 ? bytes[size - 1] * size / 256 : 0;
  for (;;) {
    RequestParser whole(kLimits), parts(kLimits);
    size_t used = whole.put(rest);
    size_t at = std::min(cut, rest.size());
    size_t first = parts.put(rest.substr(0, at));
    if (first == at) first += parts.put(rest.substr(at));
    check_same(whole, parts);
    CHECK(whole.request().body.size() <= kLimits.body_bytes);
    if (whole.refused()) {
      CHECK(whole.status() >= 400 && whole.status() < 600 && !whole.reason().empty());
      CHECK(whole.reason().find('\n') == std::string::npos);
      return 0;
    }
    if (!whole.done()) {
      CHECK(used == rest.size());
      return 0;
    }
    auto strict = read_strictly(rest);
    CHECK(strict && strict->end == used && first == used);
    CHECK(strict->body == whole.request().body);
    rest.remove_prefix(used);
  }
}

// Any bytes as a plan, as masks and as a result: an error of one line, or a value whose encoding is
// these very bytes. Run with -malloc_limit_mb=64.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/check.h"
#include "core/plan_codec.h"

using namespace sluice;

namespace {

template <typename T>
void check(const Result<T>& value, std::span<const std::byte> bytes) {
  if (!value) {
    const std::string& m = value.error().message;
    CHECK(!m.empty() && m.size() < 1000 && m.find('\n') == std::string::npos);
    return;
  }
  Bytes again;
  encode(*value, again);
  CHECK(std::ranges::equal(again, bytes));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  check(decode_plan(bytes), bytes);
  check(decode_masks(bytes), bytes);
  check(decode_result(bytes), bytes);
  return 0;
}

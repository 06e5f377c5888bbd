// Any bytes as an answer of etcd's gateway, and as base64: an error of one line, or values.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "net/etcd.h"

using namespace sluice;

namespace {

template <typename T>
bool good(const Result<T>& value) {
  if (value) return true;
  const std::string& m = value.error().message;
  CHECK(!m.empty() && m.size() < 1000 && m.find('\n') == std::string::npos);
  return false;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (Result<std::string> bytes = from_base64(text); good(bytes)) {
    CHECK(bytes->size() <= size);
    CHECK(from_base64(to_base64(*bytes)).value() == *bytes);
  }
  CHECK(from_base64(to_base64(text)).value() == text);
  if (Result<std::vector<std::string>> values = etcd_values(text); good(values))
    for (const std::string& v : *values) CHECK(v.size() < size);
  static_cast<void>(good(etcd_granted(text)));
  return 0;
}

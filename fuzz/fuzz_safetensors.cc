// Any bytes as a safetensors file: an error or entries that cover it. Run with -malloc_limit_mb=64.
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>

#include "base/check.h"
#include "tensor/safetensors.h"

using namespace sluice;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const std::span file(reinterpret_cast<const std::byte*>(bytes), size);
  auto entries = parse_safetensors_header(file);
  if (!entries) {
    const std::string& m = entries.error().message;
    CHECK(!m.empty() && m.size() < 1000 && m.find('\n') == std::string::npos);
    return 0;
  }
  size_t total = 0;
  std::set<std::string> names;
  for (const SafetensorsEntry& e : *entries) {
    CHECK(names.insert(e.name).second);
    size_t num = type_bytes(e.type);
    for (int64_t d : e.shape) num *= static_cast<size_t>(d);
    CHECK(num == e.bytes && e.offset <= size && e.bytes <= size - e.offset);
    total += e.bytes;
  }
  uint64_t header = 0;
  for (size_t i = 0; i < 8; ++i) header |= uint64_t{bytes[i]} << 8 * i;
  CHECK(total + header + 8 == size);
  return 0;
}

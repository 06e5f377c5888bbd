// Any bytes as a GGUF file: an error or a header whose promises hold. Run with -malloc_limit_mb=64.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "tensor/formats/all.h"
#include "tensor/gguf.h"

using namespace sluice;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const std::span file(reinterpret_cast<const std::byte*>(bytes), size);
  auto header = parse_gguf_header(file);
  if (!header) {
    CHECK(!header.error().message.empty() && header.error().message.size() < 1000);
    return 0;
  }
  CHECK(header->tensors.size() == header->offsets.size());
  size_t total = 0;
  for (size_t i = 0; i < header->tensors.size(); ++i) {
    const TensorInfo& t = header->tensors[i];
    const FormatInfo& f = format_info(t.format);
    CHECK(t.rows > 0 && t.cols > 0 && t.cols % f.block_elems == 0);
    CHECK(t.bytes == row_bytes(t.format, t.cols) * static_cast<size_t>(t.rows));
    CHECK(header->offsets[i] >= header->data_begin && header->offsets[i] % header->alignment == 0);
    auto data = file.subspan(header->offsets[i], t.bytes);
    // Decoders take any block. Copied: the input itself is not aligned as a mapping is.
    const auto num = static_cast<size_t>(f.block_bytes);
    std::vector<uint64_t> block((num + 7) / 8);
    std::copy_n(data.begin(), num, reinterpret_cast<std::byte*>(block.data()));
    std::vector<float> out(static_cast<size_t>(f.block_elems));
    f.decode(block.data(), out.data(), f.block_elems);
    total += t.bytes;
  }
  CHECK(total <= size);  // no overlap
  for (const auto& [key, value] : header->meta.all()) {
    CHECK(header->meta.find(key) == &value);
    (void)header->meta.integer(key);
    (void)header->meta.number(key);
  }
  return 0;
}

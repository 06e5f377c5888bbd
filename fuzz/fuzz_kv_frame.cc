// Any bytes as what a peer sends for KV blocks: a hello, then frames, with the size of a block from
// the first byte. An error of one line, or values whose encoding is these very bytes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/check.h"
#include "dist/kv_frame.h"

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
  if (size == 0) return 0;
  const size_t block_bytes = data[0];
  std::span rest(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  const auto first = rest.first(std::min(rest.size(), kHelloBytes));
  if (Result<KvHello> hello = decode_hello(first); good(hello)) {
    FrameBytes again;
    encode_hello(*hello, again);
    CHECK(std::ranges::equal(again, first));
    rest = rest.subspan(first.size());
  }
  while (rest.size() >= kFrameHeadBytes) {
    const auto head = rest.first(kFrameHeadBytes);
    rest = rest.subspan(kFrameHeadBytes);
    Result<size_t> expected = payload_size(head, block_bytes);
    const bool known = good(expected);
    const size_t num = std::min(rest.size(), known ? *expected : size_t{data[0]});
    Result<KvFrame> frame = decode_frame(head, rest.first(num));
    CHECK(!good(frame) || std::holds_alternative<KvBlock>(*frame) || known);
    if (known && *expected == num) CHECK(frame.has_value());
    if (!known || !frame) return 0;
    FrameBytes again;
    encode_frame(*frame, block_bytes, again);
    const std::span<const std::byte> content = frame_content(*frame);
    again.insert(again.end(), content.begin(), content.end());
    CHECK(std::ranges::equal(std::span(again).first(kFrameHeadBytes), head));
    CHECK(std::ranges::equal(std::span(again).subspan(kFrameHeadBytes), rest.first(num)));
    rest = rest.subspan(num);
  }
  return 0;
}

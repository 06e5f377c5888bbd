// The metadata of a GGUF header. Part of the reader behind gguf.h.
#pragma once

#include <cstdint>

#include "tensor/checkpoint.h"
#include "tensor/gguf_cursor.h"

namespace sluice {

inline constexpr uint64_t kMaxGgufNameBytes = 65535;  // of keys and tensor names

// `num_keys` keys and values from the cursor on. False: the cursor has the error.
bool read_gguf_meta(GgufCursor& in, uint64_t num_keys, Meta& meta);

}  // namespace sluice

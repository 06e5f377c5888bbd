// Plans, their masks and results as bytes: for other processes, recordings, replays. Pure; any
// thread.
//
// Layout: two letters (SP plan, SM masks, SR result), one byte of version, then the fields in the
// order of step_plan.h. Integers are base-128 varints, least significant group first, signed ones
// zigzag; floats and words of masks are four bytes, least significant first; lists are a count and
// their elements. A value has one encoding: decoders refuse longer varints and bytes behind the
// end.
//
// Version: any change to the fields, their order or their meaning raises kPlanVersion, and a
// decoder reads its own version only. Processes that share plans run one build; a recording is
// replayed by the version that made it. plan_codec_test.cc pins the bytes.
//
// Decoding checks what can be checked without an executor: sizes, ranges of enums, and every index
// from one list of the plan into another. Slots, blocks and positions are the executor's to check.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "core/byte_io.h"
#include "core/step_plan.h"

namespace sluice {

inline constexpr uint8_t kPlanVersion = 4;

// Append to `out`. Tokens are written as `map` names them, where it is not null.
void encode(const StepPlan& plan, Bytes& out, const TokenMap* map = nullptr);
void encode(const StepMasks& masks, Bytes& out);
void encode(const StepResult& result, Bytes& out, const TokenMap* map = nullptr);

Result<StepPlan> decode_plan(std::span<const std::byte> bytes);
Result<StepMasks> decode_masks(std::span<const std::byte> bytes);
Result<StepResult> decode_result(std::span<const std::byte> bytes);

}  // namespace sluice

// Who wants to know which prefixes are cached, tier by tier. Called on the scheduler's thread,
// while it changes: an implementation must not call back.
#pragma once

#include <cstdint>
#include <span>

#include "core/request.h"
#include "core/step_plan.h"

namespace sluice {

struct PrefixKey;

enum class KvTier : uint8_t { device, host, disk };

class KvListener {
 public:
  virtual ~KvListener() = default;
  // `parent`: the block before it, or root_hash(key.tenant).
  virtual void stored(KvTier tier,
                      const PrefixKey& key,
                      BlockHash parent,
                      std::span<const Token> tokens) noexcept = 0;
  virtual void removed(KvTier tier, const PrefixKey& key) noexcept = 0;
  // Nothing is cached any more, in any tier. Needs no memory.
  virtual void cleared() noexcept = 0;
};

}  // namespace sluice

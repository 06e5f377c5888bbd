#include "constrain/rules.h"

namespace sluice::constrain {

void build_key_trie(const std::vector<std::string>& sorted_keys, ObjectRule& out) {
  out.keys.assign(1, {});
  out.keys[0].last = static_cast<uint32_t>(sorted_keys.size());
  for (uint32_t k = 0; k < sorted_keys.size(); ++k) {
    uint32_t at = 0;
    for (char c : sorted_keys[k]) {
      uint8_t byte = static_cast<uint8_t>(c);
      auto& children = out.keys[at].children;
      if (children.empty() || children.back().first != byte) {
        uint32_t made = static_cast<uint32_t>(out.keys.size());
        children.emplace_back(byte, made);
        out.keys.push_back({{}, k, k, -1});
      }
      at = out.keys[at].children.back().second;
      out.keys[at].last = k + 1;
    }
    out.keys[at].property = static_cast<int>(k);
  }
}

}  // namespace sluice::constrain

#include "server/piece_writer.h"

#include <algorithm>

#include "base/json.h"

namespace sluice {

PieceWriter write_escaped(std::string& out, std::string_view text) {
  while (!text.empty()) {
    size_t size = std::min<size_t>(text.size(), 4096);
    while (size < text.size() && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80) ++size;
    std::string quoted = json::serialize(json::string(text.substr(0, size)));
    out.append(quoted, 1, quoted.size() - 2);
    text.remove_prefix(size);
    co_await pause_if_full(out);
  }
}

PieceWriter write_ids(std::string& out, const std::vector<Token>& ids) {
  out += '[';
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out += ',';
    out += std::to_string(ids[i]);
    co_await pause_if_full(out);
  }
  out += ']';
}

}  // namespace sluice

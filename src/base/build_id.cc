#include "base/build_id.h"

#include <elf.h>
#include <link.h>

#include <cstddef>
#include <cstring>

namespace sluice {

namespace {

// Looks through one segment of notes: each a header, a name and content, both padded to 4 bytes.
std::string id_in_notes(const char* notes, size_t size) {
  const auto padded = [](size_t n) { return (n + 3) & ~size_t{3}; };
  for (size_t at = 0; at + sizeof(ElfW(Nhdr)) <= size;) {
    ElfW(Nhdr) note;
    std::memcpy(&note, notes + at, sizeof note);
    const size_t name = at + sizeof note, content = name + padded(note.n_namesz);
    const size_t end = content + padded(note.n_descsz);
    if (end > size) break;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
        std::memcmp(notes + name, "GNU", 4) == 0) {
      std::string out;
      for (size_t i = 0; i < note.n_descsz && i < 8; ++i) {
        const auto byte = static_cast<unsigned char>(notes[content + i]);
        out += "0123456789abcdef"[byte >> 4];
        out += "0123456789abcdef"[byte & 15];
      }
      return out;
    }
    at = end;
  }
  return {};
}

// The program itself is the first object.
int visit(dl_phdr_info* info, size_t, void* out) {
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& p = info->dlpi_phdr[i];
    if (p.p_type != PT_NOTE) continue;
    const char* notes = reinterpret_cast<const char*>(info->dlpi_addr + p.p_vaddr);
    std::string id = id_in_notes(notes, p.p_memsz);
    if (id.empty()) continue;
    *static_cast<std::string*>(out) = std::move(id);
    break;
  }
  return 1;
}

}  // namespace

std::string build_id() {
  std::string out;
  dl_iterate_phdr(visit, &out);
  return out;
}

}  // namespace sluice

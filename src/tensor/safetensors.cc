#include "tensor/safetensors.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "base/json.h"
#include "base/str.h"

namespace sluice {
namespace {

constexpr uint64_t kMaxHeader = 100'000'000;  // the format's own limit

struct TypeRow {
  const char* name;
  size_t bytes;
};
constexpr TypeRow kTypes[] = {{"F64", 8}, {"F32", 4}, {"F16", 2},  {"BF16", 2},    {"I64", 8},
                              {"I32", 4}, {"I16", 2}, {"I8", 1},   {"U64", 8},     {"U32", 4},
                              {"U16", 2}, {"U8", 1},  {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};

Error corrupt(std::string what) { return Error{400, std::move(what)}; }

// Keys of the outermost object of valid JSON: the parser keeps one of two equal ones.
size_t count_keys(std::string_view text) {
  size_t num = 0;
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      --depth;
    } else if (c == ':' && depth == 1) {
      ++num;
    }
  }
  return num;
}

// A whole number from 0 to 2^63 - 1.
bool read_count(const json::value& v, int64_t& out) {
  const int64_t* i = v.if_int64();
  if (!i || *i < 0) return false;
  out = *i;
  return true;
}

// `data` is where the tensors begin, `size` their bytes in all.
Result<SafetensorsEntry> read_entry(std::string_view name,
                                    const json::value& value,
                                    size_t data,
                                    size_t size) {
  const std::string who = strf("tensor %s", quote(name).c_str());
  const json::object* o = value.if_object();
  const json::value* dtype = o ? o->if_contains("dtype") : nullptr;
  const json::value* shape = o ? o->if_contains("shape") : nullptr;
  const json::value* span = o ? o->if_contains("data_offsets") : nullptr;
  if (!dtype || !dtype->is_string() || !shape || !shape->is_array() || !span || !span->is_array() ||
      span->get_array().size() != 2) {
    return corrupt(who + " has no dtype, shape and data_offsets; the file is corrupt");
  }
  SafetensorsEntry e;
  e.name = name;
  const std::string_view type(dtype->get_string());
  const auto* row = std::ranges::find_if(kTypes, [&](const TypeRow& t) { return type == t.name; });
  if (row == std::end(kTypes)) {
    return corrupt(
        strf("%s is of type %s, which is not supported: F32, F16, BF16, I8 "
             "and F8_E4M3 are",
             who.c_str(), quote(type).c_str()));
  }
  e.type = static_cast<SafetensorsType>(row - kTypes);
  size_t bytes = row->bytes;
  if (shape->get_array().size() > 8) return corrupt(who + " has more than 8 dimensions");
  for (const json::value& d : shape->get_array()) {
    int64_t n = 0;
    if (!read_count(d, n)) return corrupt(who + " has an impossible shape; the file is corrupt");
    if (__builtin_mul_overflow(bytes, static_cast<size_t>(n), &bytes)) {
      return corrupt(who + " has an impossible shape: its size overflows");
    }
    e.shape.push_back(n);
  }
  int64_t begin = 0;
  int64_t end = 0;
  if (!read_count(span->get_array()[0], begin) || !read_count(span->get_array()[1], end) ||
      begin > end) {
    return corrupt(who + " has impossible data_offsets; the file is corrupt");
  }
  if (static_cast<size_t>(end) > size) {
    return corrupt(strf("%s ends at byte %lld of %zu: the file is cut short; fetch it again",
                        who.c_str(), static_cast<long long>(end), size));
  }
  e.bytes = static_cast<size_t>(end - begin);
  if (e.bytes != bytes) {
    return corrupt(strf("%s has %zu bytes, but its shape needs %zu; the file is corrupt",
                        who.c_str(), e.bytes, bytes));
  }
  e.offset = data + static_cast<size_t>(begin);
  return e;
}

Result<void> check_cover(const std::vector<SafetensorsEntry>& sorted, size_t data, size_t end) {
  size_t at = data;
  for (const SafetensorsEntry& e : sorted) {
    if (e.offset != at) {
      return corrupt(strf("tensor %s %s; the file is corrupt", quote(e.name).c_str(),
                          e.offset < at ? "overlaps the one before it"
                                        : "leaves a gap between it and the one before it"));
    }
    at = e.offset + e.bytes;
  }
  if (at != end) {
    return corrupt(
        strf("%zu bytes after the last tensor belong to none; the file is corrupt", end - at));
  }
  return {};
}

}  // namespace

const char* type_name(SafetensorsType type) { return kTypes[static_cast<size_t>(type)].name; }
size_t type_bytes(SafetensorsType type) { return kTypes[static_cast<size_t>(type)].bytes; }

bool is_lfs_pointer(std::span<const std::byte> file) {
  constexpr std::string_view kPointer = "version https://git-lfs";
  return file.size() >= kPointer.size() &&
         std::memcmp(file.data(), kPointer.data(), kPointer.size()) == 0;
}

Result<std::vector<SafetensorsEntry>> parse_safetensors_header(std::span<const std::byte> file) {
  if (is_lfs_pointer(file)) {
    return corrupt("is a Git LFS pointer, not the weights: run `git lfs pull`, or fetch the file");
  }
  if (file.size() < 8) return corrupt("too short for a safetensors file; fetch it again");
  uint64_t length = 0;
  for (size_t i = 0; i < 8; ++i) length |= std::to_integer<uint64_t>(file[i]) << 8 * i;
  if (length > kMaxHeader) {
    return corrupt(strf("not a safetensors file: its header would have %llu bytes",
                        static_cast<unsigned long long>(length)));
  }
  if (length > file.size() - 8) {
    return corrupt(strf("the header's %llu bytes go past the end of the file; fetch it again",
                        static_cast<unsigned long long>(length)));
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + 8, length);
  auto parsed = parse_json(text);
  if (!parsed) return corrupt("the header is " + parsed.error().message);
  const json::object* header = parsed->if_object();
  if (!header) return corrupt("the header is not a JSON object; not a safetensors file");
  if (count_keys(text) != header->size()) return corrupt("the header names a tensor twice");
  const size_t data = 8 + static_cast<size_t>(length);
  std::vector<SafetensorsEntry> entries;
  entries.reserve(header->size());
  for (const auto& member : *header) {
    if (member.key() == "__metadata__") {
      const json::object* meta = member.value().if_object();
      const bool strings =
          meta && std::ranges::all_of(*meta, [](const auto& m) { return m.value().is_string(); });
      if (!strings) return corrupt("__metadata__ is not an object of strings");
      continue;
    }
    auto entry = read_entry(member.key(), member.value(), data, file.size() - data);
    if (!entry) return entry.error();
    entries.push_back(std::move(*entry));
  }
  std::ranges::sort(entries, [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
  });
  if (auto ok = check_cover(entries, data, file.size()); !ok) return ok.error();
  return entries;
}

}  // namespace sluice

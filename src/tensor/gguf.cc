#include "tensor/gguf.h"

#include <algorithm>
#include <charconv>
#include <new>
#include <optional>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/str.h"
#include "tensor/mapped_file.h"

namespace sluice {
namespace {

constexpr int64_t kMaxParts = 1024;

struct Part {
  MappedFile file;
  GgufHeader header;
};

Error at_path(const std::string& path, const Error& e) {
  return Error{e.code, quote(path, 400) + ": " + e.message};
}

Result<Part> open_part(const std::string& path) {
  auto file = MappedFile::open(path);
  if (!file) return file.error();
  auto header = parse_gguf_header(file->bytes());
  if (!header) return at_path(path, header.error());
  return Part{std::move(*file), std::move(*header)};
}

// "dir/name-00002-of-00005.gguf": dir/name, 2, 5.
struct PartName {
  std::string stem;
  int64_t number = 0, count = 0;

  std::string of(int64_t n) const {
    return strf("%s-%05d-of-%05d.gguf", stem.c_str(), static_cast<int>(n), static_cast<int>(count));
  }
};

std::optional<int64_t> five_digits(std::string_view s) {
  int64_t n = 0;
  auto [end, error] = std::from_chars(s.data(), s.data() + 5, n);
  if (error != std::errc() || end != s.data() + 5 || n <= 0) return std::nullopt;
  return n;
}

std::optional<PartName> part_name(std::string_view path) {
  constexpr std::string_view kTail = "-00001-of-00001.gguf";
  if (path.size() <= kTail.size()) return std::nullopt;
  const std::string_view tail = path.substr(path.size() - kTail.size());
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || tail.substr(15) != ".gguf") {
    return std::nullopt;
  }
  auto number = five_digits(tail.substr(1));
  auto count = five_digits(tail.substr(10));
  if (!number || !count || *number > *count) return std::nullopt;
  return PartName{std::string(path.substr(0, path.size() - kTail.size())), *number, *count};
}

// What a part says of itself must be what its name says. `number` counts from 1.
Result<void> check_part(const Meta& meta, const Meta& first, int64_t number, int64_t count) {
  if (meta.integer("split.count") != count || meta.integer("split.no") != number - 1) {
    return Error{400,
                 strf("is not part %d of %d by its own metadata (split.no, split.count); fetch "
                      "the parts again under their own names",
                      static_cast<int>(number), static_cast<int>(count))};
  }
  for (const char* key : {"general.architecture", "split.tensors.count"}) {
    const MetaValue* mine = meta.find(key);
    const MetaValue* firsts = first.find(key);
    if (mine && firsts && *mine != *firsts) {
      return Error{
          400, strf("%s differs from the first part's: the parts are of different models", key)};
    }
  }
  return {};
}

class GgufCheckpoint final : public Checkpoint {
 public:
  // Metadata is the first part's. Fails on a tensor that two parts have.
  Result<void> add(Part part) {
    const size_t file = files_.size();
    if (file == 0) meta_ = std::move(part.header.meta);
    files_.push_back(std::move(part.file));
    for (size_t i = 0; i < part.header.tensors.size(); ++i) {
      TensorInfo& t = part.header.tensors[i];
      if (!index_.emplace(t.name, tensors_.size()).second) {
        return Error{400,
                     strf("tensor %s is in an earlier part too; the parts do not belong together",
                          quote(t.name).c_str())};
      }
      tensors_.push_back(std::move(t));
      places_.push_back({file, part.header.offsets[i]});
    }
    return {};
  }

  std::span<const std::byte> data(const TensorInfo& tensor) override {
    const Place& p = place(tensor);
    files_[p.file].prefetch(p.offset, tensor.bytes);
    return files_[p.file].bytes().subspan(p.offset, tensor.bytes);
  }

  void release(const TensorInfo& tensor) override {
    const Place& p = place(tensor);
    files_[p.file].drop(p.offset, tensor.bytes);
  }

 private:
  struct Place {
    size_t file, offset;
  };

  const Place& place(const TensorInfo& tensor) const {
    auto it = index_.find(tensor.name);
    CHECK(it != index_.end() && tensors_[it->second].bytes == tensor.bytes);
    return places_[it->second];
  }

  std::vector<MappedFile> files_;
  std::vector<Place> places_;  // beside tensors_
};

Result<std::unique_ptr<Checkpoint>> open_split(const std::string& path, const PartName& name) {
  auto checkpoint = std::make_unique<GgufCheckpoint>();
  for (int64_t n = 1; n <= name.count; ++n) {
    const std::string part_path = name.of(n);
    auto part = open_part(part_path);
    if (!part) {
      return Error{part.error().code, part.error().message + strf(" (part %d of the split model)",
                                                                  static_cast<int>(n))};
    }
    const Meta& first = n == 1 ? part->header.meta : checkpoint->meta();
    if (auto ok = check_part(part->header.meta, first, n, name.count); !ok) {
      return at_path(part_path, ok.error());
    }
    if (auto ok = checkpoint->add(std::move(*part)); !ok) return at_path(part_path, ok.error());
  }
  const auto total = checkpoint->meta().integer("split.tensors.count");
  const auto found = static_cast<int64_t>(checkpoint->tensors().size());
  if (total && *total != found) {
    return at_path(path,
                   Error{400, strf("the parts hold %lld tensors, but split.tensors.count says "
                                   "%lld; fetch the parts again",
                                   static_cast<long long>(found), static_cast<long long>(*total))});
  }
  return std::unique_ptr<Checkpoint>(std::move(checkpoint));
}

Result<std::unique_ptr<Checkpoint>> open_any(const std::string& path) {
  auto part = open_part(path);
  if (!part) return part.error();
  const Meta& meta = part->header.meta;
  if (meta.has("split.count") && meta.integer("split.count") != 1) {
    const int64_t count = meta.integer("split.count").value_or(0);
    if (count < 1 || count > kMaxParts) {
      return at_path(path, Error{400, strf("split.count must be 1 to %d; the file is corrupt",
                                           static_cast<int>(kMaxParts))});
    }
    auto name = part_name(path);
    if (!name || name->count != count) {
      return at_path(path,
                     Error{400, strf("is one part of %d; name it NAME-00001-of-%05d.gguf, with "
                                     "the other parts beside it",
                                     static_cast<int>(count), static_cast<int>(count))});
    }
    return open_split(path, *name);
  }
  auto checkpoint = std::make_unique<GgufCheckpoint>();
  if (auto ok = checkpoint->add(std::move(*part)); !ok) return at_path(path, ok.error());
  return std::unique_ptr<Checkpoint>(std::move(checkpoint));
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> open_gguf(const std::string& path) {
  try {
    return open_any(path);
  } catch (const std::bad_alloc&) {
    return at_path(path, Error{507, "too little memory for the model file's header"});
  }
}

}  // namespace sluice

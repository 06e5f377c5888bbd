#include "tensor/gguf_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/str.h"
#include "tensor/formats/all.h"

namespace sluice {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is written as it lies in memory");

// Numbers of GGUF's value types.
enum ValueType : uint32_t {
  kU8 = 0,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11
};

// Arrays of bytes, which readers use in place.
constexpr std::string_view kByteArrays[] = {"tokenizer.ggml.precompiled_charsmap"};

template <typename T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void put_string(std::string& out, std::string_view s) {
  put<uint64_t>(out, s.size());
  out.append(s);
}

void put_unsigned(std::string& out, uint64_t v) {
  if (v <= std::numeric_limits<uint32_t>::max()) {
    put<uint32_t>(out, kU32);
    put(out, static_cast<uint32_t>(v));
  } else {
    put<uint32_t>(out, kU64);
    put(out, v);
  }
}

void put_array_head(std::string& out, ValueType type, size_t num) {
  put<uint32_t>(out, kArray);
  put<uint32_t>(out, type);
  put<uint64_t>(out, num);
}

template <typename T>
void put_integers(std::string& out, ValueType type, const std::vector<int64_t>& values) {
  put_array_head(out, type, values.size());
  for (int64_t v : values) put(out, static_cast<T>(v));
}

// Type and value of one key.
struct PutValue {
  std::string& out;
  std::string_view key;

  void operator()(bool v) const {
    put<uint32_t>(out, kBool);
    put<uint8_t>(out, v ? 1 : 0);
  }
  void operator()(uint64_t v) const { put_unsigned(out, v); }
  void operator()(int64_t v) const {
    if (v >= 0) {
      put_unsigned(out, static_cast<uint64_t>(v));
    } else if (v >= std::numeric_limits<int32_t>::min()) {
      put<uint32_t>(out, kI32);
      put(out, static_cast<int32_t>(v));
    } else {
      put<uint32_t>(out, kI64);
      put(out, v);
    }
  }
  void operator()(double v) const {
    put<uint32_t>(out, kF32);
    put(out, static_cast<float>(v));
  }
  void operator()(const std::string& v) const {
    put<uint32_t>(out, kString);
    put_string(out, v);
  }
  void operator()(const std::vector<int64_t>& v) const {
    auto within = [&](int64_t lo, int64_t hi) {
      return std::all_of(v.begin(), v.end(), [=](int64_t x) { return x >= lo && x <= hi; });
    };
    const bool bytes =
        std::find(std::begin(kByteArrays), std::end(kByteArrays), key) != std::end(kByteArrays);
    if (bytes && within(-128, 255)) {
      put_integers<uint8_t>(out, kU8, v);
    } else if (within(std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max())) {
      put_integers<int32_t>(out, kI32, v);
    } else {
      put_integers<int64_t>(out, kI64, v);
    }
  }
  void operator()(const std::vector<float>& v) const {
    put_array_head(out, kF32, v.size());
    for (float x : v) put(out, x);
  }
  void operator()(const std::vector<std::string>& v) const {
    put_array_head(out, kString, v.size());
    for (const std::string& s : v) put_string(out, s);
  }
  void operator()(const std::vector<bool>& v) const {
    put_array_head(out, kBool, v.size());
    for (bool b : v) put<uint8_t>(out, b ? 1 : 0);
  }
};

void put_key(std::string& out, const std::string& key, const MetaValue& value) {
  put_string(out, key);
  std::visit(PutValue{out, key}, value);
}

uint64_t aligned(uint64_t at, uint64_t alignment) {
  return (at + alignment - 1) / alignment * alignment;
}

Error cannot_write(const std::string& path, int error) {
  const bool no_space = error == ENOSPC || error == EDQUOT || error == EFBIG;
  // A full disk is the environment's fault, a path that cannot be written is the user's.
  const bool environment = no_space || error == EIO;
  return Error{environment ? 500 : 400,
               strf("cannot write %s: %s%s", quote(path, 400).c_str(), std::strerror(error),
                    no_space ? "; make room, or name another disk" : "")};
}

Result<void> check_target(const std::string& path, bool overwrite) {
  struct stat st = {};
  if (stat(path.c_str(), &st) != 0) return {};
  if (S_ISDIR(st.st_mode))
    return Error{400, strf("%s is a folder: name a file in it", quote(path, 400).c_str())};
  if (!S_ISREG(st.st_mode))
    return Error{400, strf("%s is not a regular file", quote(path, 400).c_str())};
  if (!overwrite) {
    return Error{
        400, strf("%s exists: name another file, or add --overwrite", quote(path, 400).c_str())};
  }
  return {};
}

Result<void> check_disk_space(int fd, const std::string& path, uint64_t size) {
  struct statvfs fs = {};
  if (fstatvfs(fd, &fs) != 0) return {};  // then writing will tell
  const uint64_t free_bytes = static_cast<uint64_t>(fs.f_bavail) * fs.f_frsize;
  if (free_bytes >= size) return {};
  return Error{500, strf("%s needs %s and its disk has %s free: make room, or name another disk",
                         quote(path, 400).c_str(), human_bytes(size).c_str(),
                         human_bytes(free_bytes).c_str())};
}

}  // namespace

Result<GgufLayout> plan_gguf(const Meta& meta, const std::vector<TensorInfo>& tensors) {
  const int64_t alignment =
      meta.has("general.alignment") ? meta.integer("general.alignment").value_or(0) : 32;
  if (alignment < 8 || alignment > 1 << 30 ||
      !std::has_single_bit(static_cast<uint64_t>(alignment)))
    return Error{400, "general.alignment must be a power of two from 8 up"};
  const auto unit = static_cast<uint64_t>(alignment);

  GgufLayout layout;
  std::string& h = layout.header;
  h = "GGUF";
  put<uint32_t>(h, 3);
  put<uint64_t>(h, tensors.size());
  put<uint64_t>(h, meta.all().size());
  // The architecture first: readers that only want to know it need not go on.
  constexpr std::string_view kFirst = "general.architecture";
  if (const MetaValue* v = meta.find(kFirst)) put_key(h, std::string(kFirst), *v);
  for (const auto& [key, value] : meta.all()) {
    if (key != kFirst) put_key(h, key, value);
  }
  uint64_t at = 0;  // from the first tensor's first byte
  for (const TensorInfo& t : tensors) {
    CHECK(t.bytes == row_bytes(t.format, t.cols) * static_cast<size_t>(t.rows));
    put_string(h, t.name);
    put<uint32_t>(h, t.rows == 1 ? 1 : 2);
    put<uint64_t>(h, static_cast<uint64_t>(t.cols));
    if (t.rows != 1) put<uint64_t>(h, static_cast<uint64_t>(t.rows));
    put<uint32_t>(h, format_info(t.format).gguf_type);
    at = aligned(at, unit);
    put<uint64_t>(h, at);
    layout.offsets.push_back(at);
    at += t.bytes;
  }
  if (!tensors.empty()) h.resize(aligned(h.size(), unit));
  for (uint64_t& offset : layout.offsets) offset += h.size();
  layout.size = h.size() + aligned(at, unit);  // some readers want the last one padded too
  return layout;
}

Result<GgufWriter> GgufWriter::create(const std::string& path,
                                      const Meta& meta,
                                      const std::vector<TensorInfo>& tensors,
                                      bool overwrite) {
  if (auto ok = check_target(path, overwrite); !ok) return ok.error();
  auto layout = plan_gguf(meta, tensors);
  if (!layout) return layout.error();
  GgufWriter w;
  w.layout_ = std::move(*layout);
  for (const TensorInfo& t : tensors) w.sizes_.push_back(t.bytes);
  w.path_ = path;
  const std::string partial = path + ".partial";
  w.fd_ = open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (w.fd_ < 0) return cannot_write(partial, errno);
  w.partial_ = partial;
  if (auto ok = check_disk_space(w.fd_, path, w.layout_.size); !ok) return ok.error();
  if (auto ok = w.put(w.layout_.header.data(), w.layout_.header.size()); !ok) return ok.error();
  return Result<GgufWriter>(std::move(w));
}

GgufWriter::GgufWriter(GgufWriter&& o) noexcept
    : path_(std::move(o.path_)),
      partial_(std::exchange(o.partial_, {})),
      fd_(std::exchange(o.fd_, -1)),
      layout_(std::move(o.layout_)),
      sizes_(std::move(o.sizes_)),
      tensor_(o.tensor_),
      at_(o.at_) {}

GgufWriter::~GgufWriter() {
  if (fd_ >= 0) close(fd_);
  if (!partial_.empty()) unlink(partial_.c_str());
}

Result<void> GgufWriter::put(const void* data, size_t size) {
  const auto* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = ::write(fd_, bytes, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return cannot_write(partial_, n < 0 ? errno : ENOSPC);
    bytes += n;
    size -= static_cast<size_t>(n);
    at_ += static_cast<uint64_t>(n);
  }
  return {};
}

Result<void> GgufWriter::pad_to(uint64_t offset) {
  CHECK(offset >= at_);
  const std::vector<char> zeros(static_cast<size_t>(offset - at_));
  return put(zeros.data(), zeros.size());
}

Result<void> GgufWriter::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    CHECK(tensor_ < sizes_.size());
    if (at_ < layout_.offsets[tensor_]) {
      if (auto ok = pad_to(layout_.offsets[tensor_]); !ok) return ok;
    }
    const uint64_t end = layout_.offsets[tensor_] + sizes_[tensor_];
    const auto n = static_cast<size_t>(std::min<uint64_t>(bytes.size(), end - at_));
    if (auto ok = put(bytes.data(), n); !ok) return ok;
    bytes = bytes.subspan(n);
    if (at_ == end) ++tensor_;
  }
  return {};
}

Result<void> GgufWriter::finish() {
  CHECK(fd_ >= 0 && tensor_ == sizes_.size());
  if (auto ok = pad_to(layout_.size); !ok) return ok;
  // close() may be where a full disk or a lost server shows.
  const bool synced = fsync(fd_) == 0 || errno == EINVAL;
  const int sync_error = errno;
  if (close(std::exchange(fd_, -1)) != 0) return cannot_write(partial_, errno);
  if (!synced) return cannot_write(partial_, sync_error);
  if (rename(partial_.c_str(), path_.c_str()) != 0) return cannot_write(path_, errno);
  partial_.clear();
  return {};
}

}  // namespace sluice

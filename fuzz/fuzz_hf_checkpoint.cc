// Any bytes as a Hugging Face model, config.json and model.safetensors with a zero byte between
// them: an error, or tensors whose bytes can all be made. Run with -malloc_limit_mb=64.
#include <stdlib.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/json.h"
#include "load/hf_checkpoint.h"
#include "tensor/formats/all.h"

using namespace sluice;

namespace {

class Directory {
 public:
  Directory() {
    path_ = std::filesystem::temp_directory_path() / "fuzz-hf-XXXXXX";
    CHECK(mkdtemp(path_.data()));
  }
  ~Directory() {
    std::error_code ec;
    std::filesystem::remove_all(path_, ec);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

template <typename T>
bool failed(const Result<T>& r) {
  if (r) return false;
  const std::string& m = r.error().message;
  CHECK(!m.empty() && m.size() < 2000 && m.find('\n') == std::string::npos);
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static const Directory directory;
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  const size_t end = text.find('\0');
  if (end == text.npos) return 0;
  auto config = parse_hf_config(text.substr(0, end));
  if (failed(config)) return 0;
  const json::value parsed = parse_json(text.substr(0, end)).value();
  std::optional<HfQuant> quant;
  if (const json::value* v = parsed.get_object().if_contains("quantization_config");
      v && v->is_object()) {
    auto read = parse_hf_quant(v->get_object());
    if (failed(read)) return 0;
    quant = *read;
  }
  const std::string path = directory.path() + "/model.safetensors";
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << text.substr(end + 1);
  auto shards = HfShards::open(directory.path());
  if (failed(shards)) return 0;
  HfCheckpoint checkpoint;
  if (failed(checkpoint.add_tensors(*config, quant, std::move(*shards)))) return 0;
  for (const TensorInfo& t : checkpoint.tensors()) {
    CHECK(t.bytes == row_bytes(t.format, t.cols) * static_cast<size_t>(t.rows));
    CHECK(checkpoint.data(t).size() == t.bytes);
    checkpoint.release(t);
  }
  return 0;
}

#include "backend/cuda_plugin.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/str.h"

namespace sluice {

namespace {

constexpr const char* kFile = "libsluice_cuda.so";

// Beside the program, or in the lib folder next to its folder; never by a search path that others
// may write to.
std::string find_file() {
  std::error_code failed;
  std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", failed);
  if (failed) return {};
  for (const char* place : {".", "../lib", "../lib/sluice", ".."}) {
    std::filesystem::path path = self.parent_path() / place / kFile;
    if (std::filesystem::exists(path, failed)) return path.string();
  }
  return {};
}

// Loaded once and kept: unloading a CUDA library is not safe.
Result<const CudaExports*> load_plugin() {
  std::string path = find_file();
  if (path.empty()) return Error{400, strf("no %s beside the program: build where nvcc is", kFile)};
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return Error{400, strf("%s does not load: %s", path.c_str(), dlerror())};
  auto exports = reinterpret_cast<const CudaExports* (*)()>(dlsym(library, "sluice_cuda"));
  if (!exports || exports()->version != kCudaPluginVersion)
    return Error{400, strf("%s is of another build of sluice", path.c_str())};
  return exports();
}

const Result<const CudaExports*>& plugin() {
  static const Result<const CudaExports*> loaded = load_plugin();
  return loaded;
}

std::string first_line(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// A display device of NVIDIA's, with or without a driver.
bool on_pci_bus() {
  std::error_code failed;
  for (const auto& d : std::filesystem::directory_iterator("/sys/bus/pci/devices", failed)) {
    if (first_line(d.path() / "vendor") == "0x10de" &&
        first_line(d.path() / "class").starts_with("0x03"))
      return true;
  }
  return false;
}

class CudaWeightSizes final : public WeightStore {
 public:
  explicit CudaWeightSizes(const CudaTypes& types) : types_(types) {}

  Weight load(std::span<const WeightSegment> segments, std::vector<float>) override {
    const CudaWeightPlan plan = plan_cuda_weight(segments, types_);
    Weight w;
    w.rows = plan.rows;
    w.cols = plan.cols;
    w.act = plan.act;
    w.bytes = plan.bytes;
    scratch_ = std::max(scratch_, stored_scratch(plan, types_));
    return w;
  }
  size_t scratch_bytes() const override { return scratch_; }
  bool keeps_source(const Weight&, size_t) const override { return false; }
  DType activation_type() const override { return types_.activations; }
  DType output_type() const override { return cuda_output_type(types_); }

 private:
  CudaTypes types_;
  size_t scratch_ = 0;
};

}  // namespace

std::unique_ptr<WeightStore> cuda_weight_sizes(const CudaTypes& types) {
  return std::make_unique<CudaWeightSizes>(types);
}

Result<std::unique_ptr<Device>> open_cuda(const CudaOptions& options) {
  const Result<const CudaExports*>& p = plugin();
  if (!p) return p.error();
  int num = (*p)->num_gpus();
  if (num <= 0) return Error{400, "no NVIDIA GPU with a working driver is here; use --device cpu"};
  if (options.index < 0 || options.index >= num)
    return Error{400, strf("--device cuda:%d: this machine has %d GPU%s, from 0", options.index,
                           num, num == 1 ? "" : "s")};
  char error[256] = "";
  Device* device = (*p)->open(options, error, sizeof(error));
  if (!device) return Error{400, strf("--device cuda:%d: %s", options.index, error)};
  return std::unique_ptr<Device>(device);
}

GpuFacts find_gpu() {
  namespace fs = std::filesystem;
  std::error_code failed;
  GpuFacts f;
  const bool node = fs::exists("/dev/nvidiactl", failed), wsl = fs::exists("/dev/dxg", failed);
  f.driver = node || wsl;
  f.expected = node || (wsl && fs::exists("/usr/lib/wsl/lib/libcuda.so.1", failed)) || on_pci_bus();
  f.driver_version = first_line("/sys/module/nvidia/version");
  f.has_plugin = !find_file().empty();
  if (!f.driver || !f.has_plugin) return f;
  const Result<const CudaExports*>& p = plugin();
  if (!p) {
    f.plugin_error = p.error().message;
    return f;
  }
  f.num = (*p)->num_gpus();
  for (int i = f.num - 1; i >= 0; --i) {
    char why[256] = "";
    f.usable = (*p)->usable(i, why, sizeof(why)) || f.usable;
    f.why_not = why;
  }
  return f;
}

std::optional<int> freest_gpu() {
  const Result<const CudaExports*>& p = plugin();
  return p ? freest_gpu(**p) : std::nullopt;
}

std::optional<int> freest_gpu(const CudaExports& plugin) {
  const int num = plugin.num_gpus();
  if (num <= 1) return {};
  std::optional<int> best;
  size_t most = 0;
  for (int i = 0; i < num; ++i) {
    char why[256] = "";
    if (!plugin.usable(i, why, sizeof(why))) continue;
    const size_t free = plugin.free_memory(i);
    if (best && free <= most) continue;
    best = i;
    most = free;
  }
  return best;
}

}  // namespace sluice

#include "runtime/options.h"

#include <charconv>

#include "base/str.h"

namespace sluice {

namespace {

using Kind = DeviceChoice::Kind;

constexpr NamedValue<Kind> kDevices[] = {
    {"auto", Kind::any}, {"cpu", Kind::cpu}, {"cuda", Kind::cuda}, {"ref", Kind::ref}};

}  // namespace

std::string DeviceChoice::name() const {
  std::string name = name_of(kDevices, kind);
  return index ? name + strf(":%d", *index) : name;
}

std::string GpuLayers::name() const { return num ? std::to_string(*num) : "auto"; }

Result<GpuLayers> parse_gpu_layers(std::string_view text) {
  GpuLayers layers;
  if (text == "auto") return layers;
  const char* end = text.data() + text.size();
  int num = 0;
  auto [stop, failed] = std::from_chars(text.data(), end, num);
  if (failed != std::errc() || stop != end || num < 0)
    return Error{400, strf("--gpu-layers %s: use auto or a number of layers", quote(text).c_str())};
  layers.num = num;
  return layers;
}

Result<DeviceChoice> parse_device(std::string_view text) {
  DeviceChoice device;
  constexpr std::string_view kNumbered = "cuda:";
  if (text.starts_with(kNumbered)) {
    device.kind = Kind::cuda;
    const char* end = text.data() + text.size();
    int index = 0;
    auto [stop, failed] = std::from_chars(text.data() + kNumbered.size(), end, index);
    if (failed != std::errc() || stop != end || index < 0)
      return Error{400, strf("--device %s: use cuda:0, cuda:1, ...", quote(text).c_str())};
    device.index = index;
    return device;
  }
  std::optional<Kind> kind = value_named(kDevices, text);
  if (!kind)
    return Error{400, strf("--device %s: use auto, cpu, cuda, cuda:N or ref", quote(text).c_str())};
  device.kind = *kind;
  return device;
}

}  // namespace sluice

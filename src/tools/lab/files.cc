#include "tools/lab/files.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "backend/cpu/features.h"
#include "base/str.h"
#include "tools/cpu_limits.h"

namespace sluice {

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return {(values[(n - 1) / 2] + values[n / 2]) / 2, values.front(), values.back()};
}

std::string machine_line(int threads) {
  double load = 0;
  if (getloadavg(&load, 1) != 1) load = -1;
  const MachineId id = this_machine();
  const auto cores = static_cast<int>(usable_cores().size());
  return strf("%s, %d of %d cores, load average %.1f", id.cpu.c_str(),
              threads > 0 ? threads : cores, cores, load);
}

Result<void> write_result(const std::string& dir,
                          const std::string& name,
                          const std::string& text) {
  const std::filesystem::path path = std::filesystem::path(dir) / name;
  std::error_code failed;
  std::filesystem::create_directories(path.parent_path(), failed);
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out) return Error{500, strf("cannot write %s", quote(path.string(), 400).c_str())};
  return {};
}

}  // namespace sluice

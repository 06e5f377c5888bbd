#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>

#include "tools/cli.h"
#include "tools/commands.h"

namespace sluice {

int report(const Error& error) {
  std::string line = error.message;  // foreign text in it (a template's) may have several
  std::replace(line.begin(), line.end(), '\n', ' ');
  std::fprintf(stderr, "sluice: %s\n", line.c_str());
  return error.code == 500 ? kExitFailure : kExitUsage;
}

}  // namespace sluice

int main(int argc, char** argv) {
  try {
    return sluice::run_cli(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "sluice: out of memory\n");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "sluice: %s\n", e.what());
  }
  return sluice::kExitFailure;
}

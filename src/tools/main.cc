#include <cstdio>
#include <exception>

#include "tools/cli.h"
#include "tools/commands.h"

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

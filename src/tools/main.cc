#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <new>
#include <system_error>

#include "base/failure.h"
#include "tensor/file_watch.h"
#include "tools/cli.h"
#include "tools/commands.h"

namespace {

// A closed stderr's number must not go to a socket or a file, into which messages would then go.
void open_standard_streams() {
  int fd;
  do {
    fd = ::open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) ::close(fd);
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  sluice::catch_file_faults();
  sluice::exit_on_terminate();
  try {
    return sluice::run_cli(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "sluice: out of memory\n");
  } catch (const std::system_error& e) {
    bool thread = e.code() == std::errc::resource_unavailable_try_again;
    std::fprintf(stderr, "sluice: %s%s\n", thread ? "cannot start a thread: " : "", e.what());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "sluice: %s\n", e.what());
  }
  return sluice::kExitFailure;
}

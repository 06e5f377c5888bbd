#include "net/grpc_server.h"

#include <dlfcn.h>

#include <filesystem>

#include "base/str.h"

namespace sluice {

namespace {

constexpr const char* kGrpcFile = "libsluice_grpc.so";

// Beside the program, or in the lib folder next to its folder; never by a search path that others
// may write to.
std::string find_grpc() {
  std::error_code failed;
  std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", failed);
  if (failed) return {};
  for (const char* place : {".", "../lib", "../lib/sluice", ".."}) {
    std::filesystem::path path = self.parent_path() / place / kGrpcFile;
    if (std::filesystem::exists(path, failed)) return path.string();
  }
  return {};
}

}  // namespace

// The library is kept: gRPC's threads may outlive the server by a moment.
Result<std::unique_ptr<GrpcServer>> start_grpc(const GrpcOptions& options, GrpcListener& listener) {
  const std::string path = find_grpc();
  if (path.empty())
    return Error{400, strf("--grpc-port needs %s: install the package sluice-grpc; tarballs and "
                           "wheels have none, and a build needs libgrpc++-dev",
                           kGrpcFile)};
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return Error{400, strf("%s does not load: %s", path.c_str(), dlerror())};
  auto exports = reinterpret_cast<const GrpcExports* (*)()>(dlsym(library, "sluice_grpc"));
  if (!exports || exports()->version != kGrpcPluginVersion)
    return Error{400, strf("%s is of another build of sluice", path.c_str())};
  char error[256] = "";
  GrpcServer* server = exports()->start(options, listener, error, sizeof error);
  if (!server) return Error{500, strf("--grpc-port: %s", error)};
  return std::unique_ptr<GrpcServer>(server);
}

}  // namespace sluice

// A build without UCX.
#include "net/byte_stream.h"

namespace sluice {

Result<void> load_ucx() {
  return Error{400, "this build has no UCX (SLUICE_UCX=ON, libucx-dev): use --kv-transport tcp"};
}
Result<std::unique_ptr<ByteListener>> listen_ucx(const std::string&, uint16_t) {
  return load_ucx().error();
}
Result<std::unique_ptr<ByteStream>> connect_ucx(const std::string&, uint16_t) {
  return load_ucx().error();
}

}  // namespace sluice

#include "tools/notify.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

namespace sluice {

void notify_manager(std::string_view state) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  if (!path || (path[0] != '/' && path[0] != '@')) return;
  sockaddr_un to = {};
  to.sun_family = AF_UNIX;
  size_t size = std::strlen(path);
  if (size >= sizeof(to.sun_path)) return;
  std::memcpy(to.sun_path, path, size);
  if (path[0] == '@') to.sun_path[0] = 0;  // the abstract namespace
  int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + size);
  // Nothing to do about a manager that has gone away.
  (void)sendto(fd, state.data(), state.size(), MSG_NOSIGNAL, reinterpret_cast<sockaddr*>(&to),
               length);
  close(fd);
}

}  // namespace sluice

// While an Interrupt exists, Ctrl-C sets a flag instead of ending the program. One at a time, made
// and read by the main thread; the flag may be read by any.
#pragma once

#include <csignal>

namespace sluice {

class CatchInterrupt {
 public:
  CatchInterrupt();
  ~CatchInterrupt();
  CatchInterrupt(const CatchInterrupt&) = delete;
  CatchInterrupt& operator=(const CatchInterrupt&) = delete;

  // Since the object was made or clear() was called.
  bool seen() const;
  void clear();

 private:
  struct sigaction before_ = {};
};

}  // namespace sluice

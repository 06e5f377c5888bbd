#include "tools/interrupt.h"

namespace sluice {

namespace {

volatile std::sig_atomic_t interrupted = 0;

void on_interrupt(int) { interrupted = 1; }

}  // namespace

CatchInterrupt::CatchInterrupt() {
  interrupted = 0;
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_RESTART;  // what is being written is written
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &before_);
}

CatchInterrupt::~CatchInterrupt() { sigaction(SIGINT, &before_, nullptr); }

bool CatchInterrupt::seen() const { return interrupted != 0; }

void CatchInterrupt::clear() { interrupted = 0; }

}  // namespace sluice

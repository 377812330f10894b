/*
 * Finding out whether a processor has an instruction by trying it: an illegal one is a signal, which is
 * caught.
 */
#pragma once

#include <csetjmp>
#include <csignal>

namespace graphopt {

/* Runs what may be illegal instructions. */
class Probe {
 public:
  /* What `attempt`, which owns nothing, returns; false if it is illegal. */
  static bool Run(bool (*attempt)()) {
    struct sigaction own = {}, before;
    own.sa_handler = Handle;
    sigemptyset(&own.sa_mask);
    if (sigaction(SIGILL, &own, &before) != 0) return false;
    is_running_ = 1;
    const bool found = sigsetjmp(back_, 1) == 0 && attempt();
    is_running_ = 0;
    sigaction(SIGILL, &before, nullptr);
    return found;
  }

 private:
  static void Handle(int number) {
    if (is_running_) siglongjmp(back_, 1);
    std::signal(number, SIG_DFL);  // another thread's, which ends the process as it would have
  }

  static inline thread_local volatile std::sig_atomic_t is_running_ = 0;
  static inline thread_local sigjmp_buf back_;
};

}  // namespace graphopt

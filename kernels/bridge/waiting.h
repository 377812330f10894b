/* How a thread waits for another one that is about to be done. */
#pragma once

#include <sched.h>

#include <cstdint>

namespace graphopt {

/* Between looks, of which `looks` were in vain: lets others run once that has taken some ten microseconds. */
inline void WaitALittle(int64_t looks) {
  constexpr int64_t kInPlace = 4000;
  if (looks > kInPlace) {
    sched_yield();
    return;
  }
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

}  // namespace graphopt

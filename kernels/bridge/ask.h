/*
 * Asking for memory before it is read or written.
 */
#pragma once

namespace graphopt {

/* Asks for the line at `at`. GCC takes a function that does nothing else for one without an effect, and
 * leaves out calls of it; an instruction that is none keeps it from that. */
template <int kWrites = 0, int kLocality = 3>
inline void AskFor(const void* at) {
  __builtin_prefetch(at, kWrites, kLocality);
  asm volatile("");
}

}  // namespace graphopt

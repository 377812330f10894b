/*
 * Asking for memory before it is read or written.
 */
#pragma once

#include <cstdint>

namespace graphopt {

/* Asks for the line at `at`. GCC takes a function that does nothing else for one without an effect, and
 * leaves out calls of it; an instruction that is none keeps it from that. */
template <int kWrites = 0, int kLocality = 3>
inline void AskFor(const void* at) {
  __builtin_prefetch(at, kWrites, kLocality);
  asm volatile("");
}

/* The same of a row of so many elements, which need not begin where a line does. */
template <int kWrites = 0, int kLocality = 3, typename T>
inline void AskForRow(const T* row, int64_t count) {
  constexpr int64_t kLineBytes = 64;
  for (int64_t j = 0; j < count; j += kLineBytes / sizeof(T)) AskFor<kWrites, kLocality>(row + j);
}

}  // namespace graphopt

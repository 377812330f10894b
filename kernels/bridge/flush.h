/*
 * Numbers too small to have all their digits, counted as zero.
 *
 * Gradients of long sequences fade, and below 1e-38 (float32) arithmetic with them takes a hundred
 * times as long on many processors.
 */
#pragma once

#include <cstdint>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace graphopt {

/* The calling thread reads and writes such numbers as zero as long as one of these is there, if wanted:
 * forward it is not, as log(exp(-95)) has to be -95. */
class Flushing {
 public:
  explicit Flushing(bool wanted) : before_(Read()) {
    if (wanted) Write(before_ | kFlush);
  }
  ~Flushing() { Write(before_); }
  Flushing(const Flushing&) = delete;
  Flushing& operator=(const Flushing&) = delete;

 private:
#if defined(__SSE__)
  static constexpr uint64_t kFlush = 0x8040;  // results to zero, and operands
  static uint64_t Read() { return _mm_getcsr(); }
  static void Write(uint64_t mode) { _mm_setcsr(static_cast<unsigned>(mode)); }
#elif defined(__aarch64__)
  static constexpr uint64_t kFlush = 1 << 24;
  static uint64_t Read() {
    uint64_t mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void Write(uint64_t mode) { asm volatile("msr fpcr, %0" ::"r"(mode)); }
#else
  static constexpr uint64_t kFlush = 0;
  static uint64_t Read() { return 0; }
  static void Write(uint64_t) {}
#endif
  uint64_t before_;
};

}  // namespace graphopt

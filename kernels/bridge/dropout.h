/*
 * Dropout (Srivastava et al., 2014) whose mask is a function of a seed and of an element's number, so that backward
 * computes it again instead of reading it: random numbers by counters (Salmon et al., Parallel random numbers: as easy
 * as 1, 2, 3, 2011), here a hash of 32 bits that vectors compute.
 */
#pragma once

#include <cstdint>

namespace graphopt::dropout {

struct Mask {
  uint64_t seed;
  float keep;  // the probability that an element stays

  float scale() const { return 1.0f / keep; }
};

/* Elements `first` to `first + count` of an array, by this thread; `from` and `to` are where those lie, and may be one. */
void ApplyFrom(const Mask& mask, int64_t first, const float* from, float* to, int64_t count);

/* to = from * mask, or to += from * mask; masks are 0 or 1 / keep, so what is no number stays none. */
void Apply(const Mask& mask, const float* from, float* to, int64_t count, bool adds, int threads);

}  // namespace graphopt::dropout

/*
 * Columns of a convolution: what its filters see at some places, side by side (columns.h).
 */
#pragma once

#include <cstdint>

namespace graphopt::cut {

/* Floats that may be written behind what is cut. */
constexpr int64_t kSlack = 16;

/* Places side by side in a line: where what the first tap sees of them begins, how many, how many are before them. */
struct Run {
  int64_t from, count, at;
};

/* A row of columns for each tap; `taps`: what is added to a run's beginning. `end`: of what may be read. */
void Copy(const float* planes, const float* end, const Run* runs, int64_t count, const int64_t* taps, int64_t depth,
          float* to, int64_t stride);

/* Adds numbers to others. */
void AddTo(const float* from, int64_t count, float* to);

/* The other way round, added to what is there. */
void Add(const float* columns, int64_t stride, const Run* runs, int64_t count, const int64_t* taps, int64_t depth,
         float* planes);

}  // namespace graphopt::cut

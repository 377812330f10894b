/*
 * Vectors of a block's channels; for files that are compiled for the processor at hand.
 */
#pragma once

#include "blocked.h"

namespace graphopt::blocked {

#if defined(__AVX512F__)
constexpr int kBlockBytes = 64;
#elif defined(__AVX__)
constexpr int kBlockBytes = 32;
#else
constexpr int kBlockBytes = 16;
#endif
constexpr int64_t kLanes = kBlockBytes / sizeof(float);
typedef float Lanes __attribute__((vector_size(kBlockBytes)));

inline Lanes LoadLanes(const float* from) {
  Lanes found;
  __builtin_memcpy(&found, from, sizeof(found));
  return found;
}

inline void StoreLanes(float* to, const Lanes& lanes) {
  __builtin_memcpy(to, &lanes, sizeof(lanes));
}

/* The first lanes; zero in those that only fill up a block, where an infinity leaves no number. */
inline Lanes Kept(Lanes lanes, int64_t count) {
  for (int64_t i = count; i < kLanes; ++i) lanes[i] = 0;
  return lanes;
}

/* Of a block of a convolution's filters: how many lanes are filters. */
inline int64_t FiltersOf(const Step& step, int64_t block) {
  const int64_t rest = step.filters - block * kLanes;
  return rest < kLanes ? rest : kLanes;
}

/* Zeroes what surrounds row `y`, and what is above the first and below the last. */
inline void ClearHalo(const View& view, float* arena, int64_t image, int64_t block, int64_t y) {
  if (view.halo == 0) return;
  const int64_t side = view.halo * kLanes, width = view.width * kLanes;
  const int64_t before = y == 0 ? view.halo : 0;
  const int64_t behind = y == view.height - 1 ? view.halo : 0;
  for (int64_t row = y - before; row <= y + behind; ++row) {
    float* at = arena + view.Place(image, block, row);
    if (row != y) {
      __builtin_memset(at - side, 0, (width + 2 * side) * sizeof(float));
    } else {
      __builtin_memset(at - side, 0, side * sizeof(float));
      __builtin_memset(at + width, 0, side * sizeof(float));
    }
  }
}

}  // namespace graphopt::blocked

/*
 * What products of dense.h have in common; compiled for the processor at hand.
 */
#include "dense.h"

#include "lanes.h"
#include "paired.h"
#include "tiles.h"

namespace graphopt::dense {

using blocked::kLanes;
using blocked::Lanes;
using blocked::LoadLanes;
using blocked::StoreLanes;

const Means* Best() {
  static const Means* const found = tiles::AreThere()       ? &ByTiles()
                                    : paired::ArePaired() ? &InPairs()
                                                          : nullptr;
  return found;
}

void SumRows(const float* from, int64_t rows, int64_t columns, float* to, bool adds, int threads) {
  constexpr int64_t kVectors = 4;
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t j = 0; j < columns; j += kVectors * kLanes) {
    if (j + kVectors * kLanes <= columns) {
      Lanes sums[kVectors] = {};
      for (int v = 0; v < kVectors && adds; ++v) sums[v] = LoadLanes(to + j + v * kLanes);
      for (int64_t r = 0; r < rows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sums[v] += LoadLanes(from + r * columns + j + v * kLanes);
      for (int v = 0; v < kVectors; ++v) StoreLanes(to + j + v * kLanes, sums[v]);
      continue;
    }
    for (int64_t i = j; i < columns; ++i) {
      float sum = adds ? to[i] : 0;
      for (int64_t r = 0; r < rows; ++r) sum += from[r * columns + i];
      to[i] = sum;
    }
  }
}

}  // namespace graphopt::dense

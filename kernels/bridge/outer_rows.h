/*
 * Rows of the operands of outer products, as segments have them, some at a time.
 */
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "matrix.h"

namespace graphopt {

template <typename T>
struct OuterRows {
  std::vector<const T*> left, right[kMostFactors];  // those of each sum

  int64_t depth() const { return left.size(); }

  void Clear() {
    left.clear();
    for (std::vector<const T*>& rows : right) rows.clear();
  }
};

/* Has `add` called whenever as many rows are there as go into one of equal parts, of up to `most` rows. */
template <typename T, typename Add>
void ForOuterRows(const OuterSum<T>* sums, int64_t count, int64_t segments, int64_t most,
                  OuterRows<T>* rows, const Add& add) {
  int64_t total = 0;
  for (int64_t at = 0; at < segments; ++at) total += sums->segments[at].rows;
  const int64_t parts = std::max<int64_t>((total + most - 1) / most, 1);
  const int64_t part = (total + parts - 1) / parts;
  auto have = [&] {
    add();
    rows->Clear();
  };
  for (int64_t at = 0; at < segments; ++at) {
    const Segment<T>& first = sums->segments[at];
    for (int64_t r = 0; r < first.rows; ++r) {
      rows->left.push_back(first.left + RowOf(first.left_index, r) * first.left_stride);
      for (int64_t i = 0; i < count; ++i) {
        const Segment<T>& segment = sums[i].segments[at];
        rows->right[i].push_back(segment.right + RowOf(segment.right_index, r) * segment.right_stride);
      }
      if (rows->depth() == part) have();
    }
  }
  if (rows->depth() > 0) have();
}

}  // namespace graphopt

/*
 * Packing a matrix into panels as wide as a tile; for files that are compiled for the processor at hand.
 */
#pragma once

#include <cstring>
#include <type_traits>

#include "lanes_transpose.h"

namespace graphopt {

/* Columns of a matrix whose rows are b's columns, as rows of a panel: whole squares are transposed in
 * registers, since numbers that lie rows apart would be read one by one. */
template <typename T>
void TurnPanel(const T* b, int64_t stride, int64_t k, int64_t columns, T* packed, int64_t width) {
  if constexpr (std::is_same_v<T, float>) {
    blocked::Transpose(b, stride, columns, k, packed, width);
  } else {
    for (int64_t p = 0; p < k; ++p)
      for (int64_t i = 0; i < columns; ++i) packed[p * width + i] = b[i * stride + p];
  }
}

/* One panel of `columns` columns, with zeros behind them up to `width`. */
template <typename T>
void PackPanel(const T* b, int64_t row_stride, int64_t column_stride, int64_t k, int64_t columns,
               T* packed, int64_t width) {
  if (columns < width) std::memset(packed, 0, k * width * sizeof(T));
  if (row_stride == 1) return TurnPanel(b, column_stride, k, columns, packed, width);
  for (int64_t p = 0; p < k; ++p, packed += width, b += row_stride) {
    if (column_stride == 1)
      std::memcpy(packed, b, columns * sizeof(T));
    else
      for (int64_t i = 0; i < columns; ++i) packed[i] = b[i * column_stride];
  }
}

}  // namespace graphopt

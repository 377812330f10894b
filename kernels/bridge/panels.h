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

/* Copies a few numbers. Where GCC knows that there are few it makes `rep movs` of memcpy, which takes a hundred
 * cycles. */
template <typename T, int kCount = 64>
inline void CopyFew(const T* from, int64_t count, T* to) {
  for (; count >= kCount; count -= kCount, from += kCount, to += kCount)
    __builtin_memcpy(to, from, kCount * sizeof(T));
  if constexpr (kCount > 1) CopyFew<T, kCount / 2>(from, count, to);
}

/* One panel of `columns` columns, with zeros behind them up to `width`. */
template <typename T>
void PackPanel(const T* b, int64_t row_stride, int64_t column_stride, int64_t k, int64_t columns,
               T* packed, int64_t width) {
  if (columns < width) std::memset(packed, 0, k * width * sizeof(T));
  if (row_stride == 1) return TurnPanel(b, column_stride, k, columns, packed, width);
  for (int64_t p = 0; p < k; ++p, packed += width, b += row_stride) {
    if (column_stride == 1)
      CopyFew(b, columns, packed);
    else
      for (int64_t i = 0; i < columns; ++i) packed[i] = b[i * column_stride];
  }
}

}  // namespace graphopt

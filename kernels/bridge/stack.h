/*
 * How many matrices of the same extents lie in one array.
 */
#pragma once

#include <cstdint>

namespace graphopt {

struct Stack {
  int64_t products, rows, columns;
  int64_t stride;  // from row to row, in elements as all of these
  int64_t inner;   // matrices that lie side by side
  int64_t step, outer_step;
  int64_t offset = 0;
  int64_t At(int64_t product) const {
    return offset + product / inner * outer_step + product % inner * step;
  }
};

/* (products, rows, columns) */
inline Stack Adjacent(int64_t products, int64_t rows, int64_t columns) {
  return {products, rows, columns, columns, 1, 0, rows * columns};
}

/* (batch, rows, heads, columns), products being batch * heads */
inline Stack SideBySide(int64_t batch, int64_t rows, int64_t heads, int64_t columns) {
  const int64_t stride = heads * columns;
  return {batch * heads, rows, columns, stride, heads, columns, rows * stride};
}

/* One of the parts in (rows, products, parts, columns) */
inline Stack Interleaved(int64_t rows, int64_t products, int64_t parts, int64_t part, int64_t columns) {
  const int64_t step = parts * columns;
  return {products, rows, columns, products * step, products, step, 0, part * columns};
}

/* Some rows of a matrix times a factor, one behind the other. */
inline void CopyScaled(const float* from, int64_t stride, int64_t rows, int64_t columns, float factor, float* to) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) to[i * columns + j] = factor * from[i * stride + j];
}

}  // namespace graphopt

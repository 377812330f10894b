/*
 * Products of large matrices by a processor's matrix unit; see tiles.h.
 *
 * The right operand is split once, by all threads together, into panels of 32 columns. A task is some rows
 * of the left operand and some panels; it splits its rows, which then stay in the second-level cache while
 * the panels pass by.
 */
#pragma once

#include <cstdint>

#include "product.h"

namespace graphopt::dense {

using product::Matrix;

/* to = activation(left times right + bias), added to what is there if so. */
struct Product {
  int64_t rows, depth, units;
  Matrix left;
  Matrix right;         // not read if it is packed
  const float* packed;  // see Pack; null: it is not
  const float* bias;    // of each unit, or null
  product::Activation activation;
  bool adds;
  float* to;
  int64_t to_stride;
};

/* False if the right operand has numbers that cannot be split, infinite ones for instance; nothing is
 * computed then. */
bool Multiply(const Product& product, int threads);

/* Floats of a right operand once packed, and packing it to where a line begins; false if it has numbers
 * that cannot be split. */
int64_t PackedSize(int64_t depth, int64_t units);
bool Pack(const Matrix& right, int64_t depth, int64_t units, float* packed);

/* to[j] = the sum of all rows' number j, or is added to it. */
void SumRows(const float* from, int64_t rows, int64_t columns, float* to, bool adds, int threads);

}  // namespace graphopt::dense

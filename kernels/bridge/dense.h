/*
 * Products of large matrices by other means than a multiplication for each term: by a processor's matrix
 * unit (tiles.h), or in pairs (paired.h).
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

struct Means {
  /* Floats of a right operand once packed, and packing it to where a line begins; false if it has numbers
   * that cannot be, infinite ones for instance. */
  int64_t (*packed_size)(int64_t depth, int64_t units);
  bool (*pack)(const Matrix& right, int64_t depth, int64_t units, float* packed);
  /* False if the right operand has such numbers; nothing is computed then. */
  bool (*multiply)(const Product& product, int threads);
};

const Means& ByTiles();
const Means& InPairs();

/* The best ones of this processor; null: it has neither. */
const Means* Best();

/* to[j] = the sum of all rows' number j, or is added to it. */
void SumRows(const float* from, int64_t rows, int64_t columns, float* to, bool adds, int threads);

}  // namespace graphopt::dense

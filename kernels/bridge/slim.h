/*
 * Products of a few rows, or columns, with a matrix that is read once, where it lies.
 *
 * product.h copies what it multiplies, which takes longer than multiplying it by one row: what a decoder
 * does with one query at each step, and a Kalman filter with its states.
 */
#pragma once

#include <cstdint>

#include "product.h"

namespace graphopt::slim {

constexpr int64_t kFewRows = 4;  // of products that are better computed here

/* Whether a product is faster here than by product.h. */
bool Fits(int64_t rows, int64_t units);

/* As product::Multiply. */
void Multiply(int64_t rows, int64_t depth, int64_t units, const product::Matrix& left,
              const product::Matrix& right, float* to, int64_t to_stride, bool adds);

/* A dense layer of few rows: units `first` to `last` of activation(from times the transposed weights + bias), for
 * threads that each take some. The weights (units, depth) are read once, which is what it takes. */
void RunUnits(const product::Operands& layer, int64_t rows, int64_t depth, int64_t units, int64_t first,
              int64_t last);

}  // namespace graphopt::slim

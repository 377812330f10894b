/*
 * What numbers of a depth are multiplied by so that products in pairs (paired.h) lose little: powers of two that bring
 * those of all columns to one size; for files that are compiled for the processor at hand.
 *
 * Columns are brought to one size before they are asked: a lone large number would else decide for all, and what the
 * other columns make with it would be lost. One that is infinite or no number is not asked.
 */
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "paired_tile.h"

namespace graphopt::paired {
namespace {  // each file that includes this may be compiled for other instructions

/* The larger ones of numbers without their signs, by their bits, of which those of what is no number are largest. */
inline Lanes Larger(Lanes largest, Lanes x) {
  const auto a = (blocked::Whole32)largest, b = (blocked::Whole32)blocked::Absolute(x);
  return (Lanes)(a > b ? a : b);
}

float LargestOf(const float* numbers, int64_t stride, int64_t count) {
  Lanes largest = {};
  int64_t j = 0;
  for (; stride == 1 && j + kLanes <= count; j += kLanes) largest = Larger(largest, LoadLanes(numbers + j));
  for (; j < count; ++j) largest = Larger(largest, Lanes{numbers[j * stride]});
  Lanes found = {};
  for (int i = 0; i < kLanes; ++i) found = Larger(found, Lanes{largest[i]});
  return found[0];
}

template <int R>
void AddLargest(const float* const (&rows)[R], int64_t n, float* largest) {
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    Lanes found = LoadLanes(largest + j);
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i) found = Larger(found, LoadLanes(rows[i] + j));
    StoreLanes(largest + j, found);
  }
  Lanes found = FirstOf(largest + j, n - j);
  for (int i = 0; i < R; ++i) found = Larger(found, FirstOf(rows[i] + j, n - j));
  StoreFirst(largest + j, n - j, found);
}

/* The largest number of each of n columns of k rows, which are where `at(row)` says. */
template <typename At>
void NoteLargest(int64_t k, int64_t n, const At& at, float* largest) {
  std::fill(largest, largest + n, 0.0f);
  int64_t p = 0;
  for (; p + 4 <= k; p += 4) AddLargest({at(p), at(p + 1), at(p + 2), at(p + 3)}, n, largest);
  for (; p < k; ++p) AddLargest({at(p)}, n, largest);
}

/* The same of columns `begin` to `end` of a matrix. */
void NoteLargest(const float* b, int64_t row_stride, int64_t column_stride, int64_t k, int64_t begin, int64_t end,
                 float* largest) {
  if (column_stride == 1)
    return NoteLargest(k, end - begin, [=](int64_t p) { return b + p * row_stride + begin; }, largest + begin);
  for (int64_t j = begin; j < end; ++j) largest[j] = LargestOf(b + j * column_stride, row_stride, k);
}

/* From each column's largest number what brings it to the mean of their sizes, as other matrices may be multiplied
 * beside this one; zero for columns of zeros, and for those that are not asked. Squares of the very largest numbers stay
 * infinite. */
void WeighColumns(const float* largest, int64_t n, float* weights) {
  constexpr int kMostOfMean = 40, kMost = 126;  // squares of what is multiplied have to be numbers
  constexpr int kHuge = 64 + kMostShift;
  const auto size_of = [&](int64_t j) { return (BitsOf(largest[j]) >> 23) - 127; };
  int64_t sum = 0, count = 0;
  for (int64_t j = 0; j < n; ++j)
    if (std::isnormal(largest[j])) sum += size_of(j), ++count;
  const int mean = std::clamp<int64_t>(count ? sum / count : 0, -kMostOfMean, kMostOfMean);
  for (int64_t j = 0; j < n; ++j) {
    const int shift = size_of(j) >= kHuge ? -kMostShift : std::clamp(mean - size_of(j), -kMost, kMost);
    weights[j] = std::isnormal(largest[j]) ? PowerOfTwo(shift) : 0;
  }
}

/* The sum of squares of numbers times their columns' weights. */
float SquaresOf(const float* numbers, int64_t stride, int64_t count, const float* weights) {
  Lanes sums = {};
  int64_t j = 0;
  for (; stride == 1 && j + kLanes <= count; j += kLanes) {
    const Lanes x = LoadLanes(numbers + j) * LoadLanes(weights + j);
    sums += x * x;
  }
  float sum = SumOf(sums);
  if (!std::isfinite(sum)) sum = 0, j = 0;  // zero times those that are not asked
  for (; j < count; ++j)
    if (weights[j] != 0) sum += numbers[j * stride] * weights[j] * (numbers[j * stride] * weights[j]);
  return sum;
}

/* The same of rows `begin` to `end` of a matrix n columns wide. */
void SumSquares(const float* b, int64_t row_stride, int64_t column_stride, int64_t begin, int64_t end,
                int64_t n, const float* weights, float* squares) {
  if (row_stride != 1) {
    for (int64_t p = begin; p < end; ++p)
      squares[p] = SquaresOf(b + p * row_stride, column_stride, n, weights);
    return;
  }
  std::fill(squares + begin, squares + end, 0.0f);
  for (int64_t j = 0; j < n; ++j, b += column_stride) {
    const float weight = weights[j];
    if (weight == 0) continue;
    for (int64_t p = begin; p < end; ++p) squares[p] += b[p] * weight * (b[p] * weight);
  }
}

/* By how many binary digits numbers of a row with such squares are moved, if they are all moved to one size: not at all
 * where one might become infinite. */
int ShiftOfRow(float squares, int64_t n) { return std::isfinite(squares) ? ShiftFor(squares, n) : 0; }

/* One over what a row is multiplied by to be moved so far. */
float InverseOf(int shift) { return PowerOfTwo(-std::clamp(shift, -kMostShift, kMostShift)); }

}  // namespace
}  // namespace graphopt::paired

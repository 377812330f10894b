/*
 * Panels of matrices whose products are in pairs (paired.h); for files that are compiled for the processor at
 * hand.
 */
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "paired_tile.h"
#include "panels.h"

namespace graphopt::paired {
namespace {  // each file that includes this may be compiled for other instructions

/* A packed matrix: panels; of each column what its pairs' products add up to, negative, what it was
 * multiplied by, and one over that; one over what each row was multiplied by; whether each panel's numbers
 * could be. */
struct Places {
  int64_t sums, scales, inverses, rows, panels, size;

  Places(int64_t depth, int64_t n) {
    const int64_t columns = (n + kLanes - 1) / kLanes * kLanes;
    sums = Padded(depth) * columns;
    scales = sums + columns;
    inverses = scales + columns;
    rows = inverses + columns;
    panels = rows + depth;
    size = panels + (n + kWidth - 1) / kWidth;
  }
};

int64_t VectorsOf(int64_t columns) { return (std::min(columns, kWidth) + kLanes - 1) / kLanes; }

float SquaresOf(const float* numbers, int64_t stride, int64_t count) {
  Lanes sums = {};
  int64_t j = 0;
  for (; stride == 1 && j + kLanes <= count; j += kLanes)
    sums += LoadLanes(numbers + j) * LoadLanes(numbers + j);
  float sum = SumOf(sums);
  for (; j < count; ++j) sum += numbers[j * stride] * numbers[j * stride];
  return sum;
}

/* Sums of squares of rows `begin` to `end` of a matrix n columns wide. */
void SumSquares(const float* b, int64_t row_stride, int64_t column_stride, int64_t begin, int64_t end,
                int64_t n, float* squares) {
  if (row_stride != 1) {
    for (int64_t p = begin; p < end; ++p) squares[p] = SquaresOf(b + p * row_stride, column_stride, n);
    return;
  }
  std::fill(squares + begin, squares + end, 0.0f);
  for (int64_t j = 0; j < n; ++j, b += column_stride)
    for (int64_t p = begin; p < end; ++p) squares[p] += b[p] * b[p];
}

/* By how many binary digits numbers of a row with such squares are moved, if they are all moved to one size. */
int ShiftOfRow(float squares, int64_t n) {
  return squares <= std::numeric_limits<float>::max() ? ShiftFor(squares, n) : 0;
}

/* One over what a row is multiplied by to be moved so far. */
float InverseOf(int shift) { return PowerOfTwo(-std::clamp(shift, -kMostShift, kMostShift)); }

/* What powers of two a panel's columns are multiplied by; whether they can be. */
bool ScaleColumns(int64_t depth, int64_t width, const float* squares, const float* sizes, float* scales) {
  bool is_paired = true;
  for (int64_t j = 0; j < width; ++j) {
    const int shift = sizes[j] == 0 ? kMostOfColumn : ShiftFor(squares[j], depth);
    is_paired = is_paired && IsWithin(shift, kMostOfColumn);
    scales[j] = PowerOfTwo(IsWithin(shift, kMostOfColumn) ? shift : 0);
  }
  return is_paired;
}

/* Multiplies a panel's numbers by powers of two and sums up the products of pairs; whether that went well.
 * There are zeros behind the depth's end, up to a whole three. */
template <int V>
bool Pair(float* panel, int64_t depth, const float* rows, float times, float* sums, float* scales,
          float* inverses) {
  constexpr int64_t width = V * kLanes;
  Lanes squares[V] = {}, sizes[V] = {}, products[V] = {};
  for (int64_t p = 0; p < depth; ++p)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      float* at = panel + p * width + v * kLanes;
      const Lanes x = LoadLanes(at) * (1 / rows[p]);
      StoreLanes(at, x);
      squares[v] += x * x;
      sizes[v] += blocked::Absolute(x);  // squares may be zero where this is not
    }
  const bool is_paired = ScaleColumns(depth, width, reinterpret_cast<const float*>(squares),
                                      reinterpret_cast<const float*>(sizes), scales);
  for (int64_t p = 0; p < depth; p += 3)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      float* at = panel + p * width + v * kLanes;
      const Lanes scale = LoadLanes(scales + v * kLanes);
      const Lanes a = LoadLanes(at) * scale, b = LoadLanes(at + width) * scale;
      StoreLanes(at, a);
      StoreLanes(at + width, b);
      StoreLanes(at + 2 * width, LoadLanes(at + 2 * width) * scale);
      products[v] -= a * b;
    }
  for (int v = 0; v < V; ++v) {
    const Lanes scale = LoadLanes(scales + v * kLanes);
    StoreLanes(sums + v * kLanes, products[v]);
    StoreLanes(inverses + v * kLanes, times / scale);
    StoreLanes(scales + v * kLanes, scale / times);
  }
  return is_paired;
}

/* The same of a panel of so many columns, with room for a whole three. */
bool PairPanel(float* panel, int64_t depth, int64_t width, const float* rows, float times, float* sums,
               float* scales, float* inverses) {
  std::fill(panel + depth * width, panel + Padded(depth) * width, 0.0f);
  return (width == kWidth ? Pair<kVectors> : Pair<1>)(panel, depth, rows, times, sums, scales, inverses);
}

/* Packs up to kWidth columns as a panel; whether they may be paired. */
bool PackPaired(const float* b, int64_t row_stride, int64_t column_stride, int64_t k, int64_t columns,
                const float* rows, float times, float* panel, float* sums, float* scales, float* inverses) {
  const int64_t width = VectorsOf(columns) * kLanes;
  PackPanel(b, row_stride, column_stride, k, columns, panel, width);
  return PairPanel(panel, k, width, rows, times, sums, scales, inverses);
}

/* Notes what rows of a matrix are multiplied by; those of one size lose least. */
void Prepare(const float* b, int64_t row_stride, int64_t column_stride, int64_t k, int64_t n,
             float* packed) {
  float* rows = packed + Places(k, n).rows;
  SumSquares(b, row_stride, column_stride, 0, k, n, rows);
  for (int64_t p = 0; p < k; ++p) rows[p] = InverseOf(ShiftOfRow(rows[p], n));
}

/* The panel of columns from `j` on, of a matrix that has been prepared. */
bool PackPaired(const float* b, int64_t row_stride, int64_t column_stride, int64_t k, int64_t n, int64_t j,
                float times, float* packed) {
  const Places places(k, n);
  const bool is_paired =
      PackPaired(b + j * column_stride, row_stride, column_stride, k, std::min(n - j, kWidth),
                 packed + places.rows, times, packed + Padded(k) * j, packed + places.sums + j,
                 packed + places.scales + j, packed + places.inverses + j);
  packed[places.panels + j / kWidth] = is_paired;
  return is_paired;
}

/* The panel of columns from `j` on of a packed matrix. */
Panel PanelAt(const float* packed, int64_t depth, int64_t n, int64_t j) {
  const Places places(depth, n);
  return {packed + Padded(depth) * j, packed + places.sums + j, packed + places.scales + j,
          packed + places.inverses + j, depth, depth / 3, depth % 3};
}

bool AreZero(const float* numbers, int64_t count) {
  return std::all_of(numbers, numbers + count, [](float number) { return number == 0; });
}

/* A row times a panel's numbers as they were; zero times all of them is zero if `are_finite`. */
void MultiplyOne(const Row& row, const Panel* panels, const float* const* scales, bool are_finite,
                 const Tile& tile) {
  float sums[kWidth] = {};
  const int64_t width = VectorsOf(tile.columns) * kLanes;
  for (int64_t f = 0; f < tile.count; ++f) {
    if (are_finite && AreZero(row.from[f], panels[f].depth)) continue;
    for (int64_t p = 0; p < panels[f].depth; ++p)
      for (int64_t j = 0; j < width; ++j)
        sums[j] += row.from[f][p] * (panels[f].right[p * width + j] * panels[f].inverses[j] * scales[f][p]);
  }
  HandOut(row, tile, sums);
}

}  // namespace
}  // namespace graphopt::paired

/*
 * Panels of matrices whose products are in pairs (paired.h); for files that are compiled for the processor at
 * hand.
 */
#pragma once

#include <algorithm>
#include <cstdint>

#include "paired_sizes.h"
#include "panels.h"

namespace graphopt::paired {
namespace {  // each file that includes this may be compiled for other instructions

using blocked::Whole32;

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

/* Whether most of some columns' numbers, but for zeros, were small before they were divided by `rows`. */
template <int V>
bool AreMostSmall(const float* panel, int64_t depth, const float* rows, const Whole32 (&columns)[V]) {
  constexpr float kSmall = 0x1p-5f;  // of the root mean square
  const auto at = [&](int64_t p, int v) { return LoadLanes(panel + (p * V + v) * kLanes) * rows[p]; };
  Lanes squares[V] = {};
  for (int64_t p = 0; p < depth; ++p)
    for (int v = 0; v < V; ++v) squares[v] += at(p, v) * at(p, v);
  Whole32 more[V] = {};  // small ones than others
  for (int64_t p = 0; p < depth; ++p)
    for (int v = 0; v < V; ++v) {
      const Lanes x = at(p, v);
      const Whole32 are_small = x * x * static_cast<float>(depth) < kSmall * kSmall * squares[v];
      more[v] += (x != Lanes{}) & ((are_small & 2) - 1);
    }
  for (int v = 0; v < V; ++v)
    for (int i = 0; i < kLanes; ++i)
      if (columns[v][i] && more[v][i] > 0) return true;
  return false;
}

/* Whether a few numbers decide a column's size and most others are small: what these make with rows that are zero where
 * the few are would be lost. */
template <int V>
bool HasLone(const float* panel, int64_t depth, const float* rows, const Lanes (&squares)[V],
             const Lanes (&sizes)[V]) {
  constexpr float kFewest = 8;
  Whole32 columns[V];
  bool has_few = false;
  for (int v = 0; v < V; ++v) {
    columns[v] = sizes[v] * sizes[v] < kFewest * squares[v];
    for (int i = 0; i < kLanes; ++i) has_few = has_few || columns[v][i];
  }
  return has_few && AreMostSmall<V>(panel, depth, rows, columns);
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
                                      reinterpret_cast<const float*>(sizes), scales) &&
                         !HasLone<V>(panel, depth, rows, squares, sizes);
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

/* Has columns of a panel that are all zeros give zeros, where no other factor follows them. */
void SilenceZeros(const float* panel, int64_t depth, int64_t width, float* inverses) {
  for (int64_t j = 0; j < width; ++j) {
    const float* column = panel + j;
    int64_t p = 0;
    while (p < depth && column[p * width] == 0) ++p;
    if (p == depth) inverses[j] = 0;
  }
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
  const Places places(k, n);
  float *rows = packed + places.rows, *weights = packed + places.scales;  // until panels are packed
  NoteLargest(b, row_stride, column_stride, k, 0, n, weights);
  WeighColumns(weights, n, weights);
  SumSquares(b, row_stride, column_stride, 0, k, n, weights, rows);
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

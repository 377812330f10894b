/*
 * Tiles of paired products (paired.h), for files that are compiled for the processor at hand.
 */
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

#include "lanes.h"
#include "lanes_math.h"
#include "matrix.h"
#include "product.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace graphopt::paired {
namespace {  // each file that includes this may be compiled for other instructions

using blocked::kBlockBytes;
using blocked::kLanes;
using blocked::Lanes;
using blocked::LoadLanes;
using blocked::StoreLanes;

#if defined(__AVX512F__)
constexpr int kRows = 8, kVectors = 2;
#else
constexpr int kRows = 4, kVectors = 2;  // sums and what is multiplied fill sixteen registers
#endif
constexpr int64_t kWidth = kVectors * kLanes;
// Binary digits that numbers of a row and of a column of the packed matrix, and of a row of the other
// operand, are moved by at most.
constexpr int kMostShift = 30, kMostOfColumn = 50, kMostOfRow = 60;
constexpr float kForSmall = 0x1p64f;  // what rows are multiplied by before if their squares are too small

/* Numbers of a depth come in threes, of which the first two are a pair and the last one is multiplied by
 * itself; there are zeros where it ends before that. */
constexpr int64_t ThreesOf(int64_t depth) { return (depth + 2) / 3; }
constexpr int64_t Padded(int64_t depth) { return 3 * ThreesOf(depth); }

inline int32_t BitsOf(float number) {
  int32_t bits;
  std::memcpy(&bits, &number, sizeof(bits));
  return bits;
}

/* Binary digits by which numbers are moved to have a root mean square of about a half; more than they may be if
 * their squares are infinite or no numbers. */
inline int ShiftFor(float squares, int64_t count) {
  constexpr int kOfNoNumber = 255;
  const int exponent = BitsOf(squares) >> 23, digits = 63 - __builtin_clzll(count | 1);
  return exponent == kOfNoNumber ? kOfNoNumber : -((exponent - 127 - digits + 2) >> 1);
}

/* Whether they may be: not if they are no numbers, or too large or small. */
inline bool IsWithin(int shift, int most) { return shift >= -most && shift <= most; }

inline float PowerOfTwo(int exponent) {
  const int32_t bits = (exponent + 127) << 23;
  float found;
  std::memcpy(&found, &bits, sizeof(found));
  return found;
}

/* A row to be multiplied: numbers of all factors, one behind the other. */
struct Row {
  const float *left, *from[kMostFactors];  // copied; as they are
  float* to;
  float sums[kMostFactors];  // of the products of its pairs in each factor, negative
  float inverse;             // one over what its numbers were multiplied by
};

/* A factor's columns of a tile: numbers, what products of their pairs add up to, negative, what each column
 * was multiplied by, and one over that. */
struct Panel {
  const float *right, *sums, *scales, *inverses;
  int64_t depth, whole, rest;  // whole threes, and numbers behind them
};

struct Tile {
  const Row* rows;
  const Panel* panels;
  int64_t count, column, columns;
  bool adds;                    // to what is there
  const float* bias = nullptr;  // of each column, to be added
  product::Activation activation = product::kNone;

  bool HasMore() const { return bias || activation != product::kNone; }
};

#if defined(__AVX512F__)
inline Lanes FirstOf(const float* from, int64_t count) {
  return (Lanes)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), from);
}
inline void StoreFirst(float* to, int64_t count, Lanes lanes) {
  _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << count) - 1), (__m512)lanes);
}
inline float SumOf(Lanes lanes) { return _mm512_reduce_add_ps((__m512)lanes); }
inline Lanes NextOf(Lanes lanes, Lanes behind) {
  return (Lanes)_mm512_alignr_epi32((__m512i)behind, (__m512i)lanes, 1);
}
#else
/* The first numbers there, and zeros. */
inline Lanes FirstOf(const float* from, int64_t count) {
  Lanes found = {};
  for (int64_t i = 0; i < count; ++i) found[i] = from[i];
  return found;
}
inline void StoreFirst(float* to, int64_t count, Lanes lanes) {
  for (int64_t i = 0; i < count; ++i) to[i] = lanes[i];
}
/* Each number's neighbour to the right. */
inline Lanes NextOf(Lanes lanes, Lanes behind) {
  Lanes found;
  for (int i = 0; i < kLanes - 1; ++i) found[i] = lanes[i + 1];
  found[kLanes - 1] = behind[0];
  return found;
}
inline float SumOf(Lanes lanes) {
  float sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += lanes[i];
  return sum;
}
#endif

/* A number in all lanes. As an integer, since Zen's load ports alone make a vector of an integer in memory, and
 * of a float only with a place among the sums and products; told as it is, since clang knows no difference. */
inline Lanes Everywhere(const float* at) {
#if defined(__AVX512F__)
  Lanes found;
  asm("vpbroadcastd %1, %0" : "=v"(found) : "m"(*at));
  return found;
#else
  return *at - Lanes{};  // adding to zero would make 0 of -0
#endif
}

template <int R, int V>
using Sums = Lanes[R][V];

/* Adds products of three numbers of each row from `left`, `kStep` apart, and three rows of a panel, and so on. */
template <int R, int V, int kStep>
inline void AddThrees(const float* const (&left)[R], const float* right, int64_t threes,
                      Sums<R, V>& sums) {
#pragma GCC unroll 2
  for (int64_t p = 0; p < 3 * threes; p += 3, right += 3 * V * kLanes) {
    Lanes a[V], b[V], c[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      a[v] = LoadLanes(right + v * kLanes);
      b[v] = LoadLanes(right + (V + v) * kLanes);
      c[v] = LoadLanes(right + (2 * V + v) * kLanes);
    }
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const float* row = left[i] + p * kStep;
      const Lanes x = Everywhere(row), y = Everywhere(row + kStep), z = Everywhere(row + 2 * kStep);
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) sums[i][v] += (x + b[v]) * (y + a[v]);
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) sums[i][v] += z * c[v];
    }
  }
}

/* What is behind them: one number, which has no neighbour, or a pair. */
template <int R, int V, int kStep>
inline void AddRest(const float* const (&left)[R], const float* right, int64_t rest, Sums<R, V>& sums) {
  Lanes a[V];
#pragma GCC unroll 2
  for (int v = 0; v < V; ++v) a[v] = LoadLanes(right + v * kLanes);
  if (rest == 1) {
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) sums[i][v] += *left[i] * a[v];
    return;
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
    const Lanes x = Everywhere(left[i]), y = Everywhere(left[i] + kStep);
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) sums[i][v] += (x + LoadLanes(right + (V + v) * kLanes)) * (y + a[v]);
  }
}

/* Where something is to be computed besides, or there is no room for whole vectors. */
inline void HandOut(const Row& row, const Tile& tile, const float* sums) {
  float* to = row.to + tile.column;
  for (int64_t j = 0; j < tile.columns; j += kLanes) {
    const int64_t count = std::min(tile.columns - j, kLanes);
    Lanes x = LoadLanes(sums + j);
    if (tile.adds) x = FirstOf(to + j, count) + x;
    if (tile.bias) x += FirstOf(tile.bias + j, count);
    if (tile.activation == product::kRelu) x = x < Lanes{} ? Lanes{} : x;  // NaN stays
    if (tile.activation == product::kGelu) x = blocked::Gelu(x);
    StoreFirst(to + j, count, x);
  }
}

/* What a factor's sums are multiplied by where those of the one before it were by other powers of two. */
inline Lanes Change(const Panel* from, const Panel* to, int v) {
  return LoadLanes(from->inverses + v * kLanes) * LoadLanes(to->scales + v * kLanes);
}

template <int R, int V, int kStep>
void Run(const Tile& tile) {
  Sums<R, V> sums = {};
  const Row* rows = tile.rows;
  const float* left[R];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) left[i] = rows[i].left;
  const Panel* const end = tile.panels + tile.count;
  for (const Panel* panel = tile.panels; panel < end; ++panel) {
    const int64_t f = panel - tile.panels;
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      const Lanes of_column = LoadLanes(panel->sums + v * kLanes);
      if (f > 0) {
        const Lanes change = Change(panel - 1, panel, v);
#pragma GCC unroll 8
        for (int i = 0; i < R; ++i) sums[i][v] = sums[i][v] * change + (of_column + rows[i].sums[f]);
      } else {
#pragma GCC unroll 8
        for (int i = 0; i < R; ++i) sums[i][v] = of_column + rows[i].sums[f];
      }
    }
    AddThrees<R, V, kStep>(left, panel->right, panel->whole, sums);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) left[i] += 3 * kStep * panel->whole;
    if (panel->rest == 0) continue;
    AddRest<R, V, kStep>(left, panel->right + 3 * panel->whole * V * kLanes, panel->rest, sums);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) left[i] += 3 * kStep;
  }
#pragma GCC unroll 2
  for (int v = 0; v < V; ++v) {
    const Lanes inverses = LoadLanes(end[-1].inverses + v * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) sums[i][v] *= inverses * rows[i].inverse;
  }
  if (tile.HasMore() || tile.columns < V * kLanes) {
    float all[R * V * kLanes];  // sums are in registers as long as their places are constants
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) StoreLanes(all + (i * V + v) * kLanes, sums[i][v]);
    for (int i = 0; i < R; ++i) HandOut(rows[i], tile, all + i * V * kLanes);
    return;
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      float* to = rows[i].to + tile.column + v * kLanes;
      StoreLanes(to, tile.adds ? LoadLanes(to) + sums[i][v] : sums[i][v]);
    }
}

using Runner = void (*)(const Tile&);

template <int V, int kStep, int... R>
Runner OfRows(int64_t rows, std::integer_sequence<int, R...>) {
  static constexpr Runner table[] = {Run<R + 1, V, kStep>...};
  return table[rows - 1];
}

/* For tiles of so many rows and vectors; `kStep`: from one number of a row to the next. */
template <int kStep = 1>
Runner Pick(int64_t rows, int64_t vectors) {
  constexpr std::make_integer_sequence<int, kRows> all{};
  return vectors == 1 ? OfRows<1, kStep>(rows, all) : OfRows<2, kStep>(rows, all);
}

/* Numbers of a factor, and what they are multiplied by. */
struct Part {
  const float *from, *scales;
  int64_t depth;
};

/* A vector of numbers from `p` on: where a three begins there is a one, else a zero. */
inline Lanes Begins(int64_t p) {
  constexpr int64_t kMost = 2 + kLanes;
  static constexpr auto ones = [] {
    std::array<float, kMost> found{};
    for (int64_t i = 0; i < kMost; ++i) found[i] = i % 3 == 0;
    return found;
  }();
  return LoadLanes(ones.data() + p % 3);
}

/* Numbers of a part from `p` on, as they are multiplied, with zeros behind its end. */
inline Lanes NumbersOf(const Part& part, int64_t p, float times) {
  const int64_t rest = part.depth - p;
  if (rest >= kLanes) return LoadLanes(part.from + p) * (LoadLanes(part.scales + p) * times);
  return FirstOf(part.from + p, rest) * (FirstOf(part.scales + p, rest) * times);
}

/* Copies a part, and adds it to the sums of squares; the sum of the products of its pairs. Numbers that a
 * kernel has just written are read as it wrote them: a vector of parts of two has to wait for both. */
inline float CopyPart(const Part& part, float times, float* to, Lanes* squares) {
  Lanes products = {}, numbers = NumbersOf(part, 0, times);
  StoreLanes(to + part.depth, Lanes{});
  for (int64_t p = 0; p < part.depth; p += kLanes) {
    const Lanes behind = p + kLanes < part.depth ? NumbersOf(part, p + kLanes, times) : Lanes{};
    StoreLanes(to + p, numbers);
    *squares += numbers * numbers;
    products += numbers * Begins(p) * NextOf(numbers, behind);
    numbers = behind;
  }
  return SumOf(products);
}

/* Copies a row, multiplied by `times`, which is a power of two, and by others, with a vector of zeros behind
 * each part; whether it may be paired. */
inline bool CopyRow(const Part* parts, int64_t count, int64_t depth, float times, float* to, Row* row) {
  Lanes squares = {};
  int64_t size = 0;
  for (int64_t f = 0; f < count; size += Padded(parts[f++].depth)) {
    row->from[f] = parts[f].from;
    row->sums[f] = CopyPart(parts[f], times, to + size, &squares);
  }
  const int shift = ShiftFor(SumOf(squares), depth);
  if (!IsWithin(shift, kMostOfRow)) return false;
  const float scale = PowerOfTwo(shift);
  row->left = to;
  row->inverse = PowerOfTwo(-shift) / times;
  for (int64_t f = 0; f < count; ++f) row->sums[f] *= -(scale * scale);
  if (shift != 0)
    for (int64_t i = 0; i < size; i += kLanes) StoreLanes(to + i, LoadLanes(to + i) * scale);
  return true;
}

}  // namespace
}  // namespace graphopt::paired

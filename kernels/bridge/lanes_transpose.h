/*
 * Transposing matrices in vectors; for files that are compiled for the processor at hand.
 */
#pragma once

#include <utility>

#include "lanes_math.h"

namespace graphopt::blocked {

/* Pairs of squares of S numbers: those above the diagonal change places with those below it. */
template <int S, int... J>
inline void Exchange(Lanes& a, Lanes& b, std::integer_sequence<int, J...>) {
  constexpr int n = kLanes;
#if defined(__clang__)
  const Lanes low = __builtin_shufflevector(a, b, (J & S ? J - S + n : J)...);
  const Lanes high = __builtin_shufflevector(a, b, (J & S ? J + n : J + S)...);
#else
  const Lanes low = __builtin_shuffle(a, b, Whole32{(J & S ? J - S + n : J)...});
  const Lanes high = __builtin_shuffle(a, b, Whole32{(J & S ? J + n : J + S)...});
#endif
  a = low;
  b = high;
}

/* Of each group of W lanes number I, in all of them. */
template <int W, int I, int... J>
inline Lanes SpreadAs(const Lanes& x, std::integer_sequence<int, J...>) {
#if defined(__clang__)
  return __builtin_shufflevector(x, x, (J / W * W + I)...);
#else
  return __builtin_shuffle(x, Whole32{(J / W * W + I)...});
#endif
}

template <int W, int I>
inline Lanes Spread(const Lanes& x) {
  if constexpr (W == 1)
    return x;
  else if constexpr (W <= kLanes)
    return SpreadAs<W, I>(x, std::make_integer_sequence<int, kLanes>{});
  else
    return Lanes{};  // these are whole blocks
}

/* A square: vectors become its columns. */
template <int S = 1>
inline void TransposeSquare(Lanes (&rows)[kLanes]) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i)
    if (!(i & S)) Exchange<S>(rows[i], rows[i + S], std::make_integer_sequence<int, kLanes>{});
  if constexpr (2 * S < kLanes) TransposeSquare<2 * S>(rows);
}

/* The sum of each vector's numbers, one behind the other; the vectors are lost. */
template <int S = 1>
inline Lanes SumsOf(Lanes (&rows)[kLanes]) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; i += 2 * S) {
    Exchange<S>(rows[i], rows[i + S], std::make_integer_sequence<int, kLanes>{});
    rows[i] += rows[i + S];
  }
  if constexpr (2 * S < kLanes) SumsOf<2 * S>(rows);
  return rows[0];
}

/* to[j][i] = from[i][j], for `rows` i and `columns` j. */
inline void Transpose(const float* from, int64_t from_stride, int64_t rows, int64_t columns,
                      float* to, int64_t to_stride) {
  const int64_t whole_rows = rows / kLanes * kLanes, whole_columns = columns / kLanes * kLanes;
  for (int64_t i = 0; i < whole_rows; i += kLanes)
    for (int64_t j = 0; j < whole_columns; j += kLanes) {
      Lanes square[kLanes];
#pragma GCC unroll 16
      for (int k = 0; k < kLanes; ++k) square[k] = LoadLanes(from + (i + k) * from_stride + j);
      TransposeSquare(square);
#pragma GCC unroll 16
      for (int k = 0; k < kLanes; ++k) StoreLanes(to + (j + k) * to_stride + i, square[k]);
    }
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = i < whole_rows ? whole_columns : 0; j < columns; ++j)
      to[j * to_stride + i] = from[i * from_stride + j];
}

}  // namespace graphopt::blocked

#include "slim.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "lanes.h"
#include "lanes_math.h"

namespace graphopt::slim {
namespace {

using blocked::kLanes;
using blocked::Lanes;
using blocked::LoadLanes;
using product::Matrix;

constexpr int64_t kQuad = 4;
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int64_t kRows = 4;  // at a time, for which there are registers
#else
constexpr int64_t kRows = 2;
#endif
typedef float Quad __attribute__((vector_size(kQuad * sizeof(float))));
typedef int Order __attribute__((vector_size(kQuad * sizeof(int))));

inline Quad LoadQuad(const float* from) {
  Quad found;
  __builtin_memcpy(&found, from, sizeof(found));
  return found;
}

inline Quad Folded(const Lanes& lanes) {
  Quad sum{};
  for (int64_t i = 0; i < kLanes / kQuad; ++i) {
    Quad part;
    __builtin_memcpy(&part, reinterpret_cast<const float*>(&lanes) + i * kQuad, sizeof(part));
    sum += part;
  }
  return sum;
}

/* The sum of each of four. */
inline Quad Sums(const Quad& a, const Quad& b, const Quad& c, const Quad& d) {
  const Quad low = __builtin_shuffle(a, b, Order{0, 4, 1, 5}) + __builtin_shuffle(a, b, Order{2, 6, 3, 7});
  const Quad high = __builtin_shuffle(c, d, Order{0, 4, 1, 5}) + __builtin_shuffle(c, d, Order{2, 6, 3, 7});
  return __builtin_shuffle(low, high, Order{0, 1, 4, 5}) + __builtin_shuffle(low, high, Order{2, 3, 6, 7});
}

/* Rows times four rows of `depth` numbers each. */
template <int64_t R>
inline void Dots(const float* rows, int64_t rows_stride, const float* with, int64_t stride, int64_t depth,
                 Quad* found) {
  Quad sums[R][kQuad]{};
  int64_t at = 0;
  if (depth >= kLanes) {
    Lanes wide[R][kQuad]{};
    for (; at + kLanes <= depth; at += kLanes) {
      Lanes with_lanes[kQuad];
      for (int64_t j = 0; j < kQuad; ++j) with_lanes[j] = LoadLanes(with + j * stride + at);
      for (int64_t i = 0; i < R; ++i) {
        const Lanes a = LoadLanes(rows + i * rows_stride + at);
        for (int64_t j = 0; j < kQuad; ++j) wide[i][j] += a * with_lanes[j];
      }
    }
    for (int64_t i = 0; i < R; ++i)
      for (int64_t j = 0; j < kQuad; ++j) sums[i][j] = Folded(wide[i][j]);
  }
  for (; at + kQuad <= depth; at += kQuad)
    for (int64_t i = 0; i < R; ++i) {
      const Quad a = LoadQuad(rows + i * rows_stride + at);
      for (int64_t j = 0; j < kQuad; ++j) sums[i][j] += a * LoadQuad(with + j * stride + at);
    }
  for (int64_t i = 0; i < R; ++i) found[i] = Sums(sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
  for (; at < depth; ++at) {
    const Quad last{with[at], with[stride + at], with[2 * stride + at], with[3 * stride + at]};
    for (int64_t i = 0; i < R; ++i) found[i] += rows[i * rows_stride + at] * last;
  }
}

/* A row times a matrix whose columns are adjacent numbers. */
template <bool kAdds>
void ByColumns(const float* row, const Matrix& right, int64_t depth, int64_t units, float* to) {
  int64_t j = 0;
  for (; j + kQuad <= units; j += kQuad) {
    Quad found;
    Dots<1>(row, 0, right.at + j * right.stride, right.stride, depth, &found);
    if (kAdds) found += LoadQuad(to + j);
    __builtin_memcpy(to + j, &found, sizeof(found));
  }
  for (; j < units; ++j) {
    Quad found;
    Dots<1>(row, 0, right.at + j * right.stride, 0, depth, &found);
    to[j] = kAdds ? to[j] + found[0] : found[0];
  }
}

/* A row times kVectors vectors of the matrix's rows. */
template <class Vector, int64_t kVectors, bool kAdds>
inline void Across(const float* row, const float* from, int64_t stride, int64_t depth, float* to) {
  constexpr int64_t kWidth = sizeof(Vector) / sizeof(float);
  constexpr int64_t kChains = kVectors == 1 ? 4 : 1;  // a sum alone would wait for itself
  Vector sums[kChains][kVectors]{};
  int64_t p = 0;
  for (; p + kChains <= depth; p += kChains)
    for (int64_t c = 0; c < kChains; ++c)
      for (int64_t v = 0; v < kVectors; ++v) {
        Vector with;
        __builtin_memcpy(&with, from + (p + c) * stride + v * kWidth, sizeof(with));
        sums[c][v] += row[p + c] * with;
      }
  for (; p < depth; ++p) {
    Vector with;
    __builtin_memcpy(&with, from + p * stride, sizeof(with));
    sums[0][0] += row[p] * with;
  }
  for (int64_t v = 0; v < kVectors; ++v) {
    for (int64_t c = 1; c < kChains; ++c) sums[0][v] += sums[c][v];
    if (kAdds) {
      Vector old;
      __builtin_memcpy(&old, to + v * kWidth, sizeof(old));
      sums[0][v] += old;
    }
    __builtin_memcpy(to + v * kWidth, &sums[0][v], sizeof(Vector));
  }
}

/* A row times a matrix whose rows are adjacent numbers. */
template <bool kAdds>
void ByRows(const float* row, const Matrix& right, int64_t depth, int64_t units, float* to) {
  int64_t j = 0;
  for (; j + 4 * kLanes <= units; j += 4 * kLanes)
    Across<Lanes, 4, kAdds>(row, right.at + j, right.stride, depth, to + j);
  for (; j + kLanes <= units; j += kLanes)
    Across<Lanes, 1, kAdds>(row, right.at + j, right.stride, depth, to + j);
  for (; j + kQuad <= units; j += kQuad)
    Across<Quad, 1, kAdds>(row, right.at + j, right.stride, depth, to + j);
  for (; j < units; ++j) {
    float sum = 0;
    for (int64_t p = 0; p < depth; ++p) sum += row[p] * right.at[p * right.stride + j];
    to[j] = kAdds ? to[j] + sum : sum;
  }
}

/* Memory of this thread for numbers that lie apart. */
float* Gathered(int64_t floats) {
  static thread_local std::vector<float> kept;
  if (kept.size() < static_cast<std::size_t>(floats)) kept.resize(floats);
  return kept.data();
}

/* Row `i` of a matrix, whose numbers are adjacent; `kept` is where to put them if they are not. */
const float* RowOf(const Matrix& matrix, int64_t i, int64_t depth, float* kept) {
  if (!matrix.is_transposed) return matrix.at + i * matrix.stride;
  for (int64_t p = 0; p < depth; ++p) kept[p] = matrix.at[p * matrix.stride + i];
  return kept;
}

using ByRow = void (*)(const float* row, const Matrix& right, int64_t depth, int64_t units, float* to);

ByRow Pick(bool is_transposed, bool adds) {
  if (is_transposed) return adds ? ByColumns<true> : ByColumns<false>;
  return adds ? ByRows<true> : ByRows<false>;
}

/* Column by column, as rows of the transposed product. */
void ByFewColumns(int64_t rows, int64_t depth, int64_t units, const Matrix& left, const Matrix& right, float* to,
                  int64_t to_stride, bool adds) {
  float *column = Gathered(depth + rows), *sums = column + depth;
  const Matrix turned{left.at, left.stride, !left.is_transposed};
  for (int64_t j = 0; j < units; ++j) {
    const float* with = RowOf({right.at, right.stride, !right.is_transposed}, j, depth, column);
    if (to_stride == 1) {
      Pick(turned.is_transposed, adds)(with, turned, depth, rows, to + j);
      continue;
    }
    Pick(turned.is_transposed, false)(with, turned, depth, rows, sums);
    for (int64_t i = 0; i < rows; ++i) to[i * to_stride + j] = adds ? to[i * to_stride + j] + sums[i] : sums[i];
  }
}

/* activation(from + bias) of some numbers, in place. */
void Finish(float* to, const float* bias, int64_t count, int64_t activation) {
  for (int64_t j = 0; j < count; ++j) {
    const float x = bias ? to[j] + bias[j] : to[j];
    to[j] = activation == product::kRelu && x < 0 ? 0.0f : x;  // NaN stays
  }
  if (activation != product::kGelu) return;
  int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) blocked::StoreLanes(to + j, blocked::Gelu(LoadLanes(to + j)));
  if (j == count) return;
  Lanes rest{};
  __builtin_memcpy(&rest, to + j, (count - j) * sizeof(float));
  rest = blocked::Gelu(rest);
  __builtin_memcpy(to + j, &rest, (count - j) * sizeof(float));
}

}  // namespace

bool Fits(int64_t rows, int64_t units) { return rows <= kFewRows || units <= kFewRows; }

void Multiply(int64_t rows, int64_t depth, int64_t units, const Matrix& left, const Matrix& right,
              float* to, int64_t to_stride, bool adds) {
  if (rows > kFewRows) return ByFewColumns(rows, depth, units, left, right, to, to_stride, adds);
  const ByRow by_row = Pick(right.is_transposed, adds);
  for (int64_t i = 0; i < rows; ++i)
    by_row(RowOf(left, i, depth, Gathered(depth)), right, depth, units, to + i * to_stride);
}

void RunUnits(const product::Operands& layer, int64_t rows, int64_t depth, int64_t units, int64_t first,
              int64_t last) {
  for (int64_t at = first, count; at < last; at += count) {  // what is read stays near for the other rows
    const bool is_whole = at + kQuad <= last;
    count = is_whole ? kQuad : 1;
    for (int64_t i = 0, now; i < rows; i += now) {
      now = i + kRows <= rows ? kRows : 1;
      Quad found[kRows];
      (now == kRows ? Dots<kRows> : Dots<1>)(layer.from + i * depth, depth, layer.packed + at * depth,
                                             is_whole ? depth : 0, depth, found);
      for (int64_t k = 0; k < now; ++k)
        __builtin_memcpy(layer.to + (i + k) * units + at, &found[k], count * sizeof(float));
    }
  }
  for (int64_t i = 0; i < rows; ++i)
    Finish(layer.to + i * units + first, layer.bias ? layer.bias + first : nullptr, last - first, layer.activation);
}

}  // namespace graphopt::slim

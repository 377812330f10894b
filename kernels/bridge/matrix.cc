/*
 * The products of matrix.h, compiled for the processor at hand; see build.py.
 *
 * A tile of c lives in registers while k runs, as in GotoBLAS (Goto and van de Geijn, Anatomy of
 * High-Performance Matrix Multiplication, 2008). The left operand is read in place, element by
 * element; the right one by whole vectors, from panels as wide as a tile.
 */
#include "matrix.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "ask.h"
#include "outer_rows.h"
#include "paired.h"
#include "panels.h"
#include "tiles.h"

namespace graphopt {
namespace {

#if defined(__AVX512F__)
constexpr int kBytes = 64, kRows = 8, kVectors = 3;
#elif defined(__AVX__)
constexpr int kBytes = 32, kRows = 4, kVectors = 3;
#elif defined(__aarch64__)
constexpr int kBytes = 16, kRows = 8, kVectors = 3;
#else
constexpr int kBytes = 16, kRows = 4, kVectors = 2;
#endif

template <typename T>
struct Shape {
  static constexpr int kLanes = kBytes / sizeof(T);
  static constexpr int kWidth = kLanes * kVectors;
};
template <typename T> struct VectorOf;
template <> struct VectorOf<float> { typedef float type __attribute__((vector_size(kBytes))); };
template <> struct VectorOf<double> { typedef double type __attribute__((vector_size(kBytes))); };
template <typename T> using Vector = typename VectorOf<T>::type;

template <typename T>
inline Vector<T> Load(const T* from) {
  Vector<T> found;
  __builtin_memcpy(&found, from, sizeof(found));
  return found;
}

template <typename T>
inline void Store(T* to, const Vector<T>& vector) {
  __builtin_memcpy(to, &vector, sizeof(vector));
}

/* What a tile multiplies: element (i, p) of the left operand is at left[i][p * step], the right one
 * is packed. */
template <typename T>
struct Factor {
  const T* left[kRows];
  const T* right;
  int64_t depth;
};

/* Products to be added up, and where their rows go. */
template <typename T>
struct Tile {
  const Factor<T>* factors;
  int64_t count;
  T* to[kRows];
  int64_t columns;
  bool adds;
};

/* Rows of `columns` elements, of which there are fewer than fit into the vectors. */
template <typename T, int R, int V>
void Narrow(const Tile<T>& tile, const T* sums) {
  for (int i = 0; i < R; ++i, sums += V * Shape<T>::kLanes)
    for (int64_t j = 0; j < tile.columns; ++j)
      tile.to[i][j] = tile.adds ? tile.to[i][j] + sums[j] : sums[j];
}

template <typename T, int R, int V, int kStep>
void Run(const Tile<T>& tile) {
  constexpr int kLanes = Shape<T>::kLanes;
  Vector<T> sum[R][V] = {};
  for (const Factor<T>* factor = tile.factors; factor < tile.factors + tile.count; ++factor) {
    const T* left[R];
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) left[i] = factor->left[i];
    const T* right = factor->right;
    const int64_t depth = factor->depth;
#pragma GCC unroll 4
    for (int64_t p = 0; p < depth; ++p, right += V * kLanes) {
      Vector<T> b[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) b[v] = Load(right + v * kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < R; ++i) {
        const T a = left[i][p * kStep];
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) sum[i][v] += a * b[v];
      }
    }
  }
  // All indices of `sum` are constants, or it would not stay in registers.
  if (tile.columns < V * kLanes) {
    T sums[R * V * kLanes];
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) Store<T>(sums + (i * V + v) * kLanes, sum[i][v]);
    return Narrow<T, R, V>(tile, sums);
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      T* at = tile.to[i] + v * kLanes;
      Store<T>(at, tile.adds ? Load(at) + sum[i][v] : sum[i][v]);
    }
}

template <typename T>
using Runner = void (*)(const Tile<T>&);

template <typename T, int V, int kStep, int... R>
Runner<T> OfRows(int64_t rows, std::integer_sequence<int, R...>) {
  static const Runner<T> table[] = {Run<T, R + 1, V, kStep>...};
  return table[rows - 1];
}

/* For tiles of so many rows and vectors; `kStep`: from one element of the left operand to the next. */
template <typename T, int kStep>
Runner<T> Pick(int64_t rows, int64_t vectors) {
  constexpr std::make_integer_sequence<int, kRows> all{};
  if (vectors == 1) return OfRows<T, 1, kStep>(rows, all);
  if (vectors == 2) return OfRows<T, 2, kStep>(rows, all);
  return OfRows<T, kVectors, kStep>(rows, all);
}

template <typename T>
int64_t Vectors(int64_t columns) {
  constexpr int kLanes = Shape<T>::kLanes;
  return columns >= Shape<T>::kWidth ? kVectors : (columns + kLanes - 1) / kLanes;
}

template <typename T>
int64_t PackedSize(int64_t k, int64_t n) {
  int64_t width = n / Shape<T>::kWidth * Shape<T>::kWidth;
  return k * (width + Vectors<T>(n - width) * Shape<T>::kLanes);
}

template <typename T>
void Pack(const T* b, int64_t row_stride, int64_t column_stride, int64_t k, int64_t n, int64_t begin,
          int64_t end, T times, T* packed) {
  for (int64_t j = begin; j < end; j += Shape<T>::kWidth) {
    int64_t columns = std::min<int64_t>(n - j, Shape<T>::kWidth);
    int64_t width = Vectors<T>(columns) * Shape<T>::kLanes;
    T* panel = packed + k * j;
    PackPanel(b + j * column_stride, row_stride, column_stride, k, columns, panel, width);
    if (times != 1)
      for (int64_t i = 0; i < k * width; ++i) panel[i] *= times;
  }
}

/* Asks for some rows, which are in no stream. */
template <typename T>
void Fetch(const Rows<T>& block, int64_t begin, int64_t k) {
  const int64_t end = std::min<int64_t>(begin + kRows, block.rows);
  for (int64_t r = begin; r < end; ++r)
    AskForRow(block.from + block.from_index[r] * block.from_stride, k);
}

template <typename T>
void Multiply(const Rows<T>* blocks, int64_t count, const PackedMatrix<T>* packed, int64_t n_factors,
              int64_t n, bool adds, Meanwhile* meanwhile) {
  Factor<T> factors[kMostFactors];
  for (int64_t f = 0; f < n_factors; ++f) factors[f] = {{}, packed[f].at, packed[f].depth};
  for (int64_t j = 0; j < n; j += Shape<T>::kWidth) {
    int64_t columns = std::min<int64_t>(n - j, Shape<T>::kWidth);
    int64_t vectors = Vectors<T>(columns);
    for (const Rows<T>* block = blocks; block < blocks + count * n_factors; block += n_factors)
      for (int64_t i = 0; i < block->rows; i += kRows) {
        int64_t rows = std::min<int64_t>(block->rows - i, kRows);
        Tile<T> tile{factors, n_factors, {}, columns, adds};
        for (int64_t r = 0; r < rows; ++r)
          tile.to[r] = block->to + RowOf(block->to_index, i + r) * block->to_stride + j;
        for (int64_t f = 0; f < n_factors; ++f) {
          const Rows<T>& given = block[f];
          for (int64_t r = 0; r < rows; ++r)
            factors[f].left[r] = given.from + RowOf(given.from_index, i + r) * given.from_stride;
          if (j == 0 && given.from_index) Fetch(given, i + kRows, packed[f].depth);
        }
        Pick<T, 1>(rows, vectors)(tile);
        if (meanwhile) meanwhile->RunErrand();
      }
    for (int64_t f = 0; f < n_factors; ++f)
      factors[f].right += packed[f].depth * vectors * Shape<T>::kLanes;
  }
}

constexpr int64_t kDepth = 128;  // rows of outer products that are copied at a time, at most

/* Rows of both operands of outer products, as tiles want them: the left ones in strips of kRows columns,
 * the right ones in panels. */
template <typename T>
struct Copied {
  OuterRows<T> rows;
  std::vector<T> left, right;

  int64_t depth() const { return rows.depth(); }

  void CopyLeft(int64_t m) {
    left.resize(depth() * ((m + kRows - 1) / kRows * kRows));
    Cut<kRows>(rows.left, m, kRows, left.data());
  }

  /* Those of one of the sums. */
  void CopyRight(int64_t sum, int64_t n) {
    right.resize(PackedSize<T>(depth(), n));
    const int64_t last = n % Shape<T>::kWidth;
    Cut<Shape<T>::kWidth>(rows.right[sum], n, Vectors<T>(last) * Shape<T>::kLanes, right.data());
  }

 private:
  /* Rows in parts of so many columns, each part's rows adjacent; the last part may have another
   * width, with zeros behind the end, for what is there could be no number. Part by part, so that
   * what is written is one stream: its parts lie some 4 KB apart and would share cache sets. */
  template <int64_t kColumns>
  static void Cut(const std::vector<const T*>& rows, int64_t columns, int64_t last_width, T* to) {
    int64_t j = 0;
    for (; j + kColumns <= columns; j += kColumns)
      for (const T* row : rows) {
        std::memcpy(to, row + j, kColumns * sizeof(T));
        to += kColumns;
      }
    if (j == columns) return;
    for (const T* row : rows) {
      for (int64_t i = 0; i < last_width; ++i) to[i] = i < columns - j ? row[j + i] : T(0);
      to += last_width;
    }
  }
};

template <typename T>
void AddOuter(const Copied<T>& copied, const OuterSum<T>& sum, int64_t m) {
  const int64_t depth = copied.depth();
  const T* right = copied.right.data();
  for (int64_t j = 0; j < sum.n; j += Shape<T>::kWidth) {
    int64_t columns = std::min<int64_t>(sum.n - j, Shape<T>::kWidth);
    int64_t vectors = Vectors<T>(columns);
    for (int64_t i = 0; i < m; i += kRows) {
      int64_t rows = std::min<int64_t>(m - i, kRows);
      Factor<T> factor{{}, right, depth};
      Tile<T> tile{&factor, 1, {}, columns, true};
      for (int64_t r = 0; r < rows; ++r) {
        factor.left[r] = copied.left.data() + i * depth + r;
        tile.to[r] = sum.c + (i + r) * sum.c_stride + j;
      }
      Pick<T, kRows>(rows, vectors)(tile);
    }
    right += depth * vectors * Shape<T>::kLanes;
  }
}

template <typename T>
void Outer(const OuterSum<T>* sums, int64_t count, int64_t segments, int64_t m) {
  static thread_local Copied<T> copied;
  ForOuterRows(sums, count, segments, kDepth, &copied.rows, [&] {
    copied.CopyLeft(m);
    for (int64_t i = 0; i < count; ++i) {
      copied.CopyRight(i, sums[i].n);
      AddOuter(copied, sums[i], m);
    }
  });
}

template <typename T>
void MultiplyAlike(const Rows<T>* rows, const PackedMatrix<T>* packed, const int64_t* columns,
                   const bool* adds, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    Multiply<T>(rows + i, 1, packed + i, 1, columns[i], adds[i], nullptr);
}

}  // namespace

template <typename T>
const Products<T>& ProductsOfFew() {
  static const Products<T> all = {Shape<T>::kWidth, false,   false,       PackedSize<T>,
                                  PackedSize<T>,    Pack<T>, Multiply<T>, MultiplyAlike<T>,
                                  Outer<T>};
  return all;
}

template const Products<float>& ProductsOfFew<float>();
template const Products<double>& ProductsOfFew<double>();

template <>
const Products<double>& ProductsWithoutUnit<double>(int64_t) { return ProductsOfFew<double>(); }

template <>
const Products<float>& ProductsWithoutUnit<float>(int64_t elements) {
  const Products<float>& vectors = ProductsOfFew<float>();
  return elements >= kLeastElements && paired::ArePaired() ? paired::MakeProducts(vectors) : vectors;
}

template <>
const Products<double>& ProductsFor<double>(int64_t, int64_t, bool) { return ProductsOfFew<double>(); }

template <>
const Products<float>& ProductsFor<float>(int64_t rows, int64_t elements, bool kept) {
  const Products<float>& vectors = ProductsOfFew<float>();
  if (elements < kLeastElements || (!kept && rows < kLeastRows)) return vectors;
  if (!tiles::AreThere()) return ProductsWithoutUnit<float>(elements);
  const Products<float>& all = tiles::MakeProducts(vectors);
  if (rows >= kLeastRows) return all;
  static const Products<float> few = {all.panel,         false,    false,          all.packed_size,
                                      vectors.read_size, all.pack, vectors.multiply,
                                      vectors.multiply_alike,      vectors.outer};
  return few;
}

}  // namespace graphopt

/*
 * The products of matrix.h, compiled for the processor at hand; see build.py.
 *
 * A tile of c lives in registers while k runs, as in GotoBLAS (Goto and van de Geijn, Anatomy of
 * High-Performance Matrix Multiplication, 2008). The left operand is read in place, element by
 * element; the right one by whole vectors, from panels as wide as a tile.
 */
#include "matrix.h"

#include <cstring>

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

/* Where the operands of a tile lie; element (i, p) of the left one is at left[i * row + p * step]. */
template <typename T>
struct Tile {
  const T* left;
  int64_t row, step;
  const T* right;
  int64_t right_stride, depth;
};

template <typename T, int R, int V>
inline void Accumulate(const Tile<T>& tile, Vector<T> (&sum)[R][V]) {
  const T* right = tile.right;
  const T* left = tile.left;
  for (int64_t p = 0; p < tile.depth; ++p, right += tile.right_stride, left += tile.step) {
    Vector<T> b[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v)
      b[v] = Load(right + v * Shape<T>::kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const T a = left[i * tile.row];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sum[i][v] += a * b[v];
    }
  }
}

template <typename T, int R, int V>
inline void Finish(const Vector<T> (&sum)[R][V], T* c, int64_t c_stride, int64_t columns, bool adds) {
  constexpr int kLanes = Shape<T>::kLanes;
  if (columns == V * kLanes) {
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        T* at = c + i * c_stride + v * kLanes;
        Store<T>(at, adds ? Load(at) + sum[i][v] : sum[i][v]);
      }
    return;
  }
  for (int i = 0; i < R; ++i) {
    T row[V * kLanes];
    std::memcpy(row, sum[i], sizeof(row));
    T* at = c + i * c_stride;
    for (int64_t j = 0; j < columns; ++j) at[j] = adds ? at[j] + row[j] : row[j];
  }
}

template <typename T, int R, int V>
void Run(const Tile<T>* tiles, int64_t count, T* c, int64_t c_stride, int64_t columns, bool adds) {
  Vector<T> sum[R][V] = {};
  for (int64_t at = 0; at < count; ++at) Accumulate<T, R, V>(tiles[at], sum);
  Finish<T, R, V>(sum, c, c_stride, columns, adds);
}

template <typename T>
using Runner = void (*)(const Tile<T>*, int64_t, T*, int64_t, int64_t, bool);

template <typename T, int V>
Runner<T> OfRows(int64_t rows) {
  static const Runner<T> table[] = {Run<T, 1, V>, Run<T, 2, V>, Run<T, 3, V>, Run<T, 4, V>,
#if !defined(__AVX__) && !defined(__aarch64__) || defined(__AVX512F__) || defined(__aarch64__)
                                    Run<T, kRows >= 5 ? 5 : 1, V>, Run<T, kRows >= 6 ? 6 : 1, V>,
                                    Run<T, kRows >= 7 ? 7 : 1, V>, Run<T, kRows >= 8 ? 8 : 1, V>,
#endif
  };
  return table[rows - 1];
}

template <typename T>
Runner<T> Pick(int64_t rows, int64_t vectors) {
  if (vectors == 1) return OfRows<T, 1>(rows);
  if (vectors == 2) return OfRows<T, 2>(rows);
  return OfRows<T, kVectors>(rows);
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
void Pack(const T* b, int64_t row_stride, int64_t column_stride, int64_t k, int64_t n, T* packed) {
  for (int64_t j = 0; j < n; j += Shape<T>::kWidth) {
    int64_t columns = n - j < Shape<T>::kWidth ? n - j : Shape<T>::kWidth;
    int64_t width = Vectors<T>(columns) * Shape<T>::kLanes;
    for (int64_t p = 0; p < k; ++p, packed += width) {
      const T* from = b + p * row_stride + j * column_stride;
      for (int64_t i = 0; i < columns; ++i) packed[i] = from[i * column_stride];
      for (int64_t i = columns; i < width; ++i) packed[i] = 0;
    }
  }
}

template <typename T>
void Multiply(const T* a, int64_t a_stride, const T* packed, int64_t m, int64_t k, int64_t n, T* c,
              int64_t c_stride, bool adds) {
  for (int64_t j = 0; j < n; j += Shape<T>::kWidth) {
    int64_t columns = n - j < Shape<T>::kWidth ? n - j : Shape<T>::kWidth;
    int64_t vectors = Vectors<T>(columns), width = vectors * Shape<T>::kLanes;
    for (int64_t i = 0; i < m; i += kRows) {
      int64_t rows = m - i < kRows ? m - i : kRows;
      Tile<T> tile{a + i * a_stride, a_stride, 1, packed, width, k};
      Pick<T>(rows, vectors)(&tile, 1, c + i * c_stride + j, c_stride, columns, adds);
    }
    packed += k * width;
  }
}

constexpr int64_t kMaxTiles = 64;

/* As Outer for columns that do not fill vectors: the right operand is copied to padded rows. */
template <typename T>
void OuterTail(const Segment<T>* segments, int64_t count, int64_t m, int64_t j, int64_t columns, T* c,
               int64_t c_stride) {
  constexpr int64_t kDepth = 64;
  T padded[kDepth * Shape<T>::kWidth];
  int64_t vectors = Vectors<T>(columns), width = vectors * Shape<T>::kLanes;
  std::memset(padded, 0, sizeof(padded));
  for (int64_t s = 0; s < count; ++s) {
    const Segment<T>& segment = segments[s];
    for (int64_t start = 0; start < segment.rows; start += kDepth) {
      int64_t depth = segment.rows - start < kDepth ? segment.rows - start : kDepth;
      const T* from = segment.right + start * segment.right_stride + j;
      for (int64_t p = 0; p < depth; ++p)
        std::memcpy(padded + p * width, from + p * segment.right_stride, columns * sizeof(T));
      for (int64_t i = 0; i < m; i += kRows) {
        int64_t rows = m - i < kRows ? m - i : kRows;
        Tile<T> tile{segment.left + start * segment.left_stride + i, 1, segment.left_stride,
                     padded, width, depth};
        Pick<T>(rows, vectors)(&tile, 1, c + i * c_stride + j, c_stride, columns, true);
      }
    }
  }
}

template <typename T>
void Outer(const Segment<T>* segments, int64_t count, int64_t m, int64_t n, T* c, int64_t c_stride) {
  for (int64_t done = 0; done < count; done += kMaxTiles) {
    int64_t batch = count - done < kMaxTiles ? count - done : kMaxTiles;
    const Segment<T>* part = segments + done;
    for (int64_t j = 0; j < n; j += Shape<T>::kWidth) {
      int64_t columns = n - j < Shape<T>::kWidth ? n - j : Shape<T>::kWidth;
      int64_t vectors = Vectors<T>(columns);
      int64_t even = columns / Shape<T>::kLanes * Shape<T>::kLanes;
      if (even != columns) {
        // Whole vectors first, then the rest.
        OuterTail(part, batch, m, j + even, columns - even, c, c_stride);
        vectors = even / Shape<T>::kLanes;
        columns = even;
        if (vectors == 0) continue;
      }
      for (int64_t i = 0; i < m; i += kRows) {
        int64_t rows = m - i < kRows ? m - i : kRows;
        Tile<T> tiles[kMaxTiles];
        for (int64_t s = 0; s < batch; ++s)
          tiles[s] = {part[s].left + i, 1, part[s].left_stride,
                      part[s].right + j, part[s].right_stride, part[s].rows};
        Pick<T>(rows, vectors)(tiles, batch, c + i * c_stride + j, c_stride, columns, true);
      }
    }
  }
}

}  // namespace

template <typename T>
const Products<T>& AllProducts() {
  static const Products<T> all = {PackedSize<T>, Pack<T>, Multiply<T>, Outer<T>};
  return all;
}
template const Products<float>& AllProducts<float>();
template const Products<double>& AllProducts<double>();

}  // namespace graphopt

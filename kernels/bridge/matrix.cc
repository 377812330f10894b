/*
 * The products of matrix.h, compiled for the processor at hand; see build.py.
 *
 * A tile of c lives in registers while k runs, as in GotoBLAS (Goto and van de Geijn, Anatomy of
 * High-Performance Matrix Multiplication, 2008). The left operand is read in place, element by
 * element; the right one by whole vectors, from panels as wide as a tile.
 */
#include "matrix.h"

#include <cstring>
#include <vector>

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
  const int64_t row = tile.row, step = tile.step, right_stride = tile.right_stride;
#pragma GCC unroll 4
  for (int64_t p = 0; p < tile.depth; ++p, right += right_stride, left += step) {
    Vector<T> b[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) b[v] = Load(right + v * Shape<T>::kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const T a = left[i * row];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sum[i][v] += a * b[v];
    }
  }
}

/* Rows of `columns` elements, of which there are fewer than fit into the vectors. */
template <typename T, int R, int V>
void Narrow(const T* sums, T* c, int64_t c_stride, int64_t columns, bool adds) {
  for (int i = 0; i < R; ++i, sums += V * Shape<T>::kLanes, c += c_stride)
    for (int64_t j = 0; j < columns; ++j) c[j] = adds ? c[j] + sums[j] : sums[j];
}

template <typename T, int R, int V>
void Run(const Tile<T>* tiles, int64_t count, T* c, int64_t c_stride, int64_t columns, bool adds) {
  constexpr int kLanes = Shape<T>::kLanes;
  Vector<T> sum[R][V] = {};
  for (int64_t at = 0; at < count; ++at) Accumulate<T, R, V>(tiles[at], sum);
  // All indices of `sum` are constants, or it would not stay in registers.
  if (columns < V * kLanes) {
    T sums[R * V * kLanes];
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) Store<T>(sums + (i * V + v) * kLanes, sum[i][v]);
    return Narrow<T, R, V>(sums, c, c_stride, columns, adds);
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      T* at = c + i * c_stride + v * kLanes;
      Store<T>(at, adds ? Load(at) + sum[i][v] : sum[i][v]);
    }
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
void Multiply(const Rows<T>* blocks, int64_t count, const T* packed, int64_t k, int64_t n,
              bool adds) {
  for (int64_t j = 0; j < n; j += Shape<T>::kWidth) {
    int64_t columns = n - j < Shape<T>::kWidth ? n - j : Shape<T>::kWidth;
    int64_t vectors = Vectors<T>(columns), width = vectors * Shape<T>::kLanes;
    for (const Rows<T>* block = blocks; block < blocks + count; ++block)
      for (int64_t i = 0; i < block->rows; i += kRows) {
        int64_t rows = block->rows - i < kRows ? block->rows - i : kRows;
        Tile<T> tile{block->from + i * block->from_stride, block->from_stride, 1, packed, width, k};
        Pick<T>(rows, vectors)(&tile, 1, block->to + i * block->to_stride + j, block->to_stride,
                               columns, adds);
      }
    packed += k * width;
  }
}

constexpr int64_t kMaxTiles = 64;
constexpr int64_t kFarBytes = 2 << 20;  // operands above this are not near the processor

/* The left operands of all segments as strips of kRows columns, each strip adjacent. */
template <typename T>
std::vector<Segment<T>> Strips(const Segment<T>* segments, int64_t count, int64_t m, T* memory) {
  std::vector<Segment<T>> strips(segments, segments + count);
  int64_t depth = 0;
  for (int64_t s = 0; s < count; ++s) {
    strips[s].left = memory + depth * kRows;
    strips[s].left_stride = kRows;
    depth += segments[s].rows;
  }
  for (int64_t i = 0; i < m; i += kRows) {
    int64_t rows = m - i < kRows ? m - i : kRows;
    T* to = memory + i * depth;
    for (int64_t s = 0; s < count; ++s)
      for (int64_t p = 0; p < segments[s].rows; ++p, to += kRows)
        std::memcpy(to, segments[s].left + p * segments[s].left_stride + i, rows * sizeof(T));
  }
  return strips;
}

/* Columns j and further of the sum, whole vectors of them or fewer than a vector. */
template <typename T>
void OuterPanel(const Segment<T>* segments, int64_t count, int64_t strip, int64_t m, int64_t j,
                int64_t columns, T* c, int64_t c_stride) {
  int64_t vectors = Vectors<T>(columns), width = vectors * Shape<T>::kLanes;
  bool is_whole = width == columns;
  std::vector<T> padded;
  if (!is_whole) {
    // A load must not reach behind the operand: rows are copied to where it may.
    int64_t depth = 0;
    for (int64_t s = 0; s < count; ++s) depth += segments[s].rows;
    padded.resize(depth * width);
    T* to = padded.data();
    for (int64_t s = 0; s < count; ++s)
      for (int64_t p = 0; p < segments[s].rows; ++p, to += width)
        std::memcpy(to, segments[s].right + p * segments[s].right_stride + j, columns * sizeof(T));
  }
  for (int64_t i = 0; i < m; i += kRows) {
    int64_t rows = m - i < kRows ? m - i : kRows;
    const T* copied = padded.data();
    Tile<T> tiles[kMaxTiles];
    for (int64_t s = 0; s < count; ++s) {
      const Segment<T>& segment = segments[s];
      tiles[s] = {segment.left + i * strip, 1, segment.left_stride,
                  is_whole ? segment.right + j : copied,
                  is_whole ? segment.right_stride : width, segment.rows};
      copied += segment.rows * width;
    }
    Pick<T>(rows, vectors)(tiles, count, c + i * c_stride + j, c_stride, columns, true);
  }
}

template <typename T>
void Outer(const Segment<T>* segments, int64_t count, int64_t m, int64_t n, T* c, int64_t c_stride) {
  static thread_local std::vector<T> memory;
  for (int64_t done = 0; done < count; done += kMaxTiles) {
    int64_t batch = count - done < kMaxTiles ? count - done : kMaxTiles;
    const Segment<T>* part = segments + done;
    int64_t depth = 0, strip = 1;
    for (int64_t s = 0; s < batch; ++s) depth += part[s].rows;
    std::vector<Segment<T>> strips;
    if (depth * m * static_cast<int64_t>(sizeof(T)) > kFarBytes) {
      int64_t size = (m + kRows - 1) / kRows * kRows * depth;
      if (static_cast<int64_t>(memory.size()) < size) memory.resize(size);
      strips = Strips(part, batch, m, memory.data());
      part = strips.data();
      strip = depth;
    }
    for (int64_t j = 0; j < n;) {
      int64_t columns = n - j < Shape<T>::kWidth ? n - j : Shape<T>::kWidth;
      int64_t even = columns / Shape<T>::kLanes * Shape<T>::kLanes;
      if (even > 0) columns = even;
      OuterPanel(part, batch, strip, m, j, columns, c, c_stride);
      j += columns;
    }
  }
}

}  // namespace

template <typename T>
const Products<T>& AllProducts() {
  static const Products<T> all = {Shape<T>::kWidth, PackedSize<T>, Pack<T>, Multiply<T>, Outer<T>};
  return all;
}
template const Products<float>& AllProducts<float>();
template const Products<double>& AllProducts<double>();

}  // namespace graphopt

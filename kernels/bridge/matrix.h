/*
 * Matrix products for small batches, over weights that were packed beforehand.
 *
 * A BLAS library packs the weights again in every call, which for the few rows of a recurrence's step
 * costs as much as the product. Here a recurrence packs them once and uses them in every step.
 */
#pragma once

#include <algorithm>
#include <cstdint>

#include "meanwhile.h"

namespace graphopt {

/* Some rows of two matrices, for the sum of their outer products; with an index, row r is number
 * index[r]. */
template <typename T>
struct Segment {
  const T* left;
  const T* right;
  int64_t left_stride, right_stride, rows;
  const int32_t *left_index = nullptr, *right_index = nullptr;
};

/* Some rows to multiply, and where the result goes; with an index, row r is number index[r]. */
template <typename T>
struct Rows {
  const T* from;
  int64_t from_stride;
  T* to;
  int64_t to_stride, rows;
  const int32_t *from_index = nullptr, *to_index = nullptr;
};

inline int64_t RowOf(const int32_t* index, int64_t row) { return index ? index[row] : row; }

/* A packed matrix, and how many rows it had. */
template <typename T>
struct PackedMatrix {
  const T* at;
  int64_t depth;
};

/* Products that are added up without being written in between, or that have an operand in common. */
constexpr int64_t kMostFactors = 4;

/* A sum of outer products, to be added to an n columns wide matrix of adjacent rows. */
template <typename T>
struct OuterSum {
  const Segment<T>* segments;
  int64_t n;
  T* c;
  int64_t c_stride;
};

template <typename T>
struct Products {
  int64_t panel;  // columns that are packed together
  bool are_tiled;  // by the matrix unit, for which many rows at a time are better
  bool are_paired;  // see paired.h
  /* Elements that `pack` writes for k x n, and those of them that `multiply` reads. */
  int64_t (*packed_size)(int64_t k, int64_t n);
  int64_t (*read_size)(int64_t k, int64_t n);
  /* packed = `times`, a power of two, times the k x n matrix whose element (p, j) is at b[p * row_stride +
   * j * column_stride]; columns `begin` to `end` of it, which are whole panels but for the last. */
  void (*pack)(const T* b, int64_t row_stride, int64_t column_stride, int64_t k, int64_t n,
               int64_t begin, int64_t end, T times, T* packed);
  /* For all blocks: to = the sum over up to kMostFactors packed matrices of n columns of from times the
   * matrix, added to `to` where `adds`. A block is as many Rows as there are matrices, one behind the
   * other; where results go the first of them says, and nothing is read there. `meanwhile`, or null, may
   * be computed in part. */
  void (*multiply)(const Rows<T>* blocks, int64_t count, const PackedMatrix<T>* packed,
                   int64_t factors, int64_t n, bool adds, Meanwhile* meanwhile);
  /* The same of up to kMostFactors matrices by themselves, of one depth: all `rows` are the same, but the
   * result of matrix i has columns[i] and goes where rows[i] says. */
  void (*multiply_alike)(const Rows<T>* rows, const PackedMatrix<T>* packed, const int64_t* columns,
                         const bool* adds, int64_t count);
  /* For up to kMostFactors sums, c (m x n, adjacent rows) += the sum over all of `segments` segments' rows
   * of left^T right; the left operands are those of the first sum. */
  void (*outer)(const OuterSum<T>* sums, int64_t count, int64_t segments, int64_t m);
  /* What has to be known of the whole matrix before the first panel is packed, or null. */
  void (*prepare)(const T* b, int64_t row_stride, int64_t column_stride, int64_t k, int64_t n,
                  T* packed) = nullptr;
};

/* Packs the whole of the matrix that `pack` describes. */
template <typename T>
void PackWhole(const Products<T>& products, const T* b, int64_t row_stride, int64_t column_stride,
               int64_t k, int64_t n, T times, int threads, T* packed) {
  if (products.prepare) products.prepare(b, row_stride, column_stride, k, n, packed);
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t j = 0; j < n; j += products.panel)
    products.pack(b, row_stride, column_stride, k, n, j, std::min(j + products.panel, n), times, packed);
}

/* Rows of a call, and elements of the matrices that it multiplies them with, from which on a matrix unit
 * is worth the splitting, where there is one. What decides is the whole call's number, as results must
 * not depend on how rows are shared among threads. */
constexpr int64_t kLeastRows = 16, kLeastElements = 32 << 10;

/* By vectors, which is best for a few rows at a time. */
template <typename T>
const Products<T>& ProductsOfFew();

/* The same, but in pairs where that is worth it for matrices of so many elements. */
template <typename T>
const Products<T>& ProductsWithoutUnit(int64_t elements);

/* For such a call; if `kept`, what is packed is for calls with any number of rows. */
template <typename T>
const Products<T>& ProductsFor(int64_t rows, int64_t elements, bool kept = false);

}  // namespace graphopt

/* Products of matrix.h by themselves, for tests to call. */
#include "matrix.h"
#include "paired.h"
#include "probe.h"
#include "tiles.h"

using namespace graphopt;

namespace {

enum Kind { kVectors, kTiles, kPaired };
int kind = kVectors;
int times = 1;  // that products are multiplied by

/* Those for a call that is worth the matrix unit or pairs, or for one that is not. */
template <typename T>
const Products<T>& Chosen() {
  if constexpr (std::is_same_v<T, float>)
    if (kind == kPaired) return paired::MakeProducts(ProductsOfFew<float>());
  return kind == kTiles ? ProductsFor<T>(kLeastRows, kLeastElements) : ProductsFor<T>(0, 0);
}

template <typename T>
void MultiplyAs(const T* from, const int32_t* from_index, const T* right, int64_t by_depth,
                int64_t by_width, T* packed, T* to, const int32_t* to_index, const int64_t* sizes,
                bool adds) {
  const int64_t rows = sizes[0], depth = sizes[1], width = sizes[2], stride = sizes[3];
  const Products<T>& all = Chosen<T>();
  PackWhole(all, right, by_depth, by_width, depth, width, T(times), 1, packed);
  // Rows that come one after the other are given as two blocks.
  const int64_t first = from_index || to_index ? rows : rows / 3;
  const Rows<T> blocks[] = {{from, depth, to, stride, first, from_index, to_index},
                            {from + first * depth, depth, to + first * stride, stride, rows - first}};
  const PackedMatrix<T> matrix{packed, depth};
  all.multiply(blocks, first < rows ? 2 : 1, &matrix, 1, width, adds, nullptr);
}

/* The sum of `factors` products, whose depths are behind the other sizes. */
template <typename T>
void AddUpAs(const T** from, const int32_t** from_index, const T** right, int64_t factors,
             T** packed, T* to, const int64_t* sizes, bool adds) {
  const int64_t rows = sizes[0], width = sizes[1], stride = sizes[2], *depth = sizes + 3;
  const Products<T>& all = Chosen<T>();
  Rows<T> block[kMostFactors];
  PackedMatrix<T> matrices[kMostFactors];
  for (int64_t f = 0; f < factors; ++f) {
    PackWhole(all, right[f], width, 1, depth[f], width, T(1), 1, packed[f]);
    block[f] = {from[f], depth[f], to, stride, rows, from_index[f]};
    matrices[f] = {packed[f], depth[f]};
  }
  all.multiply(block, 1, matrices, factors, width, adds, nullptr);
}

/* Products of the same rows with the first `cut` columns of a matrix and with the others. */
template <typename T>
void AlikeAs(const T* from, const int32_t* from_index, const T* right, T** packed, T* to,
             const int32_t* to_index, const int64_t* sizes, const int64_t* adds) {
  const int64_t rows = sizes[0], depth = sizes[1], width = sizes[2], stride = sizes[3], cut = sizes[4];
  const Products<T>& all = Chosen<T>();
  Rows<T> each[2];
  PackedMatrix<T> matrices[2];
  const int64_t columns[] = {cut, width - cut};
  const bool are_added[] = {adds[0] != 0, adds[1] != 0};
  for (int i = 0; i < 2; ++i) {
    const int64_t first = i * cut;
    PackWhole(all, right + first, width, 1, depth, columns[i], T(1), 1, packed[i]);
    each[i] = {from, depth, to + first, stride, rows, from_index, to_index};
    matrices[i] = {packed[i], depth};
  }
  all.multiply_alike(each, matrices, columns, are_added, 2);
}

/* Two segments; the columns of the right operands are shared among two sums. */
template <typename T>
void OuterAs(const T* left, const int32_t* left_index, const T* right, const int32_t* right_index,
             T* to, const int64_t* sizes) {
  const int64_t n = sizes[2], cut = (n + 1) / 2;
  Segment<T> segments[2][2];
  OuterSum<T> sums[2];
  for (int i = 0; i < 2; ++i) {
    const T* from = right + i * cut;
    segments[i][0] = segments[i][1] = {left, from, sizes[1], n, sizes[0], left_index, right_index};
    sums[i] = {segments[i], i ? n - cut : cut, to + i * cut, sizes[3]};
  }
  Chosen<T>().outer(sums, 2, 2, sizes[1]);
}

}  // namespace

/* What multiplies from now on: vectors, the matrix unit if it is there, or pairs. */
extern "C" int choose(int wanted) {
  if (wanted != kTiles || tiles::AreThere()) kind = wanted;
  return kind;
}

/* What recurrences have products multiplied by. */
extern "C" int usual_factor() { return tiles::UsualFactor(); }

/* What becomes of an illegal instruction: 0 if it does no harm. */
extern "C" int run_an_illegal_one() {
  return Probe::Run([]() -> bool { __builtin_trap(); });
}

extern "C" void multiply_by(int factor) { times = factor; }

#define FOR(T)                                                                                     \
  extern "C" int64_t packed_##T(int64_t depth, int64_t width) {                                    \
    return Chosen<T>().packed_size(depth, width);                                                  \
  }                                                                                                \
  extern "C" void multiply_##T(const T* from, const int32_t* from_index, const T* right,           \
                               int64_t by_depth, int64_t by_width, T* packed, T* to,               \
                               const int32_t* to_index, const int64_t* sizes, int64_t adds) {      \
    MultiplyAs<T>(from, from_index, right, by_depth, by_width, packed, to, to_index, sizes, adds); \
  }                                                                                                \
  extern "C" void add_up_##T(const T** from, const int32_t** from_index, const T** right,          \
                             int64_t factors, T** packed, T* to, const int64_t* sizes,             \
                             int64_t adds) {                                                       \
    AddUpAs<T>(from, from_index, right, factors, packed, to, sizes, adds);                         \
  }                                                                                                \
  extern "C" void alike_##T(const T* from, const int32_t* from_index, const T* right, T** packed,  \
                            T* to, const int32_t* to_index, const int64_t* sizes,                  \
                            const int64_t* adds) {                                                 \
    AlikeAs<T>(from, from_index, right, packed, to, to_index, sizes, adds);                        \
  }                                                                                                \
  extern "C" void outer_##T(const T* left, const int32_t* left_index, const T* right,              \
                            const int32_t* right_index, T* to, const int64_t* sizes) {             \
    OuterAs<T>(left, left_index, right, right_index, to, sizes);                                   \
  }
FOR(float)
FOR(double)

/*
 * Matrices that products of tiles.h read: packed for vectors, and behind that for a processor's matrix unit
 * (AMX).
 */
#pragma once

#include "matrix.h"
#include "tile_blocks.h"

#if GRAPHOPT_TILES

namespace graphopt::tiles {

inline const Products<float>* plain = nullptr;  // without tiles

/* Where the vectors' form of a packed matrix ends; what was found in blocks of columns comes first there. */
inline int64_t VectorsSize(int64_t k, int64_t n) {
  return Ceil(plain->packed_size(k, n), kLineFloats) * kLineFloats;
}

constexpr int64_t kPanelColumns = 96;  // whole panels of both forms

/* One number for each block of columns, and one for each column. */
inline int64_t BlocksSize(int64_t n) { return Ceil(Ceil(n, kBlock), kLineFloats) * kLineFloats; }
inline int64_t FactorsSize(int64_t n) { return BlocksSize(n) + Ceil(n, kBlock) * kBlock; }

template <typename F>
int64_t ReadSize(int64_t k, int64_t n) {
  return Ceil(n, kBlock) * Depth<F>(k).Size() / 2;
}

template <typename F>
int64_t PackedSize(int64_t k, int64_t n) {
  return VectorsSize(k, n) + FactorsSize(n) + ReadSize<F>(k, n) + kLineFloats;
}

/* Of each block of columns: 1 if its products are what they should be, 0 if those of each column have to be
 * multiplied by a factor, no number if it could not be split. */
inline const float* BlocksAt(const PackedMatrix<float>& packed, int64_t n) {
  return packed.at + VectorsSize(packed.depth, n);
}

inline const float* FactorsAt(const PackedMatrix<float>& packed, int64_t n) {
  return BlocksAt(packed, n) + BlocksSize(n);
}

/* Where panels begin in a packed matrix: where a line does, or tiles would be loaded in halves. */
inline Bits* PanelsAt(const PackedMatrix<float>& packed, int64_t n) {
  const auto at = reinterpret_cast<uintptr_t>(BlocksAt(packed, n) + FactorsSize(n));
  return reinterpret_cast<Bits*>(at + -at % kLineBytes);
}

template <typename F>
void Pack(const float* b, int64_t row_stride, int64_t column_stride, int64_t k, int64_t n,
          int64_t begin, int64_t end, float times, float* packed) {
  plain->pack(b, row_stride, column_stride, k, n, begin, end, times, packed);
  float* blocks = packed + VectorsSize(k, n);
  float* factors = blocks + BlocksSize(n);
  Bits* tiles = PanelsAt({packed, k}, n);
  static thread_local std::vector<float> kept;
  const Depth<F> depth(k);
  const float every = times * kUnscale<F>;
  for (int64_t j = begin; j < end; j += kBlock) {
    const int64_t columns = std::min(kBlock, n - j);
    Bits* to = tiles + j / kBlock * depth.Size();
    const float* from = b + j * column_stride;
    int64_t stride = row_stride;
    if (row_stride != 1 && column_stride != 1) {
      kept.resize(k * kBlock);
      for (int64_t p = 0; p < k; ++p)
        for (int64_t i = 0; i < columns; ++i)
          kept[p * kBlock + i] = from[p * row_stride + i * column_stride];
      from = kept.data();
      stride = kBlock;
    }
    auto row_at = [&](int64_t p) { return from + p * stride; };
    const Scales scales = row_stride == 1 ? SplitTransposed<F>(from, column_stride, columns, depth, to)
                                          : SplitPanel<F, false>(row_at, depth, columns, to);
    for (int64_t i = 0; i < kBlock; ++i) factors[j + i] = every * scales.factors[i];
    float& block = blocks[j / kBlock];
    block = scales.are_usual && every == 1 ? 1 : 0;
    if (scales.is_fault) block = std::numeric_limits<float>::quiet_NaN();
  }
}

inline bool HasFault(const PackedMatrix<float>& packed, int64_t n) {
  const float* blocks = BlocksAt(packed, n);
  return std::any_of(blocks, blocks + Ceil(n, kBlock), [](float block) { return block != block; });
}

/* Whether columns have the same factors in both. */
inline bool HaveSameFactors(const PackedMatrix<float>& one, const PackedMatrix<float>& other, int64_t n) {
  const float *of_one = BlocksAt(one, n), *of_other = BlocksAt(other, n);
  for (int64_t block = 0; block < Ceil(n, kBlock); ++block) {
    const float* factors = FactorsAt(one, n) + block * kBlock;
    if (of_one[block] == 1 && of_other[block] == 1) continue;
    if (!std::equal(factors, factors + kBlock, FactorsAt(other, n) + block * kBlock)) return false;
  }
  return true;
}

}  // namespace graphopt::tiles

#endif

/*
 * Products of blocks of split numbers by a processor's matrix unit (AMX); see tile_parts.h.
 */
#pragma once

#include <vector>

#include "meanwhile.h"
#include "product.h"
#include "tile_parts.h"

#if GRAPHOPT_TILES

namespace graphopt::tiles {

/* Sizes of tiles: 0 to 3 are sums, 4 and 5 of the left operand, 6 and 7 of the right one. */
struct alignas(64) Sizes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

/* Sizes for one block of so many rows, up to kBlock: the unit takes less time for fewer. */
struct SizesOfRows {
  Sizes of[kBlock + 1] = {};

  constexpr SizesOfRows() {
    for (int64_t rows = 1; rows < kBlock; ++rows) {
      const bool is_one = rows <= kSide;
      for (int tile : {0, 1, 4}) of[rows].rows[tile] = is_one ? rows : kSide;
      for (int tile : {2, 3, 5}) of[rows].rows[tile] = is_one ? kSide : rows - kSide;
    }
  }
};
constexpr SizesOfRows sizes;  // compilers do not see that all of it is read

/* The unit is this thread's as long as one of these is there. */
class Configured {
 public:
  /* For blocks of kBlock rows, or for one block of `rows`. */
  explicit Configured(int64_t rows = kBlock) { _tile_loadconfig(&sizes.of[std::min(rows, kBlock)]); }
  ~Configured() { _tile_release(); }
  Configured(const Configured&) = delete;
  Configured& operator=(const Configured&) = delete;
};

/* Tiles are named by numbers, which have to be constants. */
#define GRAPHOPT_LOAD_LEFT(from)                            \
  _tile_loadd(4, from, kRowBytes);                          \
  if constexpr (R > 1) _tile_loadd(5, (from) + kTile, kRowBytes);
#define GRAPHOPT_LOAD_RIGHT(from)                           \
  _tile_loadd(6, from, kRowBytes);                          \
  if constexpr (C > 1) _tile_loadd(7, (from) + kTile, kRowBytes);
#define GRAPHOPT_ADD_PRODUCTS()                             \
  F::template Add<0>();                                     \
  if constexpr (C > 1) F::template Add<1>();                \
  if constexpr (R > 1) F::template Add<2>();                \
  if constexpr (R > 1 && C > 1) F::template Add<3>();       \
  if constexpr (kFills) meanwhile->Do();

/* Where a block of sums goes: row r to to[r] + column. */
struct Target {
  float* const* to;
  int64_t column, rows, columns;
  bool adds;                                            // to what is there
  const float* bias = nullptr;                          // of each of its columns, or null
  product::Activation activation = product::kNone;
  // Elements between rows, if tiles may be stored there; then these have exactly as many rows. Else 0.
  int64_t stride = 0;
  // What sums of each row and of each column are multiplied by, until they are handed out; null: by one.
  const float *of_rows = nullptr, *of_columns = nullptr;

  bool IsScaled() const { return of_rows || of_columns; }
  /* A row's sums as they should be. */
  __m512 Scaled(__m512 sums, int64_t row, __m512 by) const {
    if (!of_rows) return _mm512_mul_ps(sums, by);
    const __m512 of_row = _mm512_set1_ps(of_rows[row]);
    // What makes them smaller comes first, or they might be infinite in between.
    return of_rows[row] < 1 ? _mm512_mul_ps(_mm512_mul_ps(sums, of_row), by)
                            : _mm512_mul_ps(_mm512_mul_ps(sums, by), of_row);
  }
  /* What those of columns from `j` on are. */
  __m512 ColumnsFrom(int64_t j) const {
    return of_columns ? _mm512_loadu_ps(of_columns + j) : _mm512_set1_ps(1);
  }
};

/* 16 sums, or as many as `mask` says. */
inline void Hand(const Target& target, const float* sums, int64_t row, int64_t j, __mmask16 mask) {
  float* to = target.to[row] + target.column + j;
  __m512 sum = target.Scaled(_mm512_load_ps(sums + j), row, target.ColumnsFrom(j));
  if (target.bias) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, target.bias + j));
  if (target.adds) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, to));
  if (target.activation == product::kRelu) {
    const __m512 zero = _mm512_setzero_ps();
    sum = _mm512_max_ps(zero, sum);  // the second one if it is no number
  } else if (target.activation == product::kGelu) {
    sum = (__m512)blocked::Gelu((blocked::Lanes)sum);
  }
  _mm512_mask_storeu_ps(to, mask, sum);
}

/* The same of whole rows without an activation, in few instructions: while those wait, the unit does. */
template <bool kAdds, bool kBias, bool kScales>
inline void HandWhole(const Target& target, const float* sums, int64_t begin, int64_t end) {
  __m512 bias[2] = {}, by[2] = {};
  for (int half = 0; kScales && half < 2; ++half) by[half] = target.ColumnsFrom(half * kSide);
  for (int half = 0; kBias && half < 2; ++half)
    bias[half] = _mm512_loadu_ps(target.bias + half * kSide);
  for (int64_t row = begin; row < end; ++row) {
    float* to = target.to[row] + target.column;
    for (int half = 0; half < 2; ++half) {
      __m512 sum = _mm512_load_ps(sums + row * kBlock + half * kSide);
      if (kScales) sum = target.Scaled(sum, row, by[half]);
      if (kBias) sum = _mm512_add_ps(sum, bias[half]);
      if (kAdds) sum = _mm512_add_ps(sum, _mm512_loadu_ps(to + half * kSide));
      _mm512_storeu_ps(to + half * kSide, sum);
    }
  }
}

/* The same of any rows. */
inline void HandAny(const Target& target, const float* sums, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row)
    for (int64_t j = 0; j < target.columns; j += kSide)
      Hand(target, sums + row * kBlock, row, j, FirstOf(target.columns - j));
}

using Handing = void (*)(const Target&, const float* sums, int64_t begin, int64_t end);

template <bool kScales>
inline Handing HandingOfWhole(const Target& target) {
  if (target.bias) return target.adds ? HandWhole<true, true, kScales> : HandWhole<false, true, kScales>;
  return target.adds ? HandWhole<true, false, kScales> : HandWhole<false, false, kScales>;
}

inline Handing HandingOf(const Target& target) {
  if (target.columns < kBlock || target.activation != product::kNone) return HandAny;
  return target.IsScaled() ? HandingOfWhole<true>(target) : HandingOfWhole<false>(target);
}

/* A block of sums that still has to go to where it belongs. The unit computes the next block meanwhile, so
 * it is handed out in between. */
class Pending {
 public:
  /* Where the next block's sums are to be written. */
  float* Next() { return sums_[turn_]; }

  /* They are there. */
  void Take(const Target& target) {
    from_ = sums_[turn_];
    turn_ = 1 - turn_;
    target_ = target;
    hand_ = HandingOf(target);
    at_ = 0;
  }

  void HandOut(int64_t rows) {
    const int64_t end = std::min(target_.rows, at_ + rows);
    if (at_ < end) hand_(target_, from_, at_, end);
    at_ = end;
  }

 private:
  alignas(64) float sums_[2][kBlock * kBlock];
  const float* from_ = nullptr;
  Target target_{};
  Handing hand_ = nullptr;
  int64_t at_ = 0;
  int turn_ = 0;
};

/* A block of rows, one of columns, and how long both are. */
template <typename F>
struct Operands {
  const Bits* left = nullptr;
  const Bits* right = nullptr;
  Depth<F> depth{0};
};

/* The sums of products of `count` operands: R times 16 rows by C times 16 columns, stored where they belong
 * or kept by `pending`. In each step small products come before the largest. */
template <typename F, int R, int C, bool kFills>
void MultiplyTiles(const Operands<F>* operands, int64_t count, const Target& target, Pending* pending,
                   Meanwhile* meanwhile) {
  constexpr int64_t kRowBytes = kStep * sizeof(Bits), kStepSize = Depth<F>::kStepSize;
  int64_t steps = 1;
  for (int64_t i = 0; i < count; ++i) steps += operands[i].depth.steps;
  const int64_t each = kBlock / steps + 1;
  asm volatile("" ::: "memory");  // compilers do not see what tiles are loaded from
  _tile_zero(0);
  if constexpr (C > 1) _tile_zero(1);
  if constexpr (R > 1) _tile_zero(2);
  if constexpr (R > 1 && C > 1) _tile_zero(3);
  for (const Operands<F>* one = operands; one < operands + count; ++one) {
    const Bits *a = one->left, *b = one->right;
    for (int64_t step = 0; step < one->depth.steps; ++step, a += kStepSize, b += kStepSize) {
      if constexpr (F::kParts == 2) {
        GRAPHOPT_LOAD_LEFT(a + kPair)
        GRAPHOPT_LOAD_RIGHT(b)
        GRAPHOPT_ADD_PRODUCTS()
        GRAPHOPT_LOAD_LEFT(a)
        GRAPHOPT_ADD_PRODUCTS()
        GRAPHOPT_LOAD_RIGHT(b + kPair)
        GRAPHOPT_ADD_PRODUCTS()
      } else {
        GRAPHOPT_LOAD_LEFT(a)
        GRAPHOPT_LOAD_RIGHT(b + 2 * kPair)
        GRAPHOPT_ADD_PRODUCTS()
        GRAPHOPT_LOAD_RIGHT(b + kPair)
        GRAPHOPT_ADD_PRODUCTS()
        GRAPHOPT_LOAD_LEFT(a + kPair)
        GRAPHOPT_ADD_PRODUCTS()
        if constexpr (kFills) meanwhile->DoMore();
        GRAPHOPT_LOAD_RIGHT(b)
        GRAPHOPT_ADD_PRODUCTS()
        GRAPHOPT_LOAD_LEFT(a + 2 * kPair)
        GRAPHOPT_ADD_PRODUCTS()
        GRAPHOPT_LOAD_LEFT(a)
        GRAPHOPT_ADD_PRODUCTS()
      }
      pending->HandOut(each);
      if constexpr (kFills) meanwhile->RunErrand();
    }
    for (int64_t turn = 0; turn < one->depth.turns; ++turn, a += kPair, b += kPair) {
      GRAPHOPT_LOAD_LEFT(a)
      GRAPHOPT_LOAD_RIGHT(b)
      GRAPHOPT_ADD_PRODUCTS()
    }
  }
  pending->HandOut(kBlock);
  const bool is_whole = target.stride != 0 && target.columns == C * kSide && !target.IsScaled();
  float* sums = is_whole ? target.to[0] + target.column : pending->Next();
  const int64_t stride = is_whole ? target.stride : kBlock;
  const int64_t bytes = stride * sizeof(float);
  _tile_stored(0, sums, bytes);
  if constexpr (C > 1) _tile_stored(1, sums + kSide, bytes);
  if constexpr (R > 1) _tile_stored(2, sums + kSide * stride, bytes);
  if constexpr (R > 1 && C > 1) _tile_stored(3, sums + kSide * stride + kSide, bytes);
  if (!is_whole) pending->Take(target);
}

template <typename F, bool kFills>
inline void MultiplySums(const Operands<F>* operands, int64_t count, const Target& target,
                         Pending* pending, Meanwhile* meanwhile) {
  const bool is_wide = target.columns > kSide;
  if (target.rows > kSide)
    is_wide ? MultiplyTiles<F, 2, 2, kFills>(operands, count, target, pending, meanwhile)
            : MultiplyTiles<F, 2, 1, kFills>(operands, count, target, pending, meanwhile);
  else
    is_wide ? MultiplyTiles<F, 1, 2, kFills>(operands, count, target, pending, meanwhile)
            : MultiplyTiles<F, 1, 1, kFills>(operands, count, target, pending, meanwhile);
}

/* A block of the result; `meanwhile` is null or computed in part. */
template <typename F>
inline void MultiplyBlock(const Operands<F>* operands, int64_t count, const Target& target,
                          Pending* pending, Meanwhile* meanwhile = nullptr) {
  meanwhile ? MultiplySums<F, true>(operands, count, target, pending, meanwhile)
            : MultiplySums<F, false>(operands, count, target, pending, nullptr);
}

/* Memory of a thread that begins where a line does. */
inline Bits* Aligned(std::vector<Bits>* kept, int64_t size) {
  if (static_cast<int64_t>(kept->size()) < size + kStep) kept->resize(size + kStep);
  const auto at = reinterpret_cast<uintptr_t>(kept->data());
  return kept->data() + (-at % kLineBytes) / sizeof(Bits);
}

}  // namespace graphopt::tiles

#endif

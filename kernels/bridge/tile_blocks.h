/*
 * What files that use a processor's matrix unit (AMX) are made of; see tiles.h.
 *
 * A tile has 16 rows of 64 bytes. The unit adds to a tile of float32 the product of a tile that has 32
 * bfloat16 a row and one that has 16 pairs of them a row.
 */
#pragma once

#if defined(__AMX_BF16__) && defined(__AVX512BW__)
#define GRAPHOPT_TILES 1

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "lanes_transpose.h"
#include "meanwhile.h"
#include "product.h"

namespace graphopt::tiles {

constexpr int64_t kParts = 3;        // of a number
constexpr int64_t kProducts = 6;     // of parts, for a product of numbers
constexpr int64_t kSide = 16;        // rows of a tile, and float32 in one
constexpr int64_t kTile = 512;       // bfloat16 of a tile
constexpr int64_t kBlock = 32;       // rows and columns that are computed at a time
constexpr int64_t kStep = 32;        // numbers that a tile multiplies and adds up
constexpr int64_t kPair = 2 * kTile;          // of a block: bfloat16 of two tiles
constexpr int64_t kStepSize = kParts * kPair;  // of a block's step, all parts
constexpr int64_t kLineBytes = 64, kLineFloats = 16;

using Bits = uint16_t;

/* The three parts of numbers, each in the upper half of its word. */
struct Split {
  __m512i part[kParts];
};

/* Whether all numbers could be split. Two sums take turns, as each waits for what it was before. */
class Fault {
 public:
  template <int kTurn>
  void Note(__m512 last) {
    sums_[kTurn] = _mm512_fmadd_ps(last, _mm512_setzero_ps(), sums_[kTurn]);
  }
  bool IsThere() const {
    const __m512 sum = _mm512_add_ps(sums_[0], sums_[1]);
    return _mm512_cmp_ps_mask(sum, sum, _CMP_UNORD_Q) != 0;
  }

 private:
  __m512 sums_[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};  // zero, or no number
};

template <int kTurn>
inline Split SplitOf(__m512 x, Fault* fault) {
  const __m512i half = _mm512_set1_epi32(0x8000), upper = _mm512_set1_epi32(0xffff0000);
  auto rounded = [&](__m512 y) {
    return _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(y), half), upper);
  };
  Split split;
  split.part[0] = rounded(x);
  const __m512 rest = _mm512_sub_ps(x, _mm512_castsi512_ps(split.part[0]));
  split.part[1] = rounded(rest);
  const __m512 last = _mm512_sub_ps(rest, _mm512_castsi512_ps(split.part[1]));
  split.part[2] = _mm512_castps_si512(last);
  fault->Note<kTurn>(last);
  return split;
}

inline __mmask16 FirstOf(int64_t count) {
  return count >= kSide ? 0xffff : count <= 0 ? 0 : (1u << count) - 1;
}

/* How a depth is cut: steps of 32 numbers, each in three parts. A few numbers behind them would waste most
 * of a step; the parts of all six products lie one behind the other instead, in turns of 32. */
struct Depth {
  int64_t numbers, steps, rest, turns;

  explicit Depth(int64_t numbers) : numbers(numbers), steps(numbers / kStep), rest(numbers % kStep) {
    turns = (kProducts * rest + kStep - 1) / kStep;
    if (turns < kProducts) return;
    ++steps;
    rest = turns = 0;
  }
  int64_t Size() const { return steps * kStepSize + turns * kPair; }
  /* How often all sums of a block are multiplied for. */
  int64_t Rounds() const { return steps * kProducts + turns; }
  /* Where the rest begins. */
  int64_t Rest() const { return numbers - rest; }
};

/* Where a row of a block lies in its tiles. */
inline int64_t TileRow(int64_t row) { return row * kStep; }

/* The parts of the six products, the smallest first. */
constexpr int kLeftParts[kProducts] = {0, 1, 2, 0, 1, 0};
constexpr int kRightParts[kProducts] = {2, 1, 0, 1, 0, 0};

/* The upper halves of all words. */
inline __m512i UpperHalves(__m512i low, __m512i high) {
  const __m512i odd = _mm512_set_epi16(
      63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27, 25, 23, 21, 19, 17,
      15, 13, 11, 9, 7, 5, 3, 1);
  return _mm512_permutex2var_epi16(low, odd, high);
}

/* Numbers of two rows as pairs. */
inline __m512i Pairs(__m512i even, __m512i odd) {
  const __m512i upper = _mm512_set1_epi32(0xffff0000);
  return _mm512_or_si512(_mm512_srli_epi32(even, 16), _mm512_and_si512(odd, upper));
}

/* Up to 32 numbers of a row, a vector for each part. */
inline void SplitAdjacent(const float* from, int64_t count, __m512i (&parts)[kParts],
                          Fault* fault) {
  const Split low = SplitOf<0>(_mm512_maskz_loadu_ps(FirstOf(count), from), fault);
  const Split high = SplitOf<1>(_mm512_maskz_loadu_ps(FirstOf(count - kSide), from + kSide), fault);
  for (int part = 0; part < kParts; ++part)
    parts[part] = UpperHalves(low.part[part], high.part[part]);
}

/* A step of a row, as a row of its tiles. */
inline void SplitStep(const float* from, const Depth& depth, int64_t step, Bits* to, Fault* fault) {
  __m512i parts[kParts];
  SplitAdjacent(from + step * kStep, std::min(kStep, depth.numbers - step * kStep), parts, fault);
  for (int part = 0; part < kParts; ++part, to += kPair) _mm512_storeu_si512(to, parts[part]);
}

/* Which numbers of which parts a row of a turn is made of. */
struct Turn {
  alignas(64) Bits of_first_two[kStep], of_third[kStep];
  uint32_t is_third, is_there;
};

constexpr int64_t kMostRest = (kProducts - 1) * kStep / kProducts, kMostTurns = kProducts - 1;

/* The turns of a rest: the parts of each product one behind the other, as `order` has them. */
struct Turns {
  Turn of[kMostRest + 1][kMostTurns];

  explicit Turns(const int (&order)[kProducts]) : of() {
    for (int64_t rest = 1; rest <= kMostRest; ++rest)
      for (int64_t at = 0; at < kProducts * rest; ++at) {
        Turn& turn = of[rest][at / kStep];
        const int64_t i = at % kStep, number = at % rest;
        const int part = order[at / rest];
        turn.is_there |= uint32_t{1} << i;
        if (part == 2) turn.is_third |= uint32_t{1} << i;
        (part == 2 ? turn.of_third : turn.of_first_two)[i] = number + (part == 1 ? kStep : 0);
      }
  }
};

/* The rest of a row. */
template <const int (&kOrder)[kProducts]>
inline void SplitRest(const float* from, const Depth& depth, Bits* to, Fault* fault) {
  static const Turns turns(kOrder);
  __m512i parts[kParts];
  SplitAdjacent(from + depth.Rest(), depth.rest, parts, fault);
  const Turn* turn = turns.of[depth.rest];
  for (int64_t i = 0; i < depth.turns; ++i, ++turn, to += kPair) {
    const __m512i two = _mm512_maskz_permutex2var_epi16(
        turn->is_there, parts[0], _mm512_load_si512(turn->of_first_two), parts[1]);
    _mm512_storeu_si512(to, _mm512_mask_permutexvar_epi16(
                                two, turn->is_third, _mm512_load_si512(turn->of_third), parts[2]));
  }
}

/* A row as the left operand; `to` is its place in the first tile. */
inline void SplitRow(const float* from, const Depth& depth, Bits* to, Fault* fault) {
  for (int64_t step = 0; step < depth.steps; ++step)
    SplitStep(from, depth, step, to + step * kStepSize, fault);
  if (depth.rest) SplitRest<kLeftParts>(from, depth, to + depth.steps * kStepSize, fault);
}

/* From tiles of pairs, whose columns are a panel's, to those whose rows they are, or back. */
inline void TurnTiles(Bits* at, int64_t tiles) {
  using blocked::Lanes;
  for (int64_t tile = 0; tile < tiles; ++tile, at += kTile) {
    auto words = reinterpret_cast<float*>(at);
    Lanes square[kSide];
#pragma GCC unroll 16
    for (int i = 0; i < kSide; ++i) square[i] = blocked::LoadLanes(words + i * kSide);
    blocked::TransposeSquare(square);
#pragma GCC unroll 16
    for (int i = 0; i < kSide; ++i) blocked::StoreLanes(words + i * kSide, square[i]);
  }
}

/* Rows of a matrix as columns of the right operand; row i is at from + i * stride. Step by step, so that
 * tiles are near when they are turned. */
inline void SplitRowsAsColumns(const float* from, int64_t stride, int64_t count, const Depth& depth,
                               Bits* to, Fault* fault) {
  for (int64_t step = 0; step < depth.steps; ++step, to += kStepSize) {
    for (int64_t i = 0; i < count; ++i)
      SplitStep(from + i * stride, depth, step, to + TileRow(i), fault);
    TurnTiles(to, kStepSize / kTile);
  }
  if (depth.rest == 0) return;
  for (int64_t i = 0; i < count; ++i)
    SplitRest<kRightParts>(from + i * stride, depth, to + TileRow(i), fault);
  TurnTiles(to, depth.turns * kPair / kTile);
}

constexpr int64_t kRowsAhead = 16;  // that are asked for; their columns are in no stream

/* 16 columns for each of `masks`, tile beside tile, as the right operand, or as the left one before its
 * tiles are turned, by `order`; row p is at row_at(p). */
template <int kTiles, typename RowAt>
inline void SplitColumns(const RowAt& row_at, const Depth& depth, const __mmask16 (&masks)[kTiles],
                         const int (&order)[kProducts], Bits* to, Fault* fault) {
  const int64_t whole = depth.Rest() / kStep;
  Fault found = *fault;  // in registers
  for (int64_t step = 0; step < depth.steps; ++step, to += kStepSize)
    for (int64_t pair = 0; pair < kSide; ++pair) {
      const int64_t p = step * kStep + 2 * pair;
      const bool is_whole = step < whole, is_first = is_whole || p < depth.numbers,
                 is_second = is_whole || p + 1 < depth.numbers;
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i)
        if (p + kRowsAhead + i < depth.numbers)
#pragma GCC unroll 2
          for (int tile = 0; tile < kTiles; ++tile)
            __builtin_prefetch(row_at(p + kRowsAhead + i) + tile * kSide);
#pragma GCC unroll 2
      for (int tile = 0; tile < kTiles; ++tile) {
        auto row = [&](int64_t at) {
          return _mm512_maskz_loadu_ps(masks[tile], row_at(at) + tile * kSide);
        };
        const Split a = is_first ? SplitOf<0>(row(p), &found) : Split{};
        const Split b = is_second ? SplitOf<1>(row(p + 1), &found) : Split{};
#pragma GCC unroll 3
        for (int part = 0; part < kParts; ++part)
          _mm512_storeu_si512(to + tile * kTile + part * kPair + pair * kStep,
                              Pairs(a.part[part], b.part[part]));
      }
    }
  for (int tile = 0; depth.rest > 0 && tile < kTiles; ++tile) {
    __m512i all[kProducts * kStep + kStep];
    for (int64_t p = 0; p < depth.rest; ++p) {
      const float* row = row_at(depth.Rest() + p) + tile * kSide;
      const Split split = SplitOf<0>(_mm512_maskz_loadu_ps(masks[tile], row), &found);
      for (int i = 0; i < kProducts; ++i) all[i * depth.rest + p] = split.part[order[i]];
    }
    for (int64_t at = kProducts * depth.rest; at < depth.turns * kStep; ++at)
      all[at] = _mm512_setzero_si512();
    for (int64_t turn = 0; turn < depth.turns; ++turn)
      for (int64_t pair = 0; pair < kSide; ++pair) {
        const __m512i* at = all + turn * kStep + 2 * pair;
        _mm512_storeu_si512(to + tile * kTile + turn * kPair + pair * kStep, Pairs(at[0], at[1]));
      }
  }
  *fault = found;
}

/* A block's columns. */
template <typename RowAt>
inline void SplitPanel(const RowAt& row_at, const Depth& depth, int64_t columns,
                       const int (&order)[kProducts], Bits* to, Fault* fault) {
  if (columns > kSide)
    SplitColumns<2>(row_at, depth, {0xffff, FirstOf(columns - kSide)}, order, to, fault);
  else
    SplitColumns<1>(row_at, depth, {FirstOf(columns)}, order, to, fault);
}

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
  _tile_dpbf16ps(0, 4, 6);                                  \
  if constexpr (C > 1) _tile_dpbf16ps(1, 4, 7);             \
  if constexpr (R > 1) _tile_dpbf16ps(2, 5, 6);             \
  if constexpr (R > 1 && C > 1) _tile_dpbf16ps(3, 5, 7);   \
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
};

/* 16 sums, or as many as `mask` says. */
inline void Hand(const Target& target, const float* sums, int64_t row, int64_t j, __mmask16 mask) {
  float* to = target.to[row] + target.column + j;
  __m512 sum = _mm512_load_ps(sums + j);
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
template <bool kAdds, bool kBias>
inline void HandWhole(const Target& target, const float* sums, int64_t begin, int64_t end) {
  __m512 bias[2] = {};
  for (int half = 0; kBias && half < 2; ++half)
    bias[half] = _mm512_loadu_ps(target.bias + half * kSide);
  for (int64_t row = begin; row < end; ++row) {
    float* to = target.to[row] + target.column;
    for (int half = 0; half < 2; ++half) {
      __m512 sum = _mm512_load_ps(sums + row * kBlock + half * kSide);
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

inline Handing HandingOf(const Target& target) {
  if (target.columns < kBlock || target.activation != product::kNone) return HandAny;
  if (target.bias) return target.adds ? HandWhole<true, true> : HandWhole<false, true>;
  return target.adds ? HandWhole<true, false> : HandWhole<false, false>;
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
struct Operands {
  const Bits* left = nullptr;
  const Bits* right = nullptr;
  Depth depth{0};
};

/* The sums of products of `count` operands: R times 16 rows by C times 16 columns, stored where they belong
 * or kept by `pending`. In each step the small products come first. */
template <int R, int C, bool kFills>
void MultiplyTiles(const Operands* operands, int64_t count, const Target& target, Pending* pending,
                   Meanwhile* meanwhile) {
  constexpr int64_t kRowBytes = kStep * sizeof(Bits);
  int64_t steps = 1;
  for (int64_t i = 0; i < count; ++i) steps += operands[i].depth.steps;
  const int64_t each = kBlock / steps + 1;
  asm volatile("" ::: "memory");  // compilers do not see what tiles are loaded from
  _tile_zero(0);
  if constexpr (C > 1) _tile_zero(1);
  if constexpr (R > 1) _tile_zero(2);
  if constexpr (R > 1 && C > 1) _tile_zero(3);
  for (const Operands* one = operands; one < operands + count; ++one) {
    const Bits *a = one->left, *b = one->right;
    for (int64_t step = 0; step < one->depth.steps; ++step, a += kStepSize, b += kStepSize) {
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
  const bool is_whole = target.stride != 0 && target.columns == C * kSide;
  float* sums = is_whole ? target.to[0] + target.column : pending->Next();
  const int64_t stride = is_whole ? target.stride : kBlock;
  const int64_t bytes = stride * sizeof(float);
  _tile_stored(0, sums, bytes);
  if constexpr (C > 1) _tile_stored(1, sums + kSide, bytes);
  if constexpr (R > 1) _tile_stored(2, sums + kSide * stride, bytes);
  if constexpr (R > 1 && C > 1) _tile_stored(3, sums + kSide * stride + kSide, bytes);
  if (!is_whole) pending->Take(target);
}

template <bool kFills>
inline void MultiplySums(const Operands* operands, int64_t count, const Target& target,
                         Pending* pending, Meanwhile* meanwhile) {
  const bool is_wide = target.columns > kSide;
  if (target.rows > kSide)
    is_wide ? MultiplyTiles<2, 2, kFills>(operands, count, target, pending, meanwhile)
            : MultiplyTiles<2, 1, kFills>(operands, count, target, pending, meanwhile);
  else
    is_wide ? MultiplyTiles<1, 2, kFills>(operands, count, target, pending, meanwhile)
            : MultiplyTiles<1, 1, kFills>(operands, count, target, pending, meanwhile);
}

/* A block of the result; `meanwhile` is null or computed in part. */
inline void MultiplyBlock(const Operands* operands, int64_t count, const Target& target,
                          Pending* pending, Meanwhile* meanwhile = nullptr) {
  meanwhile ? MultiplySums<true>(operands, count, target, pending, meanwhile)
            : MultiplySums<false>(operands, count, target, pending, nullptr);
}

inline int64_t Ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Memory of a thread that begins where a line does. */
inline Bits* Aligned(std::vector<Bits>* kept, int64_t size) {
  if (static_cast<int64_t>(kept->size()) < size + kStep) kept->resize(size + kStep);
  const auto at = reinterpret_cast<uintptr_t>(kept->data());
  return kept->data() + (-at % kLineBytes) / sizeof(Bits);
}

}  // namespace graphopt::tiles

#endif

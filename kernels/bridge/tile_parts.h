/*
 * Rows and columns of matrices, split as a processor's matrix unit (AMX) reads them; see tiles.h.
 */
#pragma once

#include "tile_formats.h"

#if GRAPHOPT_TILES

#include <cmath>
#include <limits>

#include "lanes_transpose.h"

namespace graphopt::tiles {

/* How a depth is cut: steps of 32 numbers, each in all its parts. A few numbers behind them would waste most
 * of a step; the parts of all products lie one behind the other instead, in turns of 32. */
template <typename F>
struct Depth {
  static constexpr int64_t kProducts = F::kProducts;
  static constexpr int64_t kStepSize = F::kParts * kPair;  // of a block's step, all parts

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

/* Numbers of two rows as pairs. */
inline Words Pairs(Words even, Words odd) {
  const __m512i upper = _mm512_set1_epi32(0xffff0000);
  return _mm512_or_si512(_mm512_srli_epi32(even, 16), _mm512_and_si512(odd, upper));
}

/* Up to 32 numbers of a row, a vector for each part. */
template <typename F>
inline void SplitAdjacent(const float* from, int64_t count, float scale, Words (&parts)[F::kParts],
                          typename F::Fault* fault) {
  F::SplitAdjacent(_mm512_maskz_loadu_ps(FirstOf(count), from),
                   _mm512_maskz_loadu_ps(FirstOf(count - kSide), from + kSide), scale, parts, fault);
}

/* A step of a row, as a row of its tiles. */
template <typename F>
inline void SplitStep(const float* from, const Depth<F>& depth, int64_t step, float scale, Bits* to,
                      typename F::Fault* fault) {
  Words parts[F::kParts];
  SplitAdjacent<F>(from + step * kStep, std::min(kStep, depth.numbers - step * kStep), scale, parts, fault);
  for (int part = 0; part < F::kParts; ++part, to += kPair) _mm512_storeu_si512(to, parts[part]);
}

/* Which numbers of which parts a row of a turn is made of. */
struct Turn {
  alignas(64) Bits of_first_two[kStep], of_third[kStep];
  uint32_t is_third, is_there;
};

/* The turns of a rest: the parts of each product one behind the other, as `order` has them. */
template <typename F>
struct Turns {
  static constexpr int64_t kProducts = F::kProducts;
  static constexpr int64_t kMostRest = (kProducts - 1) * kStep / kProducts, kMostTurns = kProducts - 1;
  Turn of[kMostRest + 1][kMostTurns];

  explicit Turns(const int (&order)[F::kProducts]) : of() {
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
template <typename F, const int (&kOrder)[F::kProducts]>
inline void SplitRest(const float* from, const Depth<F>& depth, float scale, Bits* to,
                      typename F::Fault* fault) {
  static const Turns<F> turns(kOrder);
  Words parts[F::kParts];
  SplitAdjacent<F>(from + depth.Rest(), depth.rest, scale, parts, fault);
  const Turn* turn = turns.of[depth.rest];
  for (int64_t i = 0; i < depth.turns; ++i, ++turn, to += kPair) {
    Words all = _mm512_maskz_permutex2var_epi16(turn->is_there, parts[0],
                                                _mm512_load_si512(turn->of_first_two), parts[1]);
    if constexpr (F::kParts > 2)
      all = _mm512_mask_permutexvar_epi16(all, turn->is_third, _mm512_load_si512(turn->of_third), parts[2]);
    _mm512_storeu_si512(to, all);
  }
}

/* A row times `scale` as the left operand; `to` is its place in the first tile. */
template <typename F>
inline void SplitRow(const float* from, const Depth<F>& depth, float scale, Bits* to,
                     typename F::Fault* fault) {
  auto found = *fault;  // in registers
  for (int64_t step = 0; step < depth.steps; ++step)
    SplitStep<F>(from, depth, step, scale, to + step * depth.kStepSize, &found);
  if (depth.rest) SplitRest<F, F::kLeft>(from, depth, scale, to + depth.steps * depth.kStepSize, &found);
  *fault = found;
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
template <typename F>
inline void SplitRowsAsColumns(const float* from, int64_t stride, int64_t count, const Depth<F>& depth,
                               const float* scales, Bits* to, typename F::Fault* fault) {
  for (int64_t step = 0; step < depth.steps; ++step, to += depth.kStepSize) {
    for (int64_t i = 0; i < count; ++i)
      SplitStep<F>(from + i * stride, depth, step, scales[i], to + TileRow(i), fault);
    TurnTiles(to, depth.kStepSize / kTile);
  }
  if (depth.rest == 0) return;
  for (int64_t i = 0; i < count; ++i)
    SplitRest<F, F::kRight>(from + i * stride, depth, scales[i], to + TileRow(i), fault);
  TurnTiles(to, depth.turns * kPair / kTile);
}

constexpr int64_t kRowsAhead = 16;  // that are asked for; their columns are in no stream

/* 16 columns for each of `masks`, tile beside tile, as the right operand, or as the left one before its
 * tiles are turned, by `order`; row p is at row_at(p). */
template <typename F, int kTiles, typename RowAt>
inline void SplitColumns(const RowAt& row_at, const Depth<F>& depth, const __mmask16 (&masks)[kTiles],
                         const int (&order)[F::kProducts], const float* scales, Bits* to,
                         typename F::Fault* fault) {
  constexpr int kParts = F::kParts, kProducts = F::kProducts;
  using Split = typename F::Split;
  const int64_t whole = depth.Rest() / kStep;
  auto found = *fault;  // in registers
  for (int64_t step = 0; step < depth.steps; ++step, to += depth.kStepSize)
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
        const __m512 scale = _mm512_loadu_ps(scales + tile * kSide);
        const Split a = is_first ? F::template SplitOf<0>(row(p), scale, &found) : Split{};
        const Split b = is_second ? F::template SplitOf<1>(row(p + 1), scale, &found) : Split{};
#pragma GCC unroll 3
        for (int part = 0; part < kParts; ++part)
          _mm512_storeu_si512(to + tile * kTile + part * kPair + pair * kStep,
                              Pairs(a.part[part], b.part[part]));
      }
    }
  for (int tile = 0; depth.rest > 0 && tile < kTiles; ++tile) {
    const __m512 scale = _mm512_loadu_ps(scales + tile * kSide);
    __m512i all[kProducts * kStep + kStep];
    for (int64_t p = 0; p < depth.rest; ++p) {
      const float* row = row_at(depth.Rest() + p) + tile * kSide;
      const Split split =
          F::template SplitOf<0>(_mm512_maskz_loadu_ps(masks[tile], row), scale, &found);
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

/* The largest of some numbers. */
class Extent {
 public:
  void Note(__m512 x) {
    most_ = _mm512_max_epu32(most_, _mm512_slli_epi32(_mm512_castps_si512(x), 1));
  }
  void NoteRow(const float* row, int64_t count) {
    for (int64_t p = 0; p < count; p += kSide) Note(_mm512_maskz_loadu_ps(FirstOf(count - p), row + p));
  }
  /* Without its sign, doubled: of all, or of each of 16 columns. */
  uint32_t Most() const { return _mm512_reduce_max_epu32(most_); }
  void StoreMost(uint32_t* to) const { _mm512_storeu_si512(to, most_); }

 private:
  __m512i most_ = _mm512_setzero_si512();
};

/* The power of two that rows or columns with such a largest number are multiplied by: 2^kUsual if that
 * brings it to between 2^3 and 2^16, else what brings it to between 2^14 and 2^15, up to 2^115; no number
 * if they are not finite. */
template <int kUsual>
inline float ScaleOf(uint32_t most) {
  constexpr uint32_t kLeast = (127 + 3 - kUsual) << 24, kMost = ((127 + 16 - kUsual) << 24) - (1 << 18);
  if (most == 0 || (most >= kLeast && most < kMost)) return 1 << kUsual;
  if (most >= 0xff000000) return std::numeric_limits<float>::quiet_NaN();
  return std::ldexp(1.0f, std::min(14 + 127 - static_cast<int>(most >> 24), 115));
}

/* A row as left operands by `split(scale, &fault)`, a second time if its numbers, which `note(&extent)`
 * looks through, want another factor than the usual one. How its products have to be multiplied: by one,
 * or for such a factor; no number if it cannot be split. */
template <typename F, typename Split, typename Note>
inline float SplitScaled(const Split& split, const Note& note) {
  constexpr float kUsual = 1 << F::kUsualOfRows;
  typename F::Fault fault;
  split(kUsual, &fault);
  if (!fault.IsThere() && fault.IsSeen()) return 1;
  if (!F::kScales) return std::numeric_limits<float>::quiet_NaN();
  Extent extent;
  note(&extent);
  const float scale = ScaleOf<F::kUsualOfRows>(extent.Most());
  if (scale == scale) split(scale, &fault);
  return kUsual / scale;
}

/* What columns of a block are multiplied by before they are split, and their products afterwards. */
struct Scales {
  alignas(64) float of[kBlock], factors[kBlock];
  bool are_usual = true, is_fault = false;

  /* Usual ones. */
  explicit Scales(float usual) {
    std::fill(std::begin(of), std::end(of), usual);
    std::fill(std::begin(factors), std::end(factors), 1.0f);
  }

  template <int kUsual>
  void Choose(const uint32_t (&most)[kBlock]) {
    constexpr float kPower = 1 << kUsual;
    for (int64_t i = 0; i < kBlock; ++i) {
      of[i] = ScaleOf<kUsual>(most[i]);
      factors[i] = kPower / of[i];
      are_usual = are_usual && of[i] == kPower;
      is_fault = is_fault || of[i] != of[i];
    }
  }
};

/* A block's columns, whose row p is at row_at(p), as the right operand, or as the left one before its tiles
 * are turned. */
template <typename F, bool kAreLeft, typename RowAt>
inline Scales SplitPanel(const RowAt& row_at, const Depth<F>& depth, int64_t columns, Bits* to) {
  constexpr int kUsual = kAreLeft ? F::kUsualOfRows : F::kUsualOfColumns;
  constexpr auto& kOrder = kAreLeft ? F::kLeft : F::kRight;
  const __mmask16 low = FirstOf(columns), high = FirstOf(columns - kSide);
  Scales scales(1 << kUsual);
  if constexpr (F::kScales) {
    Extent of_low, of_high;
    for (int64_t p = 0; p < depth.numbers; ++p) {
      of_low.Note(_mm512_maskz_loadu_ps(low, row_at(p)));
      of_high.Note(_mm512_maskz_loadu_ps(high, row_at(p) + kSide));
    }
    uint32_t most[kBlock];
    of_low.StoreMost(most);
    of_high.StoreMost(most + kSide);
    scales.template Choose<kUsual>(most);
  }
  typename F::Fault fault;
  if (columns > kSide)
    SplitColumns<F, 2>(row_at, depth, {low, high}, kOrder, scales.of, to, &fault);
  else
    SplitColumns<F, 1>(row_at, depth, {low}, kOrder, scales.of, to, &fault);
  if constexpr (!F::kScales) scales.is_fault = fault.IsThere();
  return scales;
}

/* Rows of a matrix, of which number i is at from + i * stride, as a block's columns of the right operand. */
template <typename F>
inline Scales SplitTransposed(const float* from, int64_t stride, int64_t columns, const Depth<F>& depth,
                              Bits* to) {
  Scales scales(1 << F::kUsualOfColumns);
  if constexpr (F::kScales) {
    uint32_t most[kBlock] = {};
    for (int64_t i = 0; i < columns; ++i) {
      Extent extent;
      extent.NoteRow(from + i * stride, depth.numbers);
      most[i] = extent.Most();
    }
    scales.Choose<F::kUsualOfColumns>(most);
  }
  typename F::Fault fault;
  SplitRowsAsColumns<F>(from, stride, columns, depth, scales.of, to, &fault);
  if constexpr (!F::kScales) scales.is_fault = fault.IsThere();
  return scales;
}

/* What products of operands with the usual factors have to be multiplied by. */
template <typename F>
constexpr float kUnscale = 1.0f / (1 << (F::kUsualOfRows + F::kUsualOfColumns));

}  // namespace graphopt::tiles

#endif

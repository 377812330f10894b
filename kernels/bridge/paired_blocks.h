/*
 * Products in pairs (paired.h) of pixels in blocked layout with packed filters; for files that are compiled for the
 * processor at hand.
 *
 * Threes are of a block's channels: of sixteen five times two are paired, and six are multiplied by themselves.
 */
#pragma once

#include "convolution_parts.h"
#include "lanes_transpose.h"
#include "paired_panels.h"

namespace graphopt::blocked {
namespace {  // each file that includes this may be compiled for other instructions

using paired::kRows;
using paired::kVectors;
using paired::kWidth;

static_assert(kVectors == kPairedGroup, "a tile is what BestGroup says");
constexpr int kThrees = kLanes / 3, kAlone = kLanes % 3;  // of a block; what is behind threes is alone
/*
 * Blocks of a part. What products of pairs add up to is taken from sums part by part: of numbers that are all
 * positive it grows with the depth, and so does what is lost when it is rounded.
 */
constexpr int64_t kPart = 16;
constexpr float kUnpaired = -1;  // instead of one over what a row was multiplied by: it is as it was

/*
 * Filters of a step, packed: for each point of a transform (there is one if there is none) panels as MultiplyBlocked
 * reads them, and then for each point what is noted of it.
 */
struct PairedPack {
  int64_t depth, parts;     // numbers of each output, and parts of them
  int64_t blocks, panels;   // of filters
  int64_t points, noted;    // floats that are noted of a point

  PairedPack(int64_t depth, int64_t filters, int64_t points)
      : depth(depth),
        parts(Ceil(depth / kLanes, kPart)),
        blocks(Ceil(filters, kLanes)),
        panels(Ceil(blocks, kVectors)),
        points(points),
        noted(Ceil(depth + (1 + parts) * blocks * kLanes + panels, kLanes) * kLanes) {}
  int64_t Point() const { return blocks * kLanes * depth; }
  int64_t size() const { return points * (Point() + noted); }
};

/* What is noted of a point: what a pixel's numbers are multiplied by; of each filter one over what it was multiplied
 * by, and what products of its pairs add up to, negative, of each part; whether each panel's numbers can be paired. */
template <typename Float>
struct Notes {
  Float *factors, *inverses, *sums, *panels;

  Notes(const PairedPack& pack, int64_t point, Float* packed)
      : factors(packed + pack.points * pack.Point() + point * pack.noted),
        inverses(factors + pack.depth),
        sums(inverses + pack.blocks * kLanes),
        panels(sums + pack.parts * pack.blocks * kLanes) {}
};

/* Subtracts the product of each pair of a block. */
inline void LessPairs(const Lanes& numbers, Lanes* sums) {
  const Lanes next = paired::NextOf(numbers, numbers);
#if defined(__AVX512F__)
  constexpr __mmask16 kFirst = 0b0001001001001001;
  *sums = (Lanes)_mm512_mask3_fnmadd_ps((__m512)numbers, (__m512)next, (__m512)*sums, kFirst);
#else
  for (int i = 0; i < 3 * kThrees; i += 3) (*sums)[i] -= numbers[i] * next[i];
#endif
}

/* Rows that lie side by side, `pixel` floats apart; the blocks of each are where `at(block)` says. */
template <typename At>
struct Rows {
  const float* in;
  int64_t pixel, depth;  // blocks
  At at;
  const float* factors;  // of a row's numbers

  bool AreZero(int64_t row) const {
    Whole32 found = {};
    for (int64_t d = 0; d < depth; ++d) found |= (Whole32)Absolute(LoadLanes(in + row * pixel + at(d)));
    for (int i = 0; i < kLanes; ++i)
      if (found[i]) return false;
    return true;
  }
};

/* What some rows are multiplied by to be of one size, and one over that; see kUnpaired. */
struct Sizes {
  float scales[kLanes], inverses[kLanes];
  bool have_others;  // rows that cannot be paired

  /* By rows' squares, which are lost. */
  Sizes(Lanes (&squares)[kLanes], int64_t numbers) : have_others(false) {
    constexpr int kOfNoNumber = 255;
    const int digits = 63 - __builtin_clzll(numbers | 1);
    const Whole32 exponents = ((Whole32)SumsOf(squares) >> 23) & kOfNoNumber;
    const Whole32 shifts = -((exponents - 127 - digits + 2) >> 1);
    const Whole32 fit =
        (shifts >= -paired::kMostOfRow) & (shifts <= paired::kMostOfRow) & (exponents != kOfNoNumber);
    StoreLanes(scales, (Lanes)(((shifts + 127) << 23) & fit));
    StoreLanes(inverses, (Lanes)(((127 - shifts) << 23) & fit));
  }

  /* Tells rows that are all zeros from those that cannot be paired. */
  template <typename At>
  void Settle(int first, int count, const Rows<At>& rows) {
    for (int i = 0; i < count; ++i)
      if (inverses[first + i] == 0 && !rows.AreZero(i)) inverses[first + i] = kUnpaired, have_others = true;
  }
};

template <int R, typename At>
void AddSquares(const Rows<At>& from, Lanes* squares) {
  Lanes sums[R] = {};
  for (int64_t d = 0; d < from.depth; ++d) {
    const float* in = from.in + from.at(d);
    const Lanes factor = LoadLanes(from.factors + d * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const Lanes x = LoadLanes(in + i * from.pixel) * factor;
      sums[i] += x * x;
    }
  }
  for (int i = 0; i < R; ++i) squares[i] = sums[i];
}

/* Copies blocks `begin` to `end` of rows side by side, `stride` floats apart, perhaps to where they are; products of
 * their pairs, negative. */
template <int R, typename At>
void CopyRows(const Rows<At>& from, int64_t begin, int64_t end, const Sizes& sizes, int first, float* to, int64_t stride,
              Lanes* products) {
  Lanes sums[R] = {};
  for (int64_t d = begin; d < end; ++d) {
    const float* in = from.in + from.at(d);
    const Lanes factor = LoadLanes(from.factors + d * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      Lanes x = LoadLanes(in + i * from.pixel);
      if (!sizes.have_others || sizes.inverses[first + i] != kUnpaired) x = x * factor * sizes.scales[first + i];
      StoreLanes(to + d * stride + i * kLanes, x);
      LessPairs(x, &sums[i]);
    }
  }
  for (int i = 0; i < R; ++i) products[i] = sums[i];
}

/* Calls what<R>() for the number of rows; for no more than `R`. */
template <int R, typename What>
void ForRows(int64_t rows, const What& what) {
  if (rows == R) return what(std::integral_constant<int, R>{});
  if constexpr (R > 1) ForRows<R - 1>(rows, what);
}

/* What a tile reads: copied rows, and a panel with what is noted of it. */
struct PairedOperands {
  const float* in;
  int64_t stride, depth;  // floats from block to block; blocks
  const float *row_sums, *row_inverses;
  int64_t row_part, part;  // floats from the sums of a part to those of the next one, of rows and of filters
  const float *packed, *factors, *sums, *inverses;
  bool is_paired;
};

PairedOperands WithPanel(PairedOperands rows, const PairedPack& pack, const float* packed, int64_t point,
                         int64_t panel) {
  const Notes<const float> notes(pack, point, packed);
  const int64_t filter = panel * kWidth;
  rows.packed = packed + point * pack.Point() + filter * pack.depth;
  rows.factors = notes.factors;
  rows.sums = notes.sums + filter;
  rows.inverses = notes.inverses + filter;
  rows.part = pack.blocks * kLanes;
  rows.is_paired = notes.panels[panel] != 0;
  return rows;
}

template <int R, int V>
inline void AddBlocks(const float* in, int64_t stride, const float* right, int64_t depth, paired::Sums<R, V>& sums) {
  for (int64_t d = 0; d < depth; ++d, in += stride) {
    const float* left[R];
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) left[i] = in + i * kLanes;
    paired::AddThrees<R, V, 1>(left, right, kThrees, sums);
    right += 3 * kThrees * V * kLanes;
#pragma GCC unroll 2
    for (int alone = 0; alone < kAlone; ++alone, right += V * kLanes)
#pragma GCC unroll 8
      for (int i = 0; i < R; ++i) {
        const Lanes x = paired::Everywhere(left[i] + 3 * kThrees + alone);
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) sums[i][v] += x * LoadLanes(right + v * kLanes);
      }
  }
}

/* The same number by number, of numbers as they were before they were multiplied by powers of two. */
template <int R, int V>
void MultiplyPlainly(const PairedOperands& from, Lanes* sums) {
  std::fill(sums, sums + R * V, Lanes{});
  for (int64_t p = 0; p < from.depth * kLanes; ++p) {
    const float factor = from.factors[p];
    for (int i = 0; i < R; ++i) {
      float x = from.in[p / kLanes * from.stride + i * kLanes + p % kLanes];
      if (from.row_inverses[i] != kUnpaired) x *= from.row_inverses[i] / factor;
      for (int v = 0; v < V; ++v)
        sums[v * R + i] += x * (LoadLanes(from.packed + (p * V + v) * kLanes) *
                                LoadLanes(from.inverses + v * kLanes) * factor);
    }
  }
}

template <int R, int V>
void PairedTile(const PairedOperands& from, const Target& to) {
  Lanes found[R * V];  // sums are in registers as long as their places are constants
  bool is_paired = from.is_paired;
  for (int i = 0; i < R; ++i) is_paired = is_paired && from.row_inverses[i] != kUnpaired;
  if (is_paired) {
    paired::Sums<R, V> sums = {};
    for (int64_t d = 0, part = 0; d < from.depth; d += kPart, ++part) {
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        const Lanes of_filters = LoadLanes(from.sums + part * from.part + v * kLanes);
#pragma GCC unroll 8
        for (int i = 0; i < R; ++i) sums[i][v] += of_filters + from.row_sums[part * from.row_part + i];
      }
      AddBlocks<R, V>(from.in + d * from.stride, from.stride, from.packed + d * kLanes * V * kLanes,
                      std::min(kPart, from.depth - d), sums);
    }
    const bool is_done = to.step == nullptr;
    float* const out = is_done ? to.out : reinterpret_cast<float*>(found);
    const int64_t block = is_done ? to.out_block : R * kLanes;
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      const Lanes inverses = LoadLanes(from.inverses + v * kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < R; ++i) {
        float* at = out + v * block + i * kLanes;
        const Lanes sum = sums[i][v] * (inverses * from.row_inverses[i]);
        StoreLanes(at, is_done && to.adds ? LoadLanes(at) + sum : sum);
      }
    }
    if (is_done) return;
  } else {
    MultiplyPlainly<R, V>(from, found);
  }
  if (to.step) return Finish(found, R, V, to);
  for (int v = 0; v < V; ++v)
    for (int i = 0; i < R; ++i) {
      float* at = to.out + v * to.out_block + i * kLanes;
      StoreLanes(at, to.adds ? LoadLanes(at) + found[v * R + i] : found[v * R + i]);
    }
}

using PairedRunner = void (*)(const PairedOperands&, const Target&);

template <int V, int... R>
PairedRunner PairedOf(int64_t rows, std::integer_sequence<int, R...>) {
  static constexpr PairedRunner table[] = {PairedTile<R + 1, V>...};
  return table[rows - 1];
}

/* For so many rows and blocks of filters. */
PairedRunner PickPaired(int64_t rows, int64_t blocks) {
  constexpr std::make_integer_sequence<int, kRows> all{};
  return blocks == 1 ? PairedOf<1>(rows, all) : PairedOf<2>(rows, all);
}

/* Multiplies a panel's numbers by powers of two that make them of one size, and notes that. */
template <int V>
bool PairPanel(float* panel, int64_t depth, const float* factors, float* sums, int64_t part, float* inverses) {
  Lanes squares[V] = {}, sizes[V] = {};
  float scales[V * kLanes];
  const auto at = [&](int64_t p, int v) { return panel + (p * V + v) * kLanes; };
  for (int64_t p = 0; p < depth; ++p)
    for (int v = 0; v < V; ++v) {
      const Lanes x = LoadLanes(at(p, v)) * (1 / factors[p]);
      StoreLanes(at(p, v), x);
      squares[v] += x * x;
      sizes[v] += Absolute(x);  // squares may be zero where this is not
    }
  const bool is_paired =
      paired::ScaleColumns(depth, V * kLanes, reinterpret_cast<const float*>(squares),
                           reinterpret_cast<const float*>(sizes), scales) &&
      !paired::HasLone<V>(panel, depth, factors, squares, sizes);
  for (int64_t p = 0; p < depth; ++p)
    for (int v = 0; v < V; ++v) StoreLanes(at(p, v), LoadLanes(at(p, v)) * LoadLanes(scales + v * kLanes));
  for (int64_t p = 0; p < depth; p += kLanes) {
    float* to = sums + p / kLanes / kPart * part;
    if (p / kLanes % kPart == 0) std::memset(to, 0, V * kBlockBytes);
    for (int i = 0; i < 3 * kThrees; i += 3)
      for (int v = 0; v < V; ++v)
        StoreLanes(to + v * kLanes,
                   LoadLanes(to + v * kLanes) - LoadLanes(at(p + i, v)) * LoadLanes(at(p + i + 1, v)));
  }
  for (int v = 0; v < V; ++v) StoreLanes(inverses + v * kLanes, 1.0f / LoadLanes(scales + v * kLanes));
  return is_paired;
}

/* Notes what a point's numbers `begin` to `end` of the depth are multiplied by, from the sums of squares of all filters'. */
void NoteFactors(const Notes<float>& notes, int64_t begin, int64_t end, int64_t filters) {
  for (int64_t p = begin; p < end; ++p)
    notes.factors[p] = paired::InverseOf(paired::ShiftOfRow(notes.factors[p], filters));
}

/* Floats that rows of a panel are wide. */
int64_t WidthOf(const PairedPack& pack, int64_t panel) {
  return std::min<int64_t>(kVectors, pack.blocks - panel * kVectors) * kLanes;
}

/* Makes pairs of a panel, when what its numbers are multiplied by has been noted. */
void PairPanel(const PairedPack& pack, const Notes<float>& notes, int64_t panel, float* at) {
  const auto pair = WidthOf(pack, panel) == kWidth ? PairPanel<kVectors> : PairPanel<1>;
  notes.panels[panel] = pair(at, pack.depth, notes.factors, notes.sums + panel * kWidth, pack.blocks * kLanes,
                             notes.inverses + panel * kWidth);
}

/* Makes pairs of a point's filters. */
void PairPoint(const PairedPack& pack, int64_t filters, int64_t point, float* packed) {
  const Notes<float> notes(pack, point, packed);
  float* panels = packed + point * pack.Point();
  float* weights = notes.inverses;  // until panels are paired
  for (int64_t panel = 0; panel < pack.panels; ++panel) {
    const int64_t first = panel * kWidth, width = WidthOf(pack, panel);
    paired::NoteLargest(panels + first * pack.depth, width, 1, pack.depth, 0, width, weights + first);
  }
  paired::WeighColumns(weights, pack.blocks * kLanes, weights);
  std::fill(notes.factors, notes.factors + pack.depth, 0.0f);
  for (int64_t panel = 0; panel < pack.panels; ++panel) {
    const int64_t first = panel * kWidth, width = WidthOf(pack, panel);
    const float* from = panels + first * pack.depth;
    for (int64_t p = 0; p < pack.depth; ++p)
      notes.factors[p] += paired::SquaresOf(from + p * width, 1, width, weights + first);
  }
  NoteFactors(notes, 0, pack.depth, filters);
  for (int64_t panel = 0; panel < pack.panels; ++panel)
    PairPanel(pack, notes, panel, panels + panel * kWidth * pack.depth);
}

}  // namespace
}  // namespace graphopt::blocked

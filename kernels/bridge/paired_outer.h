/*
 * Sums of outer products in pairs (paired.h); for files that are compiled for the processor at hand.
 *
 * The depth is the rows. Each left row is brought to one size, and the right one multiplied by as much as the
 * left one is divided by; then columns of both are. So sizes of the terms show in the right operand only,
 * whatever else the left one is multiplied with.
 */
#pragma once

#include <cmath>
#include <utility>
#include <vector>

#include "outer_rows.h"
#include "paired_panels.h"

namespace graphopt::paired {
namespace {  // each file that includes this may be compiled for other instructions

constexpr int kFew = kLanes / 2;     // columns of a tile, or fewer
constexpr int64_t kMostOuter = 513;  // rows at a time, all of a recurrence's ring

/* Columns of left rows, a vector of them side by side: rows of tiles, whose numbers are kLanes apart. */
class Bands {
 public:
  /* Copies so many columns of rows, each brought to one size; what they were multiplied by is noted in `times`.
   * Whether they may be paired. */
  bool Copy(const std::vector<const float*>& rows, int64_t columns, float* times) {
    const int64_t count = rows.size();
    depth_ = Padded(count);
    columns_ = columns;
    bands_.assign((columns + kLanes - 1) / kLanes, Band{});
    numbers_.resize((bands_.size() * depth_ + 1) * kLanes);
    weights_.resize(columns);
    NoteLargest(count, columns, [&](int64_t p) { return rows[p]; }, weights_.data());
    WeighColumns(weights_.data(), columns, weights_.data());
    for (int64_t p = 0; p < count; p += kNear) {
      const int64_t end = std::min(count, p + kNear);
      for (int64_t row = p; row < end; ++row)
        times[row] = 1 / InverseOf(ShiftOfRow(SquaresOf(rows[row], 1, columns, weights_.data()), columns));
      for (size_t b = 0; b < bands_.size(); ++b) CopyRows(b, rows, times, p, end);
    }
    bool are_paired = true;
    for (size_t b = 0; b < bands_.size() && are_paired; ++b) are_paired = Pair(b, count);
    return are_paired;
  }

  /* Rows of a tile from column `first` on, whose results go to rows `stride` apart; how many there are. */
  int64_t Take(int64_t first, float* to, int64_t stride, Row* rows) const {
    const Band& band = bands_[first / kLanes];
    const int64_t count = std::min<int64_t>(kRows, columns_ - first), lane = first % kLanes;
    for (int64_t i = 0; i < count; ++i) {
      rows[i].left = At(first / kLanes) + lane + i;
      rows[i].to = to + (first + i) * stride;
      rows[i].sums[0] = band.sums[lane + i];
      rows[i].inverse = band.inverses[lane + i];
    }
    return count;
  }

  /* Adds the products of all columns with N others, of which numbers of a row are side by side. */
  template <int N>
  void AddFew(const float* few, int64_t count, float* to, int64_t stride) const {
    for (size_t b = 0; b < bands_.size(); ++b) {
      const float* at = At(b);
      Lanes sums[N] = {};
      for (int64_t p = 0; p < count; ++p) {
        const Lanes x = LoadLanes(at + p * kLanes);
#pragma GCC unroll 8
        for (int j = 0; j < N; ++j) sums[j] += x * Everywhere(few + p * N + j);
      }
      const int64_t first = b * kLanes, end = std::min(kLanes, columns_ - first);
#pragma GCC unroll 8
      for (int j = 0; j < N; ++j) {
        const Lanes sum = sums[j] * bands_[b].inverses;
        for (int64_t i = 0; i < end; ++i) to[(first + i) * stride + j] += sum[i];
      }
    }
  }

 private:
  static constexpr int64_t kNear = 8;  // rows that are near while all their columns are copied

  struct Band {
    Lanes squares, sizes;  // squares may be zero where numbers are not
    Lanes sums, inverses;
  };

  float* At(int64_t band) const {
    const auto begin = reinterpret_cast<uintptr_t>(numbers_.data());
    return reinterpret_cast<float*>((begin + kBlockBytes - 1) / kBlockBytes * kBlockBytes) +
           band * depth_ * kLanes;
  }

  void CopyRows(int64_t number, const std::vector<const float*>& rows, const float* times, int64_t begin,
                int64_t end) {
    const int64_t column = number * kLanes, columns = std::min(kLanes, columns_ - column);
    float* const to = At(number);
    Lanes squares = {}, sizes = {};
    for (int64_t p = begin; p < end; ++p) {
      const float* from = rows[p] + column;
      const Lanes x = (columns == kLanes ? LoadLanes(from) : FirstOf(from, columns)) * times[p];
      StoreLanes(to + p * kLanes, x);
      squares += x * x;
      sizes += blocked::Absolute(x);
    }
    bands_[number].squares += squares;
    bands_[number].sizes += sizes;
  }

  /* Brings columns to one size and sums up the products of pairs; whether that went well. */
  bool Pair(int64_t number, int64_t count) {
    Band& band = bands_[number];
    Lanes products = {}, scale;
    for (int64_t i = 0; i < kLanes; ++i) {
      const bool is_zero = band.sizes[i] == 0;
      const int shift = is_zero ? 0 : ShiftFor(band.squares[i], count);
      if (!IsWithin(shift, kMostOfRow)) return false;
      scale[i] = PowerOfTwo(shift);
      band.inverses[i] = is_zero ? 0 : PowerOfTwo(-shift);  // so that no gradient stays none
    }
    float *at = At(number), *const end = at + depth_ * kLanes;
    std::memset(at + count * kLanes, 0, (depth_ - count) * kLanes * sizeof(float));
    for (; at < end; at += 3 * kLanes) {
      const Lanes x = LoadLanes(at) * scale, y = LoadLanes(at + kLanes) * scale;
      StoreLanes(at, x);
      StoreLanes(at + kLanes, y);
      StoreLanes(at + 2 * kLanes, LoadLanes(at + 2 * kLanes) * scale);
      products -= x * y;
    }
    band.sums = products;
    return true;
  }

  std::vector<Band> bands_;
  std::vector<float> numbers_;
  std::vector<float> weights_;  // of columns, while rows are asked what they are multiplied by
  int64_t depth_ = 0, columns_ = 0;
};

/* Columns of right rows. */
struct OuterPanel {
  alignas(kBlockBytes) float numbers[kMostOuter * kWidth];
  alignas(kBlockBytes) float sums[kWidth], scales[kWidth], inverses[kWidth];

  /* Copies up to kWidth columns of rows, each divided by its number in `times`; whether they may be paired. */
  bool Copy(const std::vector<const float*>& rows, int64_t column, int64_t columns, const float* times) {
    const int64_t depth = rows.size(), width = VectorsOf(columns) * kLanes;
    if (columns < width) std::memset(numbers, 0, depth * width * sizeof(float));
    for (int64_t p = 0; p < depth; ++p)
      CopyFew(rows[p] + column, columns, numbers + p * width);
    if (!PairPanel(numbers, depth, width, times, 1, sums, scales, inverses)) return false;
    SilenceZeros(numbers, depth, width, inverses);
    return true;
  }
};

/* Adds a sum's products of all m columns of left rows with a panel of columns from `column` on. */
void AddPanel(const Bands& bands, int64_t m, const OuterPanel& of_columns, int64_t depth,
              const OuterSum<float>& sum, int64_t column) {
  const Panel panel{of_columns.numbers, of_columns.sums, of_columns.scales, of_columns.inverses,
                    Padded(depth),      ThreesOf(depth), 0};
  Row rows[kRows];
  const Tile tile{rows, &panel, 1, column, std::min(sum.n - column, kWidth), true};
  for (int64_t i = 0; i < m; i += kRows) {
    const int64_t count = bands.Take(i, sum.c, sum.c_stride, rows);
    Pick<kLanes>(count, VectorsOf(tile.columns))(tile);
  }
}

/* Adds a sum's products with N columns from `column` on, number by number, as pairs of so few would leave most
 * lanes of a tile idle; whether that went well. */
template <int N>
bool AddFew(const Bands& bands, const std::vector<const float*>& rows, const float* times,
            const OuterSum<float>& sum, int64_t column) {
  float few[kMostOuter * N], squares[N] = {}, sizes[N] = {}, scales[N];
  const int64_t count = rows.size();
  for (int64_t p = 0; p < count; ++p)
    for (int j = 0; j < N; ++j) {
      const float x = rows[p][column + j] / times[p];
      few[p * N + j] = x;
      squares[j] += x * x;
      sizes[j] += std::abs(x);
    }
  if (!ScaleColumns(count, N, squares, sizes, scales)) return false;
  bands.AddFew<N>(few, count, sum.c + column, sum.c_stride);
  return true;
}

template <int... N>
auto PickFew(int64_t columns, std::integer_sequence<int, N...>) {
  static constexpr decltype(&AddFew<1>) table[] = {AddFew<N + 1>...};
  return table[columns - 1];
}

/* Adds a sum's products with up to kWidth columns from `column` on; whether that went well. */
bool AddColumns(const Bands& bands, int64_t m, const std::vector<const float*>& rows, const float* times,
                const OuterSum<float>& sum, int64_t column, OuterPanel* panel) {
  const int64_t columns = std::min(sum.n - column, kWidth);
  if (columns <= kFew)
    return PickFew(columns, std::make_integer_sequence<int, kFew>{})(bands, rows, times, sum, column);
  if (!panel->Copy(rows, column, columns, times)) return false;
  AddPanel(bands, m, *panel, rows.size(), sum, column);
  return true;
}

/* Has `plain` add up to kWidth columns of a sum. */
void AddPlain(const Products<float>& plain, const OuterRows<float>& rows, int64_t number,
              const OuterSum<float>& sum, int64_t column, int64_t m) {
  std::vector<Segment<float>> each;
  for (int64_t p = 0; p < rows.depth(); ++p)
    each.push_back({rows.left[p], rows.right[number][p] + column, 0, 0, 1});
  const OuterSum<float> some{each.data(), std::min(sum.n - column, kWidth), sum.c + column, sum.c_stride};
  plain.outer(&some, 1, each.size(), m);
}

/* Adds sums of outer products of matrices, the left one with m columns (see matrix.h); what cannot be in
 * pairs by `plain`. */
void AddOuter(const Products<float>& plain, const OuterSum<float>* sums, int64_t count, int64_t segments,
              int64_t m) {
  static thread_local struct {
    OuterRows<float> rows;
    Bands bands;
    OuterPanel panel;
  } scratch;
  auto& [rows, bands, panel] = scratch;  // found once, as a lambda would ask for the thread's each time
  ForOuterRows(sums, count, segments, kMostOuter, &rows, [&, &rows = rows, &bands = bands, &panel = panel] {
    float times[kMostOuter];
    const bool are_paired = bands.Copy(rows.left, m, times);
    for (int64_t i = 0; i < count; ++i)
      for (int64_t j = 0; j < sums[i].n; j += kWidth)
        if (!are_paired || !AddColumns(bands, m, rows.right[i], times, sums[i], j, &panel))
          AddPlain(plain, rows, i, sums[i], j, m);
  });
}

}  // namespace
}  // namespace graphopt::paired

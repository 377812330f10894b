/*
 * Winograd's minimal filtering (winograd.h) with its products in pairs (paired.h).
 *
 * Transformed tiles lie in strips of as many as are multiplied at a time: [point][strip][block][tile]. A task
 * transforms a strip, all channels of it, and makes them rows of pairs; they are still near it.
 */
#include <numeric>
#include <vector>

#include "filtering.h"
#include "paired_blocks.h"
#include "winograd.h"

namespace graphopt::blocked {
namespace {

constexpr int64_t kSlab = 5;  // blocks of channels of a large layer at a time; all points of a panel stay near a thread
static_assert(kSlab <= kPart, "a slab is a part");
constexpr int64_t kTaps = 9;

/* Where strips of tiles lie, and what is noted of their rows. */
struct Strips {
  const Tiling& tiling;
  Cut cut;
  int64_t strip, point;  // floats of one, with room for kRows tiles; from point to point
  int64_t part, parts;   // blocks of a part, of which rows' pairs are summed up by themselves
  float *at, *sums, *inverses;

  Strips(const Bound& bound, const Tiling& tiling)
      : tiling(tiling),
        cut(tiling.count, kRows),
        strip(tiling.in_blocks * kRows * kLanes),
        point(OddLines(tiling.in_blocks * kRows * cut.pieces)),
        part(bound.factors ? SlabOf(tiling) : kPart),
        parts(Ceil(tiling.in_blocks, part)),
        at(tiling.Input(bound, 0, 0)),
        sums(bound.factors ? tiling.Output(bound, 0, 0) : tiling.Behind(bound)),
        inverses(sums + tiling.points * tiling.chunk * parts) {}
  float* Rows(int64_t p, int64_t number) const { return at + p * point + number * strip; }
  /* What is noted of a strip's rows; of their sums there is one for each part. */
  int64_t Noted(int64_t p, int64_t number) const { return (p * cut.pieces + number) * kRows; }
};

/* Makes a strip's transformed numbers rows of pairs. */
template <int R>
void PairStrip(const Bound& bound, const Strips& strips, int64_t number) {
  constexpr int kPoints = kLanes / R;  // of which one vector has what is found of all rows
  const int64_t blocks = strips.tiling.in_blocks, points = strips.tiling.points;
  const PairedPack pack(blocks * kLanes, bound.step->filters, points);
  const auto at = [](int64_t block) { return block * R * kLanes; };
  const auto rows_of = [&](int64_t point) {
    const float* factors = bound.factors ? bound.factors : Notes<const float>(pack, point, bound.weights).factors;
    return Rows<decltype(at)>{strips.Rows(point, number), kLanes, blocks, at, factors};
  };
  for (int64_t first = 0; first < points; first += kPoints) {
    const int count = std::min<int64_t>(kPoints, points - first);
    Lanes found[kLanes] = {};
    for (int p = 0; p < count; ++p) AddSquares<R>(rows_of(first + p), found + p * R);
    Sizes sizes(found, pack.depth);
    for (int p = 0; p < count; ++p) sizes.Settle(p * R, R, rows_of(first + p));
    for (int64_t part = 0; part < strips.parts; ++part) {
      const int64_t begin = part * strips.part, end = std::min(begin + strips.part, blocks);
      std::fill(found, found + kLanes, Lanes{});
      for (int p = 0; p < count; ++p)
        CopyRows<R>(rows_of(first + p), begin, end, sizes, p * R, strips.Rows(first + p, number), R * kLanes,
                    found + p * R);
      float sums[kLanes];
      StoreLanes(sums, SumsOf(found));
      for (int p = 0; p < count; ++p)
        std::copy_n(sums + p * R, R, strips.sums + strips.Noted(first + p, number) * strips.parts + part * kRows);
    }
    for (int p = 0; p < count; ++p)
      std::copy_n(sizes.inverses + p * R, R, strips.inverses + strips.Noted(first + p, number));
  }
}

template <int M>
void Transform(const Bound& bound, const Strips& strips, int64_t number) {
  const int64_t first = strips.cut.Begin(number), width = strips.cut.Width(number);
  for (int64_t block = 0; block < strips.tiling.in_blocks; ++block)
    for (int64_t i = 0; i < width; ++i)
      TransformInput<M>(bound, strips.tiling, block, first + i, strips.Rows(0, number) + (block * width + i) * kLanes,
                        strips.point);
  ForRows<kRows>(width, [&](auto rows) { PairStrip<rows>(bound, strips, number); });
}

}  // namespace

int64_t NotedOfPairs(const Tiling& tiling, bool is_large) {
  return 1 + Ceil(tiling.in_blocks, is_large ? SlabOf(tiling) : kPart);
}

int64_t PairedTransformTasks(const Tiling& tiling) { return Ceil(tiling.count, kRows); }

void PairedTransformTask(const Bound& bound, const Tiling& tiling, int64_t task) {
  const Strips strips(bound, tiling);
  if (bound.step->tile == 2)
    Transform<2>(bound, strips, task);
  else
    Transform<4>(bound, strips, task);
}

void MultiplyPairedTiles(const Bound& bound, const Tiling& tiling, int64_t point, int64_t panel) {
  const Strips strips(bound, tiling);
  const Step& step = *bound.step;
  const PairedPack pack(tiling.in_blocks * kLanes, step.filters, tiling.points);
  const int64_t blocks = BlocksOf(step, panel), out_block = tiling.count * kLanes;
  float* out = tiling.Output(bound, point, panel * kVectors);
  for (int64_t number = 0; number < strips.cut.pieces; ++number) {
    const int64_t width = strips.cut.Width(number), noted = strips.Noted(point, number);
    PairedOperands rows{};
    rows.in = strips.Rows(point, number);
    rows.stride = width * kLanes;
    rows.depth = tiling.in_blocks;
    rows.row_sums = strips.sums + noted * pack.parts;
    rows.row_part = kRows;
    rows.row_inverses = strips.inverses + noted;
    const Target to{out + strips.cut.Begin(number) * kLanes, out_block, nullptr, 0, nullptr, nullptr, nullptr, 0};
    PickPaired(width, blocks)(WithPanel(rows, pack, bound.weights, point, panel), to);
  }
}

int64_t SlabOf(const Tiling& tiling) { return Ceil(tiling.in_blocks, Ceil(tiling.in_blocks, kSlab)); }

int64_t StripsOf(const Tiling& tiling) { return Ceil(tiling.count, kRows); }

int64_t StripBegin(const Tiling& tiling, int64_t strip) { return Cut(tiling.count, kRows).Begin(strip); }

int64_t PairedSlabFloats(int64_t depth, int64_t blocks) { return (depth * kLanes + 3) * blocks * kLanes; }

void PairSlab(const float* factors, int64_t depth, int64_t blocks, float* packed) {
  const int64_t width = blocks * kLanes;
  float *sums = packed + depth * kLanes * width, *inverses = sums + width;
  const auto pair = blocks == kVectors ? PairPanel<kVectors> : PairPanel<1>;
  inverses[width] = pair(packed, depth * kLanes, factors, sums, 0, inverses);
}

void MultiplyPairedSlab(const Bound& bound, const Tiling& tiling, int64_t point, int64_t slab, int64_t begin, int64_t end,
                        const float* packed, int64_t blocks, float* to, int64_t block_stride) {
  const Strips strips(bound, tiling);
  const int64_t first = slab * strips.part, depth = std::min(strips.part, tiling.in_blocks - first);
  const int64_t width = blocks * kLanes, before = strips.cut.Begin(begin);
  PairedOperands from{};
  from.depth = depth;
  from.packed = packed;
  from.factors = bound.factors + first * kLanes;
  from.sums = packed + depth * kLanes * width;
  from.inverses = from.sums + width;
  from.is_paired = from.inverses[width] != 0;
  for (int64_t number = begin; number < end; ++number) {
    const int64_t rows = strips.cut.Width(number), noted = strips.Noted(point, number);
    from.in = strips.Rows(point, number) + first * rows * kLanes;
    from.stride = rows * kLanes;
    from.row_sums = strips.sums + noted * strips.parts + slab * kRows;
    from.row_inverses = strips.inverses + noted;
    Target target{to + (strips.cut.Begin(number) - before) * kLanes, block_stride, nullptr, 0, nullptr, nullptr, nullptr,
                  0, slab > 0};
    PickPaired(rows, blocks)(from, target);
  }
}

void NoteFilters(const Filters& filters, int64_t begin, int64_t end, float* factors) {
  float* largest = factors + filters.channels;
  const int64_t each = filters.channels * kTaps;
  if (!filters.is_turned) return paired::NoteLargest(filters.weights, 1, each, each, begin, end, largest);
  float of_taps[kLanes * kTaps];
  const auto at = [&](int64_t channel) { return filters.weights + (channel * filters.count + begin) * kTaps; };
  paired::NoteLargest(filters.channels, (end - begin) * kTaps, at, of_taps);
  paired::NoteLargest(of_taps, 1, kTaps, kTaps, 0, end - begin, largest + begin);
}

void NoteChannels(const Filters& filters, int64_t begin, int64_t end, float* factors) {
  const int64_t all = filters.count * kTaps, each = filters.channels * kTaps;
  std::vector<float> weights(filters.count);
  paired::WeighColumns(factors + filters.channels, filters.count, weights.data());
  if (filters.is_turned) {
    std::vector<float> of_taps(all);
    for (int64_t i = 0; i < all; ++i) of_taps[i] = weights[i / kTaps];
    paired::SumSquares(filters.weights, all, 1, begin, end, all, of_taps.data(), factors);
  } else {
    std::vector<float> squares(each);
    paired::SumSquares(filters.weights, 1, each, begin * kTaps, end * kTaps, filters.count, weights.data(),
                       squares.data());
    for (int64_t channel = begin; channel < end; ++channel)
      factors[channel] = std::accumulate(&squares[channel * kTaps], &squares[channel * kTaps] + kTaps, 0.0f);
  }
  for (int64_t channel = begin; channel < end; ++channel)
    factors[channel] = paired::InverseOf(paired::ShiftOfRow(factors[channel], all));
}

}  // namespace graphopt::blocked
